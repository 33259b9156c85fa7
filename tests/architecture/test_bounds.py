"""Every list, map and text that a caller may send in a body has a bound, on every route."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from gateway.access.document.model import PolicySet
from gateway.admin.audit.routes import EventQuery
from gateway.admin.bodies import AdminBody
from gateway.api.bounds import FewFields
from gateway.api.openapi import ROUTES
from tests.fakes.schema_walk import unbounded


def descendants(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for child in model.__subclasses__():
        yield child
        yield from descendants(child)


def sent_by_callers() -> list[type[BaseModel]]:
    bodies = [body for body, *_ in ROUTES.values()]
    found: set[type[BaseModel]] = {*bodies, *descendants(AdminBody), PolicySet, EventQuery}
    return sorted((model for model in found if model.__module__.startswith("gateway.")), key=lambda one: one.__name__)


@pytest.mark.parametrize("model", sent_by_callers(), ids=lambda model: model.__name__)
def test_no_field_of_a_body_is_without_a_bound(model: type[BaseModel]) -> None:
    schema = model.model_json_schema(by_alias=True)
    assert list(unbounded(schema, schema.get("$defs", {}), model.__name__)) == []


@pytest.mark.parametrize("model", [model for model in sent_by_callers() if model not in (PolicySet, EventQuery)])
def test_every_object_of_a_body_refuses_too_many_fields_before_it_looks_at_them(model: type[BaseModel]) -> None:
    assert issubclass(model, FewFields)


def test_the_walk_finds_what_has_no_bound() -> None:
    class Loose(BaseModel):
        text: str
        texts: list[str]
        labels: dict[str, str] | None = None

    schema = Loose.model_json_schema()
    found = {place.partition(":")[0] for place in unbounded(schema, {}, "Loose")}
    assert found == {"Loose.text", "Loose.texts", "Loose.texts[]", "Loose.labels|0", "Loose.labels|0{}"}
