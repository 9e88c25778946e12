"""Changed bodies of each API are refused with a reason, never with a failure of the server."""

import copy
import json
import random

import pytest

pytest.importorskip("uvicorn")
from warptape.serve import openai_requests
from warptape.serve.anthropic import Messages
from warptape.serve.errors import ApiError, anthropic_body
from warptape.serve.ollama import Talk
from warptape.serve.responses import Responses

SCHEMA = {"type": "object", "properties": {"x": {"type": "integer"}}}
BODIES = {
    "messages": (Messages, {
        "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "Be"}], "stop_sequences": ["x"],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "hi"}]},
            {"role": "assistant", "content": [
                {"type": "tool_use", "id": "1", "name": "f", "input": {"x": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "2"}]}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "f", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "temperature": 0.5, "stream": True,
    }),
    "responses": (Responses, {
        "model": "m", "instructions": "Be", "max_output_tokens": 5, "stream": False,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": []},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{\"x\": 1}"},
            {"type": "function_call_output", "call_id": "1", "output": "2"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}], "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}},
        "reasoning": {"effort": "low"}, "metadata": {"a": "b"}, "top_p": 0.5,
    }),
    "chat": (Talk, {
        "model": "m:latest", "stream": False, "think": True, "format": SCHEMA,
        "options": {"temperature": 0.5, "num_predict": 5, "stop": ["x"], "num_ctx": 9, "seed": 1},
        "messages": [
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"function": {"name": "f", "arguments": {"x": 1}}}]},
            {"role": "tool", "content": "2", "tool_name": "f"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}],
    }),
    "generate": (lambda: Talk(True), {
        "model": "m", "prompt": "hi", "system": "Be", "format": "json", "options": {"top_k": 3}, "suffix": "",
    }),
}  # fmt: skip
VALUES = [
    None,
    True,
    0,
    -1,
    1.5,
    10**30,
    "",
    "x",
    [],
    {},
    [1],
    [[]],
    [{}],
    {"type": "text"},
    [None],
    {"a": []},
]


def places(value):
    """All (container, key) within."""
    keys = value.keys() if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from places(value[key])


def read(dialect, body):
    return openai_requests.chat(dialect.read(body))


@pytest.mark.parametrize("name", BODIES)
def test_changed_bodies(name):
    make, body = BODIES[name]
    first = {**body, "format": "json"} if name == "chat" else dict(body)
    with_choice = "tool_choice" in first and isinstance(first["tool_choice"], dict)
    assert read(make(), copy.deepcopy(first)).model == "m" or with_choice
    taken, refused = 0, []
    for seed in range(1500):
        rng, changed = random.Random(seed), copy.deepcopy(first)
        for _ in range(rng.randrange(1, 4)):
            container, key = rng.choice([*places(changed)])
            if rng.random() < 0.2:
                del container[key]
            else:
                container[key] = copy.deepcopy(rng.choice(VALUES))
        try:
            read(make(), changed)
            taken += 1
        except ApiError as error:
            refused.append(error)
    assert taken > 50 and {each.status for each in refused} <= {400, 413}
    assert all(json.dumps(anthropic_body(each)) and each.message for each in refused)
