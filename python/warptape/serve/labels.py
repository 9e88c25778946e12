"""Encoders with a head: /v1/rerank, /v1/score and /v1/classify, in the forms of Cohere, Jina and vLLM.

A model with one label says how well two texts fit together. Models without a head compare texts by the cosine
of their vectors.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from .dialects import JSON
from .limits import dumps
from .openai import OpenAI, Text, in_turns
from .openai_requests import MOST_INPUTS, inputs, known, named, refuse, take, truncation
from .texts import Texts
from .versions import Version

MOST_SAID = 1 << 18  # tokens with a label, or probabilities of labels, in an answer


class Labels:
    """The endpoints.

    Args:
        openai: lends versions, and has them read.
        texts: tokenizers.
    """

    def __init__(self, openai: OpenAI, texts: Texts) -> None:
        self._openai, self._texts = openai, texts

    def routes(self) -> list[Route]:
        """For the app."""

        def post(path: str, handler: Any) -> Route:
            return Route(path, OpenAI.guarded(handler), methods=["POST"])

        several = {self.rerank: "rerank v1/rerank v2/rerank", self.score: "score v1/score"}
        several[self.classify] = "classify v1/classify"
        return [post(f"/{path}", each) for each, paths in several.items() for path in paths.split()]

    # ---- pairs of texts ----

    async def rerank(self, request: Request) -> Response:
        """POST /v1/rerank: documents in the order in which they fit a query. One that is too long is cut, as
        Cohere and Jina do it.

        Args:
            request: of starlette.
        """
        asked = await self._openai.asked(request, _rerank)
        scores, usage = await self._scores(request, asked)
        order = np.argsort(-np.asarray(scores), kind="stable")[: asked.top]
        results: list[dict[str, Any]] = [{"index": int(i), "relevance_score": scores[i]} for i in order]
        second = request.scope["path"].startswith("/v2")  # Cohere's has no documents in its answers
        if not second if asked.shown is None else asked.shown:
            for each in results:
                each["document"] = {"text": asked.second[each["index"]]}
        out = {"id": _id("rerank"), "model": asked.model, "results": results, "usage": usage}
        if second:
            out["meta"] = {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}}
        return JSON(await dumps(out))

    async def score(self, request: Request) -> Response:
        """POST /v1/score: how well texts fit one text, or each the one beside it.

        Args:
            request: of starlette.
        """
        asked = await self._openai.asked(request, _score)
        scores, usage = await self._scores(request, asked)
        data = [{"index": i, "object": "score", "score": each} for i, each in enumerate(scores)]
        return JSON(await dumps(_listed("score", asked.model, data, usage)))

    async def _scores(self, request: Request, asked: _Pairs) -> tuple[list[float], dict[str, int]]:
        """Of each pair."""

        async def read(version: Version) -> tuple[str, list[Text]]:
            metadata, model = version.metadata, asked.model
            limit = metadata["max_embedded_len"]
            limit = limit if asked.most in (None, -1) else min(asked.most or 0, limit)
            tokenizer = await self._openai.reader(version, model)
            if not metadata.get("task"):  # by their vectors
                texts = [text for pair in zip(asked.first, asked.second) for text in pair]
                both = await self._texts.encode(tokenizer, texts, True, limit, asked.cut)
                return "embed", [(tokens[:limit] if asked.cut else tokens, None) for tokens in both]
            if metadata["task"] != "sequence" or len(metadata["labels"]) != 1:
                raise refuse(f"{model} has not the one label that scores are made of", "model")
            pairs = asked.first, asked.second, limit, asked.cut, asked.each
            encoded = await self._texts.pairs(tokenizer, *pairs)
            return "classify", [(tokens, types if any(types) else None) for tokens, types in encoded]

        version, op, values, count = await self._openai.read(request, asked.model, read)
        scores = list[float]()
        results: Iterable[Any] = zip(values[::2], values[1::2]) if op == "embed" else values
        async for each in in_turns(results):
            if op == "embed":
                scores.append(float(np.dot(*(vector.astype(np.float64) for vector in each))))
            else:
                scores.append(float(_applied(version.metadata["activation"], each)[0]))
        return scores, {"prompt_tokens": count, "total_tokens": count}

    # ---- labels ----

    async def classify(self, request: Request) -> Response:
        """POST /v1/classify: the labels of texts, or of their tokens, as the model has them.

        Args:
            request: of starlette.
        """
        model, inputs = await self._openai.asked(request, _classify)
        spans: list[Any] = []

        async def read(version: Version) -> tuple[str, list[Text]]:
            task, labels = version.metadata.get("task"), version.metadata.get("labels", ())
            if not task:
                raise refuse(f"{model} has no labels", "model")
            if task == "token" and all(isinstance(each, str) for each in inputs):
                tokenizer = await self._openai.reader(version, model)
                encoded = await self._texts.spans(tokenizer, inputs, version.metadata["max_embedded_len"])
                spans.extend(each for _, each in encoded)
                texts = [tokens for tokens, _ in encoded]
            else:
                texts = await self._openai.inputs(inputs, version, model)
            size = sum(map(len, texts)) if task == "token" else len(texts) * len(labels)
            if size > MOST_SAID:
                raise refuse(f"the answer would have {size} entries, at most {MOST_SAID} are given", "input")
            return "classify", [(tokens, None) for tokens in texts]

        version, _, values, count = await self._openai.read(request, model, read)
        metadata, data = version.metadata, list[dict[str, Any]]()
        async for logits in in_turns(values):
            i, probs = len(data), _applied(metadata["activation"], logits)
            if metadata["task"] == "token":
                of, text = (spans[i], inputs[i]) if spans else ([()] * len(probs), None)
                data.append({"index": i, "tokens": [*_of_tokens(metadata["labels"], probs, of, text)]})
            else:
                said = {"label": metadata["labels"][int(probs.argmax())], "probs": probs.tolist()}
                data.append({"index": i, **said, "num_classes": len(probs)})
        usage = {"prompt_tokens": count, "total_tokens": count, "completion_tokens": 0}
        return JSON(await dumps(_listed("classify", model, data, usage)))


def _id(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex}"


def _listed(kind: str, model: str, data: list[Any], usage: dict[str, int]) -> dict[str, Any]:
    created = int(time.time())
    return {
        "id": _id(kind),
        "object": "list",
        "created": created,
        "model": model,
        "data": data,
        "usage": usage,
    }


def _applied(activation: str, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Scores [.., labels] of logits, in float64."""
    x = logits.astype(np.float64)
    if activation == "sigmoid":
        small = np.exp(-np.abs(x))
        return np.where(x >= 0, 1, small) / (1 + small)
    if activation == "softmax":
        x = np.exp(x - x.max(-1, keepdims=True))
        return x / x.sum(-1, keepdims=True)
    return x


def _of_tokens(labels: list[str], probs: Any, spans: list[Any], text: str | None) -> Iterator[dict[str, Any]]:
    """Each token that is no special one, with its likeliest label."""
    for at, (own, span) in enumerate(zip(probs, spans)):
        if span is None:
            continue
        best = int(own.argmax())
        said: dict[str, Any] = {"index": at, "label": labels[best], "score": float(own[best])}
        if text is not None:
            start, end = span
            said.update(word=text[start:end], start=start, end=end)
        yield said


# ---- requests ----


@dataclass
class _Pairs:
    """Pairs of texts that are to be scored.

    Args:
        first, second: texts of each pair.
        most: tokens of a pair; -1, None: what fits.
        cut: whether the end of a second text is left out where a pair has more.
        each: tokens of a second text, which is cut to these.
        top: so many are told, those that fit best.
        shown: whether the answer has the documents; None: as the route does it.
    """

    model: str
    first: list[str]
    second: list[str]
    most: int | None
    cut: bool
    each: int | None = None
    top: int | None = None
    shown: bool | None = None


def _text(value: Any, name: str) -> str:
    """A text, or an object with one."""
    if isinstance(value, dict) and isinstance(value.get("text"), str):
        value = value["text"]
    if not isinstance(value, str):
        raise refuse(f"{name} must be a text, or several, got {value!r:.100}", name)
    return value


def _several(body: dict[str, Any], name: str) -> list[str]:
    value = body.get(name)
    value = value if isinstance(value, list) else [value]
    if not 0 < len(value) <= MOST_INPUTS:
        raise refuse(f"{name} must be a text, or 1 to {MOST_INPUTS}", name)
    return [_text(each, name) for each in value]


def _rerank(body: dict[str, Any]) -> _Pairs:
    names = ("query", "documents", "top_n", "return_documents", "max_tokens_per_doc", "truncation")
    known(body, "model", "user", "truncate_prompt_tokens", *names)
    top, each = take(body, "top_n", int), take(body, "max_tokens_per_doc", int)
    for name, value in (("top_n", top), ("max_tokens_per_doc", each)):
        if value is not None and value < 1:
            raise refuse(f"{name} must be at least 1, got {value}", name)
    documents = _several(body, "documents")
    return _Pairs(
        named(body),
        [_text(body.get("query"), "query")] * len(documents),
        documents,
        truncation(body),
        take(body, "truncation", bool, True),
        each,
        top,
        take(body, "return_documents", bool),
    )


def _score(body: dict[str, Any]) -> _Pairs:
    known(body, "model", "user", "truncate_prompt_tokens", "text_1", "text_2", "encoding_format")
    first, second = _several(body, "text_1"), _several(body, "text_2")
    if len(first) == 1:
        first = first * len(second)
    if len(first) != len(second):
        raise refuse("text_1 must be one text, or as many as text_2", "text_1")
    most = truncation(body)
    return _Pairs(named(body), first, second, most, most is not None)


def _classify(body: dict[str, Any]) -> tuple[str, list[Any]]:
    known(body, "model", "user", "input")
    return named(body), inputs(body)
