"""Refrain in a Python program: vLLM's names, and its outputs' shape. docs/python.md shows how."""
import ssl  # noqa: F401  Python's own OpenSSL first: the one that a wheel carries may be too old for it

from refrain._engine import EngineError
from refrain.async_llm import AsyncLLM
from refrain.llm import LLM
from refrain.lora import LoRARequest
from refrain.outputs import CompletionOutput, Logprob, RequestOutput
from refrain.sampling_params import RequestOutputKind, SamplingParams, StructuredOutputsParams

__all__ = ["LLM", "AsyncLLM", "CompletionOutput", "EngineError", "Logprob", "LoRARequest", "RequestOutput",
           "RequestOutputKind", "SamplingParams", "StructuredOutputsParams"]
