"""Files from elsewhere: downloads into a cache, with their hash checked. Code is not downloaded."""

from __future__ import annotations

import hashlib
import os
import re
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlparse

from warptape._missing import install_getattr as _install_getattr
from warptape.serialization import load as _load
from warptape.serialization.files import replace_file

__all__ = ["download_url_to_file", "get_dir", "load_state_dict_from_url", "set_dir"]

_dir: str | None = None
HASH_REGEX = re.compile(r"-([a-f0-9]*)\.")


def _get_torch_home() -> str:
    """The cache's folder: $TORCH_HOME or ~/.cache/torch. torchvision asks for it by this name."""
    cache = os.environ.get("XDG_CACHE_HOME", os.path.join("~", ".cache"))
    return os.path.expanduser(os.environ.get("TORCH_HOME", os.path.join(cache, "torch")))


def get_dir() -> str:
    """Where downloads are kept: `set_dir`'s, or $TORCH_HOME/hub, or ~/.cache/torch/hub."""
    return _dir if _dir is not None else os.path.join(_get_torch_home(), "hub")


def set_dir(d: str | os.PathLike[str]) -> None:
    """Sets where downloads are kept.

    Args:
        d: a path; ~ is the home folder.
    """
    global _dir
    _dir = os.path.expanduser(d)


def download_url_to_file(url: str, dst: str, hash_prefix: str | None = None, progress: bool = True) -> None:
    """Downloads to a temporary file, which takes the place of `dst` once it is whole and its SHA-256 begins
    with `hash_prefix`.

    Raises:
        RuntimeError: another hash; nothing is left then.
    """
    dst = os.path.expanduser(dst)
    digest = hashlib.sha256()

    def blocks(source: Any) -> Iterator[bytes]:
        from tqdm import tqdm

        total = source.headers.get("Content-Length")
        total = int(total) if total else None
        with tqdm(total=total, disable=not progress, unit="B", unit_scale=True) as bar:
            while block := source.read(1 << 20):
                digest.update(block)
                bar.update(len(block))
                yield block
        if hash_prefix and not digest.hexdigest().startswith(hash_prefix):
            raise RuntimeError(
                f'invalid hash value (expected "{hash_prefix}", got '
                f'"{digest.hexdigest()[: len(hash_prefix)]}")'
            )

    with urllib.request.urlopen(url) as source:
        replace_file(dst, blocks(source))


def load_state_dict_from_url(
    url: str,
    model_dir: str | None = None,
    map_location: Any = None,
    progress: bool = True,
    check_hash: bool = False,
    file_name: str | None = None,
    weights_only: bool = True,
) -> Any:
    """`load` of a file that is downloaded once into `model_dir` ($TORCH_HOME/hub/checkpoints).

    Unlike PyTorch's it takes `weights_only` as True unless told otherwise. With `check_hash` the name holds
    the first digits of the SHA-256, as name-<digits>.ext.
    """
    folder = model_dir or os.path.join(get_dir(), "checkpoints")
    os.makedirs(folder, exist_ok=True)
    name = file_name or os.path.basename(urlparse(url).path)
    path = os.path.join(folder, name)
    if not os.path.exists(path):
        sys.stderr.write(f'Downloading: "{url}" to {path}\n')
        match = HASH_REGEX.search(name) if check_hash else None
        download_url_to_file(url, path, match[1] if match else None, progress=progress)
    return _load(path, map_location=map_location, weights_only=weights_only)


load_url = load_state_dict_from_url  # as torch.utils.model_zoo has it

_install_getattr(__name__, tqdm=lambda: __import__("tqdm").tqdm)
