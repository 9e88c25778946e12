"""The inference engine: many requests on one decoder; what else it computes never changes an answer."""

from typing import TYPE_CHECKING

from .._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from .async_llm import AsyncLLM
    from .engine import EngineArgs, LLMEngine
    from .linear import Float8Linear, PackedLinear, QuantLinear, float8_, pack_, quantize_
    from .llm import LLM
    from .lora import LoRARequest
    from .outputs import CompletionOutput, Logprob, RequestOutput
    from .sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams


__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "Float8Linear",
    "LLMEngine",
    "LoRARequest",
    "Logprob",
    "PackedLinear",
    "QuantLinear",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "float8_",
    "pack_",
    "quantize_",
]
_LATE = {  # imported when first asked for
    "async_llm": "AsyncLLM",
    "engine": "EngineArgs LLMEngine",
    "linear": "Float8Linear PackedLinear QuantLinear float8_ pack_ quantize_",
    "llm": "LLM",
    "lora": "LoRARequest",
    "outputs": "CompletionOutput Logprob RequestOutput",
    "sampling_params": "RequestOutputKind SamplingParams StructuredOutputsParams",
}
_install_getattr(__name__, _LATE)
