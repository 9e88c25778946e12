"""Reasoning in texts, whole and cut into parts anywhere."""

import random

import pytest

pytest.importorskip("uvicorn")
from warptape.serve.reasoning import MARKS, ReasoningParser, begun

CASES = [
    (None, "plain", "", "plain"),
    (None, "<think>a\nb</think>\n\nyes", "a\nb", "yes"),
    (None, "\n<think>\na < b\n</think>yes", "a < b", "yes"),
    (None, "<think>a</think>", "a", ""),
    (None, "<think>never ends </thin", "never ends </thin", ""),
    (None, "<thin", "", "<thin"),
    (None, "a <think>b</think>", "", "a <think>b</think>"),
    ("<think>", "\na</think>\nb </think>", "a", "b </think>"),
    ("<think>", "a", "a", ""),
    (None, "[THINK]a[/THINK]b", "a", "b"),
    (None, "Here is my thought process: a\nHere is my response: b", "a", "b"),
    (None, "", "", ""),
]


@pytest.mark.parametrize("mark, text, reasoning, content", CASES)
def test_split_the_same_however_it_comes(mark, text, reasoning, content):
    assert ReasoningParser(mark).feed(text, last=True) == (reasoning, content)
    for seed in range(40):
        rng, parser, at, got = random.Random(seed), ReasoningParser(mark), 0, ["", ""]
        while at < len(text):
            size = rng.randrange(1, 6)
            got = [a + b for a, b in zip(got, parser.feed(text[at : at + size]))]
            at += size
        got = [a + b for a, b in zip(got, parser.feed("", last=True))]
        assert got == [reasoning, content]


def test_what_the_template_has_begun():
    assert begun("user: hi\nassistant: <think>\n") == "<think>" and begun("<think></think>\n") is None
    assert all(begun(f"x{mark}") == mark for mark, _ in MARKS)
