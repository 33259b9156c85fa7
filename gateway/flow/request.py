"""The request, its credential and the verified principal. Frozen, standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import Any, ClassVar, Literal, TypeAlias

from gateway.flow.parts import Content, TextPart, texts_of
from gateway.flow.tools import AUTO, ToolChoice, ToolSpec

Action = Literal["chat", "completions", "embeddings", "moderations", "tokenize"]
"""What a caller does with a model. `tokenize` is implied by each of the others."""
Prompt: TypeAlias = str | tuple[int, ...]
"""Text, or token ids that only the model's tokenizer can read."""
Role = Literal["system", "user", "assistant", "tool", "developer"]


@dataclass(frozen=True, slots=True)
class Message:
    """One chat turn. Texts that follow each other are one part: the API joins them before they get here."""

    role: Role
    content: Content
    name: str | None = None

    @classmethod
    def of_text(cls, role: Role, text: str, name: str | None = None) -> Message:
        return cls(role, (TextPart(text),), name)

    @property
    def texts(self) -> tuple[str, ...]:
        """What a model reads of it as text, in order."""
        return texts_of(self.content)


@dataclass(frozen=True, slots=True)
class GenerationParams:
    """What the caller asked of the sampler. `None` means "the model's default".

    Ranges are checked by the API; a backend refuses what it cannot honor instead of ignoring it.
    """

    max_tokens: int | None = None
    up_to_window: bool = False
    """`max_tokens` may be more than the model's window has room for: the answer ends with the window then."""
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    n: int = 1
    """Answers to each prompt."""
    best_of: int = 1
    """Answers that are made for each prompt; the `n` with the highest mean log-probability are given."""
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    min_tokens: int = 0
    ignore_eos: bool = False
    bad_words: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    allowed_token_ids: tuple[int, ...] | None = None
    logprobs: bool = False
    top_logprobs: int = 0
    prompt_logprobs: int | None = None
    echo: bool = False
    stop_on_repetition: bool = False
    """End an answer that does nothing but repeat itself. Policy asks for it, not the caller."""
    grammar: Mapping[str, Any] | None = None
    """`{"type": "json_schema"|"json_object"|"regex"|"choice"|"grammar", "value": ...}` or None; a schema also with the
    `name`, `description` and `strict` that the caller gave."""
    grammar_param: str | None = None
    """The field that the caller gave it in, for errors."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """What every request for a model has. `model` is the caller's string; only `RoutePlan` names what runs."""

    runs: ClassVar[bool] = True
    """False: the prompt is only counted, and no model runs."""
    needs: ClassVar[Action]
    """What a model must serve for it."""

    model: str
    _: KW_ONLY
    user_label: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    ignored_hints: tuple[str, ...] = ()
    """Names of hints that the caller gave and that no model here follows; the answer tells them."""


@dataclass(frozen=True, slots=True)
class _Generating(_Asked):
    """What the requests share that a model answers with text."""

    _: KW_ONLY
    params: GenerationParams = GenerationParams()
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    """Usage in every chunk of a stream."""


@dataclass(frozen=True, slots=True)
class ChatRequest(_Generating):
    action: ClassVar[Action] = "chat"
    needs: ClassVar[Action] = "chat"
    prompt_param: ClassVar[str] = "messages"
    """The field of the body that the model reads, for errors."""

    messages: tuple[Message, ...] = ()
    tools: tuple[ToolSpec, ...] = ()
    tool_choice: ToolChoice = AUTO
    parallel_tool_calls: bool = True
    """Whether one answer may hold more than one call."""
    template_kwargs: Mapping[str, str | bool] = field(default_factory=dict)
    """Variables of the model's chat template, such as `enable_thinking`."""

    @property
    def choices(self) -> int:
        """How many answers there will be."""
        return self.params.n

    @property
    def offers_tools(self) -> bool:
        """Whether the model may call something."""
        return bool(self.tools) and self.tool_choice.mode != "none"

    @property
    def texts(self) -> tuple[str, ...]:
        """All that a model reads as text: the messages in order, then the tools."""
        texts = [text for message in self.messages for text in message.texts]
        return tuple(texts + [text for tool in self.tools for text in tool.texts])


@dataclass(frozen=True, slots=True)
class ChatCount(ChatRequest):
    """How many tokens the prompt of a chat has."""

    action: ClassVar[Action] = "tokenize"
    runs: ClassVar[bool] = False

    _: KW_ONLY
    opens_answer: bool = True
    """With what a chat template puts before the answer."""
    tells_texts: bool = False
    """What each token stands for."""


@dataclass(frozen=True, slots=True)
class CompletionRequest(_Generating):
    action: ClassVar[Action] = "completions"
    needs: ClassVar[Action] = "completions"
    prompt_param: ClassVar[str] = "prompt"

    prompts: tuple[Prompt, ...] = ()
    """Each is answered by itself: the choices of the first come first."""

    @property
    def choices(self) -> int:
        return self.params.n * len(self.prompts)

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple([prompt for prompt in self.prompts if isinstance(prompt, str)])


@dataclass(frozen=True, slots=True)
class CompletionCount(CompletionRequest):
    """The tokens of a text, or with `reads_back` the text of tokens."""

    action: ClassVar[Action] = "tokenize"
    runs: ClassVar[bool] = False

    _: KW_ONLY
    adds_special_tokens: bool = True
    tells_texts: bool = False
    reads_back: bool = False


@dataclass(frozen=True, slots=True)
class EmbeddingRequest(_Asked):
    """One vector for each input. It generates nothing, so what steers an answer is fixed."""

    action: ClassVar[Action] = "embeddings"
    needs: ClassVar[Action] = "embeddings"
    prompt_param: ClassVar[str] = "input"
    params: ClassVar[GenerationParams] = GenerationParams()
    stream: ClassVar[bool] = False
    include_usage: ClassVar[bool] = False
    continuous_usage: ClassVar[bool] = False

    choices: ClassVar[int] = 1

    inputs: tuple[Prompt, ...] = ()
    base64_vectors: bool = False
    """Pack the vectors of the answer."""
    dimensions: int | None = None
    """Of each vector; None: as many as the model has."""

    @property
    def texts(self) -> tuple[str, ...]:
        return tuple([text for text in self.inputs if isinstance(text, str)])


@dataclass(frozen=True, slots=True)
class RankRequest(EmbeddingRequest):
    """How near texts are: the first `queries` inputs are compared with those behind them."""

    _: KW_ONLY
    queries: int = 1
    most: int | None = None
    """So many of the nearest are told; None: all."""
    tells_documents: bool = False


@dataclass(frozen=True, slots=True)
class ModerationRequest(EmbeddingRequest):
    """What the guardrails find in each text. They look at nothing before that, and no model runs."""

    action: ClassVar[Action] = "moderations"
    needs: ClassVar[Action] = "moderations"
    runs: ClassVar[bool] = False


GeneratingRequest: TypeAlias = ChatRequest | CompletionRequest
ModelRequest: TypeAlias = ChatRequest | CompletionRequest | EmbeddingRequest
"""A parsed, validated request for a model."""


@dataclass(frozen=True, slots=True)
class Credential:
    """The one credential of a request. `repr` never shows the value."""

    channel: Literal["authorization", "x-api-key", "api-key"]
    value: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Principal:
    """A verified identity. Roles are plain names (`analyst`), already mapped from claims by configuration."""

    tenant: str
    issuer: str
    subject: str
    kind: Literal["user", "service", "anonymous"] = "user"
    roles: frozenset[str] = frozenset()
    groups: frozenset[str] = frozenset()
    scopes: frozenset[str] = frozenset()
    department: str | None = None
    clearance: str | None = None
    """Highest data class this principal may send: public < internal < confidential < restricted."""
    client_id: str | None = None
    credential_id: str | None = None
    """Log-safe id of the token (`jti`) or API key."""
    credential_fingerprint: str | None = None
    display: str | None = None
    provider: str | None = None
    issued_at: datetime | None = None
    expires_at: datetime | None = None
    narrowed_models: tuple[str, ...] | None = None
    """An API key may be narrower than its owner: only these models, `()` none, None no extra limit."""
    person: str | None = None
    """A digest that names the human behind the token across issuers, where the provider states one."""
    owner: tuple[str, str] | None = None
    """(issuer, subject) of the person who answers for a service account; None for people."""
    owner_person: str | None = None
    """The `person` of that owner."""
    key_lineage: str | None = None
    """Id of the first API key of a chain of rotations: what its budgets are counted by."""


ANONYMOUS = Principal(tenant="-", issuer="-", subject="-", kind="anonymous")
