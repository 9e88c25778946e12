"""torch.distributed.checkpoint.filesystem: where `save` writes and `load` reads, as objects."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["FileSystemReader", "FileSystemWriter"]


class FileSystemWriter:
    """save(.., storage_writer=FileSystemWriter(path)) is save(.., checkpoint_id=path).

    The other arguments make no difference: there is one file a rank, and it is synced.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        single_file_per_rank: bool = True,
        sync_files: bool = True,
        thread_count: int = 1,
        per_thread_copy_ahead: int = 10_000_000,
        cache_staged_state_dict: bool = False,
        overwrite: bool = True,
        **more: Any,
    ) -> None:
        self.path = path


class FileSystemReader:
    """load(.., storage_reader=FileSystemReader(path)) is load(.., checkpoint_id=path).

    Args:
        path: the checkpoint's folder.
        **more: accepted, without effect.
    """

    def __init__(self, path: str | os.PathLike[str], **more: Any) -> None:
        self.path = path
