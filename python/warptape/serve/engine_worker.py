"""A worker of kind "llm": a model folder behind the engine, or an encoder that gives embeddings.

Of each answer a frame has what is new since the last one: tokens, text and log-probabilities together, so
that the front never has the one without the others.
"""

from __future__ import annotations

import json
import os
from dataclasses import fields
from typing import Any

import numpy as np

import warptape

from ..inference import LLM, EngineArgs, LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from ..models import Encoder
from .workers import WorkerSpec

# Beside EngineArgs: LLM's, and what is this worker's.
OPTIONS = ("tokenizer", "dtype", "quantization", "generation_config")
OWN = ("heartbeat_s", "pooling", "adapters", "threads")
POOLINGS = ("mean", "last", "cls")
ENCODERS = ("bert",)


def params_of(given: dict[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """SamplingParams from JSON, where the keys of logit_bias are text."""
    values = {**defaults, **given}
    if values.get("logit_bias") is not None:
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}
    if values.get("structured_outputs") is not None:
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    return SamplingParams(**values)


def _entries(logprobs: Any) -> list[list[Any]]:
    """[token, log-probability, rank, text] of each entry for a token; the drawn token's first."""
    return [[token, p.logprob, p.rank, p.decoded_token] for token, p in logprobs.items()]


class _Sent:
    """What the front knows of a request."""

    def __init__(self, number: int, output: RequestOutput) -> None:
        self.number = number
        # By index: tokens, characters, log-probabilities.
        self.of = {o.index: (len(o.token_ids), len(o.text), len(o.logprobs or ())) for o in output.outputs}
        self.prompt = False

    def event(self, output: RequestOutput) -> dict[str, Any]:
        """What is new."""
        outputs = []
        for each in output.outputs:
            tokens, text, logprobs = self.of[each.index]
            if tokens == len(each.token_ids) and each.finish_reason is None:
                continue
            if text < 0:
                continue  # its end was told
            new: dict[str, Any] = {
                "index": each.index,
                "tokens": each.token_ids[tokens:],
                "text": each.text[text:],
            }
            if each.logprobs is not None:
                new["logprobs"] = [_entries(entries) for entries in each.logprobs[logprobs:]]
            if each.finish_reason is not None:
                new.update(finish_reason=each.finish_reason, stop_reason=each.stop_reason)
            ended = each.finish_reason is not None
            self.of[each.index] = (
                len(each.token_ids),
                -1 if ended else len(each.text),
                len(each.logprobs or ()),
            )
            outputs.append(new)
        event: dict[str, Any] = {
            "id": self.number,
            "outputs": outputs,
            "cached_tokens": output.num_cached_tokens,
        }
        if output.prompt_logprobs is not None and not self.prompt:
            self.prompt = True
            event["prompt_logprobs"] = [p and _entries(p) for p in output.prompt_logprobs]
        return event


class EngineWorker:
    """A model folder.

    Raises: what LLM raises; TypeError for unknown options.
    """

    def __init__(self, spec: WorkerSpec) -> None:
        options = dict(spec.options)
        known = {*(each.name for each in fields(EngineArgs)), *OPTIONS, *OWN}
        unknown = sorted(set(options) - known)
        if unknown:
            raise TypeError(f"unknown options {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        if options.get("threads") is not None:
            warptape.set_num_threads(int(options["threads"]))
        own = {name: options.pop(name, None) for name in OWN}
        self._folder = spec.path
        self._pooling = own["pooling"] or _stored_pooling(spec.path)
        if self._pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self._pooling!r}")
        self._adapters = {
            name: LoRARequest(name, number + 1, path)
            for number, (name, path) in enumerate((own["adapters"] or {}).items())
        }
        self._sent: dict[str, _Sent] = {}
        self._encoder = None
        if _model_type(spec.path) in ENCODERS:
            self._encoder = Encoder.from_pretrained(spec.path).eval()
            return
        path = os.path.join(os.fspath(options.get("tokenizer") or spec.path), "tokenizer.json")
        without = not os.path.isfile(path)
        self._engine = LLM(spec.path, skip_tokenizer_init=without, **options).llm_engine

    def metadata(self) -> dict[str, Any]:
        """The model's limits, for the front's checks."""
        if self._encoder is not None:
            config = self._encoder.config
            return {
                "kind": "encoder",
                "vocab_size": config.vocab_size,
                "max_model_len": config.max_position_embeddings,
            }
        engine = self._engine
        return {
            "kind": "llm",
            "vocab_size": engine.model_config.vocab_size,
            "max_model_len": engine.max_model_len,
            "max_num_seqs": engine.args.max_num_seqs,
            "num_pages": engine.num_pages,
            "tokenizer": engine.tokenizer is not None,
            "adapters": sorted(self._adapters),
        }

    def stats(self) -> dict[str, Any]:
        """The engine's counts."""
        if self._encoder is not None:
            return {}
        return {**self._engine.stats(), "num_pages": self._engine.num_pages, "requests": len(self._sent)}

    # ---- operations ----

    def handle(self, header: dict[str, Any]) -> dict[str, Any] | None:
        """Does an operation; its answer, None where it comes later or never."""
        op = header["op"]
        if op == "embed":
            return {"embeddings": [self._embed(tokens) for tokens in header["inputs"]]}
        if self._encoder is None and op == "generate":
            self._generate(header["id"], header["request"])
            return None
        if self._encoder is None and op == "abort":
            if self._sent.pop(str(header["id"]), None) is not None:
                self._engine.abort_request(str(header["id"]))
            return None
        raise ValueError(f"a model of this kind has no operation {op!r}")

    def _generate(self, number: int, request: dict[str, Any]) -> None:
        params = params_of(request["params"], self._engine.sampling_defaults)
        name = str(number)
        generated = request.get("generated")
        if generated is not None:
            left = set(request["left"])
            generated = [tokens if i in left else None for i, tokens in enumerate(generated)]
        adapter = request.get("adapter")
        if adapter is not None and adapter not in self._adapters:
            raise ValueError(f"no adapter {adapter!r}")
        self._engine.add_request(
            name,
            {"prompt_token_ids": request["prompt_token_ids"]},
            params,
            lora_request=self._adapters.get(adapter),
            priority=request.get("priority", 0),
            cache_salt=request.get("cache_salt"),
            generated=generated,
        )
        self._sent[name] = _Sent(number, self._engine.snapshot(name))

    def busy(self) -> bool:
        """Whether step() has something to do."""
        return self._encoder is None and self._engine.has_unfinished_requests()

    def step(self) -> list[dict[str, Any]]:
        """One step of the engine: what it changed, request by request. An error of the model ends all."""
        try:
            outputs = self._engine.step()
        except Exception as error:
            events = []
            for name, each in list(self._sent.items()):
                self._engine.abort_request(name)
                events.append({"id": each.number, "error": f"{type(error).__name__}: {error}"})
            self._sent.clear()
            return events
        events = []
        for output in outputs:
            sent = self._sent.get(output.request_id)
            if sent is not None:
                events.append(sent.event(output))
                if output.finished:
                    del self._sent[output.request_id]
        return events

    @warptape.inference_mode()
    def _embed(self, tokens: list[int]) -> list[float]:
        """A vector [C] of length 1: one text at a time, so that no neighbour changes it."""
        given = warptape.tensor(tokens).unsqueeze(0)  # [1, T]
        if self._encoder is not None:
            states, pooling = self._encoder(given)[0], self._pooling or "mean"
        else:
            states, pooling = self._engine.runner.model.hidden(given), self._pooling or "last"
        x = states[0].float().numpy().astype(np.float64)  # [T, C]
        pooled = x.mean(0) if pooling == "mean" else x[0] if pooling == "cls" else x[-1]
        return (pooled / max(float(np.linalg.norm(pooled)), 1e-12)).astype(np.float32).tolist()


def _read(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _model_type(folder: str) -> Any:
    return _read(os.path.join(folder, "config.json")).get("model_type")


def _stored_pooling(folder: str) -> str | None:
    """What sentence-transformers wrote of how vectors are pooled."""
    said = _read(os.path.join(folder, "1_Pooling", "config.json"))
    for name, key in (("cls", "cls_token"), ("mean", "mean_tokens"), ("last", "lasttoken")):
        if said.get(f"pooling_mode_{key}"):
            return name
    return None
