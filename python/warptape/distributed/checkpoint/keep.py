"""A folder of checkpoints of one run: the last ones and the best ones are kept."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .layout import CheckpointException
from .load import find, load, metadata
from .plan import exchange, world_of
from .save import async_save

if TYPE_CHECKING:
    from warptape.distributed.state import Group

_NAME = re.compile(r"step-(\d{1,18})", re.ASCII)


class Checkpoints:
    """Saves under `folder`/step-N and removes what is neither among the last nor among the best.

    Args:
        folder: a path that all ranks share.
        keep_last: how many of the highest steps stay; None for all.
        keep_best: how many of the best metrics stay besides.
        mode: "min" or "max", which metric is best.
        process_group: the ranks that save and load; None for all.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        keep_last: int | None = 3,
        keep_best: int = 0,
        mode: str = "min",
        process_group: Group = None,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f'Checkpoints: expected mode "min" or "max", got {mode!r}')
        if (keep_last is not None and keep_last < 1) or keep_best < 0:
            raise ValueError("Checkpoints: keep_last must be at least 1, keep_best at least 0")
        self.folder, self.keep_last, self.keep_best = Path(os.path.abspath(folder)), keep_last, keep_best
        self.sign, self.group = (1 if mode == "min" else -1), process_group
        self._saving: Future[None] | None = None

    def save(
        self, state_dict: dict[str, Any], step: int, metric: float | None = None, wait: bool = False
    ) -> None:
        """Saves asynchronously, or at once with `wait`. Collective. Raises what the save before raised.

        Args:
            state_dict: as of `distributed.checkpoint.save`.
            step: names the folder.
            metric: by which the best are kept; None for none.
            wait: whether the call returns when all is on the disk.
        """
        self.wait()
        path = self.folder / f"step-{step:09d}"
        said = {"step": step, "metric": metric}
        self._saving = async_save(state_dict, checkpoint_id=path, process_group=self.group, metadata=said)
        if wait:
            self.wait()

    def wait(self) -> None:
        """Until the last save is over; then removes what is not kept. Raises what it raised.

        Call it at the end of training, so that the last checkpoint is whole.
        """
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()
            self._prune()

    def steps(self) -> dict[int, float | None]:
        """The steps that are there with their metrics, in order."""
        out = {}
        for path in sorted(self.folder.glob("*step-*")):
            name = _NAME.fullmatch(path.name.removeprefix(".").removesuffix(".old"))
            if name:
                try:
                    out[int(name[1])] = metadata(path.with_name(name[0]))["metric"]
                except (CheckpointException, OSError, KeyError, TypeError):
                    continue  # damaged, or no checkpoint: nothing that could be read, or should be removed
        return dict(sorted(out.items()))

    def best(self) -> int | None:
        """The step of the best metric."""
        known = self._by_metric(self.steps())
        return known[0] if known else None

    def load(self, state_dict: dict[str, Any], step: int | None = None) -> int | None:
        """Loads a step, or the last one that is there; returns it, None if there is none. Collective.

        Args:
            state_dict: what is loaded into.
            step: which checkpoint; the last one if None.
        """
        self.wait()
        rank, world = world_of(self.group)
        if step is None:
            steps = list(self.steps()) if rank == 0 else []
            step = exchange(steps[-1] if steps else None, self.group, world)[0]
        if step is not None:
            load(state_dict, checkpoint_id=self.folder / f"step-{step:09d}", process_group=self.group)
        return step

    def _by_metric(self, steps: dict[int, float | None]) -> list[int]:
        known = {step: metric for step, metric in steps.items() if metric is not None and metric == metric}
        return sorted(known, key=lambda step: (self.sign * known[step], -step))

    def _prune(self) -> None:
        """Removes on rank 0; a folder loses its name first, so that none is seen in part."""
        if self.keep_last is None or world_of(self.group)[0] != 0:
            return
        steps = self.steps()
        kept = {*list(steps)[-self.keep_last :], *self._by_metric(steps)[: self.keep_best]}
        for left in self.folder.glob(".removed-*"):
            shutil.rmtree(left, ignore_errors=True)
        for step in steps.keys() - kept:
            gone = self.folder / f".removed-{secrets.token_hex(8)}"
            with contextlib.suppress(OSError, CheckpointException):  # the next save tries again
                os.rename(find(self.folder / f"step-{step:09d}"), gone)
                shutil.rmtree(gone, ignore_errors=True)
