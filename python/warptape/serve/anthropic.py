"""Anthropic's API: /v1/messages and /v1/messages/count_tokens."""

from __future__ import annotations

import json
from typing import Any

from .dialects import Dialect, event, object_of, parts_of
from .errors import ApiError, anthropic_body
from .openai_requests import refuse, take

STOPS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
KNOWN = ("model", "messages", "max_tokens", "system", "stop_sequences", "stream", "temperature", "top_p",
         "top_k", "tools", "tool_choice", "metadata", "thinking", "service_tier")  # fmt: skip


def _text(content: Any, where: str) -> str:
    """Of a text, or of blocks of text."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise refuse(f"{where} must be a text or a list of blocks", where)
    out = []
    for block in content:
        if (
            not isinstance(block, dict)
            or block.get("type") != "text"
            or not isinstance(block.get("text"), str)
        ):
            kind = block.get("type") if isinstance(block, dict) else block
            raise refuse(f"{where}: models here read text; got a block of type {kind!r:.50}", where)
        out.append(block["text"])
    return "".join(out)


def _messages(given: Any) -> list[dict[str, Any]]:
    if not isinstance(given, list):
        raise refuse("messages must be a list", "messages")
    out: list[dict[str, Any]] = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or message.get("role") not in ("user", "assistant", "system"):
            raise refuse(f"{where} must be an object with the role user or assistant", where)
        content = message.get("content")
        if isinstance(content, str):
            out.append({"role": message["role"], "content": content})
        else:
            out += _blocks(message["role"], content, where)
    return out


def _blocks(role: str, content: Any, where: str) -> list[dict[str, Any]]:
    """A message of blocks as OpenAI's messages: results of tools are some of their own."""
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise refuse(f"{where}: content must be a text or a list of blocks", where)
    results, texts, calls = [], [], []
    for block in content:
        kind = block.get("type")
        if kind == "tool_result":
            said = _text(block.get("content") or "", where)
            results.append({"role": "tool", "tool_call_id": block.get("tool_use_id"), "content": said})
        elif kind == "tool_use":
            function = {"name": block.get("name"), "arguments": json.dumps(block.get("input") or {})}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
        elif kind not in ("thinking", "redacted_thinking"):  # which templates do not take
            texts.append(_text([block], where))
    out: list[dict[str, Any]] = list(results)
    if texts or calls or not out:
        out.append({"role": role, "content": "".join(texts)})
    if calls:
        out[-1]["tool_calls"] = calls
    return out


def _tools(tools: Any) -> list[dict[str, Any]]:
    out = []
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type", "custom") != "custom":
            raise refuse("tools must be those of the client: objects with name and input_schema", "tools")
        function = {k: tool[k] for k in ("name", "description") if k in tool}
        out.append({"type": "function", "function": {**function, "parameters": tool.get("input_schema")}})
    return out


class Messages(Dialect):
    """Messages as Anthropic's clients have them."""

    def __init__(self) -> None:
        self._open: str | None = None  # the kind of the block that grows
        self._index = -1
        self._begun = False
        self._stop: tuple[str | None, Any] = (None, None)
        self._usage: dict[str, Any] = {}

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        for name in body:
            if name not in KNOWN:
                raise refuse(f"{name:.100}: extra inputs are not permitted", name[:100])
        messages = _messages(body.get("messages"))
        if body.get("system") is not None:
            messages.insert(0, {"role": "system", "content": _text(body["system"], "system")})
        if take(body, "max_tokens", int) is None:
            raise refuse("max_tokens: field required", "max_tokens")
        names = ("model", "max_tokens", "stream", "temperature", "top_p", "top_k")
        out = {name: body[name] for name in names if body.get(name) is not None}
        out["messages"] = messages
        if body.get("stop_sequences"):
            out["stop"] = body["stop_sequences"]
        if tools := take(body, "tools", list):
            out["tools"] = _tools(tools)
        choice = take(body, "tool_choice", dict, {})
        kinds = {"any": "required", "auto": "auto", "none": "none"}
        kind = take(choice, "type", str, "")
        if kind == "tool":
            out["tool_choice"] = {"type": "function", "function": {"name": choice.get("name")}}
        elif choice:
            out["tool_choice"] = kinds.get(kind, choice)
        if choice.get("disable_parallel_tool_use"):
            out["parallel_tool_calls"] = False
        thinking = take(body, "thinking", dict)
        if thinking is not None:
            on = thinking.get("type") != "disabled"
            out["chat_template_kwargs"] = {"enable_thinking": on}
        return out

    @staticmethod
    def _ends(choice: dict[str, Any]) -> tuple[str, Any]:
        """Why it ended, and by which text."""
        text = choice.get("stop_reason")
        if choice["finish_reason"] == "stop" and isinstance(text, str):
            return "stop_sequence", text
        return STOPS.get(choice["finish_reason"], "end_turn"), None

    @staticmethod
    def _count(usage: dict[str, Any]) -> dict[str, Any]:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return {
            "input_tokens": usage["prompt_tokens"] - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": usage["completion_tokens"],
        }

    @staticmethod
    def _message(answer: dict[str, Any]) -> dict[str, Any]:
        name = "msg_" + answer["id"].rpartition("-")[2]
        return {"id": name, "type": "message", "role": "assistant", "model": answer["model"]}

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        (choice,) = answer["choices"]
        content: list[dict[str, Any]] = []
        for kind, value in parts_of(choice["message"]):
            if kind == "text":
                content.append({"type": "text", "text": value})
            elif kind == "reasoning":
                content.append({"type": "thinking", "thinking": value, "signature": ""})
            else:
                block, arguments = _used(value)
                content.append({**block, "input": object_of(arguments)})
        reason, stop = self._ends(choice)
        ends = {"content": content, "stop_reason": reason, "stop_sequence": stop}
        return {**self._message(answer), **ends, "usage": self._count(answer["usage"])}

    def chunks(self, chunks: list[dict[str, Any]]) -> str:
        """See Dialect."""
        out = []
        for chunk in chunks:
            if not self._begun:
                self._begun = True
                counts = {"input_tokens": 0, "output_tokens": 0}
                empty: dict[str, Any] = {
                    "content": [],
                    "stop_reason": None,
                    "stop_sequence": None,
                    "usage": counts,
                }
                out.append(event("message_start", {"message": {**self._message(chunk), **empty}}))
            for choice in chunk["choices"]:
                for kind, value in parts_of(choice["delta"]):
                    out += self._part(kind, value)
                if choice["finish_reason"] is not None:
                    self._stop = self._ends(choice)
            if chunk.get("usage"):
                self._usage = self._count(chunk["usage"])
        return "".join(out)

    def _part(self, kind: str, value: Any) -> list[str]:
        out = []
        if kind == "call" or (kind != "arguments" and kind != self._open):
            out += self._closed()
            self._open, self._index = kind, self._index + 1
            blocks: dict[str, dict[str, Any]] = {
                "text": {"type": "text", "text": ""},
                "reasoning": {"type": "thinking", "thinking": "", "signature": ""},
            }
            block = blocks.get(kind) or {**_used(value)[0], "input": {}}
            out.append(event("content_block_start", {"index": self._index, "content_block": block}))
        delta = {
            "text": {"type": "text_delta", "text": value},
            "reasoning": {"type": "thinking_delta", "thinking": value},
        }.get(kind)
        if delta is None:
            value = _used(value)[1] if kind == "call" else value
            if not value:
                return out
            delta = {"type": "input_json_delta", "partial_json": value}
        out.append(event("content_block_delta", {"index": self._index, "delta": delta}))
        return out

    def _closed(self) -> list[str]:
        was, self._open = self._open, None
        return [] if was is None else [event("content_block_stop", {"index": self._index})]

    def failed(self, failure: ApiError) -> str:
        """See Dialect."""
        return event("error", {"error": anthropic_body(failure)["error"]})

    def end(self) -> str:
        """See Dialect."""
        reason, stop = self._stop
        delta = {"delta": {"stop_reason": reason, "stop_sequence": stop}, "usage": self._usage}
        return "".join([*self._closed(), event("message_delta", delta), event("message_stop", {})])


def _used(call: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """A call's block, and its arguments."""
    function = call["function"]
    return {"type": "tool_use", "id": call["id"], "name": function["name"]}, function["arguments"]
