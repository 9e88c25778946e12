"""The default generator draws PyTorch's numbers: rand, uniform_, randint, random_ and randperm to the bit,
randn and normal_ within 2 ulp. generator.json was recorded from PyTorch by record.py."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from golden import draws

HERE = Path(__file__).resolve().parent
GOLDEN: dict[str, dict[str, dict[str, str]]] = json.loads((HERE / "generator.json").read_text())


EXACT, CLOSE = draws.exact(), draws.close()


def cases(part: str) -> Any:
    pairs = [(name, int(seed)) for name, seeds in GOLDEN[part].items() for seed in seeds]
    return pytest.mark.parametrize(("name", "seed"), pairs, ids=[f"{name}-{seed}" for name, seed in pairs])


def drawn(rt: ModuleType, draw: Any, seed: int) -> Any:
    rt.manual_seed(seed)
    return draw(rt)


@cases("exact")
def test_equal_to_the_bit(rt: ModuleType, name: str, seed: int) -> None:
    tensor = drawn(rt, EXACT[name], seed)
    want = [float(word) for word in GOLDEN["exact"][name][str(seed)].split()]
    if tensor.dtype == rt.float32:
        want = [float(np.float32(value)) for value in want]
    assert draws.numbers(rt, tensor) == want


@cases("close")
def test_within_two_ulp(rt: ModuleType, name: str, seed: int) -> None:
    tensor = drawn(rt, CLOSE[name], seed)
    got = np.array(draws.numbers(rt, tensor))
    want = np.array([float(word) for word in GOLDEN["close"][name][str(seed)].split()])
    assert got.shape == want.shape
    kind = str(tensor.dtype).rpartition(".")[2]
    digits = {"float64": 52, "float32": 23, "float16": 10, "bfloat16": 7}[kind]
    ulp = 2.0 ** (np.floor(np.log2(np.maximum(np.abs(want), 1e-5))) - digits)
    assert (np.abs(got - want) <= 2 * ulp).all(), f"largest difference {np.max(np.abs(got - want) / ulp)} ulp"


@pytest.mark.parametrize("seed", [int(seed) for seed in GOLDEN["seeds"]["rand(3)"]])
def test_seeds(rt: ModuleType, seed: int) -> None:
    want = [float(np.float32(word)) for word in GOLDEN["seeds"]["rand(3)"][str(seed)].split()]
    assert drawn(rt, lambda rt: rt.rand(3), seed).tolist() == want


@pytest.mark.parametrize("name", list(GOLDEN["long"]))
def test_long_draws(rt: ModuleType, name: str) -> None:
    for seed, want in GOLDEN["long"][name].items():
        assert draws.digest(rt, drawn(rt, draws.LONG[name], int(seed))) == want


@pytest.mark.parity
@pytest.mark.parametrize("size", [100_003, draws.MANY])
@pytest.mark.parametrize(("mean", "std"), [(0, 1), (2, 3)])
def test_long_normal_draws(rt: ModuleType, mean: float, std: float, size: int) -> None:
    """float32 to the bit, where PyTorch runs its vector path."""
    torch = pytest.importorskip("torch")
    if torch.backends.cpu.get_cpu_capability() == "DEFAULT":
        pytest.skip("PyTorch has only its scalar path here")
    rt.manual_seed(5)
    torch.manual_seed(5)
    got, want = (m.empty(size).normal_(mean, std).numpy() for m in (rt, torch))
    np.testing.assert_array_equal(got, want)


def test_state_is_saved_and_restored(rt: ModuleType) -> None:
    rt.manual_seed(3)
    rt.randn(5)
    state = rt.get_rng_state()
    first = [rt.randn(3).tolist(), rt.rand(3).tolist(), rt.randperm(9).tolist()]
    rt.rand(100)
    rt.set_rng_state(state)
    assert [rt.randn(3).tolist(), rt.rand(3).tolist(), rt.randperm(9).tolist()] == first


def test_own_generator_does_not_touch_the_default_one(rt: ModuleType) -> None:
    rt.manual_seed(1)
    want = rt.rand(4).tolist()
    rt.manual_seed(1)
    own = rt.Generator().manual_seed(1)
    assert rt.rand(4, generator=own).tolist() == want
    assert rt.rand(4).tolist() == want
    assert own.initial_seed() == 1
    rt.rand(2, generator=own)
    state = own.get_state()
    after = rt.rand(3, generator=own).tolist()
    own.set_state(state)
    assert rt.rand(3, generator=own).tolist() == after
