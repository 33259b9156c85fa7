"""Runs the model: one forward pass a step over prefill chunks and decodes alike. Implements `engine.step.Runner`.

Owns the weights, the KV storage and the persistent arrays. Must not know queues, policies or text. The module's
`load_model` is the product's loader.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from math import isfinite
from pathlib import Path
from time import perf_counter

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.errors import EngineFault, EngineUnavailable, InvalidInput, WeightsMismatch
from engine.execution.batch import BatchArrays, StepTensors
from engine.execution.compiled_kernels import CompiledKernels
from engine.execution.device import DTYPES, kv_dtype, load_ops, resolve_device, resolve_dtype
from engine.execution.device_memory import running_out
from engine.execution.embedder import SentenceEncoder
from engine.execution.generation_defaults import sampling_defaults
from engine.execution.host_copies import HostCopies
from engine.execution.kernel_timer import KernelClock
from engine.execution.kv_sizing import count_blocks
from engine.execution.pooling import Pooler
from engine.execution.profile_run import measure_cache_budget
from engine.execution.sampler import Sampler, not_finite
from engine.model_config import ModelConfig
from engine.models.bert import ARCHITECTURES as BERT_ARCHITECTURES
from engine.models.decoder import Decoder, ForwardBatch
from engine.models.registry import load_model as load_decoder
from engine.models.source import WeightSource
from engine.ports import LoadedModel
from engine.step import SampledToken, Step, StepResult, Work
from engine.text.tokenizer import ChatTokenizer
from engine.weights.loader import Checkpoint, open_checkpoint
from engine.weights.quantized import quantization_on_load
from engine.weights.untrusted import model_files
from kernels.contracts import KernelError, KVCache
from kernels.identity import kernels_sha256

Progress = Callable[[str, float], None]
PromptLogprob = tuple[int, float, int, tuple[tuple[int, float], ...]]
_PROMPT_LOGPROB_ROWS = 64
"""Rows of logits held at once for prompt log-probabilities: [rows, vocab] in float32 is the largest tensor we make."""


class ModelRunner:
    """`progress(stage, percent)` is called while loading. Raises what loading raises; see `engine.errors`.

    `checkpoint` is `config.model` where the caller has opened it already.
    """

    def __init__(
        self, config: EngineConfig, progress: Progress | None = None, checkpoint: Checkpoint | None = None
    ) -> None:
        _refuse_unsupported(config)
        self._config, self._progress = config, progress or _no_progress
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        self._device = resolve_device(config.device)
        self._dtype = resolve_dtype(config.dtype, self._device)
        checkpoint = checkpoint or open_checkpoint(config.model)
        self._hash = _BackgroundHash(checkpoint)
        self.model_config: ModelConfig = checkpoint.config
        self._progress("tokenizer", 0.0)
        self.tokenizer = ChatTokenizer.from_checkpoint(
            checkpoint, tool_call_parser=config.tool_call_parser, reasoning_parser=config.reasoning_parser
        )
        self.tokenizer.llguidance()  # now, and not when the first request with a grammar comes: it stops every thread
        self._progress("kernels (compiled once per machine)", 0.0)
        self._ops = load_ops(config, self._device)
        self._compiled = CompiledKernels(config, self._ops)
        self.kernels_sha256 = kernels_sha256(self._ops, self._compiled.manifest_sha256)
        self._model: Decoder | None = self._load(checkpoint)

        self.block_size, self.vocab_size = config.block_size, self.model_config.vocab_size
        self.eos_token_ids = self.tokenizer.eos_token_ids
        self._kv_dtype = kv_dtype(config, self._dtype)
        self.num_blocks = self._count_blocks(self._model)
        self.max_model_len = min(_window(config, self.model_config), self.num_blocks * self.block_size)
        with running_out("cache", config, self._device):
            self._caches = [self._allocate() for _ in range(self.model_config.num_layers)]
        self._model.bind(self._caches, self.max_model_len)
        blocks_each = -(-self.max_model_len // self.block_size)
        self._arrays = BatchArrays(
            config.max_num_batched_tokens, config.max_num_seqs, blocks_each, self.block_size, self._device
        )
        self._clock, self._copies = KernelClock(), HostCopies(self._device)
        self._sampler = Sampler(
            self._ops, self.vocab_size, config.max_num_seqs, self.eos_token_ids, self._device, self._clock, self._copies
        )
        self._pooler = Pooler(config.pooling)
        _return_freed_memory()
        self._progress("ready", 100.0)

    @property
    def model_sha256(self) -> str:
        """Waits for the hash if it is not done yet."""
        return self._hash.value()

    @property
    def kv_cache_bytes(self) -> int:
        return sum(cache.nbytes for cache in self._caches)

    def execute(self, step: Step) -> StepResult:
        model = self._model
        if model is None:
            raise EngineUnavailable("the model's weights are unloaded", hint="wake the engine first")
        started, self._clock.seconds = perf_counter(), 0.0
        self._sync_slots(step)
        if not step.work:
            return StepResult()
        tensors = self._arrays.fill(step)
        with running_out("step", self._config, self._device), torch.inference_mode():
            hidden = self._clock.run(model.forward, self._forward_batch(step, tensors))
            tokens, faults = self._sample(model, step, tensors, hidden)
            prompt_logprobs, pooled = self._prompt_evidence(model, step, tensors, hidden)
            faults |= {slot: not_finite() for slot, vector in pooled.items() if not isfinite(vector[0])}
            pooled = {slot: vector for slot, vector in pooled.items() if slot not in faults}
        total_s, kernel_s = perf_counter() - started, self._clock.seconds
        late = self._compiled.late()
        return StepResult(tokens, prompt_logprobs, pooled, faults, total_s - kernel_s, kernel_s, late)

    def release_weights(self) -> None:
        """Drop the weights and keep the KV storage; `restore_weights` reads the checkpoint again."""
        self._model = None

    def restore_weights(self) -> None:
        """Raises WeightsMismatch when the files are no longer those that were loaded first: the tokenizer, the sizes
        and the hash in each record are theirs."""
        if self._model is None:
            with model_files(Path(self._config.model).name):
                checkpoint = open_checkpoint(self._config.model)
                found = _BackgroundHash(checkpoint)
                model = self._load(checkpoint)
                _require_sha256(found.value(), self.model_sha256)
            model.bind(self._caches, self.max_model_len)
            self._model = model

    def close(self) -> None:
        self._model = None
        self._caches = []

    def _load(self, checkpoint: Checkpoint) -> Decoder:
        checkpoint.on_progress = lambda done, total: self._progress("weights", 100.0 * done / total)
        quantization = quantization_on_load(self._config.quantization, checkpoint.format)
        source = WeightSource(checkpoint, self._ops, self._device, self._dtype, quantization)
        with running_out("weights", self._config, self._device), torch.inference_mode():
            return load_decoder(source)

    def _count_blocks(self, model: Decoder) -> int:
        config, device = self._config, self._device
        if device.type != "cuda":
            return count_blocks(config, self.model_config, self._kv_dtype)
        window = _window(config, self.model_config)

        def measure() -> int:
            left = measure_cache_budget(config, self._ops, model, self._kv_dtype, device, window)
            self._compiled.late()  # what the run compiled was not compiled while serving
            return left

        return count_blocks(config, self.model_config, self._kv_dtype, measure)

    def _allocate(self) -> KVCache:
        model = self.model_config
        try:
            return self._ops.allocate_kv_cache(
                self.num_blocks, self.block_size, model.num_kv_heads, model.head_dim, self._kv_dtype, self._device
            )
        except KernelError as error:
            raise InvalidInput("kv_cache_dtype", self._config.kv_cache_dtype, str(error), hint="use `auto`") from error

    def _sync_slots(self, step: Step) -> None:
        for slot in step.freed_slots:
            self._sampler.release(slot)
            self._pooler.forget(slot)
        for item in step.work:
            if item.fresh:
                self._sampler.admit(item.slot, item.sequence)
                self._pooler.forget(item.slot)

    def _forward_batch(self, step: Step, tensors: StepTensors) -> ForwardBatch:
        model = self.model_config
        plan = self._clock.run(
            self._ops.plan_attention,
            tensors.query_start,
            tensors.kv_len,
            tensors.block_tables,
            self.block_size,
            model.num_heads,
            model.num_kv_heads,
            model.head_dim,
        )
        rows = tensors.row_starts[-1]
        wanted = None
        if rows > len(step.work) and not _needs_all_rows(step):
            wanted = tensors.last_rows
        return ForwardBatch(tensors.token_ids, tensors.positions, tensors.slot_mapping, plan, wanted)

    def _sample(
        self, model: Decoder, step: Step, tensors: StepTensors, hidden: Tensor
    ) -> tuple[dict[int, SampledToken], dict[int, Exception]]:
        work: Sequence[Work] = [item for item in step.work if item.sample and not item.pool]
        if not work:
            return {}, {}
        last = hidden
        if tensors.last_rows is not None and len(work) < hidden.shape[0]:
            last = hidden[tensors.last_rows]
        normed = self._clock.run(model.last_norm, last)
        if self._copies.packed:  # looked at with the results, so that a NaN must not reach them
            sound = normed.isfinite().all(dim=1)
            normed = normed.where(sound.unsqueeze(1), 0.0)
            return self._sampler.sample(work, self._clock.run(model.logits, normed), sound)
        work, normed, faults = self._sound(work, normed)
        if not work:
            return {}, faults
        tokens, row_faults = self._sampler.sample(work, self._clock.run(model.logits, normed))
        return tokens, faults | row_faults

    def _sound(self, work: Sequence[Work], normed: Tensor) -> tuple[Sequence[Work], Tensor, dict[int, Exception]]:
        """The rows without a NaN or an infinity, and a fault for each other one. Any such value shows in the sum."""
        if isfinite(self._clock.run(torch.sum, normed).item()):
            return work, normed, {}
        sound = normed.isfinite().all(dim=1).tolist()
        faults: dict[int, Exception] = {
            item.slot: not_finite() for item, fine in zip(work, sound, strict=True) if not fine
        }
        return (
            [item for item in work if item.slot not in faults],
            normed[torch.tensor(sound, device=self._device)],
            faults,
        )

    def _prompt_evidence(
        self, model: Decoder, step: Step, tensors: StepTensors, hidden: Tensor
    ) -> tuple[dict[int, list[PromptLogprob]], dict[int, list[float]]]:
        """By slot: the prompt log-probabilities of chunks that want them, and the vectors of embeddings that ended."""
        if not _needs_all_rows(step):
            return {}, {}
        logprobs = {
            item.slot: self._prompt_logprobs(model, item, hidden[first:end])
            for item, first, end in _spans(step, tensors)
            if item.want_prompt_logprobs
        }
        return logprobs, self._pool(model, step, tensors, hidden)

    def _prompt_logprobs(self, model: Decoder, item: Work, hidden: Tensor) -> list[PromptLogprob]:
        """For each position of the chunk that a prompt token follows: the evidence about that token."""
        sequence, first = item.sequence, item.num_computed
        targets = sequence.token_ids[first + 1 : min(first + item.num_new + 1, sequence.num_prompt_tokens)]
        topk = sequence.sampling.prompt_logprobs or 0
        found: list[PromptLogprob] = []
        for start in range(0, len(targets), _PROMPT_LOGPROB_ROWS):
            part = targets[start : start + _PROMPT_LOGPROB_ROWS]
            normed = self._clock.run(model.last_norm, hidden[start : start + len(part)])
            logits = self._clock.run(model.logits, normed)
            ids = torch.tensor(part, device=self._device)
            stats = self._clock.run(self._ops.row_stats, logits, ids, topk)
            tops = zip(stats.top_ids.tolist(), stats.top_logprobs.tolist(), strict=True)
            pairs = [tuple(zip(top_ids, logprobs, strict=True)) for top_ids, logprobs in tops]
            found += zip(part, stats.logprob.tolist(), stats.rank.tolist(), pairs, strict=True)
        return found

    def _pool(self, model: Decoder, step: Step, tensors: StepTensors, hidden: Tensor) -> dict[int, list[float]]:
        pooled = {}
        for item, first, end in _spans(step, tensors):
            if item.pool:
                self._pooler.add(item.slot, self._clock.run(model.last_norm, hidden[first:end]))
                if item.sample:
                    pooled[item.slot] = self._pooler.finish(item.slot)
        return pooled


def _return_freed_memory() -> None:
    """Return freed memory to the system, where the C library (glibc) can."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def _no_progress(stage: str, percent: float) -> None:
    """Nobody is watching."""


def load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    """The product's loader: weights, tokenizer and content hash of `config.model`, a decoder or a sentence encoder."""
    with model_files(Path(config.model).name):
        return _load_model(config, progress)


def _load_model(config: EngineConfig, progress: Progress) -> LoadedModel:
    checkpoint = open_checkpoint(config.model)
    if checkpoint.config.architecture not in BERT_ARCHITECTURES:
        runner = ModelRunner(config, progress, checkpoint)
        _require_sha256(runner.model_sha256, config.model_sha256)
        defaults = sampling_defaults(checkpoint.path, checkpoint.metadata)
        return LoadedModel(
            runner,
            runner.tokenizer,
            runner.model_sha256,
            sampling_defaults=defaults,
            kernels_sha256=runner.kernels_sha256,
        )
    device = resolve_device(config.device)
    encoder = SentenceEncoder(checkpoint, config, device, DTYPES.get(config.dtype, torch.float32))
    found = checkpoint.sha256()
    _require_sha256(found, config.model_sha256)
    progress("ready", 100.0)
    return LoadedModel(encoder, encoder.tokenizer, found, encoder, kernels_sha256=encoder.kernels_sha256)


def _require_sha256(found: str, expected: str | None) -> None:
    if expected is not None and found != expected.lower():
        raise WeightsMismatch(
            f"the model's files have the SHA-256 {found}, expected {expected.lower()}",
            hint="the files are damaged or were replaced: fetch the model again (a demo model: `esclusa models fetch`)",
        )


def _refuse_unsupported(config: EngineConfig) -> None:
    if config.tensor_parallel_size != 1:
        raise InvalidInput(
            "tensor_parallel_size", config.tensor_parallel_size, "this build runs a model in one process"
        )


def _window(config: EngineConfig, model: ModelConfig) -> int:
    if config.max_model_len is None:
        return model.max_position_embeddings
    if config.max_model_len > model.max_position_embeddings:
        limit = f"this model's window is {model.max_position_embeddings} tokens"
        raise InvalidInput("max_model_len", config.max_model_len, limit)
    return config.max_model_len


def _spans(step: Step, tensors: StepTensors) -> Iterator[tuple[Work, int, int]]:
    """Each work item with its first row and the row after its last."""
    starts = tensors.row_starts
    return zip(step.work, starts, starts[1:], strict=False)


def _needs_all_rows(step: Step) -> bool:
    """Whether some item asks for more than the next token."""
    return any([item.want_prompt_logprobs or item.pool for item in step.work])  # noqa: C419 - twice as fast


class _BackgroundHash:
    """Hashing half a gigabyte takes part of a second; it overlaps the loading of the weights."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._result: list[str] = []
        self._thread = threading.Thread(
            target=lambda: self._result.append(checkpoint.sha256()), name="model-hash", daemon=True
        )
        self._thread.start()

    def value(self) -> str:
        self._thread.join()
        if not self._result:
            raise EngineFault("the model's files could not be hashed", hint="are they readable?")
        return self._result[0]
