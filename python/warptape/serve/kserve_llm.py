"""KServe's infer for language models: text or tokens in, text or tokens out.

text_input BYTES [n] or [n, 1]      or  input_ids INT32/INT64 [L] or [1, L]
parameters: fields of SamplingParams (max_tokens, temperature, ..)
-> text_output BYTES [n],  output_ids INT64 [tokens] of a single prompt,  finish_reason BYTES [n]
"""

from __future__ import annotations

import asyncio
import secrets
import time
from dataclasses import fields
from typing import Any

import numpy as np

from ..inference.sampling_params import SamplingParams
from .kserve_codec import Arrays, InferRequest
from .limits import bounded
from .texts import Texts
from .versions import Version
from .workers import DeadlineError, RequestError

INPUTS = (
    {"name": "text_input", "datatype": "BYTES", "shape": [-1]},
    {"name": "input_ids", "datatype": "INT64", "shape": [-1]},
)
OUTPUTS = (
    {"name": "text_output", "datatype": "BYTES", "shape": [-1]},
    {"name": "output_ids", "datatype": "INT64", "shape": [-1]},
    {"name": "finish_reason", "datatype": "BYTES", "shape": [-1]},
)
_OWN = ("priority", "timeout", "binary_data_output", "sequence_id", "sequence_start", "sequence_end")
_TAKEN = frozenset(f.name for f in fields(SamplingParams)) - {
    "n",
    "logprobs",
    "prompt_logprobs",
    "structured_outputs",
    "logit_bias",
    "output_kind",
}
MOST_PROMPTS = 64


def params_of(parameters: dict[str, Any]) -> dict[str, Any]:
    """Fields of SamplingParams, with a seed. Raises: RequestError.

    Args:
        parameters: of the request.
    """
    options = {k: v for k, v in parameters.items() if k not in _OWN}
    unknown = sorted(k for k in options if k not in _TAKEN)
    if unknown:
        raise RequestError(f"parameters {unknown!r:.200} are not known; known are {sorted(_TAKEN)}")
    bounded(options)
    options.setdefault("max_tokens", 16)
    if options.get("seed") is None:
        options["seed"] = secrets.randbits(62)
    try:
        SamplingParams(**options)
    except (ValueError, TypeError, IndexError) as error:
        raise RequestError(f"parameters: {error}") from None
    return options


async def _prompts(texts_of: Texts, version: Version, request: InferRequest) -> list[list[int]]:
    inputs = request.inputs
    if set(inputs) == {"input_ids"}:
        ids = inputs["input_ids"]
        if (
            ids.dtype not in (np.int32, np.int64)
            or ids.ndim not in (1, 2)
            or (ids.ndim == 2 and len(ids) != 1)
        ):
            raise RequestError(
                f"input_ids must be INT32 or INT64 of shape [L] or [1, L], got {ids.dtype}{list(ids.shape)}"
            )
        return [ids.reshape(-1).tolist()]
    if set(inputs) != {"text_input"}:
        raise RequestError(f"{version.name}: expected text_input or input_ids, got {list(inputs)!r:.200}")
    texts = inputs["text_input"]
    if texts.dtype != object or not 1 <= texts.size <= MOST_PROMPTS:
        raise RequestError(
            f"text_input must be 1 to {MOST_PROMPTS} BYTES, got {texts.dtype}{list(texts.shape)}"
        )
    tokenizer = await texts_of.of(version.spec, version.metadata["vocab_size"])
    if tokenizer is None:
        raise RequestError(f"{version.name} has no tokenizer: give input_ids")
    try:
        prompts = [t.decode() if isinstance(t, bytes) else t for t in texts.reshape(-1)]
    except UnicodeDecodeError as error:
        raise RequestError(f"text_input is no UTF-8: {error}") from None
    truncated = request.parameters.get("truncate_prompt_tokens") is not None
    return await texts_of.encode(tokenizer, prompts, True, version.metadata["max_model_len"], truncated)


async def _generated(
    version: Version, tokens: list[int], params: dict[str, Any]
) -> tuple[str, list[int], str]:
    text, ids, reason = [], [], ""
    async for event in version.worker.generate({"prompt_token_ids": tokens, "params": params}):
        for output in event["outputs"]:
            text.append(output["text"])
            ids += output["tokens"]
            reason = output.get("finish_reason") or reason
    return "".join(text), ids, reason


async def infer(texts: Texts, version: Version, request: InferRequest, deadline: float | None) -> Arrays:
    """The outputs of a request to a language model.

    Raises: RequestError, DeadlineError, WorkerError.
    """
    if version.metadata.get("kind") != "llm":
        raise RequestError(f"{version.name} gives embeddings: ask for them at /v1/embeddings")
    params = params_of(request.parameters)
    prompts = await _prompts(texts, version, request)
    known = [t["name"] for t in OUTPUTS]
    for name in request.outputs or ():
        if name not in known:
            raise RequestError(f"{version.name} has no output {name!r:.100}; it has {known}")
    tasks = [asyncio.ensure_future(_generated(version, tokens, params)) for tokens in prompts]
    try:
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        answers = await asyncio.wait_for(asyncio.gather(*tasks), left)
    except (asyncio.TimeoutError, TimeoutError) as error:
        raise DeadlineError(f"{version.name}: no answer within the request's time") from error
    finally:
        for task in tasks:
            task.cancel()
    arrays: Arrays = {
        "text_output": np.array([text.encode() for text, _, _ in answers], object),
        "output_ids": np.array(answers[0][1], np.int64),
        "finish_reason": np.array([reason.encode() for _, _, reason in answers], object),
    }
    if len(answers) > 1:
        del arrays["output_ids"]
    return arrays if request.outputs is None else {n: arrays[n] for n in request.outputs if n in arrays}
