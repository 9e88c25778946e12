"""Masks of a step's tokens, made on a thread while the model computes.

V vocabulary; a mask has a bit for each token, 32 in a word. A constraint is what `TokenMask.of` returns.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from .structured import Grammar
from .token_masks import TokenMask


def masks_along(constraint: TokenMask | Grammar, drafts: Sequence[int], first: int = 0) -> list[list[int]]:
    """The masks of the tokens after `first`, `first` + 1, .. all of the drafts. They end at a draft that its
    mask forbids, and where no token may come. The constraint stays where it is.

    Args:
        first: the masks after fewer drafts are known, and allow these.
    """
    walk, out = constraint, list[list[int]]()
    for after in range(len(drafts) + 1):
        if after >= first:
            try:
                words = walk.mask()
            except ValueError:
                break
            out.append(words)
            if after < len(drafts) and not words[drafts[after] // 32] >> drafts[after] % 32 & 1:
                break
        if after < len(drafts):
            if walk is constraint:  # its own first mask is kept, for what the library learns by making it
                walk = constraint.copy()
            walk.accept(drafts[after])
    return out


class StepMasks:
    """Makes the masks of the requests of a `_C._Engine`.

    Args:
        most: tokens that are proposed at once.
    """

    def __init__(self, core: Any, most: int) -> None:
        self._core, self._most = core, most
        self._pool: ThreadPoolExecutor | None = None
        self._begun: dict[int, tuple[int, Future[list[list[int]]]]] = {}
        self._given: dict[int, int] = {}

    def reset(self) -> None:
        """Before a step. What one that failed has begun is waited for: its constraints are free then."""
        wait([masks for _, masks in self._begun.values()])
        self._begun.clear()
        self._given.clear()

    def propose(self, number: int, constraint: TokenMask | Grammar) -> None:
        """Proposes the text that a grammar forces, or what the n-gram does, as far as it may come.

        Args:
            number: of the answer.
            constraint: of the answer.
        """
        tokens = self._core.ngram(number)
        if tokens is not None:
            tokens = constraint.forced()[: self._most] or tokens
            self._core.propose(number, tokens[: constraint.fits(tokens)])

    def begin(self, number: int, constraint: TokenMask | Grammar, drafts: Sequence[int], first: int) -> None:
        """Begins the masks after `first` and more drafts, but for those that the step has.

        Args:
            number: of the answer.
            constraint: of the answer.
            drafts: tokens that are proposed.
            first: how many of them come before the first mask.
        """
        first = max(first, self._given.get(number, 0))
        if self._pool is None:
            self._pool = ThreadPoolExecutor(1, "warptape-grammar")
        if first <= len(drafts):
            self._begun[number] = first, self._pool.submit(masks_along, constraint, drafts, first)

    def give(self) -> list[int]:
        """Waits for what was begun and hands it to the engine. Returns the requests whose next token may be
        none."""
        stuck = []
        for number, (first, masks) in self._begun.items():
            for after, words in enumerate(masks.result(), first):
                self._core.allow(number, after, words)
                self._given[number] = after + 1
            if number not in self._given:
                stuck.append(number)
        self._begun.clear()
        return stuck
