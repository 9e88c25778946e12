"""Names of torch.utils.data's loader that libraries with loaders of their own use."""

from __future__ import annotations

import os
import queue
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from ..core.pytree import tree_map
from .names._utils import ExceptionWrapper

if TYPE_CHECKING:
    from warptape.core.types import Device

_T = TypeVar("_T")
_collate_fn_t = Callable[[list[_T]], Any]
_worker_init_fn_t = Callable[[int], None]
np_str_obj_array_pattern = re.compile(r"[SaUO]")
STATUS_CHECK_INTERVAL = 5.0


@dataclass(frozen=True)
class IterableDatasetStopIteration:
    """What a worker sends in place of a batch when its stream has ended."""

    worker_id: int


@dataclass(frozen=True)
class ResumeIteration:
    """What wakes a persistent worker for the next pass."""

    seed: int | None = None


class ManagerWatchdog:
    """In a worker: whether the process that started it lives."""

    def __init__(self) -> None:
        self.manager_pid = os.getppid()
        self.manager_dead = False

    def is_alive(self) -> bool:
        """False from the time on when the process has another parent."""
        self.manager_dead = self.manager_dead or os.getppid() != self.manager_pid
        return not self.manager_dead


def sharding_worker_init_fn(
    worker_init_fn: Callable[[int], None] | None, world_size: int, rank_id: int, worker_id: int
) -> None:
    """Calls the program's function in a worker; there are no data pipes to be divided."""
    if worker_init_fn is not None:
        worker_init_fn(worker_id)


def pin_memory_loop(in_queue: Any, out_queue: Any, device_id: int, done_event: Any, device: Device) -> None:
    """The thread that puts batches (number, data) into page-locked memory until `done_event` is set."""
    while not done_event.is_set():
        try:
            item = in_queue.get(timeout=STATUS_CHECK_INTERVAL)
        except queue.Empty:
            continue
        if item is None:
            return
        number, data = item
        if not isinstance(data, ExceptionWrapper):
            try:
                data = tree_map(lambda x: x.pin_memory() if hasattr(x, "pin_memory") else x, data)
            except Exception:
                data = ExceptionWrapper(where=f"in pin memory thread for device {device_id}")
        while not done_event.is_set():
            try:
                out_queue.put((number, data), timeout=STATUS_CHECK_INTERVAL)
                break
            except queue.Full:
                continue
