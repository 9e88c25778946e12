"""Checkpoints of any layout of ranks that load into any other: torch.distributed.checkpoint's names."""

from __future__ import annotations

from ..._missing import install_getattr as _install_getattr
from .default_planner import DefaultLoadPlanner, DefaultSavePlanner
from .filesystem import FileSystemReader, FileSystemWriter
from .hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from .huggingface import GPT2, LLAMA, NameMap, load_huggingface, save_huggingface, tensor_names, theirs_of
from .keep import Checkpoints
from .layout import CheckpointException
from .load import load, load_state_dict, metadata, verify
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

_install_getattr(__name__)
