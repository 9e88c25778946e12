"""What comes out of generation: vLLM's names and meaning."""

from __future__ import annotations

from dataclasses import dataclass

from .lora import LoRARequest


@dataclass
class Logprob:
    """A token's log-probability; `rank` 1 is the likeliest.

    Args:
        decoded_token: its text, where there is a tokenizer; U+FFFD stands for parts of characters.
        decoded_bytes: what it adds to the text; nothing for special tokens that are left out.
        text_offset: characters of the text before it.
    """

    logprob: float
    rank: int | None = None
    decoded_token: str | None = None
    decoded_bytes: bytes | None = None
    text_offset: int | None = None


@dataclass
class CompletionOutput:
    """One answer.

    Args:
        index: of it among the n of its request.
        text: empty without a tokenizer, or with detokenize=False.
        cumulative_logprob, logprobs: None unless they were asked for; logprobs has a dict for each token,
            from token id to Logprob: the drawn token's, and the likeliest ones'.
        finish_reason: "stop", "length", "abort" or "error"; None while it goes on.
        stop_reason: the stop text or stop token id that ended it; None for an end-of-sequence token. With the
            finish_reason "error" what went wrong.
        lora_request: the adapter that answered.
        weights_versions: of the weights that drew its tokens, ascending; several where `update_weights` let
            it go on with others.
    """

    index: int
    text: str
    token_ids: list[int]
    cumulative_logprob: float | None = None
    logprobs: list[dict[int, Logprob]] | None = None
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    lora_request: LoRARequest | None = None
    weights_versions: tuple[int, ...] = ()

    def finished(self) -> bool:
        """Whether nothing will be added."""
        return self.finish_reason is not None


@dataclass
class RequestOutput:
    """The answers to one prompt.

    Args:
        prompt: its text; None where it was given as tokens.
        prompt_logprobs: None unless they were asked for, and until they are there; else of each token of the
            prompt, the first of which has None.
        num_cached_tokens: tokens of the prompt whose keys and values were found instead of computed.
        lora_request: the adapter that answered.
    """

    request_id: str
    prompt: str | None
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    finished: bool
    num_cached_tokens: int = 0
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    lora_request: LoRARequest | None = None
