"""A `tokenizers.Tokenizer` and its special ids from a GGUF file's metadata or a model directory.

Owns the pre-tokenizers that GGUF only names. Builds the Rust tokenizer directly, because the general converters take
seconds where this takes tenths. Knows no chat templates beyond finding them.
Source: llama.cpp's llama-vocab.cpp (pre-tokenizer expressions, token types).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from engine.errors import UnsupportedModel

_CONTROL, _USER_DEFINED, _BYTE = 3, 4, 6
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_WORDS = _LLAMA3_WORDS.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
WORDS = {
    "llama-bpe": _LLAMA3_WORDS,
    "llama3": _LLAMA3_WORDS,
    "llama-v3": _LLAMA3_WORDS,
    "qwen2": _QWEN2_WORDS,
    "tekken": _TEKKEN_WORDS,
}
"""The expression that splits a text into words, by the name that GGUF gives it."""
_WHOLE_WORDS_FIRST = frozenset({"llama-bpe", "llama3", "llama-v3", "tekken"})
"""Vocabularies in which a word that is a token stays one, whatever the merges say."""
_END_OF_TURN = (
    "<|im_end|>",
    "<|endoftext|>",
    "<|eot_id|>",
    "<|end_of_text|>",
    "<|end|>",
    "<end_of_turn>",
    "<|eom_id|>",
)
"""Control tokens that end an answer in the supported families, as llama.cpp recognizes them."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """`byte_level` tells how a token's text maps to bytes: GPT-2's alphabet, or plain text with `<0xXX>` tokens."""

    tokenizer: Tokenizer
    byte_level: bool
    eos_token_ids: frozenset[int]
    bos_token_id: int | None
    special_token_ids: frozenset[int]
    chat_template: str | None


def from_gguf(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises UnsupportedModel for a tokenizer model or pre-tokenizer that we do not know."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    types: list[int] = metadata.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    kind = metadata["tokenizer.ggml.model"]
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens)
    else:
        raise UnsupportedModel(
            f"GGUF tokenizer {kind!r}", hint="supported: gpt2 (byte-level BPE), llama (SentencePiece)"
        )
    control = [i for i, token_type in enumerate(types) if token_type == _CONTROL]
    user = [i for i, token_type in enumerate(types) if token_type == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(tokens[i], normalized=False, special=True) for i in control])
    tokenizer.add_tokens([AddedToken(tokens[i], normalized=False) for i in user])
    bos = metadata.get("tokenizer.ggml.bos_token_id")
    if metadata.get("tokenizer.ggml.add_bos_token", kind == "llama") and bos is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    named = {metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")}
    eos = {i for i in named if i is not None} | {i for i in control if tokens[i] in _END_OF_TURN}
    template = _one_template(metadata.get("tokenizer.chat_template"), metadata.get("tokenizer.chat_template.tool_use"))
    return Vocabulary(tokenizer, kind == "gpt2", frozenset(eos), bos, frozenset(control), template)


def from_directory(directory: Path, eos_token_ids: tuple[int, ...]) -> Vocabulary:
    """`eos_token_ids` are the model configuration's. Raises UnsupportedModel when there is no tokenizer.json."""
    path = directory / "tokenizer.json"
    if not path.is_file():
        raise UnsupportedModel(
            f"{directory.name} has no tokenizer.json", hint="save the tokenizer in the fast format (tokenizer.json)"
        )
    tokenizer = Tokenizer.from_file(str(path))
    # A file may carry its trainer's habits; lengths are the engine's business.
    tokenizer.no_padding()
    tokenizer.no_truncation()
    added = tokenizer.get_added_tokens_decoder()
    special = frozenset(i for i, token in added.items() if token.special)
    settings = _read_json(directory / "tokenizer_config.json")
    eos = set(eos_token_ids)
    for name in (_content(settings.get("eos_token")), *(_END_OF_TURN if not eos else ())):
        found = tokenizer.token_to_id(name) if name else None
        if found is not None:
            eos.add(found)
    bos_token = _content(settings.get("bos_token"))
    bos = tokenizer.token_to_id(bos_token) if bos_token else None
    byte_level = "ByteLevel" in json.dumps(json.loads(path.read_text(encoding="utf-8")).get("decoder"))
    return Vocabulary(tokenizer, byte_level, frozenset(eos), bos, special, _template(directory, settings))


def _byte_level(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    pre = metadata.get("tokenizer.ggml.pre", "gpt-2")
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocabulary, merges, ignore_merges=pre in _WHOLE_WORDS_FIRST))
    if pre in ("gpt-2", "default"):
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    elif pre == "smollm":
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    elif pre in WORDS:
        words = pre_tokenizers.Split(Regex(WORDS[pre]), behavior="isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
        )
    else:
        known = ", ".join(sorted({"gpt-2", "smollm", *WORDS}))
        raise UnsupportedModel(f"GGUF pre-tokenizer {pre!r}", hint=f"supported: {known}")
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _sentencepiece(metadata: Mapping[str, Any], tokens: list[str]) -> Tokenizer:
    """SentencePiece BPE: the merges follow from the scores, unknown characters fall back to byte tokens."""
    vocabulary = {token: index for index, token in enumerate(tokens)}
    merges = _merges_from_scores(vocabulary, metadata["tokenizer.ggml.scores"])
    unknown = tokens[metadata.get("tokenizer.ggml.unknown_token_id", 0)]
    tokenizer = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    prefixed = metadata.get("tokenizer.ggml.add_space_prefix", True)
    steps = [normalizers.Prepend("▁")] if prefixed else []
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(" ", "▁")])
    undo = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*undo, *([decoders.Strip(" ", 1, 0)] if prefixed else [])])
    return tokenizer


def _merges_from_scores(vocabulary: dict[str, int], scores: list[float]) -> list[tuple[str, str]]:
    ranked: list[tuple[float, int, str, str]] = []
    for token, index in vocabulary.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                ranked.append((-scores[index], index, left, right))
    ranked.sort()
    return [(left, right) for _, _, left, right in ranked]


def _read_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def _content(token: str | Mapping[str, Any] | None) -> str | None:
    """Special tokens are written as text or as an object with `content`."""
    return token["content"] if isinstance(token, Mapping) else token


def _template(directory: Path, settings: Mapping[str, Any]) -> str | None:
    file, more = directory / "chat_template.jinja", directory / "additional_chat_templates" / "tool_use.jinja"
    if file.is_file():
        default = file.read_text(encoding="utf-8")
        return _one_template(default, more.read_text(encoding="utf-8") if more.is_file() else None)
    given = settings.get("chat_template")
    if not isinstance(given, list):
        return given
    named = {entry.get("name"): entry.get("template") for entry in given}
    return _one_template(named.get("default"), named.get("tool_use"))


def _one_template(default: str | None, tool_use: str | None) -> str | None:
    """Some models have a template of its own for conversations with tools."""
    if not default or not tool_use:
        return default or tool_use
    return f"{{% if tools %}}{tool_use.rstrip(chr(10))}{{% else %}}{default.rstrip(chr(10))}{{% endif %}}"


def _byte_signs() -> str:
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    signs = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return "".join(signs[byte] for byte in range(256))


BYTE_SIGNS = _byte_signs()
"""GPT-2's printable stand-in for each byte, in the order of the bytes."""
