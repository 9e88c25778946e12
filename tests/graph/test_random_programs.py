"""Random programs run compiled and eagerly: results, gradients, all that was read in between, to the bit."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest

from .outcomes import differences, outcome
from .random_programs import STEPS, World

BATCHES = 20


def run(rt: ModuleType, seed: int, compiled: bool) -> tuple[Any, list[str]]:
    """Three calls of one program, each on the state that the last one left."""
    rt.manual_seed(seed)
    world = World(rt, seed)
    names: list[str] = []

    def program() -> Any:
        names.extend(world.run(10))
        return list(world.live)

    call: Any = rt.compile(program) if compiled else program
    if compiled and seed % 2:
        call.region.least_recomputed_bytes = call.region.least_epilogue_bytes = 1
        call.region.least_prologue_bytes = 1
    if compiled and seed % 3:
        call.region.least_row_bytes = 1

    def calls() -> Any:
        return [call() for _ in range(3)]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = outcome(rt, calls, (world.leaves, world.buffers))
    return found | {"seen": [str(s) for s in world.seen]}, names


def check(rt: ModuleType, seed: int) -> None:
    want, names = run(rt, seed, False)
    got, _ = run(rt, seed, True)
    lines = list(differences(got, want))
    assert not lines, f"program {seed} ({' '.join(names)}):\n" + "\n".join(lines[:6])


@pytest.mark.parametrize("batch", range(BATCHES))
def test_random_programs(rt: ModuleType, batch: int, request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--programs")
    seeds = range(batch, count, BATCHES)
    for seed in seeds:
        check(rt, seed)
    request.node.user_properties.append(("compiled", len(seeds)))
    assert len(STEPS) > 40
