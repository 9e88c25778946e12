"""OpenAI's /v1/responses, of which nothing is stored: each request has the whole conversation."""

from __future__ import annotations

import time
import uuid
from typing import Any

from .dialects import Dialect, event, parts_of
from .errors import ApiError
from .openai_requests import refuse, take

TAKEN = ("model", "stream", "temperature", "top_p", "parallel_tool_calls", "top_k", "min_p", "seed", "stop",
         "repetition_penalty", "priority", "cache_salt", "adapter")  # fmt: skip
KNOWN = (*TAKEN, "input", "instructions", "max_output_tokens", "tools", "tool_choice", "text", "reasoning",
         "metadata", "store", "include", "truncation", "user", "service_tier", "safety_identifier",
         "prompt_cache_key", "previous_response_id", "stream_options", "background")  # fmt: skip
PARTS = ("input_text", "output_text", "text", "refusal")


def _content(content: Any, where: str) -> str:
    if isinstance(content, str):
        return content
    out = []
    for part in content if isinstance(content, list) else [content]:
        kind = part.get("type") if isinstance(part, dict) else part
        text = part.get("refusal" if kind == "refusal" else "text") if kind in PARTS else None
        if not isinstance(text, str):
            raise refuse(f"{where}: models here read text; got a part of type {kind!r:.50}", where)
        out.append(text)
    return "".join(out)


def _messages(given: Any, instructions: str | None) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = []
    if instructions:
        out.append({"role": "system", "content": instructions})
    if isinstance(given, str):
        return [*out, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise refuse("input must be a text or a list of items", "input")
    for i, item in enumerate(given):
        where = f"input[{i}]"
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            out.append({"role": item.get("role"), "content": _content(item.get("content"), where)})
        elif kind == "function_call":
            function = {"name": item.get("name"), "arguments": item.get("arguments", "{}")}
            call = {"id": item.get("call_id"), "type": "function", "function": function}
            if not (out and out[-1]["role"] == "assistant" and out[-1].get("open")):
                out.append({"role": "assistant", "content": "", "tool_calls": [], "open": True})
            out[-1]["tool_calls"].append(call)
        elif kind == "function_call_output":
            said = _content(item.get("output"), where)
            out.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": said})
        elif kind != "reasoning":  # which templates do not take
            raise refuse(f"{where}: an item of type {kind!r:.50} is none that models here read", where)
    for message in out:
        message.pop("open", None)
    return out


def _tools(tools: list[Any]) -> list[dict[str, Any]]:
    out = []
    for tool in tools:
        if not isinstance(tool, dict) or tool.get("type") != "function":
            raise refuse("tools must be functions of the client: the server has none of its own", "tools")
        names = ("name", "description", "parameters", "strict")
        out.append({"type": "function", "function": {k: tool[k] for k in names if tool.get(k) is not None}})
    return out


class Responses(Dialect):
    """A response with its items: reasoning, a message, calls of functions."""

    def __init__(self) -> None:
        self._body: dict[str, Any] = {}
        self._id = "resp_" + uuid.uuid4().hex
        self._created = int(time.time())
        self._number = -1  # of the last event
        self._items: list[dict[str, Any]] = []  # that are whole
        self._item: dict[str, Any] | None = None  # that grows
        self._texts: list[str] = []
        self._reason: str | None = None
        self._usage: dict[str, Any] | None = None
        self._model = ""

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        for name in body:
            if name not in KNOWN:
                raise refuse(f"unrecognized request argument: {name:.100}", name[:100])
        for name in ("previous_response_id", "background"):
            if body.get(name):
                raise refuse(f"{name}: responses are not stored here; send the whole conversation", name)
        self._body = body
        out = {name: body[name] for name in TAKEN if body.get(name) is not None}
        out["messages"] = _messages(body.get("input"), take(body, "instructions", str))
        if (most := take(body, "max_output_tokens", int)) is not None:
            out["max_tokens"] = most
        if tools := take(body, "tools", list):
            out["tools"] = _tools(tools)
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        if choice is not None:
            out["tool_choice"] = choice
        wanted = take(take(body, "text", dict, {}), "format", dict, {})
        if wanted.get("type") == "json_schema":
            schema = {k: wanted[k] for k in ("name", "schema", "strict") if k in wanted}
            out["response_format"] = {"type": "json_schema", "json_schema": schema}
        elif wanted.get("type", "text") != "text":
            out["response_format"] = wanted
        effort = take(take(body, "reasoning", dict, {}), "effort", str)
        if effort is not None:
            out["reasoning_effort"] = effort
        return out

    def _response(self, status: str, output: list[dict[str, Any]], error: Any = None) -> dict[str, Any]:
        body, usage = self._body, self._usage
        names = ("instructions", "max_output_tokens", "temperature", "top_p", "user")
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        counts = usage and {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": {**usage["prompt_tokens_details"], "cache_write_tokens": 0},
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage["total_tokens"],
        }
        return {
            "id": self._id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "error": error,
            "incomplete_details": cut,
            "model": self._model or body.get("model"),
            "output": output,
            "parallel_tool_calls": body.get("parallel_tool_calls", True),
            "previous_response_id": None,
            "reasoning": body.get("reasoning") or {"effort": None, "summary": None},
            "store": False,
            "text": body.get("text") or {"format": {"type": "text"}},
            "tool_choice": body.get("tool_choice", "auto"),
            "tools": body.get("tools") or [],
            "truncation": "disabled",
            "metadata": body.get("metadata") or {},
            "usage": counts,
            **{name: body.get(name) for name in names},
        }

    def _status(self) -> str:
        return "incomplete" if self._reason == "length" else "completed"

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        (choice,) = answer["choices"]
        self._model, self._usage, self._reason = answer["model"], answer["usage"], choice["finish_reason"]
        items = [_item(kind, value, "completed") for kind, value in parts_of(choice["message"])]
        return self._response(self._status(), items)

    # ---- as events ----

    def _event(self, kind: str, **data: Any) -> str:
        self._number += 1
        return event(kind, {"sequence_number": self._number, **data})

    def chunks(self, chunks: list[dict[str, Any]]) -> str:
        """See Dialect."""
        out = []
        for chunk in chunks:
            self._model = chunk["model"]
            if self._number < 0:
                for kind in ("response.created", "response.in_progress"):
                    out.append(self._event(kind, response=self._response("in_progress", [])))
            for choice in chunk["choices"]:
                for kind, value in parts_of(choice["delta"]):
                    out += self._part(kind, value)
                self._reason = choice["finish_reason"] or self._reason
            self._usage = chunk.get("usage") or self._usage
        return "".join(out)

    def _where(self) -> dict[str, Any]:
        assert self._item is not None
        return {"item_id": self._item["id"], "output_index": len(self._items)}

    def _part(self, kind: str, value: Any) -> list[str]:
        names = {"text": "message", "reasoning": "reasoning", "call": "function_call"}
        out: list[str] = []
        if self._item is None or kind == "call" or self._item["type"] != names.get(kind, "function_call"):
            out += self._closed()
            self._item = _item(kind, value, "in_progress")
            for name in ("content", "arguments"):  # which come in the events that follow
                if name in self._item:
                    self._item[name] = [] if name == "content" else ""
            out.append(
                self._event("response.output_item.added", output_index=len(self._items), item={**self._item})
            )
            if kind != "call":
                part = _content_part(kind, "")
                out.append(
                    self._event("response.content_part.added", **self._where(), content_index=0, part=part)
                )
        if kind in ("call", "arguments"):
            grown = value["function"]["arguments"] if kind == "call" else value
            if grown:
                self._item["arguments"] += grown
                out.append(
                    self._event("response.function_call_arguments.delta", **self._where(), delta=grown)
                )
            return out
        self._texts.append(value)
        name = "output_text" if kind == "text" else "reasoning_text"
        more: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
        return [
            *out,
            self._event(f"response.{name}.delta", **self._where(), content_index=0, delta=value, **more),
        ]

    def _closed(self) -> list[str]:
        """Ends the item that grows."""
        item, text = self._item, "".join(self._texts)
        if item is None:
            return []
        out: list[str] = []
        where = self._where()
        if item["type"] == "function_call":
            done = {"arguments": item["arguments"], "name": item["name"]}
            out.append(self._event("response.function_call_arguments.done", **where, **done))
        else:
            kind = "text" if item["type"] == "message" else "reasoning"
            part = _content_part(kind, text)
            more: dict[str, Any] = {"logprobs": []} if kind == "text" else {}
            name = "output_text" if kind == "text" else "reasoning_text"
            out.append(self._event(f"response.{name}.done", **where, content_index=0, text=text, **more))
            out.append(self._event("response.content_part.done", **where, content_index=0, part=part))
            item["content"] = [part]
        item["status"] = "completed"
        out.append(self._event("response.output_item.done", output_index=where["output_index"], item=item))
        self._items.append(item)
        self._item, self._texts = None, []
        return out

    def failed(self, failure: ApiError) -> str:
        """See Dialect."""
        error = {"code": "server_error", "message": failure.message}
        return self._event("response.failed", response=self._response("failed", self._items, error))

    def end(self) -> str:
        """See Dialect."""
        out = self._closed()
        status = self._status()
        return "".join(
            [*out, self._event(f"response.{status}", response=self._response(status, self._items))]
        )


def _content_part(kind: str, text: str) -> dict[str, Any]:
    if kind == "reasoning":
        return {"type": "reasoning_text", "text": text}
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}


def _item(kind: str, value: Any, status: str) -> dict[str, Any]:
    """An item of the output; of a text, the text alone is known."""
    name = uuid.uuid4().hex
    if kind == "call":
        function = value["function"]
        return {
            "type": "function_call",
            "id": f"fc_{name}",
            "call_id": value["id"],
            "name": function["name"],
            "arguments": function["arguments"],
            "status": status,
        }
    part = _content_part(kind, value)
    if kind == "reasoning":
        return {"type": "reasoning", "id": f"rs_{name}", "summary": [], "content": [part], "status": status}
    return {
        "type": "message",
        "id": f"msg_{name}",
        "role": "assistant",
        "status": status,
        "content": [part],
    }
