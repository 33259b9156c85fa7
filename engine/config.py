"""The engine's one configuration value. Unknown keys cannot exist; nothing is derived silently."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from engine.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Names are vLLM's where vLLM has one.

    `cache_salt_required` makes every request name the salt of its prefix-cache domain; two salts never share a block.
    `kv_cache_bytes` wins over `num_kv_blocks`; with both None the runner sizes the pool from free memory
    (`gpu_memory_utilization` of the device, or a quarter of free RAM on CPU, capped at 4 GiB).
    """

    model: str
    """A directory with config.json and safetensors, or one GGUF file."""
    model_sha256: str | None = None
    """The content hash that the files must have (hexadecimal, see `Checkpoint.sha256`); None: any."""
    served_model_name: str | None = None
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    device: str = "auto"
    quantization: str | None = None
    block_size: int = 16
    num_kv_blocks: int | None = None
    kv_cache_bytes: int | None = None
    gpu_memory_utilization: float = 0.9
    kv_cache_dtype: Literal["auto", "fp8", "fp8_e4m3", "bfloat16", "float16", "float32"] = "auto"
    """`auto`: that of the model. `fp8` halves the cache; the C++ kernels do not offer it."""
    kernel_manifest: str | None = None
    """The folder that `esclusa kernels build` wrote for this model and these limits; GPUs only."""
    max_num_seqs: int = 64
    max_num_batched_tokens: int = 2048
    max_model_len: int | None = None
    long_prefill_token_threshold: int = 0
    """Most prefill tokens of one request in one step; 0 means no extra cap."""
    prefill_tokens_beside_decode: int = 0
    """Most prefill tokens of all requests in a step that also decodes (bounds inter-token time); 0: no extra cap."""
    mixed_step_factor: float = 2.2
    """A step that prefills beside running answers may take that many times a step that only decodes (learned from the
    clock; more where more wait than answer); 0: no pacing. `LLMEngine` never paces: nobody reads between its tokens."""
    enable_prefix_caching: bool = True
    cache_salt_required: bool = True
    scheduling_policy: Literal["fcfs", "priority", "fair"] = "fair"
    max_seqs_per_share: int | None = None
    max_blocks_per_share: int | None = None
    starvation_bound_s: float = 10.0
    max_waiting: int = 4096
    deterministic: bool = False
    seed: int = 0
    threads: int | None = None
    tensor_parallel_size: int = 1
    pooling: Literal["mean", "last"] = "mean"
    """How a decoder's hidden states become an embedding."""
    kernel_backend: Literal["auto", "reference", "cpu", "triton"] = "auto"
    tool_call_parser: str | None = None
    """How the model writes calls of tools (a row of `engine.text.tool_calls.registry`); None: seen in its template."""
    reasoning_parser: str | None = None
    """`qwen3` or `deepseek_r1` for a block of `<think>`, `none`; None: seen in its template."""
    generation_config: Literal["auto", "vllm"] = "auto"
    """`auto`: sampling that a request leaves open is what the model's files recommend; `vllm`: the neutral values."""

    def __post_init__(self) -> None:
        positive = ("block_size", "max_num_seqs", "max_num_batched_tokens", "tensor_parallel_size", "max_waiting")
        for name in positive:
            if getattr(self, name) < 1:
                raise InvalidInput(name, getattr(self, name), "must be at least 1")
        for name in ("max_seqs_per_share", "max_blocks_per_share", "num_kv_blocks", "kv_cache_bytes", "threads"):
            if getattr(self, name) is not None and getattr(self, name) < 1:
                raise InvalidInput(name, getattr(self, name), "must be at least 1, or unset")
        if not self.starvation_bound_s > 0.0:
            raise InvalidInput("starvation_bound_s", self.starvation_bound_s, "must be above 0")
        if not 0.0 < self.gpu_memory_utilization <= 1.0:
            raise InvalidInput("gpu_memory_utilization", self.gpu_memory_utilization, "must be in (0, 1]")
        if self.mixed_step_factor != 0 and not 1.0 < self.mixed_step_factor <= 1000.0:
            raise InvalidInput("mixed_step_factor", self.mixed_step_factor, "must be 0 or in (1, 1000]")
        if self.max_model_len is not None and self.max_model_len < 2:
            raise InvalidInput("max_model_len", self.max_model_len, "must be at least 2")
