"""A complete tiny model directory: random Llama weights, a byte-level tokenizer, a chat template. Loads in moments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

SPECIALS = ("<|pad|>", "<|start|>", "<|end|>")
TEMPLATE = (
    "{% for message in messages %}"
    "{% if message['role'] not in ['system', 'user', 'assistant'] %}"
    "{{ raise_exception('unknown role') }}"
    "{% endif %}"
    "<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Ids 0..2 are the special tokens; 256 byte tokens and a few merges follow."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [*SPECIALS, *alphabet, "th", "the", "Ġthe", "es"]
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("e", "s")]
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(word, normalized=False, special=True) for word in SPECIALS])
    return tokenizer


def write_tiny_model(directory: Path, *, seed: int = 0, **changes: Any) -> Any:
    """Write the model and return its Hugging Face twin. `changes` go to `LlamaConfig`."""
    tokenizer = byte_tokenizer()
    config = transformers.LlamaConfig(
        **{
            "vocab_size": tokenizer.get_vocab_size() + 5,
            "hidden_size": 48,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "max_position_embeddings": 256,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "pad_token_id": 0,
        }
        | changes
    )
    torch.manual_seed(seed)
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            parameter.data.normal_(0.0, 0.15)
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"bos_token": "<|start|>", "eos_token": "<|end|>", "chat_template": TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return model
