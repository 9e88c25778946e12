"""What an op changes in place beside its result, inside of a compiled function that drops the result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import warptape as torch
from warptape import nn
from warptape.nn import functional as F

from .outcomes import differences, outcome

Maker = Callable[[], Callable[[], Any]]

MORE: dict[str, tuple[Any, ...]] = {"threshold": (0.1, 20.0)}
SHAPES = {"dropout1d": (3, 4, 5), "dropout2d": (3, 4, 5, 6), "dropout3d": (3, 4, 5, 6, 2)}


def has_inplace(name: str) -> bool:
    f = getattr(F, name)
    try:
        return not name.startswith("_") and callable(f) and "inplace" in inspect.signature(f).parameters
    except (TypeError, ValueError):
        return False


WITH_FLAG = sorted(name for name in dir(F) if has_inplace(name))
TRAININGS = [
    (name, training)
    for name in WITH_FLAG
    for training in (
        (True, False) if "training" in inspect.signature(getattr(F, name)).parameters else (None,)
    )
]


@pytest.fixture(params=[False, True], ids=["mt19937", "mkl"])
def masks(request: pytest.FixtureRequest) -> Iterator[None]:
    """Masks as PyTorch draws them without MKL and with it, which is by default the processor's vendor's."""
    set_mkl = torch._C._private._set_mkl_bernoulli
    before = set_mkl(request.param)
    yield
    set_mkl(before)


def compare(make: Maker) -> None:
    found = []
    for as_compiled in (False, True):
        torch.manual_seed(5)
        run = make()
        if as_compiled:
            run = torch.compile(run)
            run.region.adaptive = False
        found.append(outcome(torch, run, ()))
    assert "error" not in found[0], found[0]
    assert list(differences(found[1], found[0])) == []


def test_there_are_flags() -> None:
    assert {"dropout", "alpha_dropout", "feature_alpha_dropout", "rrelu", "relu", "silu", "elu"} <= set(
        WITH_FLAG
    )


@pytest.mark.parametrize("inside", [True, False], ids=["made inside", "from outside"])
@pytest.mark.parametrize("gradient", [False, True], ids=["", "gradient"])
@pytest.mark.parametrize(("name", "training"), TRAININGS)
@pytest.mark.usefixtures("masks")
def test_flag(name: str, training: bool | None, gradient: bool, inside: bool) -> None:
    f = getattr(F, name)
    flags = {"inplace": True} | ({} if training is None else {"training": training})

    def make() -> Callable[[], Any]:
        leaf = torch.randn(SHAPES.get(name, (6, 7)), requires_grad=gradient)
        outside = leaf * 1.5

        def run() -> Any:
            x = leaf * 1.5 if inside else outside
            before = x + 0
            f(x, *MORE.get(name, ()), **flags)
            if gradient:
                (x * 2).sum().backward()
            return before, x, leaf.grad

        return run

    compare(make)


def embeds(**more: Any) -> Maker:
    def make() -> Callable[[], Any]:
        w, at = torch.randn(9, 4), torch.tensor([1, 5, 5])

        def run() -> Any:
            table = w * 3
            F.embedding(at, table, max_norm=0.5, **more)
            F.embedding(at + 1, w, max_norm=0.5, **more)
            return table, w

        return run

    return make


def bags() -> Callable[[], Any]:
    w, at = torch.randn(9, 4), torch.tensor([[1, 5], [2, 5]])

    def run() -> Any:
        table = w * 3
        F.embedding_bag(at, table, max_norm=0.5)
        return table

    return run


def statistics() -> Callable[[], Any]:
    x, mean, var = torch.randn(8, 4, 3), torch.zeros(4), torch.ones(4)

    def run() -> Any:
        own = mean + 1, var * 2
        for training in (False, True):
            F.batch_norm(x, *own, training=training)
            torch.native_batch_norm(x, None, None, mean, var, training, 0.1, 1e-5)
        F.instance_norm(x, mean, var)
        return own, mean, var

    return run


def fused_step() -> Callable[[], Any]:
    lists = [[torch.randn(4), torch.randn(2, 3)] for _ in range(4)]
    steps = [torch.tensor(3.0), torch.tensor(3.0)]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.01, "eps": 1e-8}
    flags = {"amsgrad": False, "maximize": False}

    def run() -> Any:
        p, g, m, v = ([t * 1.5 for t in ts] for ts in lists)
        v = [t.abs() for t in v]
        torch._fused_adamw_(p, g, m, v, [], steps, **numbers, **flags)
        return p, g, m, v

    return run


def out_of_call() -> Callable[[], Any]:
    x, into = torch.randn(5), torch.zeros(5)

    def run() -> Any:
        own = into + 1
        torch.add(x, 2, out=own)
        torch.sin(x, out=into)
        torch.cumsum(x, 0, out=own)
        return own, into

    return run


def module_of_them() -> Callable[[], Any]:
    m = nn.Sequential(
        nn.Linear(7, 7), nn.Dropout(0.5, inplace=True), nn.BatchNorm1d(7), nn.ReLU(inplace=True)
    )
    x = torch.randn(6, 7)

    def run() -> Any:
        m(x)
        return m[2].running_mean, m[2].running_var, m(x)

    return run


@pytest.mark.parametrize(
    "make",
    [embeds(), embeds(padding_idx=1), bags, statistics, fused_step, out_of_call, module_of_them],
    ids=["max_norm", "max_norm and padding", "bags", "statistics", "fused step", "out=", "modules"],
)
def test_beside_the_result(make: Maker) -> None:
    compare(make)
