"""What OpenAI's clients get: choices that grow out of a worker's events, whole or as chunks."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from typing import Any

from .openai_requests import Asked
from .reasoning import ReasoningParser
from .tool_calls import ToolParser

PART = 32  # tokens of a prompt, or answers, of one event that are described at once
LEAST = -9999.0  # in place of -inf, which JSON has not


def _value(logprob: float) -> float:
    return max(logprob, LEAST)


def parts_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An event in parts, none of which has much to describe; the event itself where it has little.

    Args:
        event: of a worker.
    """
    of_prompt, outputs = event.get("prompt_logprobs") or [], event["outputs"]
    if len(of_prompt) + len(outputs) <= PART:
        yield event
        return
    for at in range(0, len(of_prompt), PART):
        yield {**event, "cached_tokens": 0, "outputs": [], "prompt_logprobs": of_prompt[at : at + PART]}
    for at in range(0, len(outputs), PART):
        yield {**event, "outputs": outputs[at : at + PART], "prompt_logprobs": None}


def _named(entry: list[Any]) -> tuple[str, list[int]]:
    """A token's text, and the bytes that it adds; bytes that are part of a character are written out.

    Args:
        entry: token, log-probability, rank, text, bytes (None: the text's), offset.
    """
    token, _, _, text, adds, _ = entry
    if text is None:
        return f"token_id:{token}", []
    if adds is None:
        return text, [*text.encode()]
    if adds and "\ufffd" in text:
        return "".join(f"\\x{byte:02x}" for byte in adds), adds
    return text, adds


def chat_logprobs(tokens: list[list[list[Any]]], top: int) -> dict[str, Any]:
    """Log-probabilities of a chat's next tokens, as OpenAI has them: with the bytes that each adds.

    Args:
        tokens: each with its alternatives, the drawn token first.
        top: how many alternatives are shown.
    """

    def described(entry: list[Any]) -> dict[str, Any]:
        text, adds = _named(entry)
        return {"token": text, "logprob": _value(entry[1]), "bytes": adds}

    content = []
    for entries in tokens:
        ranked = sorted((e for e in entries if e[2] <= top), key=lambda e: e[2])[:top]
        content.append({**described(entries[0]), "top_logprobs": [described(e) for e in ranked]})
    return {"content": content, "refusal": None}


def completion_logprobs(tokens: list[Any], top: int, before: int) -> dict[str, Any]:
    """Of a completion's next tokens; the log-probability of a prompt's first is None.

    Args:
        tokens: each with its alternatives, the drawn token first.
        top: how many alternatives are shown.
        before: characters before the text that the tokens are of.
    """

    def name(entry: list[Any]) -> str:
        text, _ = _named(entry)
        return f"bytes:{text}" if text.startswith("\\x") else text

    names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
    out: dict[str, Any] = {each: [] for each in names}
    for entries in tokens:
        own = entries[0]
        first = own[1] is None
        out["tokens"].append(name(own))
        out["token_logprobs"].append(None if first else _value(own[1]))
        by_name: dict[str, float] = {}
        for each in () if first else (e for e in entries if e[2] <= max(top, 1)):
            key = name(each)  # the likelier one of two by the same name
            by_name[key] = max(_value(each[1]), by_name.get(key, LEAST))
        out["top_logprobs"].append(None if first else by_name)
        out["text_offset"].append(before + (own[5] or 0))
    return out


class Choice:
    """One answer while it grows.

    Args:
        asked: the request.
        index: which of the answers.
        before: characters of the echoed prompt.
    """

    def __init__(self, asked: Asked, index: int, before: int) -> None:
        self.index, self.before = index, before
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self.parser: ToolParser | None = None
        if asked.tools:
            self.parser = ToolParser({tool["function"]["name"] for tool in asked.tools}, asked.most_calls)
        self.reasoning = ReasoningParser(asked.thinking) if asked.reasoning else None
        self.versions: set[int] = set()  # of the weights that drew its tokens, where they were changed
        self.score = 0.0  # the sum of its log-probabilities, for best_of

    def take(self, output: dict[str, Any]) -> None:
        """Counts what came.

        Args:
            output: of a worker's event.
        """
        self.tokens += output["tokens"]
        self.versions.update(output.get("weights_versions") or ())
        self.score += sum(entries[0][1] for entries in output.get("logprobs") or ())
        if output.get("finish_reason") is not None:
            self.finish_reason, self.stop_reason = output["finish_reason"], output.get("stop_reason")

    def end(self) -> dict[str, Any]:
        """How it ended."""
        out: dict[str, Any] = {"finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        return out | ({"weights_versions": sorted(self.versions)} if self.versions else {})


class Answer:
    """A response as it comes to be.

    Args:
        chat: the form of chat completions.
        prompts: of each its tokens and text.
    """

    def __init__(
        self,
        asked: Asked,
        chat: bool,
        prompts: list[tuple[list[int], str | None]],
    ) -> None:
        self.asked, self.chat, self.prompts = asked, chat, prompts
        self.id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())
        self.n = asked.params.get("n", 1)
        self._top = asked.params.get("logprobs") if asked.show_logprobs else None
        echoed = [len(text or "") if asked.echo else 0 for _, text in prompts]
        self.choices = [Choice(asked, i, echoed[i // self.n]) for i in range(self.n * len(prompts))]
        self.logprobs: list[dict[str, Any] | None] = [None for _ in self.choices]
        self.cached = 0

    # ---- what is common ----

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        prompt = sum(len(tokens) for tokens, _ in self.prompts)
        new = 0 if self.asked.text_only else sum(len(c.tokens) for c in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }

    def _describe(self, choice: Choice, tokens: list[Any], of_prompt: bool = False) -> dict[str, Any]:
        assert self._top is not None
        if self.chat:
            return chat_logprobs(tokens, self._top)
        return completion_logprobs(tokens, self._top, 0 if of_prompt else choice.before)

    def _keep(self, choice: Choice, tokens: list[Any], of_prompt: bool = False) -> None:
        """Describes tokens at once, for a whole answer."""
        if self._top is None:
            return
        new, known = self._describe(choice, tokens, of_prompt), self.logprobs[choice.index]
        if known is None:
            self.logprobs[choice.index] = new
            return
        for name, values in new.items():
            if values:
                known[name] += values

    # ---- whole ----

    def take(self, number: int, event: dict[str, Any]) -> None:
        """Takes an event of a prompt.

        Args:
            number: of the prompt.
            event: of a worker.
        """
        if not self.choices[number * self.n].tokens:
            self.cached += event.get("cached_tokens", 0)
        if event.get("prompt_logprobs") and self.asked.echo:
            for choice in self.choices[number * self.n :][: self.n]:
                self._keep(choice, event["prompt_logprobs"], True)
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            choice.parts.append(output["text"])
            if not self.asked.text_only:
                self._keep(choice, output.get("logprobs") or [])

    def whole(self) -> dict[str, Any]:
        """The response, when all is there."""
        kind = "chat.completion" if self.chat else "text_completion"
        chosen = self._best() if self.asked.best is not None else self.choices
        choices = [self._chat_choice(c) if self.chat else self._choice(c) for c in chosen]
        for index, choice in enumerate(choices):
            choice["index"] = index
        return {**self._envelope(kind, choices), "usage": self.usage()}

    def _best(self) -> list[Choice]:
        """Of each prompt's answers those whose tokens are the likeliest, the best first."""
        assert self.asked.best is not None
        out = []
        for at in range(0, len(self.choices), self.n):
            ranked = sorted(self.choices[at : at + self.n], key=lambda c: -c.score / max(len(c.tokens), 1))
            out += ranked[: self.asked.best]
        return out

    def _ends(self, choice: Choice) -> dict[str, Any]:
        out = choice.end()
        if self.asked.token_ids:
            out["token_ids"] = choice.tokens
        return out

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = "" if self.asked.text_only else "".join(choice.parts)
        prompt = self.prompts[choice.index // self.n][1] or "" if self.asked.echo else ""
        logprobs = self.logprobs[choice.index]
        out = {"index": choice.index, "text": prompt + text, "logprobs": logprobs, **self._ends(choice)}
        if self.asked.text_only:
            out["finish_reason"] = "length"
            out.pop("token_ids", None)
        return out

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        content: str | None = "".join(choice.parts)
        calls: list[Any] = []
        reasoning = ""
        if choice.reasoning is not None:
            reasoning, content = choice.reasoning.feed(content or "", last=True)
        if choice.parser is not None:
            content, calls = choice.parser.feed(content or "", last=True)[0], choice.parser.calls
            content = content or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if reasoning and self.asked.show_reasoning:
            message["reasoning_content"] = reasoning
        if calls:
            message["tool_calls"] = calls
        logprobs = self.logprobs[choice.index]
        out = {"index": choice.index, "message": message, "logprobs": logprobs, **self._ends(choice)}
        if calls and choice.finish_reason == "stop":
            out["finish_reason"] = "tool_calls"
        return out

    # ---- as chunks ----

    def first_chunks(self) -> list[dict[str, Any]]:
        """What comes before any token."""
        if self.chat:
            delta = {"role": "assistant", "content": ""}
            return [self._chunk(c, {"delta": delta}) for c in self.choices]
        if not self.asked.echo:
            return []
        return [self._chunk(c, {"text": self.prompts[c.index // self.n][1] or ""}) for c in self.choices]

    def _chunk(self, choice: Choice, what: dict[str, Any], last: bool = False) -> dict[str, Any]:
        body = {"index": choice.index, "logprobs": None, **what, "finish_reason": None}
        if last:
            body.update(choice.end())
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        out = self._envelope(kind, [body])
        if self.asked.continuous_usage:
            out["usage"] = self.usage()
        elif self.asked.usage:
            out["usage"] = None
        return out

    def chunks(self, number: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What an event of a prompt adds.

        Args:
            number: of the prompt.
            event: of a worker.
        """
        if not self.choices[number * self.n].tokens:
            self.cached += event.get("cached_tokens", 0)
        out = []
        if event.get("prompt_logprobs") and self.asked.echo and self._top is not None:
            for choice in self.choices[number * self.n :][: self.n]:
                before = self._describe(choice, event["prompt_logprobs"], True)
                out.append(self._chunk(choice, {"text": "", "logprobs": before}))
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            out += self._chat_delta(choice, output) if self.chat else self._text_delta(choice, output)
        return out

    def _text_delta(self, choice: Choice, output: dict[str, Any]) -> list[dict[str, Any]]:
        last = choice.finish_reason is not None
        what: dict[str, Any] = {"text": output["text"]}
        if self._top is not None:
            what["logprobs"] = self._describe(choice, output.get("logprobs") or [])
        if self.asked.token_ids:
            what["token_ids"] = output["tokens"]
        empty = not output["text"] and not last and "logprobs" not in what and "token_ids" not in what
        return [] if empty else [self._chunk(choice, what, last)]

    def _chat_delta(self, choice: Choice, output: dict[str, Any]) -> list[dict[str, Any]]:
        last = choice.finish_reason is not None
        content: str = output["text"]
        pieces: list[dict[str, Any]] = []
        reasoning = ""
        if choice.reasoning is not None:
            reasoning, content = choice.reasoning.feed(content, last)
        if choice.parser is not None:
            content, pieces = choice.parser.feed(content, last)
        delta: dict[str, Any] = {"content": content} if content else {}
        if reasoning and self.asked.show_reasoning:
            delta["reasoning_content"] = reasoning
        if pieces:
            delta["tool_calls"] = pieces
        what: dict[str, Any] = {"delta": delta}
        if self._top is not None:
            what["logprobs"] = self._describe(choice, output.get("logprobs") or [])
        if self.asked.token_ids:
            what["token_ids"] = output["tokens"]
        if not delta and not last and len(what) == 1:
            return []
        chunk = self._chunk(choice, what, last)
        if last and choice.parser is not None and choice.parser.calls and choice.finish_reason == "stop":
            chunk["choices"][0]["finish_reason"] = "tool_calls"
        return [chunk]

    def last_chunk(self) -> dict[str, Any] | None:
        """The usage, where it was asked for."""
        if not self.asked.usage:
            return None
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._envelope(kind, []), "usage": self.usage()}
