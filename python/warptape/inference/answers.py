"""Requests with their answers, while these grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..core import Tensor
from .detokenizer import AnswerText, Detokenizer
from .lora import LoRARequest
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams
from .structured import Grammar
from .token_masks import TokenMask

if TYPE_CHECKING:
    from .images import PlacedImage
from .tokenizer import Tokenizer


def logprobs_of(
    entries: list[tuple[int, float, int]], texts: Detokenizer | AnswerText | None, offset: int = 0
) -> dict[int, Logprob]:
    """What the engine gives for a token, (id, log-probability, rank), as vLLM has it.

    Args:
        entries: of one place.
        texts: of the tokens before; None leaves texts out.
        offset: characters before.
    """
    if texts is None:
        return {token: Logprob(value, rank) for token, value, rank in entries}
    return {token: Logprob(value, rank, *texts.piece(token), offset) for token, value, rank in entries}


def report_states(watching: list[Any], states: Tensor, starts: list[int], lengths: list[int]) -> None:
    """Hands the requests of a step that watch their states [N, C] the rows that are theirs.

    Args:
        watching: what is told, of each request, or None.
        states: of the step's tokens.
        starts, lengths: first rows, and tokens with this step's.
    """
    for r, watch in enumerate(watching):
        if watch is not None:
            rows = states[starts[r] : starts[r + 1]]
            watch(lengths[r] - rows.shape[0], rows)


class Completion:
    """One of the n answers of a request, while it grows.

    Args:
        index: which of the n answers.
        params: of the request.
        tokenizer: None for no text.
        lora: the adapter, or None.
        prompt: tokens.
    """

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        lora: LoRARequest | None,
        prompt: Sequence[int] = (),
    ) -> None:
        self.output = CompletionOutput(index, "", [], lora_request=lora)
        self._texts = None
        if tokenizer is not None and params.detokenize:
            self._texts = AnswerText(tokenizer, params, prompt)
        self._stop_is_written = params.include_stop_str_in_output
        self._reported = (0, 0, 0, False)  # tokens, characters, log-probabilities and the end, by news()
        if params.logprobs is not None:
            self.output.logprobs, self.output.cumulative_logprob = [], 0.0

    def snapshot(self) -> CompletionOutput:
        """The answer as it is now: what comes later does not change it."""
        out = self.output
        logprobs = None if out.logprobs is None else list(out.logprobs)
        return replace(out, token_ids=list(out.token_ids), logprobs=logprobs)

    def news(self) -> CompletionOutput | None:
        """What came since the last call; None where nothing did."""
        out, (tokens, text, logprobs, _) = self.output, self._reported
        stands = (len(out.token_ids), len(out.text), len(out.logprobs or ()), out.finished())
        if stands == self._reported:
            return None
        self._reported = stands
        new = None if out.logprobs is None else out.logprobs[logprobs:]
        return replace(out, text=out.text[text:], token_ids=out.token_ids[tokens:], logprobs=new)

    def add(self, token: int, logprobs: list[tuple[int, float, int]] | None, reason: Any) -> bool:
        """Takes the next token; `reason` is why the engine ended with it, None while it goes on. Returns
        whether a stop text came."""
        out, texts = self.output, self._texts
        out.token_ids.append(token)
        if logprobs is not None and out.logprobs is not None and out.cumulative_logprob is not None:
            out.logprobs.append(logprobs_of(logprobs, texts, 0 if texts is None else texts.offset))
            out.cumulative_logprob += logprobs[0][1]
        if reason is not None:
            out.finish_reason, out.stop_reason = reason
        if texts is None:
            return False
        ends = reason is not None and reason[0] == "stop" and not self._stop_is_written
        stopped = texts.add(token, out.finished(), ends)
        out.text = texts.text
        if stopped:
            out.finish_reason, out.stop_reason = "stop", texts.stopped_by
        return stopped

    def drawn_by(self, version: int) -> None:
        """Says which weights draw the next tokens.

        Args:
            version: of these weights.
        """
        if self.output.weights_versions[-1:] != (version,):
            self.output.weights_versions += (version,)

    def end(self, reason: str, why: str | None = None) -> None:
        """Ends it without another token.

        Args:
            reason: the finish_reason.
            why: the stop_reason.
        """
        self.output.finish_reason, self.output.stop_reason = reason, why
        if self._texts is not None:
            self._texts.end()
            self.output.text = self._texts.text


class Request:
    """A prompt with its answers.

    Args:
        id: its name.
        text, tokens: of the prompt.
        params: of the request.
    """

    def __init__(self, id: str, text: str | None, tokens: list[int], params: SamplingParams) -> None:
        self.id, self.text, self.tokens, self.params = id, text, tokens, params
        self.completions: dict[int, Completion] = {}  # by the engine's number
        self.constraints: dict[int, TokenMask | Grammar] = {}
        self.done: list[Completion] = []
        # As far as they came; outputs have them when all are there.
        self.prompt_logprobs: list[dict[int, Logprob] | None] | None = None
        if params.prompt_logprobs is not None:
            self.prompt_logprobs = [None]
        self.lora: LoRARequest | None = None
        self.images: list[PlacedImage] = []
        self.states: Any = None  # what is told of the states of its tokens
        self.cached_tokens = 0
        self.first = -1  # the engine's number of its first answer
        self._reported_prompt = False  # prompt_logprobs, by news()
        self._prompt_texts: Detokenizer | None = None
        self._prompt_offset = 0

    def add_prompt_logprobs(
        self, entries: list[list[tuple[int, float, int]]], tokenizer: Tokenizer | None
    ) -> None:
        """Those of the prompt's next tokens.

        Args:
            entries: of each token.
            tokenizer: None for no text.
        """
        assert self.prompt_logprobs is not None
        tokenizer = tokenizer if self.params.detokenize else None
        if tokenizer is not None and self._prompt_texts is None:
            self._prompt_texts = tokenizer.stream(self.params.skip_special_tokens)
            self._prompt_offset = len(self._prompt_texts(self.tokens[0]))
        for each in entries:
            token = self.tokens[len(self.prompt_logprobs)]
            self.prompt_logprobs.append(logprobs_of(each, self._prompt_texts, self._prompt_offset))
            if self._prompt_texts is not None:
                self._prompt_offset += len(self._prompt_texts(token))

    def output(self) -> RequestOutput:
        """How it stands."""
        return self._output([each.snapshot() for each in self._answers()], self._of_prompt())

    def news(self) -> RequestOutput | None:
        """What its output_kind says of it now; None where that is nothing."""
        kind = self.params.output_kind
        if kind is RequestOutputKind.FINAL_ONLY and self.completions:
            return None
        if kind is not RequestOutputKind.DELTA:
            return self.output()
        of_prompt = None if self._reported_prompt else self._of_prompt()
        self._reported_prompt |= of_prompt is not None
        return self._output([new for each in self._answers() if (new := each.news())], of_prompt)

    def _of_prompt(self) -> list[dict[int, Logprob] | None] | None:
        complete = self.prompt_logprobs is not None and len(self.prompt_logprobs) == len(self.tokens)
        return self.prompt_logprobs if complete else None

    def _answers(self) -> list[Completion]:
        return sorted([*self.done, *self.completions.values()], key=lambda each: each.output.index)

    def _output(self, outputs: list[CompletionOutput], of_prompt: Any) -> RequestOutput:
        rest = (not self.completions, self.cached_tokens, of_prompt, self.lora)
        return RequestOutput(self.id, self.text, self.tokens, outputs, *rest)
