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
    # Granite's and Phi-4's, Nemotron's, Qwen3-Coder's.
    (f"<|tool_call|>[{CALL}, {CALL}]<|/tool_call|>", "", ["f", "f"]),
    (f"I see.<TOOLCALL>[{CALL}]</TOOLCALL>", "I see.", ["f"]),
    ("<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>", "", ["f"]),
    ("<tool_call><function=f></function></tool_call> so", " so", ["f"]),
]


def cut(rng, text):
    """Parts of a text, of 1 to 8 characters."""
    at = 0
    while at < len(text):
        size = rng.randrange(1, 9)
        yield text[at : at + size]
        at += size


def read(parser, parts):
    """The content, and calls joined of their pieces."""
    content, calls = "", []
    for more, pieces in [*(parser.feed(part) for part in parts), parser.feed("", last=True)]:
        content += more
        for piece in pieces:
            if piece["index"] == len(calls):  # the first says what it is
                calls.append({"id": piece["id"], "type": piece["type"], "function": {**piece["function"]}})
            else:
                assert piece.keys() == {"index", "function"} and piece["function"].keys() == {"arguments"}
                calls[piece["index"]]["function"]["arguments"] += piece["function"]["arguments"]
    assert calls == parser.calls and len({c["id"] for c in calls}) == len(calls)
    return content, [(c["function"]["name"], c["function"]["arguments"]) for c in calls]


@pytest.mark.parametrize("text, content, names", CASES)
def test_parsed_the_same_however_it_comes(text, content, names):
    whole = read(ToolParser(), [text])
    assert whole[0] == content and [name for name, _ in whole[1]] == names
    assert all(isinstance(json.loads(arguments), dict) for _, arguments in whole[1])
    for seed in range(30):
        assert read(ToolParser(), cut(random.Random(seed), text)) == whole


SOUP = (
    *("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|tool_call|>", "<|/tool_call|>", "<TOOLCALL>"),
    *("</TOOLCALL>", "<|python_tag|>", "<function=f>", "</function>", "<parameter=x>", "</parameter>"),
    *(
        '{"name": "f", "arguments": ',
        '{"name": "g", "parameters": ',
        '{"a": 1}',
        "{",
        "}",
        "[",
        "]",
        ",",
        ";",
    ),
    *('{"arguments": {"x": 2}, "name": "f"}', '{"name": "h", "arguments": {}}', '{"x": "y"}}', " ", "1", "<"),
    *("\n", '"', "\\", '\\"', "text", "f", "[ARGS]", "[CALL_ID]ab", "</tool", "\u00e9"),
    '"a</tool_call>b"',
)


def test_pieces_of_any_text_are_the_whole_answers():
    """Texts of marks, quotes and halves of calls, cut anywhere."""
    rng, found = random.Random(5), 0
    for _ in range(1500):
        text = "".join(rng.choices(SOUP, k=rng.randrange(1, 14)))
        settings = rng.choice([None, {"f", "g"}]), rng.choice([None, None, 1])
        whole = read(ToolParser(*settings), [text])
        assert read(ToolParser(*settings), cut(rng, text)) == whole, text
        found += bool(whole[1])
    assert found > 100


def test_arguments_come_as_they_are_written():
    text = '{"name": "f", "arguments": {"x": "a</b", "y": [1, 2]}}'
    for before in ("<tool_call>", ""):
        parser = ToolParser(["f"])
        pieces = [parser.feed(part)[1] for part in [before, *text]]
        first = next(i for i, each in enumerate(pieces) if each)
        assert text[:first].endswith('"arguments": {')  # the first character decides
        assert sum(map(bool, pieces)) == len('{"x": "a</b", "y": [1, 2]}')
    # Cut off by max_tokens: what is there, which is no JSON, and no content.
    assert read(ToolParser(["f"]), cut(random.Random(1), text[:-9])) == ("", [("f", '{"x": "a</b", "y":')])


def test_values_of_qwens_calls():
    text = "<function=f><parameter=x>1</parameter><parameter=y>\na b\n</parameter></function>"
    (call,) = ToolParser().feed(f"<tool_call>{text}</tool_call>", last=True)[1]
    assert json.loads(call["function"]["arguments"]) == {"x": 1, "y": "a b"}


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
