"""What OpenAI's requests ask for, as prompts and SamplingParams; vLLM's fields beside OpenAI's."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from .errors import ApiError
from .images import part_of
from .limits import MOST_CHARACTERS, MOST_JSON, bounded, loads
from .tool_calls import schema_of
from .workers import RequestError

# Fields that mean the same in SamplingParams.
SAMPLING = (
    "n", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty",
    "repetition_penalty", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens", "logit_bias",
    "skip_special_tokens", "spaces_between_special_tokens", "include_stop_str_in_output",
    "structured_outputs", "bad_words", "allowed_token_ids",
)  # fmt: skip
# Of every generation.
COMMON = (*SAMPLING, "model", "stream", "stream_options", "max_tokens", "priority", "cache_salt", "adapter",
          "return_token_ids", "add_special_tokens", "truncate_prompt_tokens")  # fmt: skip
# Known to OpenAI, and without a meaning here: they change nothing that is generated.
WITHOUT_MEANING = ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key",
                   "encoding_format")  # fmt: skip
COMPLETION = ("prompt", "echo", "logprobs", "best_of", "suffix")
CHAT = ("messages", "tools", "tool_choice", "response_format", "logprobs", "top_logprobs",
        "max_completion_tokens", "chat_template", "chat_template_kwargs", "add_generation_prompt",
        "continue_final_message", "parallel_tool_calls", "reasoning_effort", "include_reasoning")  # fmt: skip
MOST_N, MOST_LOGPROBS, MOST_PROMPTS = 128, 20, 1024
MOST_INPUTS = 16_384  # texts that are to be read
MOST_ANSWERS = 1024  # of a request: prompts times n
MOST_TOOLS = 1024


def refuse(message: str, param: str | None = None, code: str | None = None) -> ApiError:
    """A request that is the client's fault.

    Args:
        message: for the client.
        param: the field.
        code: OpenAI's.
    """
    return ApiError(400, message, param, code)


@dataclass
class Asked:
    """A generation: of each prompt n answers.

    Args:
        prompts: texts or tokens; for a chat one, made later.
        params: fields of SamplingParams, with a seed.
        text_only: max_tokens=0 with echo: nothing is to be generated.
    """

    model: str
    params: dict[str, Any]
    prompts: list[Any] = field(default_factory=list)
    stream: bool = False
    usage: bool = False
    continuous_usage: bool = False
    echo: bool = False
    text_only: bool = False
    token_ids: bool = False
    special: bool = True
    truncate: int | None = None  # to so many of the last tokens of a prompt; -1: to what fits
    more: dict[str, Any] = field(default_factory=dict)  # priority, cache_salt, adapter
    best: int | None = None  # so many of a prompt's answers are given, the likeliest
    show_logprobs: bool = True
    # Of a chat:
    messages: list[dict[str, Any]] = field(default_factory=list)
    images: list[str] = field(default_factory=list)  # data: URLs
    tools: list[dict[str, Any]] = field(default_factory=list)
    forced: bool = False  # the text is the call that tool_choice asked for
    most_calls: int | None = None
    chat_template: str | None = None  # None: the model's
    reasoning: bool = False  # whether it is looked for
    show_reasoning: bool = True
    thinking: str | None = None  # the mark with which the prompt begins it
    template: dict[str, Any] = field(default_factory=dict)


def inputs(body: dict[str, Any]) -> list[Any]:
    """The texts, or lists of tokens, that a body has as its input. ApiError for what is none, or too many.

    Args:
        body: of the request.
    """
    value = body.get("input")
    if isinstance(value, str) or _is_tokens(value):
        value = [value]
    if not isinstance(value, list) or not 0 < len(value) <= MOST_INPUTS:
        raise refuse(f"input must be a text, tokens, or up to {MOST_INPUTS} of these", "input")
    return value


def named(body: dict[str, Any]) -> str:
    """The model's name. ApiError where there is none.

    Args:
        body: of the request.
    """
    model: str | None = take(body, "model", str)
    if not model:
        raise refuse("you must name a model", "model")
    return model


def take(body: dict[str, Any], name: str, kind: Any, default: Any = None) -> Any:
    """A field, the default where it is absent or null. ApiError for another type.

    Args:
        body: of the request.
        name: of the field.
        kind: a type, or several.
        default: where it is absent.
    """
    value = body.get(name)
    if value is None:
        return default
    kinds = kind if isinstance(kind, tuple) else (kind,)
    if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
        names = " or ".join(each.__name__ for each in kinds)
        raise refuse(f"{name} must be of type {names}, got {value!r:.100}", name)
    return value


def parse_body(raw: bytes, most: int = MOST_JSON) -> dict[str, Any]:
    """A request's JSON object. ApiError for what is none, or has more than `most` bytes.

    Args:
        raw: as it came.
        most: bytes.
    """
    try:
        body = loads(raw, most)
        if b"\\u" in raw:  # half of a character alone, which JSON can write and no text can have
            json.dumps(body, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise refuse(f"the body is not JSON: {error!s:.200}") from error
    if not isinstance(body, dict):
        raise refuse(f"the body must be a JSON object, got {type(body).__name__}")
    return body


def known(body: dict[str, Any], *names: str) -> None:
    """ApiError for a body with a field that has none of these names.

    Args:
        body: of the request.
        *names: of fields.
    """
    unknown = [name for name in body if name not in names]
    if unknown:
        raise refuse(f"unrecognized request argument: {unknown[0]:.100}", unknown[0][:100])


def _common(body: dict[str, Any]) -> Asked:
    model = named(body)
    params = {name: body[name] for name in SAMPLING if body.get(name) is not None}
    n = take(body, "n", int, 1)
    if not 1 <= n <= MOST_N:
        raise refuse(f"n must be in [1, {MOST_N}], got {n}", "n")
    if take(body, "seed", int) is None:
        params["seed"] = secrets.randbits(62)
    elif not -(1 << 63) <= body["seed"] < 1 << 63:
        raise refuse(f"seed must be a number of 64 bits, got {body['seed']!r:.50}", "seed")
    else:
        params["seed"] &= (1 << 63) - 1  # OpenAI's may be negative
    for name in ("presence_penalty", "frequency_penalty", "temperature", "top_p"):
        take(body, name, (int, float))
    if "logit_bias" in params:
        params["logit_bias"] = _bias(params["logit_bias"])
    options = take(body, "stream_options", dict, {})
    asked = Asked(model, params, stream=take(body, "stream", bool, False))
    if options and not asked.stream:
        raise refuse("stream_options may be given with stream alone", "stream_options")
    asked.usage = take(options, "include_usage", bool, False)
    asked.continuous_usage = take(options, "continuous_usage_stats", bool, False)
    asked.token_ids = take(body, "return_token_ids", bool, False)
    asked.special = take(body, "add_special_tokens", bool, True)
    asked.truncate = truncation(body)
    for name, kind in (("priority", int), ("cache_salt", str), ("adapter", str)):
        value = take(body, name, kind)
        if value is not None:
            asked.more[name] = value
    if "cache_salt" in asked.more and not 0 < len(asked.more["cache_salt"]) <= MOST_CHARACTERS:
        raise refuse(f"cache_salt must have 1 to {MOST_CHARACTERS} characters", "cache_salt")
    try:
        bounded(params)
    except RequestError as error:
        raise refuse(str(error)) from error
    if not -(1 << 31) <= asked.more.get("priority", 0) < 1 << 31:
        raise refuse("priority must be a number of 32 bits", "priority")
    return asked


def truncation(body: dict[str, Any]) -> int | None:
    """To how many tokens a prompt is to be cut; -1: to what fits; None: not at all.

    Args:
        body: of the request.
    """
    most: int | None = take(body, "truncate_prompt_tokens", int)
    if most is not None and most < 1 and most != -1:
        raise refuse(
            f"truncate_prompt_tokens must be -1 (what fits), or at least 1, got {most}",
            "truncate_prompt_tokens",
        )
    return most


def _bias(bias: Any) -> dict[str, float]:
    if not isinstance(bias, dict) or len(bias) > 4096:
        raise refuse("logit_bias must be an object of at most 4096 tokens", "logit_bias")
    for token, value in bias.items():
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (token.isascii() and token.isdigit() and len(token) < 10) or not number or abs(value) > 100:
            raise refuse(
                f"logit_bias must be from token ids to numbers in [-100, 100], got "
                f"{token!r:.50}: {value!r:.50}",
                "logit_bias",
            )
    return bias


def completion(body: dict[str, Any]) -> Asked:
    """A request to /v1/completions. ApiError where something is wrong with it.

    Args:
        body: of the request.
    """
    known(body, *COMMON, *WITHOUT_MEANING, *COMPLETION)
    asked = _common(body)
    asked.prompts = _prompts(body.get("prompt"))
    asked.echo = take(body, "echo", bool, False)
    if take(body, "suffix", str):
        raise refuse("suffix: models here continue text, they do not insert", "suffix")
    most = take(body, "max_tokens", int, 16)
    if most == 0 and asked.echo and not asked.stream:
        asked.text_only, most = True, 1
    asked.params["max_tokens"] = most
    logprobs = take(body, "logprobs", int)
    _best_of(asked, take(body, "best_of", int), logprobs)
    if logprobs is not None:
        _check_logprobs(logprobs, "logprobs")
        asked.params["logprobs"] = logprobs
        if asked.echo:
            asked.params["prompt_logprobs"] = logprobs
    return asked


def _best_of(asked: Asked, best: int | None, logprobs: int | None) -> None:
    """Draws best_of answers where more than n of them are wanted."""
    n = asked.params.get("n", 1)
    if best is not None and best != n:
        if not n <= best <= MOST_N or asked.stream:
            raise refuse(f"best_of must be in [n, {MOST_N}], and not with stream", "best_of")
        asked.best, asked.params["n"] = n, best
        asked.show_logprobs = logprobs is not None
        asked.params.setdefault("logprobs", 0)
    if len(asked.prompts) * asked.params.get("n", 1) > MOST_ANSWERS:
        raise refuse(f"n times the number of prompts may be at most {MOST_ANSWERS}", "n")


def _check_logprobs(count: int, name: str) -> None:
    if not 0 <= count <= MOST_LOGPROBS:
        raise refuse(f"{name} must be in [0, {MOST_LOGPROBS}], got {count}", name)


def _is_tokens(value: object) -> bool:
    return isinstance(value, list) and len(value) > 0 and all(type(t) is int for t in value)


def _prompts(prompt: Any) -> list[Any]:
    if isinstance(prompt, str) or _is_tokens(prompt):
        return [prompt]
    if isinstance(prompt, list) and 0 < len(prompt) <= MOST_PROMPTS:
        if all(isinstance(each, str) or _is_tokens(each) for each in prompt):
            return prompt
    raise refuse(
        f"prompt must be a text, a list of token ids, or a list of at most {MOST_PROMPTS} of these, got "
        f"{prompt!r:.100}",
        "prompt",
    )


def chat(body: dict[str, Any], trust_template: bool = False) -> Asked:
    """A request to /v1/chat/completions. ApiError where something is wrong with it.

    Args:
        trust_template: whether a client may send a template.
    """
    known(body, *COMMON, *WITHOUT_MEANING, *CHAT)
    asked = _common(body)
    asked.messages = _messages(body.get("messages"), asked.images)
    asked.params["max_tokens"] = take(body, "max_completion_tokens", int, take(body, "max_tokens", int))
    top = take(body, "top_logprobs", int)
    if take(body, "logprobs", bool, False):
        _check_logprobs(top or 0, "top_logprobs")
        asked.params["logprobs"] = top or 0
    elif top is not None:
        raise refuse("top_logprobs needs logprobs: true", "top_logprobs")
    _format(asked, take(body, "response_format", dict))
    _tools(asked, body)
    asked.template = {**(take(body, "chat_template_kwargs", dict) or {})}
    flags = (("add_generation_prompt", True), ("continue_final_message", False))
    for name, default in flags:
        asked.template[name] = take(body, name, bool, take(asked.template, name, bool, default))
    if all(asked.template[name] for name, _ in flags):
        raise refuse("continue_final_message needs add_generation_prompt: false", "continue_final_message")
    for name in ("messages", "tools"):
        if name in asked.template:
            raise refuse(f"chat_template_kwargs may not have {name}", "chat_template_kwargs")
    own = take(asked.template, "chat_template", str)
    asked.template.pop("chat_template", None)
    asked.chat_template = take(body, "chat_template", str, own)
    if asked.chat_template is not None and not trust_template:
        raise refuse(
            "chat_template: none is taken from clients, unless --trust-request-chat-template is given",
            "chat_template",
        )
    if asked.tools:
        asked.template["tools"] = asked.tools
    effort = take(body, "reasoning_effort", str)
    if effort is not None:  # templates know one of the two, or none
        asked.template = {"reasoning_effort": effort, "enable_thinking": effort != "none", **asked.template}
    asked.show_reasoning = take(body, "include_reasoning", bool, True)
    asked.reasoning = "structured_outputs" not in asked.params
    return asked


def _messages(messages: Any, images: list[str]) -> list[dict[str, Any]]:
    """As templates take them: a content is a text, or where it has images a list of parts; `images` gets
    their URLs."""
    if not isinstance(messages, list) or not messages:
        raise refuse("messages must be a list with at least one message", "messages")
    out = []
    for i, message in enumerate(messages):
        where = f"messages[{i}]"
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise refuse(f"{where} must be an object with a role", where)
        role, content = message["role"], message.get("content")
        if role not in ("system", "developer", "user", "assistant", "tool", "function"):
            raise refuse(f"{where}: unknown role {role!r:.50}", where)
        if isinstance(content, list):
            content = _parts(content, where, images)
        if content is None and role != "assistant":
            raise refuse(f"{where} needs a content", where)
        if content is not None and not isinstance(content, str) and content is message["content"]:
            raise refuse(f"{where}: content must be a text or a list of parts", where)
        out.append({**message, "content": content if content is not None else ""})
        if message.get("tool_calls") is not None:
            out[-1]["tool_calls"] = _made_calls(message["tool_calls"], where)
    return out


def _parts(content: list[Any], where: str, images: list[str]) -> Any:
    before, out = len(images), list[dict[str, Any]]()
    for part in content:
        if isinstance(part, dict) and part.get("type") == "image_url":
            out.append(part_of(part, where, images))
        else:
            out.append({"type": "text", "text": _part(part, where)})
    return out if len(images) > before else "".join(part["text"] for part in out)


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") not in ("text", "refusal"):
        kind = part.get("type") if isinstance(part, dict) else part
        raise refuse(
            f"{where}: models here read text, and some images; got a part of type {kind!r:.50}", where
        )
    text = part.get(part["type"])
    if not isinstance(text, str):
        raise refuse(f"{where}: a part's text must be text", where)
    return text


def _made_calls(calls: Any, where: str) -> list[dict[str, Any]]:
    """Calls of before, with arguments as objects, which is what templates expect."""
    out = []
    for call in calls if isinstance(calls, list) else [None]:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refuse(f"{where}: tool_calls must be a list of calls of functions", where)
        arguments = function.get("arguments", "{}")
        if isinstance(arguments, str):
            try:
                arguments = json.loads(arguments or "{}")
            except ValueError as error:
                raise refuse(f"{where}: a call's arguments are not JSON: {error}", where) from error
        out.append({**(call or {}), "function": {**function, "arguments": arguments}})
    return out


def _check_size(asked: Asked, name: str) -> None:
    try:
        bounded(asked.params)
    except RequestError as error:
        raise refuse(f"{name}: {error}", name) from error


def _format(asked: Asked, wanted: dict[str, Any] | None) -> None:
    kind = (wanted or {}).get("type", "text")
    if wanted is None or kind == "text":
        return
    if "structured_outputs" in asked.params:
        raise refuse("response_format and structured_outputs exclude each other", "response_format")
    if kind == "json_object":
        asked.params["structured_outputs"] = {"json_object": True}
    elif kind == "json_schema":
        schema = wanted.get("json_schema")
        if not isinstance(schema, dict) or not isinstance(schema.get("schema"), dict):
            raise refuse("response_format.json_schema must have a schema", "response_format")
        asked.params["structured_outputs"] = {"json": schema["schema"]}
        _check_size(asked, "response_format")
    else:
        raise refuse(
            f"response_format.type must be text, json_object or json_schema, got {kind!r:.50}",
            "response_format",
        )


def _tools(asked: Asked, body: dict[str, Any]) -> None:
    tools, choice = take(body, "tools", list) or [], body.get("tool_choice")
    if not take(body, "parallel_tool_calls", bool, True):
        asked.most_calls = 1
    if len(tools) > MOST_TOOLS:
        raise refuse(f"tools may be at most {MOST_TOOLS}, got {len(tools)}", "tools")
    for i, tool in enumerate(tools):
        function = tool.get("function") if isinstance(tool, dict) and tool.get("type") == "function" else None
        parameters = function.get("parameters") if isinstance(function, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise refuse(f"tools[{i}] must be {{'type': 'function', 'function': {{'name': ..}}}}", "tools")
        if parameters is not None and not isinstance(parameters, dict):
            raise refuse(f"tools[{i}]: parameters must be a JSON schema", "tools")
    function = choice.get("function") if isinstance(choice, dict) else None
    named = isinstance(function, dict) and isinstance(function.get("name"), str)
    if choice is not None and choice not in ("none", "auto", "required") and not named:
        raise refuse(f"tool_choice must be none, auto, required or name a function, got {choice!r:.100}",
                     "tool_choice")  # fmt: skip
    if not tools:
        if choice not in (None, "none", "auto"):
            raise refuse("tool_choice needs tools", "tool_choice")
        return
    if choice == "none":
        return
    asked.tools = tools
    try:
        schema = schema_of(tools, choice)
    except ValueError as error:
        raise refuse(str(error), "tool_choice") from error
    if schema is not None:
        if "structured_outputs" in asked.params:
            raise refuse("response_format excludes a tool_choice that asks for a call", "tool_choice")
        asked.params["structured_outputs"] = {"json": schema}
        asked.forced = True
        _check_size(asked, "tools")
