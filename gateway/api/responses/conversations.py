"""`/v1/conversations`: conversations as objects, which a request for a response goes on in. For their owner alone.

Items that are put in by themselves pass no guardrail until a request sends them to a model, and then all do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import Field, ValidationError

from gateway.admin.bodies import json_body
from gateway.api.http.body import BodyReader, ClientGone
from gateway.api.http.errors import refusal_of
from gateway.api.responses.answers import AnyItem as AnyItemView
from gateway.api.responses.answers import ConversationView, DeletedConversation, ItemList
from gateway.api.responses.conversation import ItemIds, calls_of, input_items, messages_of
from gateway.api.responses.items import AnyItem, Item, parse_items
from gateway.api.responses.kept import absent_conversation, conversation_key
from gateway.api.responses.recording import recorded
from gateway.api.responses.stored import Identify, item_page
from gateway.api.structured import Strict
from gateway.conversations.conversation_store import Conversation, ConversationStore
from gateway.conversations.sealing import Owner
from gateway.conversations.store import Kept
from gateway.errors import InvalidRequest, NotFound, NotPermitted
from gateway.flow.context import RequestContext
from gateway.flow.ports import AuditLog, Authorizer
from gateway.flow.values import Principal

READ, WRITE, DELETE = "conversations.read", "conversations.write", "conversations.delete"
MAX_ADDED = 20
Body = TypeVar("Body", bound=Strict)
Found = TypeVar("Found")
Metadata = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16, fail_fast=True),
]
NewItems = Annotated[list[AnyItem], Field(max_length=MAX_ADDED, fail_fast=True)]


class ConversationBody(Strict):
    items: NewItems | None = None
    metadata: Metadata | None = None


class MetadataBody(Strict):
    metadata: Metadata | None = None


class ItemsBody(Strict):
    items: Annotated[NewItems, Field(min_length=1)]


def routes(
    identify: Callable[[str], Identify],
    store: ConversationStore,
    audit: AuditLog,
    authorizer: Authorizer,
    body: BodyReader,
) -> APIRouter:
    """`identify` verifies the caller and puts refusals on record."""
    router = APIRouter(tags=["conversations"])
    reader, writer, deleter = identify(READ), identify(WRITE), identify(DELETE)

    def on_record(
        request: Request, caller: Principal, conversation_id: str, action: str
    ) -> AbstractAsyncContextManager[UUID]:
        key = conversation_key(conversation_id)
        return recorded(audit, request, caller, action, "conversations", key, _name, _absent)

    async def found(owner: Owner, key: UUID) -> Conversation:
        return _there(await store.get(owner, key))

    async def said(owner: Owner, key: UUID) -> list[Kept]:
        return _there(await store.turns(owner, key))

    async def put(
        request: Request, owner: Owner, conversation: Conversation, items: Sequence[Item]
    ) -> list[dict[str, Any]]:
        context: RequestContext = request.scope["state"]["context"]
        before = [item for turn in await said(owner, conversation.id) for item in _items(turn)]
        known = calls_of(messages_of(parse_items(before)))
        row = store.new_row()
        added = input_items(messages_of(items, known), ItemIds(row.hex, given=True))
        await store.add(owner, conversation, row, added, context.data_class)
        return added

    def kept_for(request: Request, caller: Principal) -> timedelta:
        """As long as any model that the caller may chat with has its responses kept."""
        context: RequestContext = request.scope["state"]["context"]
        decisions = [
            authorizer.decide(caller, "chat", card, context) for card in authorizer.visible_models(caller, context)
        ]
        days = max((one.obligations.response_store_days for one in decisions if one.allowed), default=0)
        if days == 0 or not store.keeps:
            raise NotPermitted(
                "Policy does not let conversations of yours be kept.",
                code="conversations_not_permitted",
                hint="send the whole conversation as `input`, or ask for `responseStoreDays`",
            )
        return timedelta(days=days)

    @router.post(
        "/v1/conversations",
        summary="Begin a conversation",
        responses={200: {"model": ConversationView}},
        openapi_extra=json_body(ConversationBody),
    )
    async def create(request: Request) -> dict[str, Any]:
        caller = await writer(request)
        owner, key = Owner.of(caller), store.new_row()
        async with recorded(audit, request, caller, WRITE, "conversations", key, _name, _absent):
            kept = kept_for(request, caller)
            asked = await _body(request, body, ConversationBody)
            messages_of(tuple(asked.items or ()))
            made = _there(await store.create(owner, key, asked.metadata or {}, kept))
            if asked.items:
                await put(request, owner, made, asked.items)
        return _view(made)

    @router.get(
        "/v1/conversations/{conversation_id}",
        summary="A conversation of yours",
        responses={200: {"model": ConversationView}},
    )
    async def retrieve(request: Request, conversation_id: str) -> dict[str, Any]:
        caller = await reader(request)
        async with on_record(request, caller, conversation_id, READ) as key:
            return _view(await found(Owner.of(caller), key))

    @router.post(
        "/v1/conversations/{conversation_id}",
        summary="Change the labels of a conversation of yours",
        responses={200: {"model": ConversationView}},
        openapi_extra=json_body(MetadataBody),
    )
    async def update(request: Request, conversation_id: str) -> dict[str, Any]:
        caller = await writer(request)
        async with on_record(request, caller, conversation_id, WRITE) as key:
            asked = await _body(request, body, MetadataBody)
            return _view(_there(await store.update(Owner.of(caller), key, asked.metadata or {})))

    @router.delete(
        "/v1/conversations/{conversation_id}",
        summary="Delete a conversation of yours, and all that was said in it",
        responses={200: {"model": DeletedConversation}},
    )
    async def remove(request: Request, conversation_id: str) -> dict[str, Any]:
        caller = await deleter(request)
        async with on_record(request, caller, conversation_id, DELETE) as key:
            if not await store.delete(Owner.of(caller), key):
                raise _absent()
        return {"id": conversation_id, "object": "conversation.deleted", "deleted": True}

    @router.get(
        "/v1/conversations/{conversation_id}/items",
        summary="What was said in a conversation of yours",
        responses={200: {"model": ItemList}},
    )
    async def list_items(
        request: Request,
        conversation_id: str,
        after: Annotated[str | None, Query(max_length=256)] = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> dict[str, Any]:
        caller = await reader(request)
        async with on_record(request, caller, conversation_id, READ) as key:
            items = [item for turn in await said(Owner.of(caller), key) for item in _items(turn)]
            return item_page(items if order == "asc" else items[::-1], after, limit)

    @router.post(
        "/v1/conversations/{conversation_id}/items",
        summary="Put items into a conversation of yours",
        responses={200: {"model": ItemList}},
        openapi_extra=json_body(ItemsBody),
    )
    async def add_items(request: Request, conversation_id: str) -> dict[str, Any]:
        caller = await writer(request)
        async with on_record(request, caller, conversation_id, WRITE) as key:
            owner = Owner.of(caller)
            conversation = await found(owner, key)
            asked = await _body(request, body, ItemsBody)
            return item_page(await put(request, owner, conversation, asked.items), None, 1000)

    @router.get(
        "/v1/conversations/{conversation_id}/items/{item_id}",
        summary="One item of a conversation of yours",
        responses={200: {"model": AnyItemView}},
    )
    async def one_item(request: Request, conversation_id: str, item_id: str) -> dict[str, Any]:
        caller = await reader(request)
        async with on_record(request, caller, conversation_id, READ) as key:
            for turn in await said(Owner.of(caller), key):
                for item in _items(turn):
                    if item["id"] == item_id:
                        return item
            raise _absent_item()

    @router.delete(
        "/v1/conversations/{conversation_id}/items/{item_id}",
        summary="Take an item out of a conversation of yours",
        responses={200: {"model": ConversationView}},
    )
    async def remove_item(request: Request, conversation_id: str, item_id: str) -> dict[str, Any]:
        caller = await deleter(request)
        async with on_record(request, caller, conversation_id, DELETE) as key:
            owner = Owner.of(caller)
            conversation = await found(owner, key)
            for turn in await said(owner, key):
                if any(item["id"] == item_id for item in _items(turn)):
                    await store.replace(owner, _without(turn, item_id))
                    return _view(conversation)
            raise _absent_item()

    return router


def _without(turn: Kept, item_id: str) -> Kept:
    output = [item for item in turn.response["output"] if item["id"] != item_id]
    items = [item for item in turn.input if item["id"] != item_id]
    return replace(turn, response={**turn.response, "output": output}, input=items)


def _items(turn: Kept) -> list[dict[str, Any]]:
    return [*turn.input, *turn.response["output"]]


async def _body(request: Request, reader: BodyReader, schema: type[Body]) -> Body:
    def validated(value: object) -> Body:
        try:
            return schema.model_validate(value)
        except ValidationError as error:
            raise refusal_of(error) from None

    try:
        raw = await reader.read(request.scope["headers"], request.receive)
    except ClientGone:
        raise InvalidRequest("The client hung up while the body was being read.", code="client_disconnect") from None
    return await reader.parsed(raw, validated)


def _there(found: Found | None) -> Found:
    if found is None:
        raise _absent()
    return found


def _absent() -> NotFound:
    return absent_conversation("conversation_id")


def _absent_item() -> NotFound:
    return NotFound("There is no such item in this conversation.", code="item_not_found", param="item_id")


def _name(key: UUID) -> str:
    return f"conv_{key.hex}"


def _view(conversation: Conversation) -> dict[str, Any]:
    return {
        "id": _name(conversation.id),
        "object": "conversation",
        "created_at": int(conversation.created_at.timestamp()),
        "metadata": dict(conversation.metadata),
    }
