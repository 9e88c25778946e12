"""Calls of tools in texts, whole and cut into parts anywhere."""

import json
import random

import pytest

pytest.importorskip("uvicorn")
from warptape.serve.tool_calls import ToolParser, schema_of

CALL = '{"name": "f", "arguments": {"x": "</tool_call"}}'
CASES = [
    ("plain text", "plain text", []),
    (f"<tool_call>\n{CALL}\n</tool_call>", "", ["f"]),
    (f"I look.\n<tool_call>{CALL}</tool_call>\n<tool_call>{CALL}</tool_call>", "I look.\n", ["f", "f"]),
    ('{"name": "g", "parameters": {}}', "", ["g"]),
    ('<|python_tag|>{"name": "g", "parameters": {}}; {"name": "h", "parameters": {"a": 1}}', "", ["g", "h"]),
    ('{"answer": 42}', '{"answer": 42}', []),
    ('{"name": "g"', '{"name": "g"', []),
    ("a < b and <tool_box>", "a < b and <tool_box>", []),
    ("<tool_call>{broken</tool_call> after", "<tool_call>{broken</tool_call> after", []),
    (f"<tool_call>{CALL}", "", ["f"]),  # cut off by max_tokens, and whole all the same
    ("", "", []),
    ("  {", "  {", []),
    ("   ", "   ", []),
    (f"\n\n<tool_call>{CALL}</tool_call>", "", ["f"]),
    (f"\n\nHi <tool_call>{CALL}</tool_call>\n ", "\n\nHi ", ["f"]),
    (f"<tool_call>{CALL}</tool_call>\nDone.", "Done.", ["f"]),
    ('<tool_call>{"name": "f", "arguments": {"x": "a </tool_call> b"}}</tool_call>', "", ["f"]),
    ('[{"name": "g", "arguments": {}}]', "", ["g"]),
    ('[{"a": 1}]', '[{"a": 1}]', []),
    ("[1] says so", "[1] says so", []),
    # Mistral's: a list, and since its version 11 names with arguments.
    (f"[TOOL_CALLS] [{CALL}, {CALL}]", "", ["f", "f"]),
    ('[TOOL_CALLS]f[ARGS]{"a": 1}[TOOL_CALLS]g{}', "", ["f", "g"]),
    ("I see. [TOOL_CALLS]f{}", "I see. ", ["f"]),
    ("[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
]


@pytest.mark.parametrize("text, content, names", CASES)
def test_parsed_the_same_however_it_comes(text, content, names):
    whole = ToolParser()
    assert whole.feed(text, last=True)[0] == content
    assert [c["function"]["name"] for c in whole.calls] == names
    for seed in range(30):
        rng, parser, at, got = random.Random(seed), ToolParser(), 0, ""
        while at < len(text):
            size = len(text) if seed == 0 else rng.randrange(1, 8)
            more, _ = parser.feed(text[at : at + size])
            got += more
            at += size
        more, _ = parser.feed("", last=True)
        assert got + more == content
        assert [c["function"]["name"] for c in parser.calls] == names
        assert all(isinstance(json.loads(c["function"]["arguments"]), dict) for c in parser.calls)
        assert len({c["id"] for c in parser.calls}) == len(parser.calls)


def test_names_that_are_not_offered_and_calls_beyond_the_most():
    text = f"<tool_call>{CALL}</tool_call>"
    assert ToolParser(["g"]).feed(text, last=True) == (text, [])
    answer = '{"name": "Ann", "parameters": {"age": 3}}'
    assert ToolParser(["f"]).feed(answer, last=True) == (answer, [])
    one = ToolParser(["f"], most=1)
    assert (
        len(one.feed(text + text)[1]) == 1 and one.feed(text, last=True) == ("", []) and len(one.calls) == 1
    )


def test_schemas():
    tools = [{"function": {"name": n, "parameters": {"type": "object"}}} for n in "ab"]
    assert schema_of(tools, "auto") is None
    assert len(schema_of(tools, "required")["anyOf"]) == 2
    only = schema_of(tools, {"function": {"name": "b"}})
    assert only["properties"]["name"] == {"const": "b"}
    with pytest.raises(ValueError, match="none of the tools"):
        schema_of(tools, {"function": {"name": "c"}})
