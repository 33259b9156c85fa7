"""What goes into the store and what comes out of it, where the database is away, and by whose rights."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from gateway.api.responses.body import parse
from gateway.api.responses.kept import Stores, complete, keep, may_keep
from gateway.api.responses.object import Ending, ended
from gateway.audit.content import ContentSealer
from gateway.audit.content_keys import parse_content_keys
from gateway.conversations.conversation_store import ConversationStore
from gateway.conversations.store import ResponseStore
from gateway.errors import Unavailable
from gateway.flow.answer import Bill
from gateway.flow.context import SystemClock, SystemIds
from gateway.flow.values import Obligations
from gateway.storage.postgres import make_engine
from tests.fakes.exchanges import ALLOW, ANA, admitted, context

KEYS = parse_content_keys(f"k1:{base64.b64encode(b'k' * 32).decode()}", source="test")
KEPT = replace(ALLOW, obligations=Obligations(response_store_days=7))


def stores(*, key: bool = True) -> Stores:
    """On a database that is away."""
    engine = make_engine("postgresql+asyncpg://nobody@127.0.0.1:1/none", pool_size=1)
    sealer = ContentSealer(KEYS, timedelta(days=1)) if key else None
    responses = ResponseStore(engine, sealer, SystemClock())
    return Stores(responses, ConversationStore(engine, sealer, responses, SystemClock(), SystemIds()))


def asked(**body: Any) -> Any:
    return parse({"model": "mini", "input": "Hola", **body})


async def test_an_answer_stays_whole_where_it_cannot_be_kept() -> None:
    reserved, away = replace(admitted(), request=asked(), decision=KEPT), stores()
    assert may_keep(away, reserved)
    response = ended(reserved, Bill(), [], Ending("completed"), store=True, now=0)
    await keep(away, reserved, response)
    assert (response["store"], response["status"]) == (False, "completed")


@pytest.mark.parametrize("cause", ["revoked", "policy"])
async def test_nothing_is_kept_for_who_may_no_longer_have_it(cause: str) -> None:
    reserved = replace(admitted(), request=asked(), decision=KEPT)
    response = ended(reserved, Bill(), [], Ending("incomplete", "max_output_tokens", cause), store=True, now=0)
    await keep(stores(), reserved, response)
    assert response["store"] is False


def test_caller_policy_and_key_all_have_to_agree() -> None:
    wanted, unwanted = admitted(), replace(admitted(), request=asked(store=False), decision=KEPT)
    assert not may_keep(stores(), unwanted)
    assert not may_keep(stores(), replace(wanted, request=asked()))
    assert not may_keep(stores(key=False), replace(wanted, request=asked(), decision=KEPT))


@pytest.mark.parametrize(
    "named",
    [
        {"previous_response_id": "resp_" + "0" * 32},
        {"conversation": "conv_" + "0" * 32},
        {"input": [{"type": "item_reference", "id": "msg_" + "0" * 36}]},
    ],
)
async def test_what_is_stored_elsewhere_is_asked_for_before_an_answer_begins(named: dict[str, Any]) -> None:
    with pytest.raises(Unavailable) as away:
        await complete(stores(), asked(**named), ANA, context())
    assert (away.value.status, away.value.code) == (503, "responses_unavailable")


async def test_a_request_that_names_nothing_needs_no_database() -> None:
    request = asked()
    assert await complete(stores(), request, ANA, context()) is request
