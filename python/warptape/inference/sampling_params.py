"""How tokens are drawn: vLLM's names and meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from ._checks import check_at_least, check_tokens, check_types

LARGEST_SEED = (1 << 64) - 1


class RequestOutputKind(Enum):
    """What the outputs of a request have while it runs.

    CUMULATIVE has all so far, DELTA what is new, FINAL_ONLY nothing until the end.
    """

    CUMULATIVE = 0  # all that came so far
    DELTA = 1  # what is new since the output before
    FINAL_ONLY = 2  # there is one output, when all answers are finished


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """What generated text must match; exactly one of these is given.

    Args:
        json: a JSON schema, as text or as a dict.
        regex: a regular expression for the whole text.
        choice: one of these texts.
        grammar: a context-free grammar in Lark's notation.
        json_object: any JSON object.
    """

    json: str | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None

    def __post_init__(self) -> None:
        names = [each.name for each in fields(self) if getattr(self, each.name) not in (None, False)]
        if len(names) != 1:
            raise ValueError(
                f"StructuredOutputsParams: expected exactly one constraint, got {names or 'none'}"
            )


@dataclass(kw_only=True)
class SamplingParams:
    """How the tokens after one prompt are drawn.

    Args:
        n: answers to be drawn for the prompt; the i-th has the seed `seed + i`.
        presence_penalty, frequency_penalty: subtracted from the logits of generated tokens, once and as often
            as they came. Of [-2, 2].
        repetition_penalty: logits of tokens that came in the prompt or were generated are divided by it where
            they are positive, and multiplied where not. Above 0.
        temperature: logits are divided by it; 0: the likeliest token.
        top_p: the likeliest tokens that have this probability together. Of (0, 1].
        top_k: so many of the likeliest tokens; 0 and -1: all.
        min_p: tokens with at least this part of the likeliest one's probability.
        seed: of the noise. None: each request gets one from the engine's seed and its number.
        stop: texts at which generation ends; they are not in the result unless include_stop_str_in_output.
        stop_token_ids: tokens that end generation beside the model's end-of-sequence tokens.
        bad_words: texts that are not generated: of each one's tokens, with and without a space before it, the
            last cannot be drawn where the others were generated right before it.
        allowed_token_ids: the only tokens that can be drawn.
        ignore_eos: the model's end-of-sequence tokens do not end it.
        max_tokens: to be generated; None: as many as the model's context has room for.
        min_tokens: before an end-of-sequence or stop token may come.
        logprobs: so many of the likeliest tokens' log-probabilities are returned beside each drawn token's.
            Of the model's logits, before temperature and penalties. -1: of the whole vocabulary.
        prompt_logprobs: the same for the prompt's tokens, from its second on. Nothing of the prompt is taken
            from the cache then, and logits of all its tokens of a step are in memory at once.
        detokenize, skip_special_tokens: whether there is text, and whether special tokens are left out of it.
        spaces_between_special_tokens: False: special tokens in the text that follow each other have nothing
            between them, where the tokenizer's decoder would put a space.
        truncate_prompt_tokens: so many of the prompt's last tokens are kept; -1: as many as max_model_len has
            room for beside max_tokens. None: all, and a prompt that is too long is refused.
        output_kind: what the outputs have. LLM.generate and chat return whole answers whatever it is.
        logit_bias: token id -> what is added to its logit.
        structured_outputs: what the text must match.

    Raises: ValueError for values out of range, TypeError for those of another type.
    """

    n: int = 1
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    stop: str | Sequence[str] | None = None
    stop_token_ids: Sequence[int] | None = None
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    logit_bias: Mapping[int, float] | None = None
    bad_words: Sequence[str] | None = None
    allowed_token_ids: Sequence[int] | None = None
    structured_outputs: StructuredOutputsParams | None = None
    _stops: list[str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        check_types(self)
        self._check_containers()
        check_at_least(self, 1, "n", "max_tokens")
        if self.min_tokens < 0 or self.min_tokens > (self.max_tokens or self.min_tokens):
            raise ValueError(
                f"min_tokens must be in [0, max_tokens={self.max_tokens}], got {self.min_tokens}"
            )
        check_at_least(self, -1, "logprobs", "prompt_logprobs", "truncate_prompt_tokens")
        if self.truncate_prompt_tokens == 0:
            raise ValueError("truncate_prompt_tokens must be -1 (what fits), or at least 1, got 0")
        if self.seed is not None and not 0 <= self.seed <= LARGEST_SEED - self.n:
            raise ValueError(f"seed must be in [0, 2^64 - n), got {self.seed}")
        for name, low, high in (
            ("temperature", 0, 1e6),
            ("presence_penalty", -2, 2),
            ("frequency_penalty", -2, 2),
            ("min_p", 0, 1),
            ("top_p", 0, 1),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name} must be in [{low}, {high}], got {value}")
        if self.top_p == 0:
            raise ValueError("top_p must be in (0, 1], got 0")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ValueError(f"repetition_penalty must be greater than zero, got {self.repetition_penalty}")
        if self.top_k < -1:
            raise ValueError(f"top_k must be 0 or -1 (all), or at least 1, got {self.top_k}")
        if self._stops and not self.detokenize:
            raise ValueError("stop texts need detokenize=True")

    def _check_containers(self) -> None:
        check_tokens("stop_token_ids", self.stop_token_ids or [])
        bias = self.logit_bias or {}
        if not isinstance(bias, Mapping) or not all(isinstance(x, (int, float)) for x in bias.values()):
            raise TypeError(f"logit_bias must be a dict from token id to number, got {bias!r:.100}")
        check_tokens("logit_bias", [*bias])
        given = self.structured_outputs
        if given is not None and not isinstance(given, StructuredOutputsParams):
            raise TypeError(f"structured_outputs must be StructuredOutputsParams, got {type(given).__name__}")
        if not isinstance(self.output_kind, RequestOutputKind):
            raise TypeError(f"output_kind must be a RequestOutputKind, got {self.output_kind!r:.100}")
        if self.allowed_token_ids is not None and not check_tokens(
            "allowed_token_ids", self.allowed_token_ids
        ):
            raise ValueError("allowed_token_ids must have at least one token")
        _texts("bad_words", "a list of texts", self.bad_words or ())
        stops = [self.stop] if isinstance(self.stop, str) else self.stop or ()
        self._stops = _texts("stop", "a text or a list of texts", stops)

    def last_tokens(self, tokens: list[int], max_model_len: int) -> list[int]:
        """What truncate_prompt_tokens keeps of a prompt.

        Args:
            tokens: of the prompt.
            max_model_len: of the engine.
        """
        most = self.truncate_prompt_tokens
        if most is None:
            return tokens
        return tokens[-(most if most > 0 else max(max_model_len - (self.max_tokens or 1), 1)) :]


def _texts(name: str, kind: str, texts: object) -> list[str]:
    """Texts as a list. TypeError for what are none, ValueError for empty ones."""
    if not isinstance(texts, (list, tuple)) or not all(isinstance(each, str) for each in texts):
        raise TypeError(f"{name} must be {kind}, got {texts!r:.100}")
    if "" in texts:
        raise ValueError(f"{name} must be texts that are not empty")
    return list(texts)
