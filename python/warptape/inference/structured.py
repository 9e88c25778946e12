"""Text that matches a schema, a regular expression or a grammar, by the library `llguidance`."""

from __future__ import annotations

import json
from typing import Any

from .sampling_params import StructuredOutputsParams
from .tokenizer import Tokenizer

_END = "<|no model draws this|>"


class Grammar:
    """What one answer may go on with.

    Args:
        matcher: of the grammar library.
        of: what compiled it.
    """

    def __init__(self, matcher: Any, of: Grammars) -> None:
        self._matcher, self._of = matcher, of

    def copy(self) -> Grammar:
        """At the same place, to go on by itself."""
        return Grammar(self._matcher.deep_copy(), self._of)

    def mask(self) -> list[int]:
        """Whether each token may come next, a bit each, 32 in a word. ValueError where none may."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError(f"structured_outputs: {self._matcher.get_error()}")
        words, full_words = memoryview(mask).cast("I").tolist(), self._of.limit // 32
        kept = words[:full_words] + [
            word & ((1 << self._of.limit % 32) - 1) for word in words[full_words : full_words + 1]
        ]
        if not any(kept):
            raise ValueError("structured_outputs: no token may come next")
        return (kept + [0] * self._of.words)[: self._of.words]

    def forced(self) -> list[int]:
        """The tokens of the text that must come next, if there is one. Their mask may allow others for it."""
        return list(self._matcher.deep_copy().compute_ff_tokens())

    def fits(self, tokens: list[int]) -> int:
        """How many of these tokens may come, one after the other.

        Args:
            tokens: in their order.
        """
        return int(self._matcher.deep_copy().validate_tokens(tokens))

    def accept(self, token: int) -> None:
        """Goes on with a token.

        Args:
            token: that the mask allows.
        """
        self._matcher.consume_token(token)

    def complete(self) -> bool:
        """Whether what came is a whole text of the grammar."""
        return bool(self._matcher.is_accepting()) and not self._matcher.is_error()

    def ended(self, token: int) -> bool:
        """Whether a token that was accepted was the end of the text.

        Args:
            token: the last one.
        """
        return token in self._of.ends and bool(self._matcher.is_stopped()) and self.complete()


class Grammars:
    """Compiles constraints for one tokenizer.

    Attributes:
        ends: tokens that end a text.

    Raises: ImportError without the library.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_token_ids: list[int]) -> None:
        try:
            import llguidance
        except ImportError as error:
            raise ImportError(
                "structured_outputs need llguidance: pip install 'warptape[inference]'"
            ) from error
        self._library = llguidance
        self.words, self.limit = -(-vocab_size // 32), vocab_size  # of masks, and the tokens in them
        text = tokenizer.library_json()
        self.ends = [token for token in eos_token_ids if tokenizer.bytes.known(token)]
        if not self.ends:  # the library would take any token for it: one that is in no mask
            text, end = tokenizer.library_json_with(_END)
            self.ends, self.limit = [end], min(vocab_size, end)
        size = max(vocab_size, *(token + 1 for token in self.ends))
        end_or_ends = self.ends if len(self.ends) > 1 else self.ends[0]
        self._tokens = llguidance.LLTokenizer(text, n_vocab=size, eos_token=end_or_ends)

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """ValueError for a constraint that is none, with the reason.

        Args:
            params: a schema, an expression or a grammar.
        """
        matcher, text = self._library.LLMatcher, self._text(params)
        error = matcher.validate_grammar(text, self._tokens)
        if error:
            raise ValueError(f"structured_outputs: {error}")
        return Grammar(matcher(self._tokens, text), self)

    def _text(self, params: StructuredOutputsParams) -> str:
        matcher = self._library.LLMatcher
        if params.json is not None or params.json_object:
            schema = params.json if params.json is not None else {"type": "object"}
            if not isinstance(schema, str):
                schema = json.dumps(schema)
            return matcher.grammar_from_json_schema(schema)
        if params.regex is not None:
            return matcher.grammar_from_regex(params.regex)
        if params.choice is not None:
            options = " | ".join(json.dumps(each) for each in params.choice)
            return matcher.grammar_from_lark(f"start: {options}")
        assert params.grammar is not None
        return matcher.grammar_from_lark(params.grammar)
