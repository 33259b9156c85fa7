"""A real but tiny Llama with random weights on disk, with a byte-level tokenizer: fast and exact."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

VOCAB = 320
EOS = 256


def save_small_llama(folder: Path, *, layers: int = 2, seed: int = 0) -> Any:
    """Write config, weights and tokenizer to `folder`; return Hugging Face's model, float32, on CPU."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=layers,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.25,
        bos_token_id=EOS,
        eos_token_id=EOS,
        pad_token_id=EOS,
        tie_word_embeddings=False,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: i for i, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<eos>", special=True)])
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>"}))
    return model
