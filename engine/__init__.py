"""The LLM engine: tokens, blocks, batches. Knows no users, HTTP, SQL or policies.

This module is its public face, all that the gateway may import. Nothing here imports torch; loading a model does.
"""

from engine.config import EngineConfig
from engine.errors import (
    DeadlineExceeded,
    DuplicateRequest,
    EngineError,
    EngineFault,
    EngineOverloaded,
    EngineUnavailable,
    InvalidGrammar,
    InvalidInput,
    PoisonRequest,
    PromptTooLong,
    TextTooLong,
    UnsupportedModel,
    WeightsMismatch,
)
from engine.execution.inspection import ModelFacts, check_model, read_facts
from engine.execution.kernel_manifest import KernelManifest, build_kernels, read_kernels, tune_kernels
from engine.metrics.prometheus import EngineCollector
from engine.metrics.stats import EngineStats, ShareStats
from engine.ports import LoadedModel, Loader, Progress
from engine.quantization.request import Quantized, QuantizeRequest, quantize_model
from engine.requests import (
    EngineSignals,
    EngineUsage,
    FinishReason,
    GenerationEvent,
    GenerationRequest,
    Grammar,
    Logprob,
    PromptScore,
    SamplingParams,
    SchedulingHints,
    TokenLogprobs,
)
from engine.serving.client import AsyncEngine
from engine.serving.llm import LLM, CompletionOutput, RequestOutput
from engine.serving.loop import EngineState
from engine.serving.offline import ChoiceResult, GenerationResult, LLMEngine
from engine.serving.stream import GenerationStream
from engine.text.tool_calls.constraint import CallConstraint, Function
from engine.text.tool_calls.pieces import AnswerParser, CallArguments, CallBegin, Reasoning
from engine.verification.report import VerifyReport
from engine.verification.verify import verify_model

__all__ = [
    "LLM",
    "AnswerParser",
    "AsyncEngine",
    "CallArguments",
    "CallBegin",
    "CallConstraint",
    "ChoiceResult",
    "CompletionOutput",
    "DeadlineExceeded",
    "DuplicateRequest",
    "EngineCollector",
    "EngineConfig",
    "EngineError",
    "EngineFault",
    "EngineOverloaded",
    "EngineSignals",
    "EngineState",
    "EngineStats",
    "EngineUnavailable",
    "EngineUsage",
    "FinishReason",
    "Function",
    "GenerationEvent",
    "GenerationRequest",
    "GenerationResult",
    "GenerationStream",
    "Grammar",
    "InvalidGrammar",
    "InvalidInput",
    "KernelManifest",
    "LLMEngine",
    "LoadedModel",
    "Loader",
    "Logprob",
    "ModelFacts",
    "PoisonRequest",
    "Progress",
    "PromptScore",
    "PromptTooLong",
    "QuantizeRequest",
    "Quantized",
    "Reasoning",
    "RequestOutput",
    "SamplingParams",
    "SchedulingHints",
    "ShareStats",
    "TextTooLong",
    "TokenLogprobs",
    "UnsupportedModel",
    "VerifyReport",
    "WeightsMismatch",
    "build_kernels",
    "check_model",
    "quantize_model",
    "read_facts",
    "read_kernels",
    "tune_kernels",
    "verify_model",
]
