"""The files of a checkpoint: safetensors shards and one manifest, with a checksum of every byte.

Note: the format. A checkpoint is a folder. `manifest.json` is JSON whose first line holds the CRC-32 of all
lines after it; it names the checksum of the shards, and lists for each tensor its dtype, its whole shape and
its pieces, and for each piece where it lies in the whole, in which shard at which byte, and the checksum of
each 4 MiB of it. `objects` has what is no tensor, by name; `containers` the kinds of dicts and lists whose
elements have names of their own (see tree.py). A shard is a safetensors file of the pieces that one rank
wrote, a piece that is no whole tensor under `name@0:8,0:16`. Version 1 had CRC-32 throughout, and named no
checksum.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Mapping
from typing import Any

from ..._C import _distributed as _C
from ...utils.safetensors import KINDS, itemsize, natural
from . import tree
from .slices import Slice, fault_of_tiling

MANIFEST = "manifest.json"
PRESENT = ".metadata"  # an empty file of the name of PyTorch's index: programs look for it
crc32c = _C._crc32c
FORMAT, VERSION = "warptape.checkpoint", 2
CHECKSUM, CHECKSUMS = "CRC-32C", {"CRC-32C": crc32c, "CRC-32": zlib.crc32}
BLOCK = 4 << 20  # bytes that one checksum covers
LARGEST_MANIFEST = 1 << 30
LONGEST_NAME = 1 << 16
_SHARD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,200}\.safetensors", re.ASCII)
_FIRST_LINE = b'{"crc32": "%08x",\n'


class CheckpointException(RuntimeError, ValueError):
    """A checkpoint that cannot be written or read: the same on every rank.

    `failures` has what each rank that failed had to say.
    """

    def __init__(self, text: str, failures: Mapping[int, str] | None = None) -> None:
        super().__init__(text)
        self.failures = dict(failures or {})


def blocks_of(data: memoryview) -> list[int]:
    """The checksum of each block.

    Args:
        data: of a piece.
    """
    return [crc32c(data[at : at + BLOCK]) for at in range(0, len(data), BLOCK)]


def piece_name(name: str, shape: tuple[int, ...], where: Slice) -> str:
    """A piece's name in its shard.

    Args:
        name: of the tensor.
        shape: of the whole tensor.
        where: start and size of the piece.

    >>> from warptape.distributed.checkpoint.layout import piece_name
    >>> piece_name("weight", (4, 2), ((2, 0), (2, 2)))
    'weight@2:4,0:2'
    """
    if where[1] == shape:
        return name
    return name + "@" + ",".join(f"{s}:{s + n}" for s, n in zip(*where))


def encode_manifest(manifest: dict[str, Any]) -> bytes:
    """The bytes of manifest.json.

    Args:
        manifest: what decode_manifest returns.

    Returns: a first line with a checksum of what follows, then JSON.
    """
    head = {"format": FORMAT, "version": VERSION, "checksum": CHECKSUM}
    body = json.dumps(head | manifest, separators=(",", ":"))[1:].encode()
    return _FIRST_LINE % zlib.crc32(body) + body + b"\n"


def decode_manifest(data: bytes, where: str) -> dict[str, Any]:
    """The manifest, checked so far that nothing in it leads out of its folder or its files.

    Raises: CheckpointException for bytes that a save did not write.
    """

    def refuse(why: str) -> CheckpointException:
        return CheckpointException(f"{where}: {why}; load another checkpoint")

    first = len(_FIRST_LINE % 0)
    if data[:first] != _FIRST_LINE % zlib.crc32(data[first:-1]) or data[-1:] != b"\n":
        raise refuse("the manifest is damaged, or no save wrote it: its checksum is not that of its bytes")
    try:
        manifest = json.loads(data)
        if manifest["format"] != FORMAT or manifest["version"] not in (1, VERSION):
            raise refuse(f"expected {FORMAT} {VERSION}, got {manifest['format']} {manifest['version']}")
        if manifest["version"] == 1:
            _modernize(manifest)
        if manifest["checksum"] not in CHECKSUMS:
            raise refuse(f"expected a checksum of {list(CHECKSUMS)}, got {manifest['checksum']}")
        files = manifest["files"]
        for file, entry in files.items():
            if not _SHARD.fullmatch(file):
                raise refuse(f"{file!r} is no name of a shard")
            natural(entry["bytes"]), natural(entry["checksum"])
            if not 8 <= natural(entry["header"]) <= entry["bytes"]:
                raise refuse(f"the header of {file} is not in it")
        left = {file: entry["bytes"] - entry["header"] for file, entry in files.items()}
        for name, entry in manifest["tensors"].items():
            fault = _fault_of_entry(entry, files, left)
            if fault:
                raise refuse(f"tensor {name}: {fault}")
        for alias, name in manifest["aliases"].items():
            if name not in manifest["tensors"]:
                raise refuse(f"{alias} stands for {name}, which is not there")
        if not isinstance(manifest["objects"], dict):
            raise refuse("its objects are no dict")
        kinds = manifest.setdefault("containers", {}).values()  # older ones have none
        if not all(kind in tree.KINDS for kind in kinds):
            raise refuse(f"expected containers to be of {list(tree.KINDS)}")
        names = (*manifest["tensors"], *manifest["objects"], *manifest["containers"])
        if len(max(names, key=len, default="")) > LONGEST_NAME:
            raise refuse(f"a name has more than {LONGEST_NAME} characters")
    except CheckpointException:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise refuse(f"the manifest does not say what it must ({type(error).__name__}: {error})") from error
    return manifest


def _modernize(manifest: dict[str, Any]) -> None:
    """Makes a manifest of version 1 one of this version."""
    manifest["checksum"] = "CRC-32"
    for file in manifest["files"].values():
        file["checksum"] = file.pop("crc32")
    for entry in manifest["tensors"].values():
        for piece in entry["pieces"]:
            piece["checksums"] = piece.pop("crc32")


def _fault_of_entry(entry: dict[str, Any], files: dict[str, Any], left: dict[str, int]) -> str | None:
    """What is wrong with a tensor of a manifest; makes its shapes tuples. `left` are the bytes of each file
    that no tensor has had: of a large file there are no more tensors than it has bytes."""
    if entry["dtype"] not in KINDS:
        return f"unknown dtype {entry['dtype']!r}"
    shape = entry["shape"] = tuple(natural(n) for n in entry["shape"])
    size = itemsize(entry["dtype"])
    for piece in entry["pieces"]:
        where = piece["box"] = tuple(tuple(natural(n) for n in part) for part in piece["box"])
        if len(where) != 2:
            return "a piece without start and shape"
        file, begin, count = files[piece["file"]], natural(piece["at"]), math.prod(where[1]) * size
        if begin < file["header"] or begin + count > file["bytes"]:
            return f"bytes {begin} to {begin + count} are not among the data of {piece['file']}"
        left[piece["file"]] -= count
        if left[piece["file"]] < 0:
            return f"its bytes in {piece['file']} are another tensor's, too"
        if type(piece["checksums"]) is not list:
            return "its checksums are no list"
        if len(piece["checksums"]) != -(-count // BLOCK):
            return f"{len(piece['checksums'])} checksums for {count} bytes"
    return fault_of_tiling(shape, [piece["box"] for piece in entry["pieces"]])
