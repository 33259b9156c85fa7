"""The schema at a path: names of fields, choices, types. Pure; knows pydantic models, no documents."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from gateway.documents.near_names import near


def field_names(schema: Any, path: Sequence[str | int]) -> list[str]:
    """Names valid below `path`, as they are written (aliases), in the order of the schema."""
    target = annotation_at(schema, path)
    if isinstance(target, type) and issubclass(target, BaseModel):
        return [field.alias or name for name, field in target.model_fields.items()]
    return []


def choices(schema: Any, path: Sequence[str | int]) -> list[str]:
    """The words that a `Literal` at `path` allows; none for another type."""
    target = annotation_at(schema, path)
    return [str(choice) for choice in get_args(target)] if get_origin(target) is Literal else []


def annotation_at(annotation: Any, path: Sequence[str | int]) -> Any:
    """The type that the schema gives to the value at `path`; optional and annotated wrappers taken off. None: none."""
    annotation = _bare(annotation)
    if not path:
        return annotation
    head, rest = path[0], path[1:]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        for name, field in annotation.model_fields.items():
            if (field.alias or name) == head:
                return annotation_at(field.annotation, rest)
        return None
    arguments = get_args(annotation)
    if not arguments:
        return None
    return annotation_at(arguments[1] if get_origin(annotation) is dict else arguments[0], rest)


def nearest(found: str, valid: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """A hint with the closest valid name, or None when nothing is close."""
    close = near(found, valid, most=1, cutoff=cutoff)
    return f"did you mean `{close[0]}`?" if close else None


def _bare(annotation: Any) -> Any:
    while True:
        origin = get_origin(annotation)
        if origin is Annotated:
            annotation = get_args(annotation)[0]
        elif origin in (Union, UnionType):
            annotation = next(part for part in get_args(annotation) if part is not type(None))
        else:
            return annotation
