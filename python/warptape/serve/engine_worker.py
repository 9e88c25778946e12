"""A worker of kind "llm": a model folder behind the engine, or an encoder that gives embeddings.

Of each answer a frame has what is new since the last one: tokens, text and log-probabilities together, so
that the front never has the one without the others.
"""

from __future__ import annotations

import json
import os
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import numpy as np

from warptape import core as wt

from ..inference import LLM, LoRARequest, RequestOutput, SamplingParams, StructuredOutputsParams
from ..inference.encoding import TOKENS, Encoded, TextEncoder
from ..inference.outputs import Logprob
from ..inference.tokenizer import has_tokenizer
from ..models import EncoderConfig
from .options import OPTIONS, OWN, POOLINGS
from .weight_orders import WeightOrders
from .worker import failure
from .workers import WorkerError, WorkerSpec

Answer = tuple[dict[str, Any], list[Any]]  # of a call: header and buffers

DRAFTED = 4  # tokens that a draft model proposes, where speculative_config says nothing


def params_of(given: dict[str, Any], defaults: dict[str, Any]) -> SamplingParams:
    """SamplingParams from JSON, where the keys of logit_bias are text.

    Args:
        given: of the request.
        defaults: of the model.
    """
    values = {**defaults, **given}
    if values.get("logit_bias") is not None:
        values["logit_bias"] = {int(token): float(bias) for token, bias in values["logit_bias"].items()}
    if values.get("structured_outputs") is not None:
        values["structured_outputs"] = StructuredOutputsParams(**values["structured_outputs"])
    return SamplingParams(**values)


def _entries(logprobs: Any) -> list[list[Any]]:
    """[token, log-probability, rank, text, bytes, offset] of each entry for a token; the drawn token's first.
    Bytes are None where they are the text's."""
    return [[token, p.logprob, p.rank, *_described(p)] for token, p in logprobs.items()]


def _described(p: Logprob) -> list[Any]:
    text, adds = p.decoded_token, p.decoded_bytes
    return [text, None if text is None or adds is None or adds == text.encode() else [*adds], p.text_offset]


class _Sent:
    """What the front knows of a request."""

    def __init__(self, number: int, output: RequestOutput, first: list[Any]) -> None:
        self.number, self.first = number, first  # the entry of the prompt's first token
        # By index: tokens, characters, log-probabilities.
        self.of = {o.index: (len(o.token_ids), len(o.text), len(o.logprobs or ())) for o in output.outputs}
        self.prompt = 0  # tokens whose log-probabilities were told

    def of_prompt(self, known: list[Any]) -> list[Any] | None:
        """The log-probabilities of the prompt that are new, of those that are known.

        Args:
            known: as far as they are there.
        """
        new = [_entries(p) if p else [self.first] for p in known[self.prompt :]]
        self.prompt = max(self.prompt, len(known))
        return new or None

    def event(self, output: RequestOutput) -> dict[str, Any]:
        """What is new.

        Args:
            output: as it stands.
        """
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
            if any(each.weights_versions):
                new["weights_versions"] = each.weights_versions
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
        """States [n, C] of the tokens from a position on.

        Args:
            position: of the first.
            states: of the last layer.
        """
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
        unknown = sorted({*options} - {*OPTIONS})
        if unknown:
            raise TypeError(f"unknown options {', '.join(unknown)}; known are {', '.join(sorted(OPTIONS))}")
        if options.get("threads") is not None:
            wt.set_num_threads(int(options["threads"]))
        own = {each.name: options.pop(each.name, None) for each in OWN}
        self._folder = spec.path
        self._pooling = own["pooling"] or _stored_pooling(spec.path)
        if self._pooling not in (None, *POOLINGS):
            raise ValueError(f"pooling must be one of {', '.join(POOLINGS)}, got {self._pooling!r}")
        if own["reasoning_parser"] not in (None, "none"):
            raise ValueError(f"reasoning_parser must be none, or left out, got {own['reasoning_parser']!r}")
        self._adapters = {
            name: LoRARequest(name, number + 1, path)
            for number, (name, path) in enumerate((own["adapters"] or {}).items())
        }
        if own["chat_template"] is not None and not os.path.isfile(own["chat_template"]):
            raise FileNotFoundError(f"chat_template: {own['chat_template']} is no file")
        self._last_adapter, self._gone = len(self._adapters), list[int]()  # numbers; those to be forgotten
        self._sent: dict[str, _Sent] = {}
        self._pooled: dict[str, _Pooled] = {}  # of texts in the engine
        self._reading: dict[int, str] = {}  # texts that the encoder has, and the operation of each
        self._compiling: dict[int, tuple[Future[Any], dict[str, Any], SamplingParams]] = {}
        self._compilers = ThreadPoolExecutor(1, "warptape-compile")
        self._encoder: TextEncoder | None = None
        self._config = _read(os.path.join(spec.path, "config.json"))
        if self._config.get("model_type") in EncoderConfig.architectures:
            taken = {name: options[name] for name in ("dtype", "quantization") if options.get(name)}
            tokens = options.get("max_num_batched_tokens") or TOKENS
            self._encoder = TextEncoder(spec.path, **taken, tokens=tokens)
            return
        if own["draft_model"] is not None:
            said = options.get("speculative_config") or {}
            options["speculative_config"] = {
                "num_speculative_tokens": DRAFTED,
                **said,
                "model": own["draft_model"],
            }
        options.setdefault("skip_tokenizer_init", not has_tokenizer(options.get("tokenizer") or spec.path))
        self._engine = LLM(spec.path, **options).llm_engine
        self._weights = WeightOrders(self._engine)
        if spec.weights:
            self._weights.restore(spec.weights)

    def metadata(self) -> dict[str, Any]:
        """The model's limits, for the front's checks."""
        if self._encoder is not None:
            config = self._encoder.model.config
            return {
                "kind": "encoder",
                "vocab_size": config.vocab_size,
                "max_model_len": config.context,
                "max_embedded_len": config.context,
                "task": config.task,
                "labels": [*config.labels],
                "activation": _activation(self._config, config),
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
            "images": None if engine.images is None else engine.images.described(),
        }

    def stats(self) -> dict[str, Any]:
        """The engine's counts."""
        if self._encoder is not None:
            return {}
        engine = self._engine
        own = {"num_pages": engine.num_pages, "weights_version": engine.weights_version}
        return {**engine.stats(), **own, "requests": len(self._sent)}

    # ---- operations ----

    def handle(self, header: dict[str, Any], buffers: list[memoryview]) -> dict[str, Any] | None:
        """Does an operation; its answer, None where it comes later or never.

        Args:
            header: with "op" and "id".
            buffers: behind it.
        """
        op, number = header["op"], header["id"]
        if op == "embed" or (op == "classify" and self._encoder is not None):
            self._embed(number, op, *(np.frombuffer(each, "<i4").tolist() for each in buffers))
            return None
        if self._encoder is None and op in ("read_weights", "put_weights", "drop_weights"):
            return self._weights.take(header)
        if self._encoder is None and op == "generate":
            if buffers:
                header["request"]["images"] = [np.frombuffer(each, np.uint8) for each in buffers]
            if self._weights.holds:
                self._weights.held[number] = header
                return None
            params = params_of(header["request"]["params"], self._engine.sampling_defaults)
            if params.structured_outputs is None:
                self._generate(number, header["request"], params)
            else:  # beside the steps of others
                compiled = self._compilers.submit(self._engine.grammar, params)
                self._compiling[number] = compiled, header["request"], params
            return None
        if self._encoder is None and op in ("load_adapter", "unload_adapter"):
            return self._change_adapters(op == "load_adapter", header["name"], header.get("path"))
        if op == "abort":
            self._compiling.pop(number, None)
            if self._reading.pop(number, None) and self._encoder is not None:
                self._encoder.forget(number)
            if self._encoder is None:
                self._weights.held.pop(number, None)
            there = [each.pop(str(number), None) for each in (self._sent, self._pooled)]
            if any(each is not None for each in there):
                self._engine.abort_request(str(number))
            return None
        raise ValueError(f"a model of this kind has no operation {op!r}")

    def _change_adapters(self, load: bool, name: str, path: Any) -> dict[str, Any]:
        """Loads an adapter at once, so that what is wrong with it is told; or forgets one."""
        adapters = self._engine.runner.adapters
        if load:
            self._last_adapter += 1
            adapter = LoRARequest(name, self._last_adapter, path)
            adapters.number(adapter)
            self._adapters[name] = adapter
        elif name in self._adapters:
            self._gone.append(self._adapters.pop(name).lora_int_id)
            self._forget_adapters()
        return {}

    def _forget_adapters(self) -> None:
        """Drops the weights of adapters that were unloaded, once no request needs them."""
        used = {lora.lora_int_id for lora in self._engine.adapters_in_use()}
        for number in [each for each in self._gone if each not in used]:
            self._engine.runner.adapters.remove(number)
            self._gone.remove(number)

    def _embed(self, number: int, op: str, tokens: list[int], types: list[int] | None = None) -> None:
        if self._encoder is not None:
            if op == "classify" and self._encoder.model.head is None:
                raise ValueError("this model has no labels")
            self._encoder.add(number, tokens, types)
            self._reading[number] = op
            return
        pooled = _Pooled(self._pooling or "last")
        params = SamplingParams(max_tokens=1, temperature=0, ignore_eos=True, detokenize=False, seed=0)
        prompt = {"prompt_token_ids": tokens}
        all_states = self._pooling in ("mean", "cls")  # which need every token's state
        self._engine.add_request(str(number), prompt, params, states=pooled.take, share_cache=not all_states)
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
            self._prompt(request),
            params,
            lora_request=self._adapters.get(adapter),
            priority=request.get("priority", 0),
            cache_salt=request.get("cache_salt"),
            generated=generated,
            grammar=grammar,
        )
        self._sent[name] = _Sent(number, self._engine.snapshot(name), self._first(request, params))

    def _prompt(self, request: dict[str, Any]) -> dict[str, Any]:
        """As the engine takes it."""
        prompt: dict[str, Any] = {"prompt_token_ids": request["prompt_token_ids"]}
        if pixels := request.get("images"):
            side = 0 if self._engine.images is None else self._engine.images.side
            prompt["multi_modal_data"] = {"image": [each.reshape(side, side, 3) for each in pixels]}
        return prompt

    def _first(self, request: dict[str, Any], params: SamplingParams) -> list[Any]:
        """The entry of a prompt's first token, which has no log-probability."""
        token, tokenizer = request["prompt_token_ids"][0], self._engine.tokenizer
        if tokenizer is None or params.prompt_logprobs is None:
            return [token, None, 0, None, None, 0]
        return [
            token,
            None,
            0,
            *_described(Logprob(0.0, 0, *tokenizer.stream(params.skip_special_tokens).piece(token), 0)),
        ]

    def busy(self) -> bool:
        """Whether step() has something to do."""
        if self._encoder is not None:
            return self._encoder.waits()
        waiting = bool(self._compiling) or self._weights.busy or bool(self._weights.held)
        return waiting or self._engine.has_unfinished_requests()

    def step(self) -> tuple[list[dict[str, Any]], list[Answer]]:
        """A step of the engine, or of the encoder: events, what changed, request by request, and answers. An
        error of the model ends all."""
        if self._encoder is not None:
            return [], self._encoded(self._encoder)
        answers = self._weights.answers()
        events = self._compiled()
        if not self._weights.holds:
            events += self._released()
        if self._gone:
            self._forget_adapters()
        try:
            outputs = self._engine.step()
        except Exception as error:
            for name in [*self._sent, *self._pooled]:
                self._engine.abort_request(name)
                events.append(failure(int(name), WorkerError(f"{type(error).__name__}: {error}")))
            self._sent.clear()
            self._pooled.clear()
            return events, answers
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

    def _released(self) -> list[dict[str, Any]]:
        """Takes the requests that waited for new weights; the failures of some."""
        events, held = [], list(self._weights.held.items())
        self._weights.held.clear()
        for number, header in held:
            try:
                self.handle(header, [])
            except Exception as error:
                events.append(failure(number, error))
        return events

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

    def _encoded(self, encoder: TextEncoder) -> list[Answer]:
        """The answers of a step of the encoder."""
        try:
            finished = encoder.step()
        except Exception as error:
            lost = [number for number in self._reading if not encoder.waits_for(number)]
            failed = WorkerError(f"{type(error).__name__}: {error}")
            self._reading = {number: op for number, op in self._reading.items() if number not in lost}
            return [(failure(number, failed), []) for number in lost]
        return [self._answer(self._reading.pop(each.name), each) for each in finished]

    def _answer(self, op: str, text: Encoded) -> Answer:
        if op == "embed":
            pooled = _Pooled(self._pooling or "mean")
            pooled.take(0, text.states)
            return self._vector(text.name, pooled)
        assert text.logits is not None
        logits = text.logits.float().cpu().numpy().astype("<f4")
        if not np.isfinite(logits).all():
            return failure(text.name, ArithmeticError("the model's logits are no finite numbers")), []
        return {"id": text.name, "shape": [*logits.shape]}, [np.ascontiguousarray(logits).data]

    @staticmethod
    def _vector(number: int, pooled: _Pooled) -> Answer:
        try:
            return {"id": number}, [pooled.vector().data]
        except ArithmeticError as error:
            return failure(number, error), []


def _read(path: str) -> dict[str, Any]:
    if not os.path.isfile(path):
        return {}
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def _activation(said: dict[str, Any], config: EncoderConfig) -> str:
    """What makes scores of logits: "sigmoid", "softmax" or "none"."""
    if len(config.labels) == 1:  # as sentence-transformers wrote it
        own = said.get("sentence_transformers")
        name = own.get("activation_fn") if isinstance(own, dict) else None
        name = name or said.get("sbert_ce_default_activation_function") or ""
        known = {"Identity": "none", "Sigmoid": "sigmoid"}
        if (activation := known.get(str(name).rpartition(".")[2])) is not None:
            return activation
    kinds = {
        "regression": "none",
        "single_label_classification": "softmax",
        "multi_label_classification": "sigmoid",
    }
    return kinds.get(config.problem_type or "", "sigmoid" if len(config.labels) == 1 else "softmax")


def _stored_pooling(folder: str) -> str | None:
    """What sentence-transformers wrote of how vectors are pooled."""
    said = _read(os.path.join(folder, "1_Pooling", "config.json"))
    for name, key in (("cls", "cls_token"), ("mean", "mean_tokens"), ("last", "lasttoken")):
        if said.get(f"pooling_mode_{key}"):
            return name
    return None
