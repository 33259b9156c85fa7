"""Every error the engine raises, in one tree. Knows no HTTP.

EngineError
├── InvalidInput             a request the engine refuses: names field, value and limit
│   ├── PromptTooLong        prompt + max_tokens exceed the model's window
│   ├── InvalidGrammar       a schema, regex or grammar that cannot be compiled within the limits
│   └── DuplicateRequest     a request id that is already running
├── UnsupportedModel         an architecture or tensor layout we do not run; lists what we do
├── WeightsMismatch          a missing or unused tensor while loading
├── EngineUnavailable        loading, draining, asleep, stopped
│   ├── EngineOverloaded     more requests wait than `max_waiting`
│   └── DeadlineExceeded     the deadline passed before there was an answer
├── EngineFault              a fault while this request ran (kernel, sampler, grammar, callback)
└── PoisonRequest            a request that killed the loop twice
"""

from __future__ import annotations


class EngineError(Exception):
    code: str = "engine_error"

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class InvalidInput(EngineError):
    """`field` is the parameter's public name, `value` what was found (never prompt text), `limit` what is accepted."""

    code = "invalid_value"

    def __init__(self, field: str, value: object, limit: str, *, hint: str | None = None) -> None:
        super().__init__(f"`{field}` is {value!r}; {limit}", hint=hint)
        self.field, self.value, self.limit = field, value, limit


class PromptTooLong(InvalidInput):
    code = "context_length_exceeded"

    def __init__(self, prompt_tokens: int, max_tokens: int, max_model_len: int) -> None:
        fits = max(0, max_model_len - prompt_tokens)
        super().__init__(
            "max_tokens" if fits else "prompt",
            max_tokens if fits else prompt_tokens,
            f"prompt {prompt_tokens} + max_tokens {max_tokens} exceed the window of {max_model_len} tokens",
            hint=f"lower `max_tokens` to {fits} or less" if fits else "shorten the prompt",
        )
        self.prompt_tokens, self.max_tokens, self.max_model_len, self.fits = (
            prompt_tokens,
            max_tokens,
            max_model_len,
            fits,
        )


class TextTooLong(InvalidInput):
    """A text that was not read to its end: it has `least` tokens or more."""

    code = "context_length_exceeded"

    def __init__(self, least: int, most: int) -> None:
        super().__init__("prompt", least, f"at most {most} tokens fit", hint="shorten the prompt")
        self.least, self.most = least, most


class InvalidGrammar(InvalidInput):
    """`limit` tells the kind of problem in our words; `detail` is the compiler's own message, which may quote input."""

    code = "invalid_grammar"

    def __init__(self, field: str, value: object, limit: str, *, hint: str | None = None, detail: str = "") -> None:
        super().__init__(field, value, limit, hint=hint)
        self.detail = detail


class DuplicateRequest(InvalidInput):
    code = "duplicate_request"


class UnsupportedModel(EngineError):
    code = "unsupported_model"


class WeightsMismatch(EngineError):
    code = "weights_mismatch"


class EngineUnavailable(EngineError):
    code = "engine_unavailable"


class EngineOverloaded(EngineUnavailable):
    code = "engine_overloaded"


class DeadlineExceeded(EngineUnavailable):
    code = "deadline_exceeded"

    def __init__(self) -> None:
        super().__init__("the deadline passed before there was an answer", hint="send it again, or later")


class EngineFault(EngineError):
    code = "engine_fault"


class PoisonRequest(EngineError):
    code = "poison_request"
