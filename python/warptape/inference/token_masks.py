"""Tokens that one answer may not have (allowed_token_ids, bad_words of SamplingParams), as masks of steps.

V vocabulary; a mask has a bit for each token, 32 in a word.
"""

from __future__ import annotations

from collections.abc import Sequence

from .sampling_params import SamplingParams
from .structured import Grammar
from .tokenizer import Tokenizer


def bad_sequences(words: Sequence[str], tokenizer: Tokenizer | None) -> list[list[int]]:
    """The tokens of words, each without and with a space before it, as it begins a text or goes on with one.

    Raises: ValueError without a tokenizer, and for a word that has no token.
    """
    if words and tokenizer is None:
        raise ValueError("bad_words need a tokenizer")
    out: list[list[int]] = []
    for word in words:
        bare = word.lstrip()
        for text in (bare, " " + bare) if bare else (word,):
            tokens = tokenizer.encode(text, add_special_tokens=False) if tokenizer else []
            if not tokens:
                raise ValueError(f"bad_words: the tokenizer has no token for {word!r:.100}")
            if tokens not in out:
                out.append(tokens)
    return out


class TokenMask:
    """What one answer may go on with; beside a Grammar, what both allow.

    Args:
        allowed: ceil(V / 32) words; bits from V on are 0.
        bad: sequences of tokens; the last of one is masked where the others came right before it.
        held: (tokens, n): these may not be among the first n, which the sampler sees to.
        grammar: goes on with this mask.
    """

    def __init__(
        self, allowed: list[int], bad: list[list[int]], held: tuple[list[int], int], grammar: Grammar | None
    ) -> None:
        self._allowed, self._bad, self._held, self._grammar = allowed, bad, held, grammar
        self._came: list[int] = []

    @classmethod
    def of(
        cls,
        params: SamplingParams,
        tokenizer: Tokenizer | None,
        vocab_size: int,
        stops: list[int],
        grammar: Grammar | None,
    ) -> TokenMask | Grammar | None:
        """The mask of a request's answers; the grammar alone (or None) where nothing else is asked for.

        Args:
            stops: the tokens that end it, which min_tokens holds back.

        Raises: IndexError for tokens out of the vocabulary, and what `bad_sequences` raises.
        """
        if params.allowed_token_ids is None and not params.bad_words:
            return grammar
        if params.allowed_token_ids is None:
            rest = vocab_size % 32
            words = [(1 << 32) - 1] * (vocab_size // 32) + ([(1 << rest) - 1] if rest else [])
        else:
            words = [0] * -(-vocab_size // 32)
        for token in params.allowed_token_ids or ():
            if token >= vocab_size:
                raise IndexError(f"allowed_token_ids: token {token} is out of the vocabulary of {vocab_size}")
            words[token // 32] |= 1 << token % 32
        bad = bad_sequences(params.bad_words or (), tokenizer)
        return cls(words, bad, (stops, params.min_tokens), grammar)

    def copy(self) -> TokenMask:
        """At the same place, to go on by itself."""
        grammar = None if self._grammar is None else self._grammar.copy()
        other = TokenMask(self._allowed, self._bad, self._held, grammar)
        other._came = list(self._came)
        return other

    def mask(self) -> list[int]:
        """Whether each token may come next. ValueError where none may."""
        words = list(self._allowed)
        if self._grammar is not None:
            words = [word & allowed for word, allowed in zip(words, self._grammar.mask())]
        free = list(words)
        for token in self._masked():
            words[token // 32] &= ~(1 << token % 32)
        if not any(words) and self.complete():  # it ends, though min_tokens would hold that back
            words = free
            for token in self._bad_now():
                words[token // 32] &= ~(1 << token % 32)
        if not any(words):
            raise ValueError("allowed_token_ids and bad_words leave no token")
        return words

    def complete(self) -> bool:
        """Whether what came is a whole text of the grammar; False without one."""
        return self._grammar is not None and self._grammar.complete()

    def ended(self, token: int) -> bool:
        """Whether nothing can come behind a token that was accepted, by the grammar.

        Args:
            token: the last one.
        """
        return self._grammar is not None and self._grammar.ended(token)

    def forced(self) -> list[int]:
        """The tokens of the text that the grammar forces next, if there is one."""
        return [] if self._grammar is None else self._grammar.forced()

    def fits(self, tokens: list[int]) -> int:
        """How many of these tokens may come, one after the other.

        Args:
            tokens: in their order.
        """
        most = len(tokens) if self._grammar is None else self._grammar.fits(tokens)
        walk = TokenMask(self._allowed, self._bad, self._held, None)
        walk._came = list(self._came)
        for i, token in enumerate(tokens[:most]):
            if not self._allowed[token // 32] >> token % 32 & 1 or token in walk._masked():
                return i
            walk.accept(token)
        return most

    def _masked(self) -> list[int]:
        """Of the allowed tokens, those that may not come next."""
        stops, first = self._held
        return (list(stops) if len(self._came) < first else []) + self._bad_now()

    def _bad_now(self) -> list[int]:
        return [tokens[-1] for tokens in self._bad if self._ends_with(tokens[:-1])]

    def _ends_with(self, tokens: list[int]) -> bool:
        return len(tokens) <= len(self._came) and self._came[len(self._came) - len(tokens) :] == tokens

    def accept(self, token: int) -> None:
        """Goes on with a token.

        Args:
            token: that the mask allows.
        """
        self._came.append(token)
        if self._grammar is not None:
            self._grammar.accept(token)
