"""Pydantic's kinds of errors in plain words: the type that was expected, the limit that was passed. Never the value."""

from __future__ import annotations

from collections.abc import Mapping

EXPECTED_TYPES: Mapping[str, str] = {
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "set_type": "a list",
    "frozen_set_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "mapping_type": "an object",
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "bool_parsing": "true or false",
    "none_required": "null",
    "uuid_type": "a UUID",
    "uuid_parsing": "a UUID",
    "datetime_type": "a date and time such as 2026-01-31T12:00:00Z",
    "datetime_parsing": "a date and time such as 2026-01-31T12:00:00Z",
    "datetime_from_date_parsing": "a date and time such as 2026-01-31T12:00:00Z",
}
"""Kind -> what the value must be, as JSON names it."""
LIMITS: Mapping[str, tuple[str, str]] = {
    "greater_than_equal": ("ge", "must be at least {}"),
    "greater_than": ("gt", "must be more than {}"),
    "less_than_equal": ("le", "must be at most {}"),
    "less_than": ("lt", "must be less than {}"),
    "string_too_short": ("min_length", "must have at least {} characters"),
    "string_too_long": ("max_length", "must have at most {} characters"),
    "too_short": ("min_length", "must have at least {} entries"),
    "too_long": ("max_length", "must have at most {} entries"),
    "too_many_fields": ("max_length", "must have at most {} fields"),
    "string_pattern_mismatch": ("pattern", "must match the pattern {}"),
    "literal_error": ("expected", "must be {}"),
    "enum": ("expected", "must be {}"),
}
"""Kind -> (name of the limit in the error's context, the sentence)."""


def is_type_error(kind: str) -> bool:
    return kind in EXPECTED_TYPES or kind.endswith(("_type", "_parsing"))
