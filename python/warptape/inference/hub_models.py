"""Models by the names of Hugging Face's hub, where the library huggingface_hub is there."""

from __future__ import annotations

import os
import re

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(?:@[\w./-]+)?")
# What is read of a repository; weights in other formats are left where they are.
FILES = ("*.json", "*.safetensors", "*.jinja", "*.model", "*.txt", "*.tiktoken")


def is_hub_name(name: str) -> bool:
    """Whether it can be the name of a repository: owner/name, owner/name@revision.

    Args:
        name: of a command line.
    """
    return NAME.fullmatch(name) is not None


def local_model(name: str, folder: str = "") -> str:
    """The path of a model: what is there by this name, else what the hub has, which is downloaded.

    Args:
        name: a path, or owner/name of a repository, with @revision behind it where it is not the newest.
        folder: that a path is meant from.

    Raises: see `download`; a path where nothing is is given back as it is.
    """
    path = os.path.join(folder, name)
    return download(name) if not os.path.exists(path) and is_hub_name(name) else path


def download(name: str, files: tuple[str, ...] = FILES) -> str:
    """The folder with a repository's files, in the hub's cache; a bar shows how it goes on. What the cache
    has is not loaded again.

    Args:
        name: owner/name, with @revision behind it where it is not the newest.
        files: patterns.

    Raises: ImportError without huggingface_hub, FileNotFoundError where the hub has no such repository or
    cannot be reached and the cache has it not.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise ImportError(
            f"{name} is no folder here, and to download it needs huggingface_hub: pip install huggingface_hub"
        ) from error
    repository, _, revision = name.partition("@")
    try:
        return huggingface_hub.snapshot_download(
            repository, revision=revision or None, allow_patterns=[*files]
        )
    except Exception as error:  # the library's, and of those that it uses
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise FileNotFoundError(f"{name} is no folder here, and cannot be downloaded: {reason[0]}") from error
