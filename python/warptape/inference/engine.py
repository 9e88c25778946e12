"""Requests in, tokens and texts out, step by step: vLLM's LLMEngine.

R requests of a step, N their new tokens, L rows whose logits are wanted, V vocabulary.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import Tensor
from ..models import Decoder
from ._checks import check_at_least, check_tokens, check_types
from .answers import Completion, Request, report_states
from .decode_graphs import capture_sizes
from .lora import LoRARequest
from .outputs import Logprob, RequestOutput
from .pacing import RateControl
from .pipeline_parallel import stage_of
from .ranks import Ranks
from .runner import ModelRunner, cache_size
from .sampling_params import LARGEST_SEED, SamplingParams
from .speculation import Speculation
from .step_masks import StepMasks
from .structured import Grammar, Grammars
from .tensor_parallel import ranks_of
from .token_masks import TokenMask
from .tokenizer import Tokenizer
from .weights import UpdatesWeights

if TYPE_CHECKING:
    from .images import ImageEncoder, PlacedImage

NO_TOKEN = "no token may come next"  # stop_reason of the finish_reason "error"
NO_PROBABILITIES = "the model's logits are no finite numbers, or the request's parameters leave none"
MOST_SALTS = 4096
Prompt = str | Mapping[str, Any] | Sequence[int]


@dataclass(kw_only=True)
class EngineArgs:
    """Limits of an engine, with vLLM's names.

    Args:
        max_model_len: tokens of a request, generated ones included; None: the model's context, as far as the
            cache has room for it.
        max_num_seqs: requests that run at once.
        max_num_batched_tokens: of a step.
        max_prefill_beside_decode: prompt tokens of a step in which other requests generate, and wait for it.
        max_prefill_slowdown: a step with prompt tokens may take so many times as long as one without, by
            measured times, those of rank 0, and gets as many as fit: 1.5 keeps the tokens of others coming,
            and makes a prompt wait longer for its first. None: max_prefill_beside_decode alone.
        kv_cache_memory_bytes: of keys and values; None: what max_num_seqs requests of max_model_len tokens
            need, at most 4 GiB.
        kv_cache_dtype: "auto" (the weights') or a dtype.
        enable_prefix_caching: keys and values of equal beginnings are computed once.
        speculative_config: how tokens are proposed that one step checks; it changes speed, never a token.
            {"num_speculative_tokens": k, "method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 5}:
            what followed the last tokens before; {"num_speculative_tokens": k, "model": decoder or folder}:
            what a smaller model with the same vocabulary draws, which is split as the model is. None: none
            are.
        seed: of the seeds of requests that have none.
        invariant: whether a request's tokens must not depend on what else is computed. False: the matrix
            products of training, whose order of sums changes with the number of rows.
        enforce_eager: on CUDA, decoding steps are not captured as graphs.
        cudagraph_capture_sizes: the numbers of requests that graphs are for, captured when they are first
            needed; None: 1, 2, 4 and multiples of 8 up to max_num_seqs or 256. Steps of several ranks, of
            adapters, and with prompt tokens are not captured.
        tensor_parallel_size: among how many ranks the model is split, all those of the job. Each makes the
            same calls with the same arguments, and gets the same answers. kv_cache_memory_bytes are a rank's.
        pipeline_parallel_size: among how many ranks the layers are split; the job has tensor_parallel_size
            times as many.

    Raises: NotImplementedError for a draft model in a pipeline.
    """

    max_model_len: int | None = None
    max_num_seqs: int = 256
    max_num_batched_tokens: int = 2048
    max_prefill_beside_decode: int = 512
    max_prefill_slowdown: float | None = None
    kv_cache_memory_bytes: int | None = None
    kv_cache_dtype: Any = "auto"
    enable_prefix_caching: bool = True
    speculative_config: Mapping[str, Any] | None = None
    seed: int = 0
    invariant: bool = True
    enforce_eager: bool = False
    cudagraph_capture_sizes: Sequence[int] | None = None
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1

    @property
    def ranks(self) -> int:
        """Ranks of the job: tensor_parallel_size * pipeline_parallel_size."""
        return self.tensor_parallel_size * self.pipeline_parallel_size

    def __post_init__(self) -> None:
        check_types(self)
        limits = ("max_model_len", "max_num_seqs", "max_num_batched_tokens", "max_prefill_beside_decode")
        check_at_least(self, 1, *limits, "kv_cache_memory_bytes")
        check_at_least(self, 1, "tensor_parallel_size", "pipeline_parallel_size")
        if self.ranks == 1:
            return
        draft = Speculation.of(self.speculative_config).model
        if draft is not None and self.pipeline_parallel_size > 1:
            raise NotImplementedError("a draft model in a pipeline; 'ngram' can be had")


class LLMEngine(UpdatesWeights):
    """Many requests on one model.

    Args:
        model: a Decoder, or another module with its `config`, `hidden` and `lm_head`; in evaluation mode.
        tokenizer: None: prompts are tokens, and there is no text.
        images: makes vectors of the images in prompts; None: these have none.

    Raises: ValueError for limits without meaning, where the cache has no room for one request of
    max_model_len, and for a model that is not split among tensor_parallel_size ranks.
    """

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer | None = None,
        args: EngineArgs | None = None,
        images: ImageEncoder | None = None,
    ) -> None:
        super().__init__()
        args = args or EngineArgs()
        self.args, self.tokenizer, self.model_config, self.images = args, tokenizer, model.config, images
        if ranks_of(model) != args.tensor_parallel_size:
            raise ValueError(
                f"tensor_parallel_size is {args.tensor_parallel_size}, but the model is split among "
                f"{ranks_of(model)} ranks; LLM splits it"
            )
        stage = stage_of(model)
        if (1 if stage is None else stage.count) != args.pipeline_parallel_size:
            raise ValueError(
                f"pipeline_parallel_size is {args.pipeline_parallel_size}, but the model is one of "
                f"{1 if stage is None else stage.count} stages; LLM splits it"
            )
        speculation = Speculation.of(args.speculative_config)
        draft = speculation.draft_of(model, args.tensor_parallel_size)
        models = [model] if draft is None else [model, draft]
        self.num_pages, self.max_model_len = cache_size(models, args)
        sizes = (self.num_pages, self.max_model_len, args.kv_cache_dtype)
        graphs = capture_sizes(args)
        self.runner = ModelRunner(model, *sizes, args.invariant, graphs)
        # Its cache has the same pages for the same tokens.
        self._draft = ModelRunner(draft, *sizes, capture_sizes=graphs) if draft is not None else None
        self._draft_tokens = speculation.num_speculative_tokens if draft is not None else 0
        self._core = _C._Engine(
            pages=self.num_pages,
            max_model_len=self.max_model_len,
            vocab_size=model.config.vocab_size,
            max_num_seqs=args.max_num_seqs,
            max_num_batched_tokens=args.max_num_batched_tokens,
            max_prefill_beside_decode=args.max_prefill_beside_decode,
            enable_prefix_caching=args.enable_prefix_caching,
            num_speculative_tokens=speculation.num_speculative_tokens - self._draft_tokens,
            prompt_lookup_min=speculation.prompt_lookup_min,
            prompt_lookup_max=speculation.prompt_lookup_max,
        )
        self._rate_control: RateControl | None = None
        if args.max_prefill_slowdown is not None:
            self._rate_control = RateControl(args.max_prefill_slowdown, args.max_prefill_beside_decode)
        self.ranks: Ranks | None = Ranks() if args.ranks > 1 else None
        eos = model.config.eos_token_id
        self.sampling_defaults: dict[str, Any] = {}  # fields of SamplingParams
        self.eos_token_ids = [] if eos is None else [eos] if isinstance(eos, int) else list(eos)
        self._random = random.Random(args.seed)
        self._grammars: Grammars | None = None
        self._masks = StepMasks(self._core, speculation.num_speculative_tokens)
        self.num_scheduled_tokens: dict[str, int] = {}  # that requests computed in the last step
        # A number for those who share keys and values, by adapter and digest of the salt; the last ones used.
        self._salts: OrderedDict[tuple[int, bytes], int] = OrderedDict()
        self._salt_numbers = itertools.count()
        self._requests: dict[str, Request] = {}
        self._stepped: list[int] = []  # of the last step: no other one can have a token to be followed
        self._of_number: dict[int, Request] = {}

    # ---- requests ----

    def encode(self, prompt: Prompt) -> tuple[str | None, list[int]]:
        """A prompt's text (None if it is tokens) and tokens.

        Raises: TypeError for what is no prompt, ValueError for text without a tokenizer.
        """
        if isinstance(prompt, Mapping):
            tokens, text = prompt.get("prompt_token_ids"), prompt.get("prompt")
            if tokens is None and text is None:
                raise TypeError("a prompt's dict must have 'prompt' or 'prompt_token_ids'")
            if tokens is None:
                return self.encode(text)  # type: ignore[arg-type]
            return text, self._tokens(tokens)
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ValueError("a prompt as text needs a tokenizer; give {'prompt_token_ids': [...]}")
            return prompt, self.tokenizer.encode(prompt)
        return None, self._tokens(prompt)

    @staticmethod
    def _tokens(tokens: Any) -> list[int]:
        return check_tokens("prompt", tokens.tolist() if isinstance(tokens, Tensor) else tokens)

    def add_request(
        self,
        request_id: str,
        prompt: Prompt,
        params: SamplingParams,
        *,
        lora_request: LoRARequest | None = None,
        priority: int = 0,
        cache_salt: str | None = None,
        generated: Sequence[Sequence[int] | None] | None = None,
        grammar: Grammar | None = None,
        states: Callable[[int, Tensor], None] | None = None,
        share_cache: bool = True,
    ) -> None:
        """Queues a prompt.

        Args:
            lora_request: the adapter to answer with; its folder is read when it is first asked for.
            priority: smaller ones come first.
            cache_salt: keys and values are shared only among requests with the same one (tenants).
            generated: to go on with a request of an engine that is gone: for each of its n answers the
                tokens that came, or None where it was finished. With the same seed, what follows is what
                that engine would have given. Outputs count these tokens, but have no logprobs of them.
            grammar: of the parameters, where `self.grammar` has compiled it already.
            states: called in each step with a position and the last states [n, C] of the tokens from there
                on; after a preemption they are told again.
            share_cache: False: nothing of the prompt is found in the cache.

        Raises: ValueError for an id that is in use, for prompts and max_tokens beyond max_model_len, and for
        sampling values out of range; IndexError for tokens out of the vocabulary; what models.load_adapter
        raises. Nothing is queued then.
        """
        if request_id in self._requests:
            raise ValueError(f"request id {request_id!r} is in use")
        text, tokens = self.encode(prompt)
        tokens, images = self._placed(prompt, tokens)
        whole, tokens = tokens, params.last_tokens(tokens, self.max_model_len)
        if images and len(tokens) < len(whole):
            raise ValueError("a prompt with images cannot be truncated")
        params = self._in_numbers(params, len(tokens))
        grammar = grammar or self.grammar(params)
        # Where a grammar is whole an end-of-sequence token ends it, also with ignore_eos.
        ends = [] if params.ignore_eos and grammar is None else self.eos_token_ids
        stops = [*(params.stop_token_ids or ()), *ends]
        vocab = self.model_config.vocab_size
        constraint = TokenMask.of(params, self.tokenizer, vocab, stops, grammar)
        adapter = self.runner.adapters.number(lora_request)
        seed = self.draw_seed(params) if params.seed is None else params.seed
        before = self._before(params, generated)
        request = Request(request_id, text, tokens, params)
        request.lora, request.images = lora_request, images
        if states is not None and self.args.pipeline_parallel_size > 1:
            raise NotImplementedError("states of a model whose layers lie on several ranks")
        request.states = states
        seen = b"".join(each.image.digest for each in images)
        salt = self._salt(adapter, cache_salt, seen) if share_cache else next(self._salt_numbers)
        of_all = {
            "stop_token_ids": stops,
            "priority": priority,
            "salt": salt,
            "adapter": adapter,
            "constrained": constraint is not None,
        }
        leader = -1
        for index, done in before.items():
            # Of the n answers the first tells of the prompt.
            told = -1 if leader >= 0 or params.prompt_logprobs is None else params.prompt_logprobs
            number = self._core.add(
                tokens,
                params,
                seed=seed + index,
                leader=leader,
                prompt_logprobs=told,
                generated=done,
                **of_all,
            )
            if leader < 0:
                request.first = leader = number
            self._add_completion(request, number, index, done, constraint)
        self._requests[request_id] = request

    def _placed(self, prompt: Prompt, tokens: list[int]) -> tuple[list[int], list[PlacedImage]]:
        """A prompt's tokens with places for its images, and these."""
        if self.images is None and not (isinstance(prompt, Mapping) and "multi_modal_data" in prompt):
            return tokens, []
        from .images import placed

        return placed(self.images, prompt, tokens)

    def _add_completion(
        self,
        request: Request,
        number: int,
        index: int,
        done: Sequence[int],
        constraint: TokenMask | Grammar | None,
    ) -> None:
        """The core's sequence `number` is answer `index` of the request; `done` are the tokens it has."""
        completion = Completion(index, request.params, self.tokenizer, request.lora, request.tokens)
        request.completions[number] = completion
        if constraint is not None:
            request.constraints[number] = constraint.copy()
        for token in done:
            completion.add(token, None, None)
            if constraint is not None:
                request.constraints[number].accept(token)
        completion.news()  # whoever gives tokens has them
        self._of_number[number] = request

    def _salt(self, adapter: int, salt: str | None, images: bytes) -> int:
        """The number of those who share keys and values; images have equal tokens, and are told apart here by
        their digests. Salts are the clients': none is kept, and of those long out of use not even the number,
        so that what they left in the cache is found no more."""
        own = bytes(32 if images else 0) if salt is None else hashlib.sha256(salt.encode()).digest()
        key = adapter, own + images
        known_salt = self._salts.get(key)
        if known_salt is None:
            known_salt = self._salts[key] = next(self._salt_numbers)
        self._salts.move_to_end(key)
        if len(self._salts) > MOST_SALTS:
            self._salts.popitem(last=False)
        return known_salt

    def _in_numbers(self, params: SamplingParams, prompt_tokens: int) -> SamplingParams:
        """The parameters with this model's numbers for "as many as there are"."""
        changes: dict[str, Any] = {}
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(params, name) == -1:
                changes[name] = self.model_config.vocab_size
        if params.max_tokens is None:
            changes["max_tokens"] = max(self.max_model_len - prompt_tokens, 1)
        return replace(params, **changes) if changes else params

    def default_sampling_params(self) -> SamplingParams:
        """Those of requests that are given none."""
        return SamplingParams(**self.sampling_defaults)

    def draw_seed(self, params: SamplingParams) -> int:
        """The seed of the next request that has none.

        Args:
            params: of the request.
        """
        return self._random.randrange(LARGEST_SEED - params.n)

    @staticmethod
    def _before(params: SamplingParams, generated: Any) -> dict[int, list[int]]:
        """The answers that are to be computed, by index, with their tokens so far. ValueError for others
        than n, and where none is left."""
        if generated is None:
            return {index: [] for index in range(params.n)}
        if len(generated) != params.n or params.seed is None:
            raise ValueError(f"generated needs a seed and an entry for each of the {params.n} answers")
        before = {i: check_tokens("generated", g) for i, g in enumerate(generated) if g is not None}
        if not before:
            raise ValueError("generated: all answers are finished")
        return before

    def grammar(self, params: SamplingParams) -> Grammar | None:
        """What structured_outputs ask for, for `add_request`; any thread may compile it.

        Raises: ValueError for what is no constraint, or without a tokenizer.
        """
        if params.structured_outputs is None:
            return None
        if self.tokenizer is None:
            raise ValueError("structured_outputs need a tokenizer")
        if self._grammars is None:
            self._grammars = Grammars(self.tokenizer, self.model_config.vocab_size, self.eos_token_ids)
        return self._grammars.compile(params.structured_outputs)

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """Ends a request, with the finish_reason "abort"; its memory is free from the next step on. None if
        it is not there."""
        request = self._requests.pop(request_id, None)
        if request is None:
            return None
        for number in list(request.completions):
            self._end(request, number, "abort")
        return request.news()

    def prompt_logprobs(self, request_id: str) -> list[dict[int, Logprob] | None]:
        """Those of a request's prompt, as far as they are there. KeyError if it is not there.

        Args:
            request_id: of add_request.
        """
        return self._requests[request_id].prompt_logprobs or []

    def adapters_in_use(self) -> set[LoRARequest]:
        """Those of requests that are not finished."""
        return {each.lora for each in self._requests.values() if each.lora is not None}

    def snapshot(self, request_id: str) -> RequestOutput:
        """A request as it stands. KeyError if it is not there.

        Args:
            request_id: of add_request.
        """
        return self._requests[request_id].output()

    def has_unfinished_requests(self) -> bool:
        """Whether step() has something to do."""
        return bool(self._requests or self._drained)

    def stats(self) -> dict[str, int]:
        """Counts since the beginning (steps, tokens, preemptions, prefix hits, speculation), and how many
        requests wait and run and how many pages are idle now. `graph_replays` are the model's steps that
        were CUDA graphs."""
        graphs = self.runner.graphs
        return {**self._core.stats(), "graph_replays": 0 if graphs is None else graphs.replays}

    # ---- steps ----

    def step(self) -> list[RequestOutput]:
        """Computes once; returns the requests that got tokens, as their output_kind says. An error of the
        model leaves the requests as they were before."""
        if self._drained:
            outputs, self._drained = self._drained, []
            return outputs
        start = time.perf_counter()
        if self._rate_control is not None:
            tokens = self._rate_control.tokens()  # by this rank's clock
            self._core.limit_prefill_beside_decode(
                tokens if self.ranks is None else self.ranks.number(tokens)
            )
        self._masks.reset()
        self._propose()
        batch = self._core.begin_step()
        self.num_scheduled_tokens = {}
        self._stepped = batch["requests"]
        if not batch["requests"]:
            return []
        generating = prompt_tokens = keys = 0
        counts, lengths = batch["starts"].diff().tolist(), batch["lengths"].tolist()
        for number, count, length in zip(batch["requests"], counts, lengths):
            request = self._of_number[number]
            self.num_scheduled_tokens[request.id] = self.num_scheduled_tokens.get(request.id, 0) + count
            if request.completions[number].output.token_ids:
                generating += 1
            else:
                prompt_tokens += count
                keys += count * (2 * length - count + 1) // 2
        changed: dict[str, Request] = {}
        try:
            self._begin_masks(batch)
            watching = [self._of_number[number].states for number in batch["requests"]]
            self.runner.keep_states = any(watching)
            if self.images is not None:
                from .images import rows_of_images

                batch["images"] = rows_of_images(self.images, batch, self._of_number)
            logits = self.runner.forward(batch)
            if self.runner.states is not None:
                report_states(watching, self.runner.states, batch["starts"].tolist(), lengths)
            for number in self._masks.give():  # no way on: these requests end, the others do not
                request = self._of_number[number]
                # Where a grammar's text is whole, and no token says so.
                if request.constraints[number].complete():
                    self._end(request, number, "stop")
                else:
                    self._end(request, number, "error", NO_TOKEN)
                changed[request.id] = request
        except BaseException:
            self._core.cancel_step()
            raise
        for number, tokens, logprobs, finish, of_prompt, cached in self._core.finish_step(logits):
            if number not in self._of_number:
                continue
            request = self._of_number[number]
            if number == request.first:
                request.cached_tokens = cached
                if request.prompt_logprobs is not None:
                    request.add_prompt_logprobs(of_prompt, self.tokenizer)
            if tokens or finish is not None:
                self._take(request, number, tokens, logprobs, finish)
                changed[request.id] = request
        if self._rate_control is not None:
            self._rate_control.observe(time.perf_counter() - start, generating, prompt_tokens, keys)
        told = [self._finished(request) for request in changed.values()]
        return [output for output in told if output is not None]

    def _propose(self) -> None:
        """Lets the draft model propose; of the n-gram, what constraints leave of it."""
        for number in self._stepped if self._draft is None else ():
            request = self._of_number.get(number)
            if request is not None and number in request.constraints:
                self._masks.propose(number, request.constraints[number])
        for _ in range(self._draft_tokens):
            batch = self._core.begin_draft()
            if not batch["requests"] or self._draft is None:
                break
            self._begin_masks(batch, beyond=True)
            logits = self._draft.forward(batch)
            self._masks.give()
            self._core.finish_draft(logits)

    def _begin_masks(self, batch: Mapping[str, Any], beyond: bool = False) -> None:
        """Which tokens may come next, after each of the drafts or `beyond` them alone, found while a model
        computes."""
        for number, drafts in zip(batch["requests"], batch["drafts"]):
            request = self._of_number.get(number)
            if request is not None and number in request.constraints:
                constraint = request.constraints[number]
                self._masks.begin(number, constraint, drafts, len(drafts) if beyond else 0)

    def _end(self, request: Request, number: int, reason: str, why: str | None = None) -> None:
        """Ends one answer."""
        self._core.abort(number)
        del self._of_number[number]
        completion = request.completions.pop(number)
        completion.end(reason, why)
        request.done.append(completion)

    def _take(
        self, request: Request, number: int, tokens: list[int], logprobs: list[Any], finish: Any
    ) -> None:
        completion, constraint = request.completions[number], request.constraints.get(number)
        if finish == "error":
            self._end(request, number, "error", NO_PROBABILITIES)
            return
        completion.drawn_by(self.weights_version)
        for i, token in enumerate(tokens):
            reason = None
            if finish is not None and i + 1 == len(tokens):
                ends = finish == "stop" and token not in self.eos_token_ids
                reason = (finish, token if ends else None)
            if constraint is not None:
                constraint.accept(token)
                if reason is None and constraint.ended(token):  # whatever min_tokens and ignore_eos say
                    self._core.abort(number)
                    reason = ("stop", None)
            if completion.add(token, logprobs[i] if logprobs else None, reason):
                self._core.abort(number)
                break
            if completion.output.finished():
                break
        if completion.output.finished():
            request.done.append(request.completions.pop(number))
            del self._of_number[number]

    def _finished(self, request: Request) -> RequestOutput | None:
        if not request.completions:
            del self._requests[request.id]
        return request.news()
