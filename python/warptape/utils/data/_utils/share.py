"""What one worker gives of a pass: its copy of the dataset, its random numbers, its place in a stream."""

from __future__ import annotations

import collections
import copy
import dataclasses
import itertools
import random
import time
from collections.abc import Callable
from typing import Any

from ....core.random import manual_seed
from .._state import has_state, random_numbers_of, random_states, set_random_states
from . import worker
from .fetch import fetcher

_COST = 0.01  # of the time of batches: what asking a dataset for its state may take


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """What a worker is told at its start."""

    dataset: Any
    stream: bool
    batched: bool
    collate: Callable
    drop_last: bool
    base_seed: int
    init: Callable[[int], None] | None
    workers: int
    parent: int | None  # its process id, if its main thread starts the worker without a server in between
    states: bool  # whether the dataset's state goes along with batches
    places: list[dict[str, Any]] | None = None  # where a pass goes on that was begun elsewhere, by share
    divided: int = 0  # the workers among which that pass is divided; 0: it was begun without workers
    batch_size: int = 1
    random: Any = None  # the random numbers with which a pass without workers began

    @classmethod
    def of(cls, loader: Any, base_seed: int, parent: int | None) -> WorkerPlan:
        """The plan of the newest pass of a loader."""
        state = loader._pass.resumed if loader._pass is not None else None
        counted = state is not None and loader._share_states
        return cls(
            loader.dataset,
            loader._stream,
            loader.batch_sampler is not None,
            loader.collate_fn,
            loader.drop_last,
            base_seed,
            loader.worker_init_fn,
            loader.num_workers,
            parent,
            loader._share_states,
            state["streams"] if state is not None and counted else None,
            state["workers"] if state is not None and counted else loader.num_workers,
            loader.batch_size or 1,
            state["random"] if state is not None and counted else None,
        )


def _seed_all(base_seed: int, number: int) -> int:
    """The seeds that PyTorch gives to a worker's generators."""
    import numpy as np

    seed = base_seed + number
    random.seed(seed)
    manual_seed(seed)
    np.random.seed(worker._generate_state(base_seed, number))  # noqa: NPY002
    return seed


def _knows_epoch(dataset: object) -> Any:
    """The dataset, or the one that it takes its samples from, which has an epoch."""
    while dataset is not None and not any(isinstance(getattr(dataset, n, None), int) for n in _EPOCH):
        dataset = getattr(dataset, "dataset", None)
    return dataset


_EPOCH = ("epoch", "_epoch")


def epoch_of(dataset: Any) -> int | None:
    """The epoch that was set on a dataset: its attribute `epoch` or `_epoch`."""
    dataset = _knows_epoch(dataset)
    return next((v for n in _EPOCH if isinstance(v := getattr(dataset, n, None), int)), None)


class Share:
    """What one worker of a pass gives. Several in a process draw from generators of their own."""

    def __init__(self, plan: WorkerPlan, number: int, apart: bool) -> None:
        self.number = number
        self._plan, self._apart = plan, apart
        self._dataset = copy.deepcopy(plan.dataset) if apart else plan.dataset
        self._place = plan.places[number] if plan.places else None
        self._random: Any = None
        self._info: Any = None
        self._begun = self.finished = False
        self._iterator: Any = None
        self._fetch: Any = None
        self._asking = self._working = 0.0  # seconds

    def open(self) -> Callable:
        """Begins a pass; of the first one, where the plan says. The function from indices to a batch."""
        self.finished = False
        if not self._plan.workers and not self._apart:  # the main process, for itself
            states, place = self._plan.random, self._place
            if states is None or place is None:
                return self._begin()
            with random_numbers_of(states):
                return self._begin()
        if not self._apart:
            return self._begin()
        own, info = random_states(), worker._worker_info
        try:
            return self._begin()
        finally:
            self._random = random_states()
            set_random_states(own)
            worker._worker_info = info

    def _begin(self) -> Callable:
        plan = self._plan
        if not self._begun and (plan.workers or self._apart):
            self._begun = True
            if plan.divided:
                seed = _seed_all(plan.base_seed, self.number)
                worker._worker_info = worker.WorkerInfo(self.number, plan.divided, seed, self._dataset)
                if plan.init is not None:
                    plan.init(self.number)
            elif plan.random is not None:
                set_random_states(plan.random)
                worker._worker_info = None
            self._info = worker._worker_info
        place, self._place = self._place, None
        state = place["state"] if place else None
        if state is not None and state["dataset"] is not None:
            self._dataset.load_state_dict(state["dataset"])
        if plan.stream:
            self._iterator = iter(self._dataset)
            if state is not None and state["iterator"] is not None:
                self._iterator.load_state_dict(state["iterator"])
            if place is not None:
                size = plan.batch_size if plan.batched else 1
                used = (place["taken"] - place["at"]) * size
                collections.deque(itertools.islice(self._iterator, used), maxlen=0)
        self._fetch = fetcher(
            self._dataset, plan.stream, plan.batched, plan.collate, plan.drop_last, self._iterator
        )
        return self._fetch

    def see_epoch(self, epoch: int | None) -> None:
        """Tells the worker's copy of the dataset what `set_epoch` was told in the main process."""
        dataset = None if epoch is None else _knows_epoch(self._dataset)
        if dataset is None:
            return
        if hasattr(dataset, "set_epoch"):
            dataset.set_epoch(epoch)
        else:
            setattr(dataset, next(n for n in _EPOCH if hasattr(dataset, n)), epoch)

    def has_states(self) -> bool:
        """Whether the dataset, or the iterator over it, can save its state."""
        return has_state(self._dataset) or has_state(self._iterator)

    def state(self) -> dict[str, Any] | None:
        """The states of the dataset and of its iterator; None where they have none."""
        iterator = self._iterator
        of_iterator = iterator.state_dict() if has_state(iterator) else None
        alone = iterator is not None and iterator is self._dataset
        of_dataset = self._dataset.state_dict() if has_state(self._dataset) and not alone else None
        if of_iterator is None and of_dataset is None:
            return None
        return {"dataset": of_dataset, "iterator": of_iterator}

    def batch(self, wanted: Any) -> tuple[Any, Any]:
        """The next batch, and the state after it, if asking for it does not take too long."""
        if not self._apart:
            return self._next(wanted)
        own, info = random_states(), worker._worker_info
        if self._fetch is None:
            self.open()
        set_random_states(self._random)
        worker._worker_info = self._info
        try:
            return self._next(wanted)
        finally:
            self._random = random_states()
            set_random_states(own)
            worker._worker_info = info

    def _next(self, wanted: Any) -> tuple[Any, Any]:
        if not self._plan.states:
            return self._fetch(wanted), None
        known = self.has_states()
        start = time.perf_counter()
        try:
            batch = self._fetch(wanted)
        except StopIteration:
            self.finished = self._plan.stream
            raise
        now = time.perf_counter()
        self._working += now - start
        if not known or self._asking > _COST * self._working:
            return batch, None
        state = self.state()
        self._asking += time.perf_counter() - now
        return batch, state
