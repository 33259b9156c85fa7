"""Sources of settings: a YAML file with positions, the environment, overrides; merged, validated, explained.

Owns reading and error texts; knows nothing of what the settings mean. Values are never repeated in an error, because
any of them may be a secret.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, SecretStr, ValidationError

from gateway.documents.located_yaml import Location, read_yaml
from gateway.documents.schema_walk import field_names, nearest
from gateway.errors import ConfigError

KeyPath = tuple[str, ...]
MAX_DEPTH = 32
MAX_VALUES = 100_000
M = TypeVar("M", bound=BaseModel)
REFERENCES = ("os.environ/", "env.")
PREFIX = "ESCLUSA_"
WELL_KNOWN = {"DATABASE_URL": ("store", "database_url"), "REDIS_URL": ("store", "redis_url")}


class Section(BaseModel):
    """A part of the settings. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def load(
    model: type[M], file: Path | None, environment: Mapping[str, str], overrides: Mapping[str, Any] | None = None
) -> M:
    """Overrides win over the environment, the environment over the file. Raises `ConfigError` with the place."""
    tree, positions = read_file(file) if file is not None else ({}, {})
    _check_own(model, tree, file, positions)
    origins: dict[tuple[str, ...], str] = {}
    _merge(tree, from_environment(environment, origins))
    _merge(tree, overrides or {})
    try:
        return model.model_validate(_resolve(tree, environment, ()))
    except ValidationError as error:
        raise _explain(model, error, file, positions, origins) from None


def _check_own(
    model: type[BaseModel], tree: Mapping[str, Any], file: Path | None, positions: Mapping[KeyPath, Location]
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


def read_file(file: Path) -> tuple[dict[str, Any], Mapping[KeyPath, Location]]:
    """The document and the place of each key."""
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"the settings file cannot be read: {error.strerror}", file=str(file)) from None
    except UnicodeDecodeError:
        raise ConfigError("the settings file is not UTF-8", file=str(file)) from None

    def refuse(message: str, location: Location | None) -> ConfigError:
        line, column = (location.line, location.column) if location is not None else (None, None)
        return ConfigError(message, file=str(file), line=line, column=column)

    found = read_yaml(text, refuse, max_depth=MAX_DEPTH, max_values=MAX_VALUES)
    if found.data is None:
        return {}, {}
    if not isinstance(found.data, dict):
        raise ConfigError("found no mapping at the top; expected sections such as `http:`", file=str(file), line=1)
    return found.data, {tuple(map(str, path)): at for path, at in {**found.locations, **found.key_locations}.items()}


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
            refuse = partial(_not_yaml, name)
            value = read_yaml(value, refuse, max_depth=MAX_DEPTH, max_values=MAX_VALUES).data
        node = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        node[path[-1]] = value
        origins[path] = name
    return tree


def _not_yaml(variable: str, message: str, location: Location | None) -> ConfigError:
    del message, location  # they may quote the value
    return ConfigError("found a list or mapping that is not valid YAML", file=variable)


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
    positions: Mapping[KeyPath, Location],
    origins: Mapping[tuple[str, ...], str],
    index: int = 0,
) -> ConfigError:
    first = error.errors(include_url=False, include_input=False)[index]
    path = tuple(str(part) for part in first["loc"])
    where, line, column = _place(path, file, positions, origins)
    hint = None
    if first["type"] == "extra_forbidden":
        known = sorted(field_names(model, path[:-1]))
        message = f"unknown key `{'.'.join(path)}`; expected one of: {', '.join(known)}"
        hint = nearest(path[-1], known, cutoff=0.5)
    elif first["type"] == "missing":
        message = f"`{'.'.join(path)}` is missing; it is required"
    else:
        message = f"`{'.'.join(path)}`: {str(first['msg'])[:1].lower()}{str(first['msg'])[1:]}"
    return ConfigError(message, file=where, line=line, column=column, hint=hint)


def _place(
    path: tuple[str, ...],
    file: Path | None,
    positions: Mapping[KeyPath, Location],
    origins: Mapping[tuple[str, ...], str],
) -> tuple[str | None, int | None, int | None]:
    for length in range(len(path), 0, -1):
        if path[:length] in origins:
            return origins[path[:length]], None, None
        if path[:length] in positions:
            return str(file), positions[path[:length]].line, positions[path[:length]].column
    return (str(file) if file is not None else None), None, None
