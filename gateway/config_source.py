"""Sources of settings: a YAML file with positions, the environment, overrides; merged, validated, explained.

Owns reading and error texts; knows nothing of what the settings mean. Values are never repeated in an error, because
any of them may be a secret.
"""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, SecretStr, ValidationError

from gateway.errors import ConfigError

Position = tuple[int, int]
M = TypeVar("M", bound=BaseModel)
REFERENCES = ("os.environ/", "env.")
PREFIX = "ESCLUSA_"
WELL_KNOWN = {"DATABASE_URL": ("store", "database_url"), "REDIS_URL": ("store", "redis_url")}


def load(
    model: type[M], file: Path | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> M:
    """Overrides win over the environment, the environment over the file. Raises `ConfigError` with the place."""
    tree, positions = read_yaml(file) if file is not None else ({}, {})
    _check_own(model, tree, file, positions)
    origins: dict[tuple[str, ...], str] = {}
    _merge(tree, from_environment(environment, origins))
    _merge(tree, overrides or {})
    try:
        return model.model_validate(_resolve(tree, environment, ()))
    except ValidationError as error:
        raise _explain(model, error, file, positions, origins) from None


def _check_own(
    model: type[BaseModel], tree: Mapping[str, Any], file: Path | None, positions: Mapping[tuple[str, ...], Position]
) -> None:
    """Each value of the file must be good by itself: one that is overridden today is read tomorrow.

    What is missing, and what keys mean together, is judged after the merge.
    """
    try:
        model.model_validate(tree)
    except ValidationError as error:
        for index, found in enumerate(error.errors(include_url=False, include_input=False)):
            if found["type"] != "missing" and _is_own_value(tree, found["loc"]):
                raise _explain(model, error, file, positions, {}, index) from None


def _is_own_value(tree: Any, path: Sequence[Any]) -> bool:
    """Whether the path ends at a single value that stands in the file, and is no reference to a variable."""
    node = tree
    for part in path:
        inside = part in node if isinstance(node, dict) else isinstance(node, list) and part in range(len(node))
        if not inside:
            break
        node = node[part]
    return not isinstance(node, dict | list) and not (isinstance(node, str) and node.startswith(REFERENCES))


def read_yaml(file: Path) -> tuple[dict[str, Any], dict[tuple[str, ...], Position]]:
    """The document and where each key stands (line and column from 1)."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the settings file cannot be read: {error.strerror}", file=str(file)) from None
    except UnicodeDecodeError:
        raise ConfigError("the settings file is not UTF-8", file=str(file)) from None
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        tree = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        raise ConfigError(
            f"not valid YAML: {error.problem}",
            file=str(file),
            line=mark.line + 1 if mark is not None else None,
            column=mark.column + 1 if mark is not None else None,
        ) from None
    if tree is None:
        return {}, {}
    if not isinstance(tree, dict):
        raise ConfigError("found no mapping at the top; expected sections such as `http:`", file=str(file), line=1)
    positions: dict[tuple[str, ...], Position] = {}
    if root is not None:
        _walk(root, (), positions, str(file))
    return tree, positions


def from_environment(environment: Mapping[str, str], origins: dict[tuple[str, ...], str]) -> dict[str, Any]:
    """`ESCLUSA_HTTP__PORT=9000` is `http.port`; a value that starts with `[` or `{` is read as YAML."""
    tree: dict[str, Any] = {}
    named: list[tuple[tuple[str, ...], str]] = [
        (WELL_KNOWN[name], name) for name in WELL_KNOWN if environment.get(name)
    ]
    named += [
        (tuple(name[len(PREFIX) :].lower().split("__")), name)
        for name in sorted(environment)
        if name.startswith(PREFIX) and "__" in name
    ]
    for path, name in named:
        value: Any = environment[name]
        if value[:1] in ("[", "{"):
            try:
                value = yaml.safe_load(value)
            except yaml.YAMLError:
                raise ConfigError("found a list or mapping that is not valid YAML", file=name) from None
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
        origins[path] = name
    return tree


def _walk(node: yaml.Node, path: tuple[str, ...], positions: dict[tuple[str, ...], Position], file: str) -> None:
    positions.setdefault(path, (node.start_mark.line + 1, node.start_mark.column + 1))
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            at = (key.start_mark.line + 1, key.start_mark.column + 1)
            if name in seen:
                raise ConfigError(f"key `{name}` occurs twice", file=file, line=at[0], column=at[1])
            seen.add(name)
            positions[(*path, name)] = at
            _walk(value, (*path, name), positions, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _walk(value, (*path, str(index)), positions, file)


def _merge(tree: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, Mapping) and isinstance(tree.get(key), dict):
            _merge(tree[key], value)
        elif isinstance(value, Mapping):
            tree[key] = {}
            _merge(tree[key], value)
        else:
            tree[key] = value


def _resolve(value: Any, environment: Mapping[str, str], path: tuple[str, ...]) -> Any:
    """`os.environ/NAME` and `env.NAME` stand for a variable, so that secrets stay out of files."""
    if isinstance(value, dict):
        return {key: _resolve(item, environment, (*path, str(key))) for key, item in value.items()}
    if isinstance(value, list):
        return [_resolve(item, environment, (*path, str(index))) for index, item in enumerate(value)]
    if isinstance(value, SecretStr) or not isinstance(value, str):
        return value
    for mark in REFERENCES:
        name = value[len(mark) :]
        if value.startswith(mark) and name.isidentifier():
            if name not in environment:
                raise ConfigError(f"`{'.'.join(path)}` names the environment variable {name}, which is not set")
            return environment[name]
    return value


def _explain(
    model: type[BaseModel],
    error: ValidationError,
    file: Path | None,
    positions: Mapping[tuple[str, ...], Position],
    origins: Mapping[tuple[str, ...], str],
    index: int = 0,
) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[index]
    path = tuple(str(part) for part in first["loc"])
    where, line, column = _place(path, file, positions, origins)
    hint = None
    if first["type"] == "extra_forbidden":
        known = _names(model, path[:-1])
        near = difflib.get_close_matches(path[-1], known, n=1, cutoff=0.5)
        message = f"unknown key `{'.'.join(path)}`; expected one of: {', '.join(known)}"
        hint = f"did you mean `{near[0]}`?" if near else None
    elif first["type"] == "missing":
        message = f"`{'.'.join(path)}` is missing; it is required"
    else:
        message = f"`{'.'.join(path)}`: {str(first['msg'])[:1].lower()}{str(first['msg'])[1:]}"
    return ConfigError(message, file=where, line=line, column=column, hint=hint)


def _place(
    path: tuple[str, ...],
    file: Path | None,
    positions: Mapping[tuple[str, ...], Position],
    origins: Mapping[tuple[str, ...], str],
) -> tuple[str | None, int | None, int | None]:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]], None, None
        if path[:length] in positions:
            return str(file), *positions[path[:length]]
    return (str(file) if file is not None else None), None, None


def _names(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """The valid names beside a key, walking the model the way the path goes."""
    current: Any = model
    inside_container = False
    for part in path:
        if inside_container:  # an index or a free name: the model of the elements is already known
            inside_container = False
            continue
        field = current.model_fields.get(part) if current is not None else None
        current = _inner(field.annotation) if field is not None else None
        inside_container = field is not None and field.annotation is not current
    return sorted(current.model_fields) if current is not None else []


def _inner(annotation: Any) -> type[BaseModel] | None:
    """The model inside `X | None`, `tuple[X, ...]`, `list[X]`, `dict[str, X]`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, list, dict):
        for argument in reversed(typing.get_args(annotation)):
            found = _inner(argument)
            if found is not None:
                return found
    return None
