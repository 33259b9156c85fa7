"""Text to tokens and back for one model, with its chat template.

Owns the exact bytes of every token, and the rule that control tokens written by a user are text, never control.
Safe to call from several threads; needs no transformers.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from tokenizers import Tokenizer

from engine.errors import EngineFault, InvalidInput, TextTooLong
from engine.requests import Grammar
from engine.text.chat_template import ChatTemplate, Message
from engine.text.encoding import TextEncoder
from engine.text.tool_calls.constraint import CallConstraint, Thought, lark_of
from engine.text.tool_calls.conversation import for_template, in_words, to_user
from engine.text.tool_calls.pieces import AnswerParser, PlainText
from engine.text.tool_calls.registry import dialog_of
from engine.text.tool_calls.thinking import CLOSING, OPENING, Thinking
from engine.text.vocabulary import BYTE_SIGNS, Vocabulary, from_directory, from_gguf
from engine.weights.loader import Checkpoint

_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
_GUARD = "\udcd0"
"""Put inside control-token texts of user content and taken out again before encoding. A lone surrogate is no character:
no tokenizer encodes one, so `apply_chat_template` refuses it from outside and every character reaches the model."""
_SLICE = 32_768
"""Characters in which control tokens are looked for at a time: while a regular expression runs, nothing else does."""
_SURROGATE = re.compile("[\ud800-\udfff]")


class ChatTokenizer:
    """`vocab_size` is the number of rows of the output head, which may exceed the tokens that have text."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        vocab_size: int,
        now: Callable[[], datetime] | None = None,
        *,
        tool_call_parser: str | None = None,
        reasoning_parser: str | None = None,
    ) -> None:
        """Raises UnsupportedModel for a parser that is none."""
        self.vocab_size = vocab_size
        self.eos_token_ids, self.bos_token_id = vocabulary.eos_token_ids, vocabulary.bos_token_id
        self.special_token_ids = vocabulary.special_token_ids
        self._tokenizer, self._byte_level = vocabulary.tokenizer, vocabulary.byte_level
        self._encoder = TextEncoder(self._tokenizer)
        self._plain: TextEncoder | None = None
        self._llguidance: Any = None
        self._lock = threading.Lock()
        self._added = {i: token.content for i, token in self._tokenizer.get_added_tokens_decoder().items()}
        controls = sorted((self._added[i] for i in self.special_token_ids if i in self._added), key=len, reverse=True)
        self._longest_control = max(map(len, controls), default=0)
        self._controls = re.compile("|".join(re.escape(text) for text in controls)) if controls else None
        self.dialog = dialog_of(vocabulary.chat_template, tool_call_parser, reasoning_parser)
        self._marks = {text: i for i, text in self._added.items() if i in self.special_token_ids or _is_tag(text)}
        self._template = self._make_template(vocabulary, now)

    @classmethod
    def from_checkpoint(
        cls, checkpoint: Checkpoint, *, tool_call_parser: str | None = None, reasoning_parser: str | None = None
    ) -> ChatTokenizer:
        config = checkpoint.config
        if checkpoint.is_gguf:
            vocabulary = from_gguf(checkpoint.metadata)
        else:
            vocabulary = from_directory(checkpoint.path, config.eos_token_ids)
        return cls(vocabulary, config.vocab_size, tool_call_parser=tool_call_parser, reasoning_parser=reasoning_parser)

    def encode(self, text: str, add_special_tokens: bool = False, most: int | None = None) -> list[int]:
        """Control tokens in `text` are recognized; `add_special_tokens` prepends BOS where the model wants it.

        Raises TextTooLong for more than `most` tokens, at a cost that does not grow with the text.
        """
        return self._encoder.encode(text, special=add_special_tokens, most=most)

    def encode_plain(self, text: str, most: int | None = None) -> list[int]:
        """As `encode`, but every character is text: nothing in it becomes a control token."""
        return self._plain_encoder().encode(text, most=most)

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        most: int | None = None,
        *,
        tools: Sequence[Mapping[str, Any]] = (),
        extra: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Prompt tokens of a conversation; `tools` in OpenAI's form, `extra` for further variables of the template.
        Raises InvalidInput when the template refuses it or there is none, and TextTooLong as `encode`."""
        if self._template is None:
            roles = [str(message.get("role")) for message in messages]
            raise InvalidInput("messages", roles, "this model has no chat template", hint="use a plain completion")
        text = self._rendered(self._template, messages, tools, add_generation_prompt, extra)
        if any(found[0] != _GUARD for found in _SURROGATE.finditer(text)):
            raise EngineFault("the chat template wrote half of a surrogate pair", hint="use another copy of the model")
        if _GUARD not in text:
            return self.encode(text, most=most)
        ids: list[int] = []
        for piece in self._pieces(text, most):
            ids += piece
            if most is not None and len(ids) > most:
                raise TextTooLong(len(ids), most)
        return ids

    def _rendered(
        self,
        template: ChatTemplate,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        prompts: bool,
        extra: Mapping[str, Any] | None,
    ) -> str:
        if self.dialog.takes_tools:
            turns = [self._guard(turn) for turn in for_template(messages, self.dialog.habits)]
            return template.render(turns, prompts, [self._guard(tool) for tool in tools], extra)
        turns = [self._guard(turn) for turn in in_words(messages, tools)]
        try:
            return template.render(turns, prompts, (), extra)
        except InvalidInput:
            if not tools or messages[0].get("role") == "system":
                raise
            return template.render(to_user(turns), prompts, (), extra)

    def decode(self, token_ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of these tokens on their own; incomplete characters become U+FFFD."""
        skip = self.special_token_ids if skip_special_tokens else frozenset()
        return b"".join(self.token_bytes(i) for i in token_ids if i not in skip).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        added = self._added.get(token_id)
        if added is not None:
            return added.encode()
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if self._byte_level:
            return bytes(_BYTE_OF_CHARACTER[character] for character in token)
        byte = _BYTE_TOKEN.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace("▁", " ").encode()

    def call_grammar(self, constraint: CallConstraint, prompt_token_ids: Sequence[int] = ()) -> Grammar:
        """Of the answer to this prompt. Raises InvalidGrammar for a schema that cannot be followed."""
        return Grammar(
            "tool_calls", lark_of(constraint, self.dialog.format, self._marks.get, self._thought(prompt_token_ids))
        )

    def answer_parser(
        self, prompt_token_ids: Sequence[int], *, tools: Collection[str], constrained: bool
    ) -> AnswerParser | None:
        """Reads one choice; None where an answer can be nothing but text. `tools`: the names that were offered. An
        answer that is constrained otherwise than by `call_grammar` has no reasoning."""
        calls = self.dialog.format.parser(tools) if tools or self.dialog.calls == "openai" else None
        thought = "none" if constrained else self._thought(prompt_token_ids)
        return calls if thought == "none" else Thinking(calls or PlainText(), begun=thought == "begun")

    def _thought(self, prompt_token_ids: Sequence[int]) -> Thought:
        """Some templates open the block of reasoning, or close it where the model shall not think."""
        if not self.dialog.thinks:
            return "none"
        tail = self.decode(prompt_token_ids[-8:]).rstrip()
        if tail.endswith(CLOSING):
            return "none"
        return "begun" if tail.endswith(OPENING) else "may"

    @property
    def mark_token_ids(self) -> frozenset[int]:
        """Control tokens that a parser must see although they are hidden from the text."""
        marks = (*self.dialog.format.marks, OPENING, CLOSING)
        return frozenset(self._marks[mark] for mark in marks if mark in self._marks) & self.special_token_ids

    def llguidance(self) -> Any:
        """The vocabulary as an `llguidance.LLTokenizer`, kept. Building it holds the interpreter for up to seconds, so
        a model that serves does it while it is loaded."""
        with self._lock:
            if self._llguidance is None:
                import llguidance

                self._llguidance = llguidance.LLTokenizer(
                    self._tokenizer.to_str(), n_vocab=self.vocab_size, eos_token=sorted(self.eos_token_ids)
                )
            return self._llguidance

    def _make_template(self, vocabulary: Vocabulary, now: Callable[[], datetime] | None) -> ChatTemplate | None:
        if vocabulary.chat_template is None:
            return None
        bos = self._added.get(self.bos_token_id, "") if self.bos_token_id is not None else ""
        eos = self._added.get(min(self.eos_token_ids), "") if self.eos_token_ids else ""
        return ChatTemplate(vocabulary.chat_template, bos, eos, now)

    def _guard(self, value: Any) -> Any:
        """A message or a tool with control tokens in its texts made harmless, those in names and keys too."""
        if isinstance(value, str):
            if _SURROGATE.search(value):
                raise InvalidInput("messages", "half of a surrogate pair", "the content is not Unicode text")
            return value if self._controls is None else "".join(self._guarded(value))
        if isinstance(value, Mapping):
            return {self._guard(name): self._guard(inner) for name, inner in value.items()}
        return [self._guard(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _guarded(self, content: str) -> Iterator[str]:
        start = 0
        for found in self._written_controls(content):
            yield f"{content[start : found.start()]}{found[0][0]}{_GUARD}{found[0][1:]}"
            start = found.end()
        yield content[start:]

    def _pieces(self, text: str, most: int | None) -> Iterator[list[int]]:
        """Control tokens that the template wrote stay control; the text between them is encoded as text."""
        start = 0
        for found in self._written_controls(text):
            yield self.encode_plain(text[start : found.start()].replace(_GUARD, ""), most)
            yield self.encode(found[0])
            start = found.end()
        yield self.encode_plain(text[start:].replace(_GUARD, ""), most)

    def _written_controls(self, text: str) -> Iterator[re.Match[str]]:
        """As `finditer` of all control tokens, slice by slice: other threads run between two slices."""
        assert self._controls is not None, "a guard is only ever put inside a control token"
        at = 0
        for end in range(_SLICE, len(text) + _SLICE, _SLICE):
            # A token that begins in this slice ends within the window, so no shorter one is taken for it.
            for found in self._controls.finditer(text, at, end + self._longest_control):
                if found.start() >= end:
                    break
                yield found
                at = found.end()
            at = max(at, end)

    def _plain_encoder(self) -> TextEncoder:
        with self._lock:
            if self._plain is None:
                self._plain = TextEncoder(_without_controls(self._tokenizer))
            return self._plain


def _is_tag(text: str) -> bool:
    """Grammars take an added token of this form for a control token."""
    return text.startswith("<") and text.endswith(">")


def _without_controls(tokenizer: Any) -> Any:
    """The same tokenizer for which control tokens are text. It shares the vocabulary: copying that would hold the
    interpreter for a second."""
    plain = Tokenizer(tokenizer.model)
    if tokenizer.normalizer is not None:
        plain.normalizer = tokenizer.normalizer
    if tokenizer.pre_tokenizer is not None:
        plain.pre_tokenizer = tokenizer.pre_tokenizer
    for _, token in sorted(tokenizer.get_added_tokens_decoder().items()):  # in this order they get the same ids
        (plain.add_special_tokens if token.special else plain.add_tokens)([token])
    plain.encode_special_tokens = True
    return plain


_BYTE_OF_CHARACTER = {sign: byte for byte, sign in enumerate(BYTE_SIGNS)}
