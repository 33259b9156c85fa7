from __future__ import annotations

from typing import Any

import pytest

from engine.errors import InvalidGrammar
from engine.requests import Grammar
from engine.text.grammar import GrammarCompiler
from engine.text.json_schemas import KNOWN_FORMATS, UNSUPPORTED, unsupported_keyword, without_unknown_formats
from tests.fakes.byte_tokenizer import ByteTokenizer


def compile_schema(schema: dict[str, Any]) -> None:
    GrammarCompiler(ByteTokenizer()).compile(Grammar("json_schema", schema))


def in_property(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": keywords}}


@pytest.mark.parametrize("name", ["idn-email", "iri", "json-pointer", "regex", "phone", "made-up"])
def test_a_format_that_nobody_checks_is_ignored_as_json_schema_says(name: str) -> None:
    compile_schema(in_property(type="string", format=name))
    compile_schema({"type": "array", "items": {"anyOf": [{"type": "string", "format": name}]}})


@pytest.mark.parametrize("name", sorted(KNOWN_FORMATS))
def test_a_known_format_stays(name: str) -> None:
    schema = in_property(type="string", format=name)
    compile_schema(schema)
    assert without_unknown_formats(schema) == schema


@pytest.mark.parametrize(
    ("keywords", "path"),
    [
        ({"type": "array", "uniqueItems": True}, "properties.*.uniqueItems"),
        ({"type": "array", "contains": {"type": "string"}}, "properties.*.contains"),
        ({"not": {"type": "string"}}, "properties.*.not"),
        ({"if": {}, "then": {}}, "properties.*.if"),
        ({"type": "object", "dependentRequired": {"b": ["c"]}}, "properties.*.dependentRequired"),
        ({"type": "array", "items": {"propertyNames": {"const": "SECRETO"}}}, "properties.*.items.propertyNames"),
        ({"anyOf": [{"type": "string"}, {"not": {}}]}, "properties.*.anyOf.1.not"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "minLength": 3}]}, "properties.*.oneOf"),
    ],
)
def test_an_unsupported_keyword_is_named_with_its_place(keywords: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        compile_schema(in_property(**keywords))
    assert f"`{path}`" in caught.value.limit
    assert "SECRETO" not in str(caught.value)


@pytest.mark.parametrize("name", sorted(UNSUPPORTED | {"format"}))
def test_a_property_or_a_value_named_like_a_keyword_is_no_keyword(name: str) -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": "string", "enum": ["x"]}, "b": {"const": {name: "phone"}}},
        "required": [name],
    }
    assert unsupported_keyword(schema) is None
    assert without_unknown_formats(schema) == schema
    compile_schema(schema)


def test_unique_items_false_asks_nothing() -> None:
    compile_schema(in_property(type="array", uniqueItems=False))
