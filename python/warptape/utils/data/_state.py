"""The state of a DataLoader: what of a pass was given, and how another loader goes on from there.

The samplers of this package save their place; of samplers with a state of their own, the one after the last
batch that was given is kept; any other sampler is asked for a new iterator under the random numbers that the
pass began with, and what was given is left out. Of a stream, what each worker gave is counted. A dataset (or
its iterator) with `state_dict` and `load_state_dict` goes on from its newest state; any other is read again.
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import sys
from collections.abc import Iterator
from typing import Any

from warptape import _C

from .distributed import ranks
from .sampler import BatchSampler, _Placed, draw_seed

_SAYS = "DataLoader.load_state_dict: the state is of"


def has_state(thing: object) -> bool:
    """Whether an object can save its state and take it back."""
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def _inner(loader: Any) -> Any:
    """The sampler of single indices where there is one, else the one of batches."""
    sampler = loader._index_sampler
    return sampler.sampler if isinstance(sampler, BatchSampler) else sampler


def _keeps_place(sampler: object) -> bool:
    """Whether it is one of this package's that counts; a subclass with an order of its own does not."""
    if not isinstance(sampler, _Placed):
        return False
    owner = next(c for c in type(sampler).__mro__ if "__iter__" in vars(c))
    return owner.__module__.startswith(f"{__package__}.")


def _has_own_state(sampler: object) -> bool:
    return has_state(sampler) and not isinstance(sampler, _Placed)


# ---- random numbers ----


def random_states() -> dict[str, Any]:
    """The states of the generators that a process has: Python's, the default, NumPy's if it is loaded."""
    states = {"python": random.getstate(), "default": _C._default_generator().get_state()}
    if (numpy := sys.modules.get("numpy.random")) is not None:
        states["numpy"] = numpy.get_state()
    return states


def set_random_states(states: dict[str, Any]) -> None:
    """Sets what `random_states` gave, or `plain` made of it."""
    version, words, gauss = states["python"]
    random.setstate((version, tuple(words), gauss))
    _C._default_generator().set_state(states["default"])
    if "numpy" in states:
        import numpy.random

        numpy.random.set_state(tuple(states["numpy"]))  # noqa: NPY002


def plain(states: dict[str, Any]) -> dict[str, Any]:
    """The states in lists, numbers and tensors, which every kind of checkpoint can hold."""
    version, words, gauss = states["python"]
    result = {"python": [version, list(words), gauss], "default": states["default"]}
    if "numpy" in states:
        kind, keys, *rest = states["numpy"]
        result["numpy"] = [kind, keys.tolist() if hasattr(keys, "tolist") else keys, *rest]
    return result


@contextlib.contextmanager
def random_numbers_of(states: dict[str, Any]) -> Iterator[None]:
    """Lets a block draw from these states, and leaves the process's own as they were."""
    own = random_states()
    set_random_states(states)
    try:
        yield
    finally:
        set_random_states(own)


# ---- a pass ----


class Progress:
    """What the newest pass of a loader has given, and how it began."""

    def __init__(self, loader: Any, draws_seed: bool) -> None:
        state = self.resumed = loader._resumed
        loader._resumed = None
        self.sampler = _inner(loader)
        self.before = state["batches"] if state else 0  # batches of the pass before this process took it up
        self.batches = 0
        self.asked = self.before  # entries that the sampler was asked for, where workers are told ahead
        self.finished = False
        self.draws_seed = draws_seed
        self.seed: int | None = state["seed"] if state else None
        self.sampler_state = state["place"] if state else None
        self.random: dict[str, Any] | None = state["random"] if state else None
        self.generator: Any = state["generator"] if state else None
        self.by_entry: dict[int, Any] = {}  # states of a sampler of the user's, by task
        # Of a stream: the workers among which it is divided, and for each the batches given, the newest state
        # and the number of batches after which that was.
        self.shares: int = state["workers"] if state else loader.num_workers
        places = state["streams"] if state else None
        self.taken = [p["taken"] for p in places] if places else [0] * max(1, self.shares)
        self.states = [(p["state"], p["at"]) for p in places] if places else [(None, 0)] * max(1, self.shares)
        self.turn = state["turn"] if state else 0  # whose batch is the next one
        self.live: Any = None  # of a stream that this process reads: asks for its state
        self.places = _keeps_place(self.sampler)
        self.own_state = _has_own_state(self.sampler)

    def indices(self, loader: Any) -> Iterator[Any]:
        """The entries of the index sampler that are still to be given."""
        state, sampler = self.resumed, loader._index_sampler
        if loader._stream:
            return iter(sampler)
        if self.places or self.own_state:
            if state is not None and state["place"] is not None:
                self.sampler.load_state_dict(state["place"])
            return iter(sampler)
        own = getattr(self.sampler, "generator", None)
        own = own if isinstance(own, _C.Generator) else None
        if state is None:
            self.random = random_states()
            self.generator = None if own is None else own.get_state()
            return iter(sampler)
        with random_numbers_of(state["random"]):
            if own is not None and state["generator"] is not None:
                own.set_state(state["generator"])
            entries = iter(sampler)
            if state["draws_seed"] and loader.generator is None:
                draw_seed()
            # Also what workers had been told ahead, which was drawn by then.
            drawn = list(itertools.islice(entries, state["asked"]))
        return itertools.chain(drawn[self.before :], entries)

    def note_entry(self, task: int) -> None:
        """Keeps the state of a sampler of the user's after the entry of a task."""
        self.by_entry[task] = self.sampler.state_dict()

    def keep_state(self, task: int | None = None) -> None:
        """Keeps the state of a sampler of the user's after the batch that the caller gets."""
        self.sampler_state = self.sampler.state_dict() if task is None else self.by_entry.pop(task)

    def gave_of(self, share: int, state: Any) -> None:
        """Counts a batch of a stream's share."""
        self.taken[share] += 1
        if state is not None:
            self.states[share] = (state, self.taken[share])
        self.turn = (share + 1) % len(self.taken)

    def place(self, loader: Any) -> Any:
        """The state of the sampler after what was given."""
        if not self.places:
            return self.sampler_state
        if self.batches == 0 and self.resumed is not None:
            return self.resumed["place"]
        if self.batches == 0 and not loader.num_workers:  # the sampler is not asked yet
            return _start_of(self.sampler)
        return self.sampler._state_at(self.batches * (self._batch_size(loader) or 1))

    @staticmethod
    def _batch_size(loader: Any) -> int | None:
        sampler = loader._index_sampler
        return sampler.batch_size if isinstance(sampler, BatchSampler) else None

    def streams(self) -> list[dict[str, Any]]:
        """What each share of a stream gave."""
        if self.live is not None:
            state = self.live()
            if state is not None:
                self.states[0] = (state, self.taken[0])
        return [{"taken": n, "state": s, "at": at} for n, (s, at) in zip(self.taken, self.states)]


# ---- the loader's state ----


def world_size(loader: Any) -> int:
    """The ranks among which the data is divided."""
    replicas = getattr(_inner(loader), "num_replicas", None)
    return ranks() if replicas is None else int(replicas)


def _length(loader: Any) -> int | None:
    return None if loader._stream or not hasattr(loader.dataset, "__len__") else len(loader.dataset)  # type: ignore[arg-type]


def _kind(loader: Any) -> str:
    return "the stream's own order" if loader._stream else type(_inner(loader)).__name__


def save(loader: Any) -> dict[str, Any]:
    """The state of a loader, in lists, dicts, numbers, texts and tensors."""
    if loader._resumed is not None:
        return copy.deepcopy(loader._resumed_from)
    if not loader.in_order and loader.num_workers:
        raise ValueError(
            "DataLoader.state_dict: batches that come in any order have no place in the sampler's; expected "
            "in_order=True"
        )
    pass_ = loader._pass
    begun = pass_ is not None and not pass_.finished
    state: dict[str, Any] = {
        "begun": begun,
        "batches": 0,
        "asked": 0,
        "batch_size": loader.batch_size if loader.batch_sampler is None else Progress._batch_size(loader),
        "length": _length(loader),
        "sampler": _kind(loader),
        "world": world_size(loader),
        "workers": loader.num_workers,
        "seed": None,
        "place": None,
        "random": None,
        "generator": None,
        "draws_seed": True,
        "streams": None,
        "turn": 0,
    }
    sampler = _inner(loader)
    if not begun or pass_ is None:
        if _keeps_place(sampler):
            state["place"] = _start_of(sampler)
        elif _has_own_state(sampler):
            state["place"] = sampler.state_dict()
        return copy.deepcopy(state)
    state |= {
        "batches": pass_.before + pass_.batches,
        "asked": max(pass_.asked, pass_.before + pass_.batches),
        "seed": pass_.seed,
        "place": None if loader._stream else pass_.place(loader),
        "random": None if pass_.random is None else plain(pass_.random),
        "generator": pass_.generator,
        "draws_seed": pass_.draws_seed,
        "turn": pass_.turn,
    }
    if loader._stream or pass_.live is not None or loader._share_states:
        state |= {"streams": pass_.streams(), "workers": pass_.shares}
    return copy.deepcopy(state)


def _start_of(sampler: _Placed) -> dict[str, Any]:
    """The state of a sampler before its next pass."""
    generator = None if sampler.generator is None else sampler.generator.get_state()
    return {**sampler._state_at(0), "yielded": 0, "generator": generator}


def check(loader: Any, state: dict[str, Any]) -> None:
    """Refuses a state from which this loader cannot go on.

    Raises:
        ValueError: it is of another dataset's length, sampler, batch size or number of ranks, or no state.
    """
    if not isinstance(state, dict) or not {"begun", "batches", "sampler", "world", "streams"} <= {*state}:
        raise ValueError("DataLoader.load_state_dict: expected what DataLoader.state_dict gave")
    if state["length"] != (length := _length(loader)):
        raise ValueError(f"{_SAYS} a dataset of {state['length']} samples, but this loader's has {length}")
    if state["sampler"] != _kind(loader):
        raise ValueError(f"{_SAYS} {state['sampler']}, but this loader has {_kind(loader)}")
    world, shares_anew = world_size(loader), hasattr(_inner(loader), "num_replicas")
    if state["world"] != world and not (shares_anew and _keeps_place(_inner(loader))):
        raise ValueError(
            f"{_SAYS} {state['world']} ranks, but there are {world}; only a DistributedSampler shares the "
            "rest of an epoch among another number"
        )
    size = Progress._batch_size(loader)
    if (
        state["begun"]
        and state["batch_size"] != size
        and (loader._stream or not _keeps_place(_inner(loader)))
    ):
        raise ValueError(
            f"{_SAYS} batches of {state['batch_size']} samples, but this loader's have {size}; only this "
            "package's samplers go on with another size"
        )


def load_between(loader: Any, state: dict[str, Any]) -> None:
    """Sets what a state between two passes has: the sampler's own state, or its generator's."""
    sampler = _inner(loader)
    if _keeps_place(sampler):
        if state["place"] is not None:
            sampler.load_state_dict(state["place"])
    elif state["place"] is not None and _has_own_state(sampler):
        sampler.load_state_dict(state["place"])
