"""A model's chat template: messages to prompt text, in a sandbox because the template comes with the model file.

Owns the environment that templates expect (Hugging Face's `apply_chat_template`). Knows no token ids.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from engine.errors import InvalidInput, UnsupportedModel

Message = Mapping[str, Any]


class ChatTemplate:
    """`bos_token` and `eos_token` are texts that templates may print; `now` feeds `strftime_now`."""

    def __init__(self, source: str, bos_token: str, eos_token: str, now: Callable[[], datetime] | None = None) -> None:
        clock = now or (lambda: datetime.now(UTC))
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = lambda form: clock().strftime(form)
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise UnsupportedModel(f"the model's chat template cannot be read: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Sequence[Message], add_generation_prompt: bool = True) -> str:
        """Raises InvalidInput with the template's own message when it refuses the roles or their order."""
        try:
            return self._template.render(
                messages=list(messages), add_generation_prompt=add_generation_prompt, **self._tokens
            )
        except (TemplateError, TypeError) as error:
            roles = [str(message.get("role")) for message in messages]
            reason = error.message if isinstance(error, TemplateError) else "a field has the wrong type"
            raise InvalidInput("messages", roles, f"the model's chat template refuses them: {reason}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    """Not jinja's own filter: that one escapes HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)
