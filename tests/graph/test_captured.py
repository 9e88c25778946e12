"""mode="reduce-overhead" on CUDA: programs as captured graphs. See Note [Captured programs]."""

from __future__ import annotations

import warnings
from types import ModuleType
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from op_table.driver import callable_of, count, rows
from op_table.table import FLOATS, Op
from warptape import nn

from .outcomes import outcome
from .test_cuda import kernels, same
from .test_op_table import FORMS, GARBAGE, SEED, chosen, placed, program
from .test_op_table import same as equal

pytestmark = pytest.mark.cuda
__all__ = ["kernels"]
REPLAYS: list[int] = []  # of the rows


def captured(f: Any) -> Any:
    return torch.compile(f, mode="reduce-overhead")


def test_replays_take_new_inputs_and_leave_old_results() -> None:
    def f(x: Any, w: Any) -> Any:
        return F.gelu(x @ w + 1).relu(), x.sum(0)

    g, w = captured(f), torch.randn(8, 8, device="cuda")
    kept = []
    for _ in range(8):
        x = torch.randn(4, 8, device="cuda")
        kept.append((x, g(x, w)))
        torch._C._wait_for_kernels(False)
    for x, results in kept:
        assert all(same(a, b) for a, b in zip(results, f(x, w), strict=True))
    e = g.explain()
    assert e.replays >= 3 and e.graph_count == 1
    assert len({results[0].data_ptr() for _, results in kept}) == len(kept)


def test_what_is_written_in_place() -> None:
    def f(x: Any, total: Any) -> Any:
        return total.add_(x * 2).mul_(0.5).sum()

    g = captured(f)
    totals = [torch.zeros(5, device="cuda") for _ in range(2)]
    for i in range(8):
        x = torch.full((5,), float(i), device="cuda")
        version = totals[1]._version
        assert same(g(x, totals[0]), f(x, totals[1])) and same(*totals)
        assert totals[0]._version == totals[1]._version > version
        torch._C._wait_for_kernels(False)
    assert g.explain().replays >= 3
    other = torch.ones(5, device="cuda")  # of another address
    assert same(g(x, other), f(x, torch.ones(5, device="cuda"))) and other.tolist() == [7.5] * 5


def test_other_numbers_and_arguments_run_as_ever() -> None:
    g = captured(lambda x, a, dim: F.layer_norm(x * a, (4,)).softmax(dim))
    x = torch.randn(4, 4, device="cuda")
    for a, dim in [(2.0, 0)] * 6 + [(3.0, 0), (2.0, 0), (2.0, 1), (2.0, 0)]:
        assert same(g(x, a, dim), F.layer_norm(x * a, (4,)).softmax(dim))
        torch._C._wait_for_kernels(False)
    assert 2 <= g.explain().replays <= 6
    for i in range(60):
        assert same(g(x, i, 0), F.layer_norm(x * i, (4,)).softmax(0))
    assert "change from run to run" in str(g.explain().problems)


def test_random_numbers_are_not_captured() -> None:
    g, x = captured(lambda x: F.dropout(x, 0.5) + 1), torch.ones(50, device="cuda")
    for i in range(6):
        torch.manual_seed(i)
        got = g(x)
        torch.manual_seed(i)
        assert same(got, F.dropout(x, 0.5) + 1)
        torch._C._wait_for_kernels(False)
    assert g.explain().replays == 0 and "random" in str(g.explain().problems)


@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_training_step(optimizer: str) -> None:
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4)).cuda())
    optimizers = [getattr(torch.optim, optimizer)(m.parameters(), lr=0.01) for m in models]

    def step(model: Any, optimizer: Any, x: Any, t: Any) -> Any:
        loss = F.cross_entropy(model(x), t)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    compiled = captured(step)
    for i in range(12):
        for group in [*optimizers[0].param_groups, *optimizers[1].param_groups]:
            group["lr"] = 0.01 if i < 9 else 0.001
        x, t = torch.randn(32, 8, device="cuda"), torch.randint(0, 4, (32,), device="cuda")
        expected = step(models[0], optimizers[0], x, t)
        assert same(compiled(models[1], optimizers[1], x, t), expected)
        for p, q in zip(models[0].parameters(), models[1].parameters(), strict=True):
            assert same(p, q) and same(p.grad, q.grad)
        torch._C._wait_for_kernels(False)
    assert compiled.explain().replays >= 4


def test_another_stream_and_a_capture_of_the_users() -> None:
    g, x = captured(lambda x: (x @ x).relu()), torch.randn(6, 6, device="cuda")
    for _ in range(5):
        g(x)
    replays, side, graph = g.explain().replays, torch.cuda.Stream(), torch.cuda.CUDAGraph()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        assert same(g(x), (x @ x).relu())
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        y = g(x)
    x.copy_(torch.randn(6, 6, device="cuda"))
    graph.replay()
    assert same(y, (x @ x).relu()) and g.explain().replays == replays > 0


@rows()
def test_row(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    """Every row of the op table five times: as it is, on trial, captured and replayed."""
    if request.config.getoption("--device") != "cuda":
        pytest.skip("with --device cuda")
    call, done = callable_of(rt, op, request), 0
    for dtype, layout, _, original, sample in chosen(request.config, op):
        for fresh, order in FORMS if op.grad and dtype in FLOATS else FORMS[::3]:
            args, kwargs, leaves = placed(rt, op, sample, original, dtype, layout)
            run = program(rt, call, args, kwargs, leaves, fresh, order)
            compiled = captured(run)
            for number in range(5):
                found = []
                for f in (run, compiled):
                    rt.manual_seed(SEED)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        found.append(outcome(rt, f, ([], {}), op.name not in GARBAGE | {"empty_permuted"}))
                equal(found[1], found[0], f"{op.name} {dtype} {layout}, {fresh=}, {order=}, run {number}")
            done += 5
            REPLAYS.append(compiled.explain().replays)
    count(request, "compiled", done)


def test_rows_were_replayed() -> None:
    if not REPLAYS:
        pytest.skip("no row ran in this process")
    assert sum(REPLAYS) >= len(REPLAYS)
