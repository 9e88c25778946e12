"""Checkpoints of any layout of ranks that load into any other: torch.distributed.checkpoint's names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from .default_planner import DefaultLoadPlanner, DefaultSavePlanner
    from .filesystem import FileSystemReader, FileSystemWriter
    from .hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
    from .huggingface import load_huggingface, save_huggingface, tensor_names
    from .keep import Checkpoints
    from .layout import CheckpointException
    from .load import load, load_state_dict, metadata, verify
    from .names import GPT2, LLAMA, NameMap, theirs_of
    from .save import async_save, save, save_state_dict
    from .state import PerRank


__all__ = [
    "GPT2",
    "LLAMA",
    "CheckpointException",
    "Checkpoints",
    "DefaultLoadPlanner",
    "DefaultSavePlanner",
    "FileSystemReader",
    "FileSystemWriter",
    "HuggingFaceStorageReader",
    "HuggingFaceStorageWriter",
    "NameMap",
    "PerRank",
    "async_save",
    "load",
    "load_huggingface",
    "load_state_dict",
    "metadata",
    "save",
    "save_huggingface",
    "save_state_dict",
    "tensor_names",
    "theirs_of",
    "verify",
]

_LATE = {  # imported when first asked for
    "default_planner": "DefaultLoadPlanner DefaultSavePlanner",
    "filesystem": "FileSystemReader FileSystemWriter",
    "hf_storage": "HuggingFaceStorageReader HuggingFaceStorageWriter",
    "huggingface": "load_huggingface save_huggingface tensor_names",
    "keep": "Checkpoints",
    "layout": "CheckpointException",
    "load": "load load_state_dict metadata verify",
    "names": "GPT2 LLAMA NameMap theirs_of",
    "save": "async_save save save_state_dict",
    "state": "PerRank",
}
_install_getattr(__name__, _LATE)
