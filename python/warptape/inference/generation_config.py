"""What a model's maker says of its generation: `generation_config.json`, as vLLM reads it."""

from __future__ import annotations

import json
import os
from typing import Any

from .sampling_params import SamplingParams

FILE = "generation_config.json"
# Name in the file -> name in SamplingParams; what else is there has no default here, do_sample included.
NAMES = {
    "repetition_penalty": "repetition_penalty",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "max_new_tokens": "max_tokens",
}


def read_object(folder: str | os.PathLike[str], name: str) -> dict[str, Any]:
    """A folder's file of JSON, {} where there is none. ValueError for one that is damaged.

    Args:
        folder: of a model.
        name: of the file.
    """
    path = os.path.join(os.fspath(folder), name)
    if not os.path.isfile(path):
        return {}
    try:
        with open(path, encoding="utf-8") as file:
            config = json.load(file)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} must have an object, got {type(config).__name__}")
    return config


def sampling_defaults(given: Any, model: Any) -> dict[str, Any]:
    """Fields of SamplingParams that differ from its own defaults.

    Args:
        given: "auto": as the model's folder says; "vllm": {}; or another folder.
        model: the model's folder; None: there is none.

    Raises: TypeError for what is neither, FileNotFoundError for a folder without the file, ValueError for a
    file that is damaged or has values out of range.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise TypeError(f"generation_config must be 'auto', 'vllm' or a folder, got {given!r:.100}")
    if given == "vllm" or (given == "auto" and model is None):
        return {}
    folder = model if given == "auto" else given
    if given != "auto" and not os.path.isfile(os.path.join(os.fspath(folder), FILE)):
        raise FileNotFoundError(f"generation_config: {os.path.join(os.fspath(folder), FILE)} is missing")
    config = read_object(folder, FILE)
    values = {field: config[key] for key, field in NAMES.items() if config.get(key) is not None}
    try:
        SamplingParams(**values)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{os.path.join(os.fspath(folder), FILE)}: {error}") from error
    return values


def end_tokens(model: Any, vocab_size: int) -> list[int]:
    """The end-of-sequence tokens of the model's folder. ValueError for what are no tokens of the model.

    Args:
        model: its folder; None for none.
        vocab_size: of the model.
    """
    ends = [] if model is None else read_object(model, FILE).get("eos_token_id")
    listed = [] if ends is None else ends if isinstance(ends, list) else [ends]
    if not all(type(token) is int and 0 <= token < vocab_size for token in listed):
        raise ValueError(
            f"{os.path.join(os.fspath(model), FILE)}: eos_token_id must be tokens of {vocab_size}, got "
            f"{ends!r:.100}"
        )
    return listed
