"""The count of a prompt that no model is to answer: its token ids, what each stands for, or the text of ids."""

from __future__ import annotations

from typing import Any

from gateway.errors import InvalidRequest
from gateway.flow.values import ChatCount, CompletionCount, Prepared, TokenCount


def counted(tokenizer: Any, request: ChatCount | CompletionCount, tokenized: Any) -> Prepared:
    """`tokenized`: a `ChatPrompt`, or the ids of each prompt. Raises `InvalidRequest` for ids that the model's
    vocabulary does not have."""
    ids: tuple[int, ...] = tokenized.token_ids if isinstance(request, ChatCount) else tuple(tokenized[0])
    if isinstance(request, CompletionCount) and request.reads_back:
        if max(ids, default=0) >= tokenizer.vocab_size:
            raise InvalidRequest(
                f"`tokens` holds an id beyond the model's vocabulary of {tokenizer.vocab_size}.",
                code="invalid_value",
                param="tokens",
            )
        return Prepared(len(ids), counted=TokenCount(len(ids), ids, text=tokenizer.decode(ids)))
    texts = None
    if request.tells_texts:
        texts = tuple([tokenizer.token_bytes(token).decode("utf-8", "replace") for token in ids])
    return Prepared(len(ids), counted=TokenCount(len(ids), ids, texts))
