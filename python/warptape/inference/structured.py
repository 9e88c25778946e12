"""Text that matches a schema, a regular expression or a grammar, by the library `llguidance`."""

from __future__ import annotations

import json
from typing import Any

from .sampling_params import StructuredOutputsParams
from .tokenizer import Tokenizer


class Grammar:
    """What one answer may go on with."""

    def __init__(self, matcher: Any, words: int, end: int | None) -> None:
        self._matcher, self._words, self._end = matcher, words, end

    def copy(self) -> Grammar:
        """At the same place, to go on by itself."""
        return Grammar(self._matcher.deep_copy(), self._words, self._end)

    def mask(self) -> list[int]:
        """Whether each token may come next, a bit each, 32 in a word. ValueError where none may."""
        mask = self._matcher.compute_bitmask()
        if self._matcher.is_error():
            raise ValueError(f"structured_outputs: {self._matcher.get_error()}")
        words = memoryview(mask).cast("I").tolist()
        return (words + [0] * self._words)[: self._words]

    def forced(self) -> list[int]:
        """The tokens of the text that must come next, if there is one. Their mask may allow others for it."""
        return list(self._matcher.deep_copy().compute_ff_tokens())

    def fits(self, tokens: list[int]) -> int:
        """How many of these tokens may come, one after the other."""
        return int(self._matcher.deep_copy().validate_tokens(tokens))

    def accept(self, token: int) -> None:
        """Goes on with a token."""
        self._matcher.consume_token(token)

    def complete(self) -> bool:
        """Whether what came is a whole text of the grammar."""
        return bool(self._matcher.is_accepting()) and not self._matcher.is_error()

    def ended(self, token: int) -> bool:
        """Whether nothing can come behind a token that was accepted: it was the end, or the last one of the
        text where there is no token for the end."""
        return self._end in (token, None) and bool(self._matcher.is_stopped()) and self.complete()


class Grammars:
    """Compiles constraints for one tokenizer.

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
        self._words = -(-vocab_size // 32)
        self._end = eos_token_ids[0] if eos_token_ids else None
        text = tokenizer.library_json()
        self._tokens = llguidance.LLTokenizer(text, n_vocab=vocab_size, eos_token=self._end)

    def compile(self, params: StructuredOutputsParams) -> Grammar:
        """ValueError for a constraint that is none, with the reason."""
        matcher, text = self._library.LLMatcher, self._text(params)
        error = matcher.validate_grammar(text, self._tokens)
        if error:
            raise ValueError(f"structured_outputs: {error}")
        return Grammar(matcher(self._tokens, text), self._words, self._end)

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
