"""Reasoning in a model's text, apart from what it answers: `<think>` and its kin."""

from __future__ import annotations

# What begins and what ends it: DeepSeek, Qwen, OLMo, SmolLM; Mistral; Cohere; Seed; Granite.
MARKS = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("<seed:think>", "</seed:think>"),
    ("Here is my thought process:", "Here is my response:"),
)


def begun(prompt: str) -> str | None:
    """The mark that a prompt ends with, whose template has begun the reasoning; None where it ends otherwise.

    Args:
        prompt: text.
    """
    end = prompt[-64:].rstrip()
    return next((mark for mark, _ in MARKS if end.endswith(mark)), None)


class ReasoningParser:
    """Splits a growing text into reasoning and content; what may become a mark is held back.

    Args:
        mark: with which the prompt has begun the reasoning; None: the text may begin it.
    """

    def __init__(self, mark: str | None = None) -> None:
        self._held = ""
        self._end = dict(MARKS).get(mark or "", "")  # "" outside of the reasoning
        self._before = mark is None  # nothing was said yet
        self._after = False  # the reasoning has ended, and white space behind it is nobody's
        self._first = bool(mark)

    def feed(self, text: str, last: bool = False) -> tuple[str, str]:
        """Takes the next part; the reasoning and the content that it completes.

        Args:
            text: of the answer.
            last: whether nothing follows.
        """
        self._held += text
        reasoning = ""
        if self._before and not self._begins(last):
            return "", ""
        if self._end:
            if self._first:
                self._held = self._held.lstrip()
                self._first = not self._held
            at = self._held.find(self._end)
            if at < 0:
                clear = self._held if last else self._held[: len(self._held) - overlap(self._held, self._end)]
                reasoning = clear.rstrip()
                self._held = self._held[len(reasoning) :]
                return reasoning, ""
            reasoning = self._held[:at].rstrip()
            self._held, self._end, self._after = self._held[at + len(self._end) :], "", True
        if self._after:
            self._held = self._held.lstrip()
            self._after = not self._held
        content, self._held = self._held, ""
        return reasoning, content

    def _begins(self, last: bool) -> bool:
        """Whether it is clear if the text begins with a mark."""
        start = self._held.lstrip()
        for mark, end in MARKS:
            if start.startswith(mark):
                self._held, self._end, self._before, self._first = start[len(mark) :], end, False, True
                return True
        if not last and any(mark.startswith(start) for mark, _ in MARKS):
            return False
        self._before = False
        return True


def overlap(text: str, mark: str) -> int:
    """How many of the last characters may be the beginning of a mark.

    Args:
        text: any.
        mark: any.
    """
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0
