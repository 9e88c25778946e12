"""mode="reduce-overhead" on the CPU: calls without their Python. See Note [Replays] in replay.h."""

from __future__ import annotations

import functools
import threading
import warnings
from collections import namedtuple
from types import ModuleType
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from op_table.driver import callable_of, count, rows
from op_table.table import Op
from warptape import nn

from .outcomes import facts_of, outcome
from .test_op_table import GARBAGE, SEED, chosen, placed, program
from .test_op_table import same as equal

RECORDED = 3  # alike calls until one is replayed
MET = 1 + RECORDED  # where the first one meets tensors that are no arguments
Pair = namedtuple("Pair", "first second")


def replayed(f: Any) -> Any:
    return torch.compile(f, mode="reduce-overhead")


def same(a: Any, b: Any) -> bool:
    return facts_of(torch, a) == facts_of(torch, b)


def counted(f: Any) -> tuple[Any, list[int]]:
    """`f`, and a list that grows by one where its Python runs."""
    calls: list[int] = []

    def g(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return f(*args, **kwargs)

    return replayed(g), calls


def mlp() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 4))


def infer(model: Any) -> Any:
    @torch.no_grad()
    def f(x: Any) -> Any:
        return model(x).relu()

    return f


# ---- inference ------------------------------------------------------------------------------------------


def test_python_is_skipped_and_results_are_new() -> None:
    model = mlp()
    g, calls = counted(infer(model))
    kept = []
    for _ in range(12):
        x = torch.randn(4, 8)
        kept.append((x, g(x)))
    assert len(calls) == MET and g.explain().replays == 12 - MET
    for x, y in kept:
        assert same(y, infer(model)(x))
    assert len({y.data_ptr() for _, y in kept}) == len(kept)
    assert g.explain().calls == 12 and not g.explain().problems


def test_other_shapes_dtypes_and_strides_are_calls_of_another_kind() -> None:
    f = torch.no_grad()(lambda x: (x * 2 + 1).sum(-1).exp())
    g, calls = counted(f)
    kinds = [
        torch.randn(4, 6),
        torch.randn(5, 6),
        torch.randn(4, 6, dtype=torch.float64),
        torch.randn(6, 4).t(),
        torch.randn(4, 6, requires_grad=True),
        torch.randn(4, 12)[:, ::2],
    ]
    for _ in range(8):
        for x in kinds:
            assert same(g(x), f(x))
    assert len(calls) <= RECORDED * len(kinds) and g.explain().replays >= 8 * len(kinds) - len(calls)


def test_a_replay_makes_no_tensors_for_what_stays_in_a_chain() -> None:
    """Of such calls only their numbers, and what the chain reads and stores."""

    def f(x: Any, y: Any) -> Any:
        z = (x * 2 + y).relu() - 3
        y.add_(z)
        w = z * y
        return w, (w + x).t(), z.sum()

    with torch.no_grad():
        g, calls = counted(f)
        other, total = torch.randn(4, 6), torch.randn(4, 6)
        expected = total.clone()
        for _ in range(8):
            for a, b in zip(g(other, total), f(other, expected), strict=True):
                assert same(a, b)
            assert torch.equal(total, expected) and total._version == expected._version
    assert len(calls) < 8 and g.explain().replays == 8 - len(calls)


def test_without_elements_there_is_nothing_to_run() -> None:
    f = torch.no_grad()(lambda x: (x * 2 + 1).sum(-1).exp())
    g = replayed(f)
    for _ in range(6):
        assert same(g(torch.ones(0, 3)), f(torch.ones(0, 3)))


def test_a_batch_may_lie_anywhere_in_its_data() -> None:
    g, calls = counted(lambda x: (x + 1).relu() * x)
    data = torch.randn(64, 8)
    for i in range(16):
        assert same(
            g(data[4 * i : 4 * i + 4]), (data[4 * i : 4 * i + 4] + 1).relu() * data[4 * i : 4 * i + 4]
        )
    assert len(calls) == RECORDED
    odd = torch.randn(65)[1:33].view(4, 8)  # where chains' blocks lie otherwise
    assert same(g(odd), (odd + 1).relu() * odd)


def test_arguments_that_are_no_tensors() -> None:
    def f(x: Any, scale: Any, parts: Any, flag: bool = False) -> Any:
        y = x * scale + parts["shift"]
        return {"y": y.neg() if flag else y, "pair": Pair(y + 1, (scale, None))}

    g, calls = counted(f)
    x = torch.ones(3)
    for scale in (2.0, 2, True, 0.0, -0.0, float("nan"), 2.0):
        for flag in (False, True):
            for _ in range(6):
                parts = {"shift": torch.randn(3)}
                got, expected = g(x, scale, parts, flag=flag), f(x, scale, parts, flag=flag)
                assert list(got) == ["y", "pair"] and type(got["pair"]) is Pair
                assert same(got["y"], expected["y"]) and same(got["pair"].first, expected["pair"].first)
                assert repr(got["pair"].second) == repr(expected["pair"].second)
    assert len(calls) == 12 * RECORDED


def test_the_same_tensor_twice_is_another_kind_than_two() -> None:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a * b

    g = replayed(f)
    for _ in range(6):
        assert same(g(torch.ones(4), torch.ones(4)), torch.full((4,), 2.0))
    for _ in range(6):
        a = torch.ones(4)
        assert same(g(a, a), torch.full((4,), 4.0))
    for _ in range(6):  # one memory, at other places: the last of `a` is the first of `b`
        both = torch.ones(7)
        assert g(both[:4], both[3:]).tolist() == [4, 2, 2, 2]
    base = torch.ones(4)
    assert same(g(base, base.view(2, 2).view(4)), torch.full((4,), 4.0))
    assert g.explain().replays == 9


def test_results_that_are_arguments_parameters_or_views() -> None:
    model = nn.Linear(3, 3)

    @torch.no_grad()
    def f(x: Any) -> Any:
        y = model(x)
        return x, model.weight, y, y, y[0], x.t(), y.view(-1)

    g, calls = counted(f)
    for _ in range(8):
        x = torch.randn(3, 3)
        got, expected = g(x), f(x)
        assert got[0] is x and got[1] is model.weight and got[2] is got[3]
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b) and a.stride() == b.stride() and a._is_view() == b._is_view()
        assert got[4]._base is got[2] and got[5]._base is x
        got[4].zero_()
        assert got[2][0].tolist() == [0, 0, 0] and got[6][:3].tolist() == [0, 0, 0]
    assert len(calls) == MET


def test_writes_in_place() -> None:
    def f(x: Any, total: Any) -> Any:
        return total.add_(x * 2).mul_(0.5).sum()

    g, calls = counted(f)
    totals = [torch.zeros(5) for _ in range(2)]
    for i in range(8):
        x = torch.full((5,), float(i))
        assert same(g(x, totals[0]), f(x, totals[1])) and torch.equal(*totals)
        assert totals[0]._version == totals[1]._version
    other = torch.ones(5)
    assert same(g(x, other), f(x, torch.ones(5))) and len(calls) == RECORDED + 1  # it was always that one
    assert same(g(x, torch.ones(5)), f(x, torch.ones(5))) and len(calls) == RECORDED + 1


@pytest.mark.parametrize("how", ["data", "new", "loaded", "in place", "child", "moved", "tied"])
def test_parameters_that_change(how: str) -> None:
    model = mlp().requires_grad_(False)
    g, _ = counted(infer(model))
    for i in range(12):
        x = torch.randn(4, 8)
        assert same(g(x), infer(model)(x))
        w = model[0].weight
        if i < 6 or i > 8:
            continue
        if how == "data":
            w.data = torch.randn(16, 8)
        elif how == "new":
            model[0].weight = nn.Parameter(torch.randn(16, 8), requires_grad=False)
        elif how == "loaded":
            model.load_state_dict({name: t + 1 for name, t in model.state_dict().items()})
        elif how == "in place":
            w.mul_(2)
        elif how == "child":
            model[2] = nn.ReLU()
        elif how == "moved":
            w.data = torch.randn(8, 16).t()
        else:
            model[1].weight.data = model[1].bias.data
    assert g.explain().replays >= 3


def test_modules_whose_parts_change() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh()).eval()
    model[1].running_mean.uniform_()
    other = nn.Parameter(torch.randn(8, 8))
    g = replayed(infer(model))

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: Any) -> Any:
            return g(x)

    changes = [
        lambda: model.half().float(),  # buffers become other tensors
        lambda: model.insert(1, nn.ReLU()),
        lambda: model.__delitem__(1),
        lambda: model.load_state_dict({k: t.clone() + 1 for k, t in model.state_dict().items()}, assign=True),
    ]
    for change in changes:
        replays = g.explain().replays
        for _ in range(7):
            x = torch.randn(4, 8)
            assert same(g(x), infer(model)(x))
        assert g.explain().replays > replays
        change()
        assert same(g(x), infer(model)(x))
    for _ in range(6):
        g(x)
    before = g(x)
    with torch.no_grad():
        linear = nn.Linear(8, 8)
        linear.weight.copy_(other), linear.bias.copy_(model[0].bias)
    expected = infer(nn.Sequential(linear, *model[1:]))(x)
    assert same(torch.func.functional_call(Outer(), {"model.0.weight": other}, (x,)), expected)
    assert same(g(x), before)


def test_a_mode_of_modules_and_hooks() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5))
    g = replayed(infer(model))
    for training in (False, True, False):
        model.train(training)
        for i in range(7):
            states = []
            x = torch.randn(4, 8)
            before = {name: t.clone() for name, t in model.state_dict().items()}
            for f in (g, infer(model)):
                model.load_state_dict(before)
                torch.manual_seed(i)
                states.append((f(x), torch.rand(1), *(t.clone() for t in model.state_dict().values())))
            for a, b in zip(*states, strict=True):
                assert facts_of(torch, a)["bits"] == facts_of(torch, b)["bits"]
    replays = g.explain().replays
    assert replays >= 6
    handle = model[0].register_forward_hook(lambda m, args, out: out * 0)
    assert same(g(x), infer(model)(x)) and g(x).sum() == infer(model)(x).sum()
    handle.remove()
    assert same(g(x), infer(model)(x))


def test_global_state_is_part_of_a_kind() -> None:
    model = mlp().requires_grad_(False)
    g, x = replayed(lambda x: model(x)), torch.randn(4, 8)
    for _ in range(6):
        assert same(g(x), model(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert g(x).dtype == model(x).dtype
        with torch.inference_mode():
            assert g(x).is_inference()
    assert g.explain().replays == 8


def test_modules_are_compiled_too() -> None:
    model = mlp().requires_grad_(False)
    compiled = torch.compile(model, mode="reduce-overhead")
    for _ in range(7):
        x = torch.randn(2, 8)
        assert same(compiled(x), model(x))
    assert compiled.explain().replays == 7 - MET


# ---- random numbers -------------------------------------------------------------------------------------


def test_random_numbers_are_those_of_eager_code() -> None:
    f = torch.no_grad()(lambda x: F.dropout(F.dropout(x, 0.3) + 1, 0.5))
    g, calls = counted(f)
    x = torch.ones(50)
    outcomes = []
    for h in (f, g):
        torch.manual_seed(3)
        outcomes.append([t for _ in range(10) for t in (h(x), torch.rand(2))])
    for a, b in zip(*outcomes, strict=True):
        assert same(a, b)
    assert len(calls) == RECORDED


@pytest.mark.parametrize("how", ["seeded", "rand", "generator"])
def test_random_numbers_that_cannot_be_drawn_again(how: str) -> None:
    own = torch.Generator()

    def f(x: Any) -> Any:
        if how == "seeded":
            torch.manual_seed(1)
            return F.dropout(x, 0.5)
        return x + torch.rand(50, generator=own if how == "generator" else None)

    g = replayed(f)
    x = torch.ones(50)
    outcomes = []
    for h in (f, g):
        torch.manual_seed(3), own.manual_seed(4)
        outcomes.append([t for _ in range(8) for t in (h(x), torch.rand(2))])
    for a, b in zip(*outcomes, strict=True):
        assert same(a, b)
    assert g.explain().replays == 0 and g.explain().problems


# ---- a broken contract ----------------------------------------------------------------------------------


def test_a_broken_contract_is_noticed() -> None:
    scale = [2.0]
    g = replayed(lambda x: x * scale[0])
    g.replays.check_every = 3
    x = torch.ones(3)
    for _ in range(20):
        assert g(x).tolist() == [2, 2, 2]  # compared, too
    scale[0] = 3.0
    for _ in range(2):
        assert g(x).tolist() == [2, 2, 2]  # which the contract rules out
    with pytest.raises(torch.compiler.ReplayError, match=r"reduce-overhead.*argument"):
        [g(x) for _ in range(3)]
    assert issubclass(torch.compiler.ReplayError, RuntimeError)
    for _ in range(10):
        assert g(x).tolist() == [3, 3, 3]


def test_a_tensor_that_is_bound_anew_is_noticed() -> None:
    weights = {"w": torch.ones(3)}
    g = replayed(lambda x: x * weights["w"])
    g.replays.check_every = 2
    for _ in range(12):
        g(torch.ones(3))
    weights["w"] = torch.full((3,), 2.0)
    with pytest.raises(torch.compiler.ReplayError):
        [g(torch.ones(3)) for _ in range(3)]
    assert g(torch.ones(3)).tolist() == [2, 2, 2]


# ---- threads and errors ---------------------------------------------------------------------------------


def test_threads() -> None:
    model, failures = mlp(), []
    g = replayed(infer(model))

    def work(number: int) -> None:
        try:
            for i in range(40):
                x = torch.full((4, 8), float(i % 7 + number))
                assert same(g(x), infer(model)(x))
        except BaseException as e:
            failures.append(e)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failures and g.explain().replays > 100


def test_errors() -> None:
    table = torch.randn(10, 4)
    f = torch.no_grad()(lambda i: F.embedding(i, table) * 2)
    g = replayed(f)
    for _ in range(6):
        i = torch.randint(0, 10, (5,))
        assert same(g(i), f(i))
    replays = g.explain().replays
    assert replays == 2
    with pytest.raises(IndexError) as got:
        g(torch.tensor([0, 99, 1, 2, 3]))
    with pytest.raises(IndexError) as expected:
        f(torch.tensor([0, 99, 1, 2, 3]))
    assert str(got.value) == str(expected.value)
    assert same(g(i), f(i)) and g.explain().replays == replays + 1


def test_exceptions_of_the_function() -> None:
    def f(x: Any, fail: bool) -> Any:
        y = x + 1
        if fail:
            raise KeyError("here")
        return y

    g = replayed(f)
    for _ in range(6):
        with pytest.raises(KeyError, match="here"):
            g(torch.ones(2), True)
        assert g(torch.ones(2), False).tolist() == [2, 2]
    assert g.explain().replays == 3


def test_calls_in_other_regions_and_traces() -> None:
    g = replayed(lambda x: (x + 1).relu())
    x = torch.randn(4)
    for _ in range(6):
        g(x)
    outer = torch.compile(lambda x: g(x) * 2)
    assert same(outer(x), (x + 1).relu() * 2)
    rows, f = torch.randn(3, 4), lambda x: (x + 1).relu()
    assert same(torch.func.vmap(g)(rows), torch.func.vmap(f)(rows))
    for a, b in zip(torch.func.jvp(g, (x,), (x,)), torch.func.jvp(f, (x,), (x,)), strict=True):
        assert same(a, b)
    assert same(torch.func.grad(lambda x: g(x).sum())(x), torch.func.grad(lambda x: f(x).sum())(x))
    assert "relu" in str(torch.jit.trace(g, (x,)).graph)


def test_memory_goes_with_the_function() -> None:
    import gc
    import weakref

    model = mlp().requires_grad_(False)
    gone = weakref.ref(model)
    model.run = torch.compile(model.__call__, mode="reduce-overhead")
    for _ in range(6):
        model.run(torch.ones(2, 8))
    assert model.run.explain().replays == 2
    del model
    gc.collect()
    assert gone() is None


# ---- every op -------------------------------------------------------------------------------------------

REPLAYS: list[int] = []


@rows()
def test_row(rt: ModuleType, op: Op, request: pytest.FixtureRequest) -> None:
    """Every row of the op table six times, the last ones replayed where they can be.

    Its tensors are those of a closure, copies of them made in the call, or arguments.
    """
    call, done = callable_of(rt, op, request), 0
    for dtype, layout, _, original, sample in chosen(request.config, op):
        args, kwargs, leaves = placed(rt, op, sample, original, dtype, layout)
        given = (tuple(args), dict(kwargs))
        forms = [(program(rt, call, args, kwargs, leaves, fresh, 0), ()) for fresh in (False, True)]
        forms.append((lambda args, kwargs: call(*args, **kwargs), given))
        for form, (function, arguments) in enumerate(forms):
            run = rt.no_grad()(function)
            compiled = replayed(run)
            for number in range(6):
                found = []
                for f in (run, compiled):
                    rt.manual_seed(SEED)
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        values = op.name not in GARBAGE | {"empty_permuted"}
                        found.append(outcome(rt, functools.partial(f, *arguments), ([], {}), values))
                equal(found[1], found[0], f"{op.name} {dtype} {layout}, form {form}, run {number}")
            done += 1
            REPLAYS.append(compiled.explain().replays)
    count(request, "compiled", done)


def test_rows_were_replayed() -> None:
    if not REPLAYS:
        pytest.skip("no row ran in this process")
    # 7 of 10 in all; a process may have been given the rows of one kind.
    assert sum(replays > 0 for replays in REPLAYS) >= len(REPLAYS) / 3
