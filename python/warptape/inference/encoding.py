"""Texts through an encoder, many in one step: vectors of their tokens, and logits of labels.

Texts wait in a queue, and a step takes as many of its first as have not more than so many tokens. They lie
one behind the other in one row, sorted by length, so that nothing is padded. Whatever is beside a text, its
answer is the same to the bit: rows of packed layers know nothing of each other, and each text's attention is
its own.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import Any, NamedTuple

from warptape import core as wt

from ..core import Tensor
from ..models import Encoder
from .llm import DTYPES, prepare

TOKENS = 2048  # of a step


class Encoded(NamedTuple):
    """What is known of a text.

    Args:
        name: that it was added by.
        states: of its tokens, [T, C].
        logits: [labels], or [T, labels] where tokens have labels; None without a head.
    """

    name: Any
    states: Tensor
    logits: Tensor | None


class TextEncoder:
    """An encoder with texts that wait for it.

    Args:
        folder: of the model.
        dtype: of the weights, "auto" (the folder's, float32 for float16) or one of DTYPES.
        quantization: None, "int8", "int4" or "fp8", as LLM's.
        tokens: of a step; a longer text has one alone.

    Raises: what `Encoder.from_pretrained` and `prepare` raise; ValueError for another dtype.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        dtype: str = "auto",
        quantization: str | None = None,
        tokens: int = TOKENS,
    ) -> None:
        if dtype not in ("auto", *DTYPES):
            raise ValueError(f"dtype must be 'auto' or one of {[*DTYPES]}, got {dtype!r:.40}")
        if type(tokens) is not int or tokens < 1:
            raise ValueError(f"tokens must be a whole number above 0, got {tokens!r:.40}")
        model: Any = Encoder.from_pretrained(folder, dtype=DTYPES.get(dtype))
        if dtype == "auto" and model.embed_tokens.weight.dtype not in DTYPES.values():
            model = model.float()
        prepare(model, quantization, True)  # in place
        self.model: Encoder = model
        self._tokens = tokens
        self._waiting: OrderedDict[Any, tuple[list[int], list[int] | None]] = OrderedDict()

    def add(self, name: Any, tokens: list[int], types: list[int] | None = None) -> None:
        """A text more.

        Args:
            name: of the text, by which it is answered.
            tokens: at least one.
            types: of the tokens; None: all 0.

        Raises: ValueError for no token, more than the model's positions, or numbers beyond its tables.
        """
        config = self.model.config
        if not 0 < len(tokens) <= config.context:
            raise ValueError(f"expected 1 to {config.context} tokens, got {len(tokens)}")
        if not 0 <= min(tokens) <= max(tokens) < config.vocab_size:
            raise ValueError(f"tokens must be in the vocabulary of {config.vocab_size}")
        if types is not None:
            most = config.type_vocab_size if config.positions == "learned" else 1
            if len(types) != len(tokens) or not all(0 <= each < most for each in types):
                raise ValueError(f"types must be numbers below {most}, one for each token")
            types = types if any(types) else None
        self._waiting[name] = tokens, types

    def forget(self, name: Any) -> None:
        """Leaves a text out, where it still waits.

        Args:
            name: of the text.
        """
        self._waiting.pop(name, None)

    def waits_for(self, name: Any) -> bool:
        """Whether a text is not answered yet.

        Args:
            name: of the text.
        """
        return name in self._waiting

    def waits(self) -> bool:
        """Whether step() has something to do."""
        return bool(self._waiting)

    @wt.inference_mode()
    def step(self) -> list[Encoded]:
        """The answers of the texts that have waited longest, which wait no more, whatever it raises."""
        names, size = list[Any](), 0
        for name, (tokens, _) in self._waiting.items():
            if names and size + len(tokens) > self._tokens:
                break
            names.append(name)
            size += len(tokens)
        taken = [(name, *self._waiting.pop(name)) for name in names]
        taken.sort(key=lambda each: len(each[1]))
        lengths = [len(tokens) for _, tokens, _ in taken]
        types = None
        if any(each is not None for *_, each in taken):
            types = wt.tensor([[t for _, tokens, own in taken for t in own or [0] * len(tokens)]])
        row = wt.tensor([[t for _, tokens, _ in taken for t in tokens]])
        out = self.model(row, token_type_ids=types, lengths=lengths)
        states = out.last_hidden_state[0].split(lengths)
        logits: Any = [None] * len(taken)
        if out.logits is not None:
            logits = out.logits if self.model.config.task == "sequence" else out.logits[0].split(lengths)
        return [Encoded(name, own, said) for (name, *_), own, said in zip(taken, states, logits)]
