"""Routes of other APIs: Anthropic's, Ollama's, /v1/responses, vLLM's for tokens and adapters; new weights."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from ..version import __version__
from . import ollama, openai_requests
from .anthropic import Messages
from .dialects import JSON, Dialect
from .limits import MOST_VALUES, dumps
from .models import ModelNotFoundError
from .openai import OpenAI
from .openai_requests import refuse, take
from .responses import Responses
from .sites import check_order
from .versions import Version

LASTS = "until the server ends or has a new version of the model; the option adapters keeps one for longer"


class Others:
    """The endpoints.

    Args:
        openai: answers chats.
        models: see Models.
    """

    def __init__(self, openai: OpenAI, models: Any) -> None:
        self._openai, self._models = openai, models

    def routes(self) -> list[Route]:
        """For the app."""

        def post(path: str, handler: Any) -> Route:
            return Route(path, OpenAI.guarded(handler), methods=["POST"])

        return [
            Route("/health", OpenAI.guarded(self.health)),
            post("/v1/messages", self._talk(Messages)),
            post("/v1/messages/count_tokens", self.count_tokens),
            post("/v1/responses", self._talk(Responses)),
            post("/api/chat", self._talk(ollama.Talk)),
            post("/api/generate", self.generate),
            post("/api/embed", self.embed),
            Route("/api/tags", OpenAI.guarded(self.tags)),
            Route("/api/ps", OpenAI.guarded(self.tags)),
            post("/api/show", self.show),
            Route("/api/version", OpenAI.guarded(self.version)),
            post("/tokenize", self.tokenize),
            post("/detokenize", self.detokenize),
            post("/v1/load_lora_adapter", self.load_adapter),
            post("/v1/unload_lora_adapter", self.unload_adapter),
            post("/v1/update_weights", self.update_weights),
        ]

    def _talk(self, dialect: Callable[[], Dialect]) -> Any:
        async def endpoint(request: Request) -> Response:
            return await self._openai.converse(request, dialect())

        return endpoint

    async def health(self, request: Request) -> Response:
        """GET /health: empty, 503 while no model can answer.

        Args:
            request: of starlette.
        """
        return Response(status_code=200 if self._models.ready() else 503)

    # ---- Anthropic ----

    async def count_tokens(self, request: Request) -> Response:
        """POST /v1/messages/count_tokens

        Args:
            request: of starlette.
        """

        def read(body: dict[str, Any]) -> Any:
            return openai_requests.chat(Messages().read({"max_tokens": 1, **body}))

        asked = await self._openai.asked(request, read)
        tokens, _, _ = await self._openai.prompt_of(request, asked)
        return JSONResponse({"input_tokens": len(tokens)})

    # ---- Ollama ----

    async def generate(self, request: Request) -> Response:
        """POST /api/generate: the prompt as a message of the user, by the model's template. With `raw` and an
        empty prompt Ollama's clients only load a model, which is answered at once.

        Args:
            request: of starlette.
        """
        body = await self._openai.asked(request, lambda body: body)
        if not body.get("prompt"):
            name = ollama.bare(take(body, "model", str, ""))
            self._models.peek(name)
            done = {"response": "", "done": True, "done_reason": "load"}
            return JSONResponse({"model": name, "created_at": ollama.now(), **done})
        if body.get("raw"):
            raise refuse("raw: ask for it at /v1/completions", "raw")
        return await self._openai.converse(request, ollama.Talk(True))

    async def embed(self, request: Request) -> Response:
        """POST /api/embed

        Args:
            request: of starlette.
        """
        start = time.monotonic_ns()
        body = await self._openai.asked(request, lambda body: body)
        body = {**body, "model": ollama.bare(take(body, "model", str, ""))}
        vectors, count = await self._openai.vectors(request, body)
        times = {"total_duration": time.monotonic_ns() - start, "load_duration": 0}
        out = {"model": body["model"], "embeddings": vectors, **times, "prompt_eval_count": count}
        return JSON(await dumps(out))

    def _cards(self) -> list[dict[str, Any]]:
        return [ollama.card(name, self._models.peek(name)) for name in self._models.names()]

    async def tags(self, request: Request) -> Response:
        """GET /api/tags, and /api/ps: all models that serve are loaded.

        Args:
            request: of starlette.
        """
        return JSONResponse({"models": self._cards()})

    async def show(self, request: Request) -> Response:
        """POST /api/show

        Args:
            request: of starlette.
        """
        body = await self._openai.asked(request, lambda body: body)
        name = ollama.bare(take(body, "model", str, take(body, "name", str, "")))
        version = self._models.peek(name)
        card = ollama.card(name, version)
        length = version.metadata.get("max_model_len")
        return JSONResponse(
            {
                "modified_at": card["modified_at"],
                "details": card["details"],
                "model_info": {"general.architecture": "llm", "llm.context_length": length},
                "capabilities": ["completion"] if version.metadata.get("kind") == "llm" else ["embedding"],
            }
        )

    async def version(self, request: Request) -> Response:
        """GET /api/version

        Args:
            request: of starlette.
        """
        return JSONResponse({"version": __version__})

    # ---- tokens ----

    async def tokenize(self, request: Request) -> Response:
        """POST /tokenize: the tokens of `prompt`, or of `messages`.

        Args:
            request: of starlette.
        """

        def read(body: dict[str, Any]) -> Any:
            texts = take(body, "return_token_strs", bool, False)
            rest = {name: value for name, value in body.items() if name != "return_token_strs"}
            if "messages" in rest:
                return openai_requests.chat(rest), True, texts
            if not isinstance(rest.get("prompt"), str):
                raise refuse("prompt must be a text", "prompt")
            return openai_requests.completion(rest), False, texts

        asked, chat, texts = await self._openai.asked(request, read)
        tokens, tokenizer, version = await self._openai.prompt_of(request, asked, chat)
        most = version.metadata.get("max_model_len")
        out: dict[str, Any] = {"count": len(tokens), "max_model_len": most, "tokens": tokens}
        if texts and tokenizer is not None:
            out["token_strs"] = [tokenizer.bytes.of(token).decode(errors="replace") for token in tokens]
        return JSON(await dumps(out))

    async def detokenize(self, request: Request) -> Response:
        """POST /detokenize: the text of `tokens`.

        Args:
            request: of starlette.
        """

        def read(body: dict[str, Any]) -> tuple[str, list[int]]:
            tokens = take(body, "tokens", list, [])
            if len(tokens) > MOST_VALUES or not all(type(token) is int for token in tokens):
                raise refuse("tokens must be a list of token ids", "tokens")
            return take(body, "model", str, ""), tokens

        text = await self._openai.text_of(request, *await self._openai.asked(request, read))
        return JSON(await dumps({"prompt": text}))

    # ---- adapters ----

    async def load_adapter(self, request: Request) -> Response:
        """POST /v1/load_lora_adapter: {"lora_name", "lora_path", "model"}, the last where there are several.
        The answer says for how long it is there.

        Args:
            request: of starlette.
        """
        name, body, version = await self._adapter(request)
        path = take(body, "lora_path", str)
        if not path:
            raise refuse("lora_path must name a PEFT folder", "lora_path")
        if name in self._models.adapters() or name in self._models.names():
            raise refuse(f"{name!r:.100} is loaded already", "lora_name")
        await version.load_adapter(name, path)
        return JSONResponse({"id": name, "object": "model", "parent": version.name, "message": LASTS})

    async def unload_adapter(self, request: Request) -> Response:
        """POST /v1/unload_lora_adapter: {"lora_name"}; requests that run with it are answered.

        Args:
            request: of starlette.
        """
        name, _, version = await self._adapter(request, True)
        await version.unload_adapter(name)
        return JSONResponse({"id": name, "object": "model", "deleted": True})

    async def _adapter(self, request: Request, loaded: bool = False) -> tuple[str, dict[str, Any], Version]:
        check_order(request.headers.get("content-type"))
        body = await self._openai.asked(request, lambda body: body)
        name = take(body, "lora_name", str)
        if not name or len(name) > 128:
            raise refuse("lora_name must be a name of at most 128 characters", "lora_name")
        model = self._models.adapters().get(name) if loaded else take(body, "model", str)
        if loaded and model is None:
            raise ModelNotFoundError(f"adapter {name!r:.130} is not loaded")
        return name, body, self._named(model)

    def _named(self, model: str | None) -> Version:
        """The version that serves of a model, or of the only one that generates."""
        if model is None:
            generating = [v.name for v in self._models.loaded() if v.metadata.get("kind") == "llm"]
            if len({*generating}) != 1:
                raise refuse("model must name the model that is meant", "model")
            (model,) = {*generating}
        return self._models.peek(model)

    # ---- weights ----

    async def update_weights(self, request: Request) -> Response:
        """POST /v1/update_weights: {"path", "model", "version", "in_flight", "keep_prefix_cache", "convert"},
        all but the path with defaults. The path is of a model's folder, or of a safetensors file.

        Args:
            request: of starlette.
        """
        check_order(request.headers.get("content-type"))
        body = await self._openai.asked(request, lambda body: body)
        known = ("path", "model", "version", "in_flight", "keep_prefix_cache", "convert")
        if unknown := sorted({*body} - {*known}):
            raise refuse(f"{unknown[0]:.100} is not known; known are {', '.join(known)}", unknown[0])
        path, version = take(body, "path", str), take(body, "version", int)
        if not path:
            raise refuse("path must name a model's folder or a safetensors file", "path")
        how: dict[str, Any] = {name: take(body, name, bool, False) for name in known[-2:]}
        how["in_flight"] = take(body, "in_flight", str, "finish")
        served = self._named(take(body, "model", str))
        new = await served.update_weights(path, version, **how)
        return JSONResponse({"model": served.name, "weights_version": new})
