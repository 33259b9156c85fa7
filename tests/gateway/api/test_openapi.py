"""The OpenAPI document costs half a second of a core to make: it is made once, and never on the event loop."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from pydantic import BaseModel, create_model

from gateway.api.openapi import Document, _schema


class Maker:
    def __init__(self) -> None:
        self.threads: list[int] = []
        self.faults = 0

    def make(self) -> dict[str, Any]:
        self.threads.append(threading.get_ident())
        if self.faults:
            self.faults -= 1
            raise ValueError("not now")
        return {"openapi": "3.1.0", "info": {"title": "Canción"}}


async def test_many_who_ask_at_once_and_later_share_one_document_made_beside_the_loop() -> None:
    maker = Maker()
    document = Document(maker.make)
    found = await asyncio.gather(*(document.text() for _ in range(8)))
    found.append(await document.text())
    assert {json.loads(text)["info"]["title"] for text in found} == {"Canción"}
    assert len(maker.threads) == 1
    assert maker.threads[0] != threading.get_ident()


async def test_a_document_that_could_not_be_made_is_tried_again() -> None:
    maker = Maker()
    maker.faults = 1
    document = Document(maker.make)
    with pytest.raises(ValueError, match="not now"):
        await document.text()
    assert json.loads(await document.text())["openapi"] == "3.1.0"


def test_two_schemas_of_one_name_are_told_apart() -> None:
    class Inner(BaseModel):
        a: int

    first = create_model("First", inner=(Inner, ...))
    other = create_model("Inner", b=(str, ...))
    second = create_model("Second", inner=(other, ...), list=(list[other], ...))  # type: ignore[valid-type]
    schemas: dict[str, Any] = {}
    assert _schema(schemas, first) == {"$ref": "#/components/schemas/First"}
    assert _schema(schemas, second) == {"$ref": "#/components/schemas/Second"}
    assert set(schemas["Inner"]["properties"]) == {"a"}
    assert set(schemas["SecondInner"]["properties"]) == {"b"}
    assert schemas["First"]["properties"]["inner"] == {"$ref": "#/components/schemas/Inner"}
    assert schemas["Second"]["properties"]["inner"] == {"$ref": "#/components/schemas/SecondInner"}
    assert schemas["Second"]["properties"]["list"]["items"] == {"$ref": "#/components/schemas/SecondInner"}
