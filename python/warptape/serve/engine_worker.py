"""A worker of kind "llm": a model folder behind the engine, or an encoder that gives embeddings.

Of each answer a frame has what is new since the last one: tokens, text and log-probabilities together, so
that the front never has the one without the others.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import fields
from typing import Any

import numpy as np

import warptape

from ..inference import LLM, EngineArgs, LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from ..inference.tokenizer import has_tokenizer
from ..models import Encoder
from .worker import failure
from .workers import WorkerError, WorkerSpec

Answer = tuple[dict[str, Any], list[Any]]  # of a call: header and buffers

# Beside EngineArgs: LLM's, and what is this worker's.
OPTIONS = ("tokenizer", "skip_tokenizer_init", "dtype", "quantization", "generation_config")
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
        self.prompt = 0  # tokens whose log-probabilities were told

    def of_prompt(self, known: list[Any]) -> list[Any] | None:
        """The log-probabilities of the prompt that are new, of those that are known."""
        new = [p and _entries(p) for p in known[self.prompt :]]
        self.prompt = max(self.prompt, len(known))
        return new or None

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
        if (of_prompt := self.of_prompt(output.prompt_logprobs or [])) is not None:
            event["prompt_logprobs"] = of_prompt
        return event


class _Pooled:
    """A vector of the states of a text's tokens, as they come."""

    def __init__(self, pooling: str) -> None:
        self._pooling, self._known = pooling, 0
        self._sum: np.ndarray[Any, Any] | None = None

    def take(self, position: int, states: Any) -> None:
        """States [n, C] of the tokens from a position on."""
        rows = states[max(self._known - position, 0) :].float().cpu().numpy().astype(np.float64)
        self._known = max(self._known, position + states.shape[0])
        if not len(rows):
            return
        if self._pooling == "last":
            self._sum = rows[-1]
        elif self._sum is None or self._pooling == "mean":
            before = [] if self._sum is None else [self._sum[None]]
            # Added row by row, so that it does not matter how steps cut the text.
            self._sum = rows[0] if self._pooling == "cls" else np.concatenate([*before, rows]).sum(0)

    def vector(self) -> np.ndarray[Any, Any]:
        """[C], float32, of length 1. ArithmeticError for states that are no numbers."""
        assert self._sum is not None
        pooled = self._sum / self._known if self._pooling == "mean" else self._sum
        if not np.isfinite(pooled).all():
            raise ArithmeticError("the model's states are no finite numbers")
        vector: np.ndarray[Any, Any] = pooled / max(float(np.linalg.norm(pooled)), 1e-12)
        return vector.astype("<f4")


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
            name: LoRARequest(name, number + 1, beside(spec.path, path))
            for number, (name, path) in enumerate((own["adapters"] or {}).items())
        }
        self._sent: dict[str, _Sent] = {}
        self._pooled: dict[str, _Pooled] = {}  # of texts in the engine
        self._texts: OrderedDict[int, list[int]] = OrderedDict()  # for the encoder
        self._compiling: dict[int, tuple[Future[Any], dict[str, Any], SamplingParams]] = {}
        self._compilers = ThreadPoolExecutor(1, "warptape-compile")
        self._encoder = None
        if _model_type(spec.path) in ENCODERS:
            self._encoder = Encoder.from_pretrained(spec.path).eval()
            return
        speculation = options.get("speculative_config")
        if isinstance(speculation, dict) and isinstance(speculation.get("model"), str):
            draft = beside(spec.path, speculation["model"])
            options["speculative_config"] = {**speculation, "model": draft}
        options.setdefault("skip_tokenizer_init", not has_tokenizer(options.get("tokenizer") or spec.path))
        self._engine = LLM(spec.path, **options).llm_engine

    def metadata(self) -> dict[str, Any]:
        """The model's limits, for the front's checks."""
        if self._encoder is not None:
            config = self._encoder.config
            return {
                "kind": "encoder",
                "vocab_size": config.vocab_size,
                "max_model_len": config.max_position_embeddings,
                "max_embedded_len": config.max_position_embeddings,
            }
        engine = self._engine
        return {
            "kind": "llm",
            "vocab_size": engine.model_config.vocab_size,
            "max_model_len": engine.max_model_len,
            "max_embedded_len": engine.max_model_len - 1,  # the engine computes a text for a token more
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

    def handle(self, header: dict[str, Any], buffers: list[memoryview]) -> dict[str, Any] | None:
        """Does an operation; its answer, None where it comes later or never."""
        op, number = header["op"], header["id"]
        if op == "embed":
            self._embed(number, np.frombuffer(buffers[0], "<i4").tolist())
            return None
        if self._encoder is None and op == "generate":
            params = params_of(header["request"]["params"], self._engine.sampling_defaults)
            if params.structured_outputs is None:
                self._generate(number, header["request"], params)
            else:  # beside the steps of others
                compiled = self._compilers.submit(self._engine.grammar, params)
                self._compiling[number] = compiled, header["request"], params
            return None
        if op == "abort":
            self._compiling.pop(number, None)
            self._texts.pop(number, None)
            there = [each.pop(str(number), None) for each in (self._sent, self._pooled)]
            if any(each is not None for each in there):
                self._engine.abort_request(str(number))
            return None
        raise ValueError(f"a model of this kind has no operation {op!r}")

    def _embed(self, number: int, tokens: list[int]) -> None:
        if self._encoder is not None:
            self._texts[number] = tokens
            return
        pooled = _Pooled(self._pooling or "last")
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False, seed=0)
        prompt = {"prompt_token_ids": tokens}
        whole = self._pooling in ("mean", "cls")  # which need every token's state
        self._engine.add_request(str(number), prompt, params, states=pooled.take, share_cache=not whole)
        self._pooled[str(number)] = pooled

    def _generate(
        self, number: int, request: dict[str, Any], params: SamplingParams, grammar: Any = None
    ) -> None:
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
            grammar=grammar,
        )
        self._sent[name] = _Sent(number, self._engine.snapshot(name))

    def busy(self) -> bool:
        """Whether step() has something to do."""
        if self._encoder is not None:
            return bool(self._texts)
        return bool(self._compiling) or self._engine.has_unfinished_requests()

    def step(self) -> tuple[list[dict[str, Any]], list[Answer]]:
        """One step of the engine, or one text of the encoder: events, what changed, request by request, and
        answers. An error of the model ends all."""
        if self._encoder is not None:
            return [], [self._encode(*self._texts.popitem(last=False))]
        events = self._compiled()
        try:
            outputs = self._engine.step()
        except Exception as error:
            for name in [*self._sent, *self._pooled]:
                self._engine.abort_request(name)
                events.append(failure(int(name), WorkerError(f"{type(error).__name__}: {error}")))
            self._sent.clear()
            self._pooled.clear()
            return events, []
        answers = []
        told = set()
        for output in outputs:
            sent, pooled = self._sent.get(output.request_id), self._pooled.get(output.request_id)
            if sent is not None:
                events.append(sent.event(output))
                told.add(output.request_id)
                if output.finished:
                    del self._sent[output.request_id]
            elif pooled is not None and output.finished:
                del self._pooled[output.request_id]
                answers.append(self._vector(int(output.request_id), pooled))
        for name in self._engine.num_scheduled_tokens:  # prompts of which a part is there
            sent = self._sent.get(name) if name not in told else None
            new = sent.of_prompt(self._engine.prompt_logprobs(name)) if sent is not None else None
            if sent is not None and new is not None:
                events.append({"id": sent.number, "outputs": [], "prompt_logprobs": new})
        return events, answers

    def _compiled(self) -> list[dict[str, Any]]:
        """Adds the requests whose grammars are compiled; the failures of others."""
        if self._compiling and not self._engine.has_unfinished_requests():
            wait([future for future, *_ in self._compiling.values()], 0.005)
        events = []
        for number, (future, request, params) in list(self._compiling.items()):
            if future.done():
                del self._compiling[number]
                try:
                    self._generate(number, request, params, future.result())
                except Exception as error:
                    events.append(failure(number, error))
        return events

    @warptape.inference_mode()
    def _encode(self, number: int, tokens: list[int]) -> Answer:
        """One text at a time, so that no neighbour changes it, and others' requests come between two."""
        assert self._encoder is not None
        pooled = _Pooled(self._pooling or "mean")
        try:
            pooled.take(0, self._encoder(warptape.tensor(tokens).unsqueeze(0))[0][0])
        except Exception as error:
            return failure(number, error), []
        return self._vector(number, pooled)

    @staticmethod
    def _vector(number: int, pooled: _Pooled) -> Answer:
        try:
            return {"id": number}, [pooled.vector().data]
        except ArithmeticError as error:
            return failure(number, error), []


def beside(path: str, other: str) -> str:
    """A path in a model's config, from the model's folder on."""
    folder = os.path.dirname(path if os.path.isdir(path) else os.path.dirname(path))
    return os.path.normpath(os.path.join(folder, other))


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
