"""Requests with their answers, while these grow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .lora import LoRARequest
from .outputs import CompletionOutput, Logprob, RequestOutput
from .sampling_params import RequestOutputKind, SamplingParams
from .structured import Grammar
from .token_masks import TokenMask
from .tokenizer import Tokenizer


def logprobs_of(entries: list[tuple[int, float, int]], tokenizer: Tokenizer | None) -> dict[int, Logprob]:
    """What the engine gives for a token, (id, log-probability, rank), as vLLM has it."""
    return {
        token: Logprob(value, rank, tokenizer.token_text(token) if tokenizer else None)
        for token, value, rank in entries
    }


class Completion:
    """One of the n answers of a request, while it grows."""

    def __init__(
        self,
        index: int,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        lora: LoRARequest | None,
        prompt: Sequence[int] = (),
    ) -> None:
        self.output = CompletionOutput(index, "", [], lora_request=lora)
        self.params, self._tokenizer = params, tokenizer if params.detokenize else None
        self._stream = None
        if self._tokenizer is not None:
            options = (params.skip_special_tokens, params.spaces_between_special_tokens)
            self._stream = self._tokenizer.stream(*options, after=prompt)
        self._reported = (0, 0, 0, False)  # tokens, characters, log-probabilities and the end, by news()
        self.text = ""  # with what is held back, as it may be the beginning of a stop text
        self.held = 0
        if params._stops and not params.include_stop_str_in_output:
            self.held = max(map(len, params._stops)) - 1
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
        out = self.output
        out.token_ids.append(token)
        if logprobs is not None and out.logprobs is not None and out.cumulative_logprob is not None:
            out.logprobs.append(logprobs_of(logprobs, self._tokenizer))
            out.cumulative_logprob += logprobs[0][1]
        if reason is not None:
            out.finish_reason, out.stop_reason = reason
        if self._stream is None:
            return False
        before = len(self.text)
        ends = reason is not None and reason[0] == "stop" and not self.params.include_stop_str_in_output
        self.text += "" if ends else self._stream(token)
        if out.finish_reason is not None:
            self.text += self._stream.flush()
        if self._stopped(before):
            return True
        out.text = self.text if out.finish_reason else self.text[: max(len(self.text) - self.held, 0)]
        return False

    def end(self, reason: str, why: str | None = None) -> None:
        """Ends it without another token."""
        self.output.finish_reason, self.output.stop_reason = reason, why
        if self._stream is not None:
            self.text += self._stream.flush()
            self.output.text = self.text

    def _stopped(self, before: int) -> bool:
        """Cuts the text at the stop text that is complete first, after its first `before` characters: so the
        answer does not depend on how tokens cut it. Of those that end together the longest counts."""
        found = []
        for stop in self.params._stops if len(self.output.token_ids) >= self.params.min_tokens else ():
            at = self.text.find(stop, max(0, before - len(stop) + 1))
            if at >= 0:
                found.append((at + len(stop), at, stop))
        if not found:
            return False
        _, at, stop = min(found)
        self.text = self.text[: at + len(stop) if self.params.include_stop_str_in_output else at]
        self.output.text = self.text
        self.output.finish_reason, self.output.stop_reason = "stop", stop
        return True


class Request:
    """A prompt with its answers."""

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
        self.states: Any = None  # what is told of the states of its tokens
        self.cached_tokens = 0
        self.first = -1  # the engine's number of its first answer
        self._reported_prompt = False  # prompt_logprobs, by news()

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
        whole = self.prompt_logprobs is not None and len(self.prompt_logprobs) == len(self.tokens)
        return self.prompt_logprobs if whole else None

    def _answers(self) -> list[Completion]:
        return sorted([*self.done, *self.completions.values()], key=lambda each: each.output.index)

    def _output(self, outputs: list[CompletionOutput], of_prompt: Any) -> RequestOutput:
        rest = (not self.completions, self.cached_tokens, of_prompt, self.lora)
        return RequestOutput(self.id, self.text, self.tokens, outputs, *rest)
