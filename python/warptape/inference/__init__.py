"""The inference engine: many requests on one decoder, and answers that do not depend on what else it computes."""

from .._missing import lookup as _lookup
from .async_llm import AsyncLLM
from .engine import EngineArgs, LLMEngine
from .llm import LLM
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import SamplingParams, StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "EngineArgs",
    "LLMEngine",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "StructuredOutputsParams",
]
__getattr__ = _lookup(__name__)
