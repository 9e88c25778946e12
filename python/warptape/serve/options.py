"""The options of a language model: one table, from which come config.json's checks, the flags of
`warptape serve`, what a worker takes, and docs/reference/serving_options.md.

Those of the engine are read from EngineArgs and LLM themselves, with what their docstrings say. So an option
that the engine gets is a key and a flag, too.
"""

from __future__ import annotations

import argparse
import inspect
import json
import os
import re
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ..inference import LLM, EngineArgs
from ..inference.hub_models import local_model

POOLINGS = ("mean", "last", "cls")
PATHS = ("tokenizer", "draft_model", "chat_template")  # values that name a file or a folder
_ARGS = re.compile(r"^    (\w+(?:, \w+)*): (.*)$")
_EXPECTED = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a string"}


@dataclass(kw_only=True)
class WorkerOptions:
    """What a worker takes beside the engine's options.

    Args:
        adapters: PEFT folders by name, `{"NAME": "FOLDER"}`; a request names one as its model, or in
            `adapter`.
        draft_model: the folder of a smaller model with the same vocabulary, which proposes tokens;
            `speculative_config` says more.
        chat_template: a file with a Jinja template, in place of the model's.
        reasoning_parser: "none" leaves the reasoning in the content. None: what stands between `<think>` and
            `</think>`, or marks of other families, is `reasoning_content`.
        pooling: how vectors of texts are made of their tokens' states: "mean", "last" or "cls". None: as the
            model's folder says, else "mean" for encoders and "last" for decoders.
        threads: of the processor, for each worker. None: all.
        heartbeat_s: seconds without a sign of life, after which a worker is started again. None: 60.
    """

    adapters: Mapping[str, str] | None = None
    draft_model: str | None = None
    chat_template: str | None = None
    reasoning_parser: str | None = None
    pooling: str | None = None
    threads: int | None = None
    heartbeat_s: float | None = None


@dataclass(frozen=True)
class Option:
    """An option of a language model.

    Args:
        name: the key in `parameters` of config.json.
        kind: "bool", "int", "float", "str", "object" or "list" (of whole numbers).
        default: where it is not given.
        help: what it does.
    """

    name: str
    kind: str
    default: Any
    help: str = field(compare=False)

    @property
    def flag(self) -> str:
        """Of the command line."""
        return "--" + self.name.replace("_", "-")

    def wrong(self, value: object) -> str | None:
        """What a value of config.json should have been; None where it is right.

        Args:
            value: of JSON.
        """
        if value is None:
            return None
        if self.kind == "object" and not isinstance(value, str):
            fits = isinstance(value, dict) and all(
                isinstance(each, str if self.name == "adapters" else (str, int, float))
                for each in value.values()
            )
            what = "from names to folders" if self.name == "adapters" else "of scalars"
            return None if fits else f"an object {what}, or null"
        if self.kind == "list" and not isinstance(value, str):
            fits = isinstance(value, list) and all(type(each) is int for each in value)
            return None if fits else "a list of numbers, or null"
        if isinstance(value, str):  # Triton's parameters are texts
            try:
                self.parsed(value)
            except (argparse.ArgumentTypeError, ValueError):
                return _EXPECTED.get(self.kind, self.kind)
            return None
        kinds: dict[str, Any] = {"bool": bool, "int": int, "float": (int, float), "str": str}
        right = isinstance(value, kinds[self.kind]) and isinstance(value, bool) == (self.kind == "bool")
        return None if right else _EXPECTED.get(self.kind, self.kind)

    def value_of(self, value: Any) -> Any:
        """A value of config.json, texts as what they stand for.

        Args:
            value: that is not `wrong`.
        """
        return self.parsed(value) if isinstance(value, str) else value

    def parsed(self, text: str) -> Any:
        """The value of a text. ValueError for what is none.

        Args:
            text: of a flag, or of Triton's string_value.
        """
        if self.kind == "bool":
            known = {"true": True, "1": True, "false": False, "0": False}
            if text.lower() not in known:
                raise argparse.ArgumentTypeError(f"{self.name} must be true or false, got {text!r:.50}")
            return known[text.lower()]
        if self.kind in ("int", "float"):
            return int(text) if self.kind == "int" else float(text)
        if self.kind == "list":
            return [int(each) for each in text.strip("[]").split(",") if each.strip()]
        return _object(self.name, text) if self.kind == "object" else text


def _object(name: str, text: str) -> dict[str, Any]:
    """JSON, or NAME=VALUE with commas between."""
    if text.lstrip().startswith("{"):
        return dict(json.loads(text))
    out: dict[str, Any] = {}
    for part in text.split(","):
        key, mark, value = part.partition("=")
        if not mark or not key.strip():
            raise argparse.ArgumentTypeError(f"{name} must be JSON or NAME=VALUE,.., got {text!r:.100}")
        number = name != "adapters" and re.fullmatch(r"-?\d+", value)
        out[key.strip()] = int(value) if number else value
    return out


def _kind(annotation: str, default: object) -> str:
    """Of a field's annotation, which is text."""
    if "Mapping" in annotation:
        return "object"
    if "Sequence" in annotation:
        return "list"
    name = next((kind for kind in ("bool", "int", "float") if re.search(rf"\b{kind}\b", annotation)), "str")
    return "bool" if isinstance(default, bool) else name


def _said(of: type) -> dict[str, str]:
    """What a class says of its arguments."""
    out: dict[str, str] = {}
    name = ""
    text = (inspect.getdoc(of) or "").partition("Args:\n")[2]
    for line in text.split("\n\n")[0].splitlines():
        begins = _ARGS.match(line)
        if begins:
            for name in begins[1].split(", "):
                out[name] = begins[2]
        elif name:
            out[name] += " " + line.strip()
    return out


def _of_class(of: type) -> list[Option]:
    said, out = _said(of), []
    for each in fields(of):
        default = None if each.default is MISSING else each.default
        out.append(Option(each.name, _kind(str(each.type), default), default, said.get(each.name, "")))
    return out


def _of_llm() -> list[Option]:
    said, out = _said(LLM), []
    for each in inspect.signature(LLM.__init__).parameters.values():
        if each.kind is each.KEYWORD_ONLY:
            kind = _kind(str(each.annotation), each.default)
            out.append(Option(each.name, kind, each.default, said.get(each.name, "")))
    return out


ENGINE = (*_of_llm(), *_of_class(EngineArgs))
OWN = tuple(_of_class(WorkerOptions))
OPTIONS = {each.name: each for each in (*ENGINE, *OWN)}


def add_flags(parser: argparse.ArgumentParser) -> None:
    """A flag for each option.

    Args:
        parser: gets them.
    """
    group = parser.add_argument_group("options of the model", "also keys of `parameters` in its config.json")
    for each in OPTIONS.values():
        said = "" if each.default is None else f" (default: {each.default})"
        help = each.help.replace("%", "%%") + said
        if each.kind == "bool":
            action = argparse.BooleanOptionalAction
            group.add_argument(each.flag, action=action, default=None, help=help, dest=each.name)
        else:
            metavar = {"object": "NAME=VALUE,..", "list": "N,N,.."}.get(each.kind, each.kind.upper())
            group.add_argument(each.flag, type=each.parsed, help=help, metavar=metavar, dest=each.name)


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options that a command line has, as config.json would; paths are meant from the working folder on.

    Args:
        options: of the command line.
    """
    values = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    return resolved(values, os.getcwd(), True)


def resolved(values: Mapping[str, Any], folder: str, hub: bool = False) -> dict[str, Any]:
    """Options with whole paths.

    Args:
        values: by name.
        folder: that paths are meant from.
        hub: whether what is no path may be the name of a repository, which is downloaded.
    """

    def whole(path: str) -> str:
        return os.path.abspath(local_model(path, folder) if hub else os.path.join(folder, path))

    out = dict(values)
    for name in PATHS:
        if isinstance(out.get(name), str):
            out[name] = whole(out[name])
    if isinstance(out.get("adapters"), Mapping):
        out["adapters"] = {name: whole(path) for name, path in out["adapters"].items()}
    said = out.get("speculative_config")
    if isinstance(said, Mapping) and isinstance(said.get("model"), str):
        out["speculative_config"] = {**said, "model": whole(said["model"])}
    return out


def page() -> str:
    """The page of options, in Markdown."""
    rows = []
    for each in OPTIONS.values():
        default = "" if each.default is None else f"`{json.dumps(each.default)}`"
        rows.append(f"| `{each.name}` | `{each.flag}` | {each.kind} | {default} | {each.help} |")
    from .settings import Settings

    for of in fields(Settings):
        flag = "--" + of.name.replace("_", "-")
        default = "" if of.default in (None, "") else f"`{json.dumps(of.default)}`"
        rows.append(f"| | `{flag}` | {_kind(str(of.type), of.default)} | {default} | {of.metadata['help']} |")
    return PAGE + "\n".join(rows) + "\n"


PAGE = """# Options of `warptape serve`

This page is made by `tools/option_page.py`. A name in the first column is a key of `parameters` in a model's
config.json. Each has a flag, which is for a single model; a repository's models have their config.json. Flags
without a key are the server's.

| key | flag | kind | default | meaning |
| --- | --- | --- | --- | --- |
"""
