"""The store and a request: what is kept goes into the request that names it, and its answer is kept in turn."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args
from uuid import UUID

from gateway.access.document.vocabulary import DataClass
from gateway.api.responses.body import with_history
from gateway.api.responses.conversation import ItemIds, input_items, unknown_reference
from gateway.api.responses.items import Item, ReferenceItem, parse_items
from gateway.api.responses.object import asked_of
from gateway.api.responses.request import ResponsesRequest
from gateway.conversations.conversation_store import ConversationStore
from gateway.conversations.sealing import Owner
from gateway.conversations.store import Kept, ResponseStore
from gateway.errors import InvalidRequest, NotFound, Unavailable
from gateway.flow.context import RequestContext
from gateway.flow.stages import Reserved
from gateway.flow.values import ModelRequest, Principal

log = logging.getLogger("esclusa.api")
_RESPONSE = re.compile(r"\Aresp_([0-9a-f]{32})\Z")
_CONVERSATION = re.compile(r"\Aconv_([0-9a-f]{32})\Z")
_ITEM = re.compile(r"\A[a-z]{2,4}_([0-9a-f]{32})([0-9a-f]{4})\Z")
CLASSES: tuple[str, ...] = get_args(DataClass)
ENDED_RIGHTS = ("revoked", "policy")
"""Stop causes after which nothing is kept: the caller may no longer have it."""


def response_key(response_id: str) -> UUID | None:
    """None for what is no id of a response."""
    found = _RESPONSE.match(response_id)
    return None if found is None else UUID(hex=found[1])


def conversation_key(conversation_id: str) -> UUID | None:
    found = _CONVERSATION.match(conversation_id)
    return None if found is None else UUID(hex=found[1])


@dataclass(frozen=True, slots=True)
class Stores:
    responses: ResponseStore
    conversations: ConversationStore


async def complete(stores: Stores, request: ModelRequest, caller: Principal, context: RequestContext) -> ModelRequest:
    """The request with the stored items that it only names. Raises `InvalidRequest` for what is not there, is over or
    belongs to somebody else: nobody can tell these apart."""
    if not isinstance(request, ResponsesRequest) or request.asked.items is None:
        return request
    owner, asked, items = Owner.of(caller), request.asked, request.asked.items
    chain = list[Kept]()
    if asked.conversation is not None:
        name = conversation_key(asked.conversation)
        turns = None if name is None else await stores.conversations.turns(owner, name)
        if turns is None:
            raise absent_conversation("conversation")
        chain = turns
    if asked.previous_response_id is not None:
        key = response_key(asked.previous_response_id)
        found = None if key is None else await stores.responses.chain(owner, key)
        if found is None:
            raise InvalidRequest(
                "There is no stored response with this id, or a part of its conversation is gone.",
                code="previous_response_not_found",
                param="previous_response_id",
                hint="send the whole conversation as `input`; what is kept, and how long, is a matter of policy",
            )
        chain = found
    named = dict.fromkeys([key for item in items if (key := _owner_of(item)) is not None])
    kept = {one.id: one for one in (*chain, *await stores.responses.several(owner, list(named)))}
    require_class(kept.values(), context.data_class)
    return await asyncio.to_thread(_completed, request, chain, kept, items)


def _completed(
    request: ResponsesRequest, chain: Sequence[Kept], kept: dict[UUID, Kept], items: Sequence[Item]
) -> ResponsesRequest:
    history = [item for one in chain for item in parse_items([*one.input, *one.response["output"]])]
    resolved = list[Item]()
    for index, item in enumerate(items):
        if isinstance(item, ReferenceItem):
            key = _owner_of(item)
            stored = None if key is None or key not in kept else _item(kept[key], item.id)
            if stored is None:
                raise unknown_reference(f"input.{index}")
            resolved += parse_items([stored])
        else:
            resolved.append(item)
    return with_history(request, history, resolved)


def require_class(kept: Iterable[Kept], stated: str | None) -> None:
    """Raises `InvalidRequest` where what is kept was said under a higher class of data than the request states: it
    would be decided as if it was less than it is."""
    highest = max((_rank(one.data_class) for one in kept), default=-1)
    if highest > _rank(stated):
        raise InvalidRequest(
            f"What this continues was said as `{CLASSES[highest]}`, and the request states less.",
            code="data_class_too_low",
            param="x-esclusa-data-class",
            hint=f"send the header `x-esclusa-data-class: {CLASSES[highest]}`",
        )


def _rank(data_class: str | None) -> int:
    return CLASSES.index(data_class) if data_class in CLASSES else -1


def _owner_of(item: Item) -> UUID | None:
    """The response that a reference names an item of."""
    found = _ITEM.match(item.id) if isinstance(item, ReferenceItem) else None
    return None if found is None else UUID(hex=found[1])


def _item(kept: Kept, item_id: str) -> dict[str, Any] | None:
    return next((item for item in (*kept.response["output"], *kept.input) if item["id"] == item_id), None)


def absent_conversation(param: str) -> NotFound:
    return NotFound(
        "There is no such conversation.",
        code="conversation_not_found",
        param=param,
        hint="its time is over, or it belongs to somebody else",
    )


def may_keep(stores: Stores, reserved: Reserved) -> bool:
    """Whether the caller wants the answer kept, policy lets them, and there is a key."""
    return stores.responses.keeps and asked_of(reserved).store and reserved.decision.obligations.response_store_days > 0


async def keep(stores: Stores, reserved: Reserved, response: dict[str, Any]) -> None:
    """Keep the response, durably. Where that cannot be, the object says so and the answer stays whole."""
    request = reserved.request
    if not response["store"] or not isinstance(request, ResponsesRequest):
        return
    if response["x_esclusa"].get("stop") in ENDED_RIGHTS:
        response["store"] = False
        return
    asked = request.asked
    items = input_items(request.messages[asked.before :], ItemIds(reserved.request_id.hex, given=True))
    previous = None if asked.previous_response_id is None else response_key(asked.previous_response_id)
    owner, kept = Owner.of(reserved.principal), timedelta(days=reserved.decision.obligations.response_store_days)
    name = None if asked.conversation is None else conversation_key(asked.conversation)
    try:
        if name is not None:
            conversation = await stores.conversations.get(owner, name)
            if conversation is None:  # deleted meanwhile
                response["store"] = False
                return
            kept = min(kept, conversation.expires_at - datetime.now(UTC))
        await stores.responses.keep(
            owner,
            reserved.request_id,
            response,
            items,
            previous=previous,
            conversation=name,
            data_class=reserved.context.data_class,
            kept=kept,
        )
    except Unavailable as error:
        log.error("a response is not kept: %s", error.detail, extra={"request_id": str(reserved.request_id)})
        response["store"] = False
