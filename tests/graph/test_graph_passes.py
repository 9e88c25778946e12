"""Passes over graphs: hand-written graphs before and after each, and planted mistakes that are found."""

from __future__ import annotations

import functools
import re
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import _C
from warptape._graphs import record

from .outcomes import summary

PASSES = ("constant_propagation", "peephole", "cse", "dce", "fold_frozen_conv_bn", "reuse_memory")


def examples(x: Any, n: Any, m: Any) -> list[Any]:
    """Calls of all signatures that the graphs below have."""
    y, image = x.clone(), x[None, None]
    return [
        *(
            x.exp(),
            x * x,
            x * 1,
            2 * x,
            x / 1,
            x / x,
            x + x,
            x + 1,
            x - x,
            x - 1,
            x.neg(),
            x.relu(),
            x.floor(),
        ),
        *(x.t(), x.transpose(0, 1), x.permute(1, 0), x.view(12), x.reshape(12), x.flatten(), x.expand(3, 4)),
        *(x.to(torch.float32), x.double(), x.float(), x.bfloat16(), y, x.contiguous(), x.unsqueeze(0)),
        *(x.squeeze(0), x.sum(), x.max(0), n + 1, n.float(), x @ x.t(), F.linear(x, x), x.select(0, 0)),
        *(torch.rand(3), torch.arange(3), torch.zeros(3), torch.ones(3), torch.full((3,), 2.0)),
        *(F.dropout(x, 0.5, False), F.relu6(x, False), F.conv2d(image, image)),
        *(F.batch_norm(x, m, m, m, m, False, 0.1, 1e-5), y.mul_(2), y.add_(1), y.copy_(x), y.relu_()),
    ]


def key_of(name: str, args: str) -> Any:
    """Name and arguments, each with whether it is a tensor."""
    return name, tuple((arg, first in "%") for arg, first in re.findall(r"(\w+)=(.)", args))


@functools.cache
def signatures() -> dict[Any, str]:
    inputs = torch.ones(3, 4), torch.ones(2, dtype=torch.int64), torch.ones(4)
    calls = re.findall(r"(\w+)#(\w{8})\((.*)\)  #", record(examples, inputs).graph.text())
    return {key_of(name, args): f"{name}#{number}" for name, number, args in calls}


def parse(text: str, **constants: Any) -> Any:
    """The graph of a text without hashes; constants by name."""
    call = r"(\w+)\((\w+=.*)\)$"
    full = re.sub(call, lambda c: f"{signatures()[key_of(c[1], c[2])]}({c[2]})", text, flags=re.MULTILINE)
    return _C._OpGraph.parse(full, constants)


def plain(graph: Any) -> str:
    return str(re.sub(r"#\w{8}|  # \".*\"", "", graph.text()))


def graph_text(head: str, body: str) -> str:
    """`X` and `Y` in texts stand for the sizes of most values."""
    lines = [line.strip() for line in body.strip().splitlines()]
    text = f"graph({head}) {{\n" + "".join(f"  {line}\n" for line in lines) + "}\n"
    return text.replace(": X", ": float32[3, 4]").replace(": Y", ": float32[4, 3]")


def outcome(graph: Any, inputs: Any) -> Any:
    """Results, what became of the inputs, and the generator's state."""
    torch.manual_seed(1)
    given = [x.clone() for x in inputs]
    results = graph.run(given)
    return summary(torch, [results, given, torch.get_rng_state()])


def strip_tape(found: Any) -> Any:
    """Without what tells of gradients and views."""
    if isinstance(found, dict):
        return {k: v for k, v in found.items() if k not in ("grad_fn", "is_view", "version")}
    return [strip_tape(x) for x in found] if isinstance(found, list) else found


ONLY = dict.fromkeys(PASSES, False)
X = torch.tensor([[-0.0, 0.0, -1.5, float("nan")], [float("inf"), 1e-40, 2.0, -3.0], [1.0, 2.0, 3.0, 4.0]])
W = torch.linspace(-1, 1, 12).view(4, 3)
INT = torch.tensor([0, 5, -7])

# By pass: (what, inputs, before, after, how many calls it changed, further options).
CASES: dict[str, list[Any]] = {
    "constant_propagation": [
        (
            "of literals",
            "%0: X",
            """const %1: float32[4] = "constant_1"
               %2: float32[4] = exp(input=%1)
               %3: X = mul(input=%0, other=%2)
               return %3""",
            """const %2: float32[4] = "constant_2"
               %3: X = mul(input=%0, other=%2)
               return %3""",
            1,
            {"dce": True},
        ),
        (
            "of factories, but not of large ones",
            "%0: X",
            """%1: int64[4] = arange(end=4, dtype=None, device=None, requires_grad=False)
               %2: float32[4] = float(input=%1, memory_format=None)
               %3: X = mul(input=%0, other=%2)
               %4: float32[300, 300] = zeros(size=[300, 300], dtype=None, device=None, requires_grad=False)
               return %3, %4""",
            """const %2: float32[4] = "constant_2"
               %3: X = mul(input=%0, other=%2)
               %4: float32[300, 300] = zeros(size=[300, 300], dtype=None, device=None, requires_grad=False)
               return %3, %4""",
            2,
            {"dce": True},
        ),
        (
            "not of parameters",
            "%0: X",
            """const %1: float32[4] = "weight"
               %2: float32[4] = exp(input=%1)
               %3: X = mul(input=%0, other=%2)
               return %3""",
            None,
            0,
            {},
        ),
        (
            "of parameters that are frozen; a transposition keeps its strides",
            "%0: X",
            """const %1: float32[3, 4] = "matrix"
               %2: Y = t(input=%1)
               %3: float32[3, 3] = matmul(input=%0, other=%2)
               return %3""",
            """const %2: Y = "constant_2" strides [1, 4]
               %3: float32[3, 3] = matmul(input=%0, other=%2)
               return %3""",
            1,
            {"freeze": True, "dce": True},
        ),
        (
            "not of what is written",
            "%0: X",
            """const %1: float32[4] = "constant_1"
               %2: float32[4] = exp(input=%1)
               %3: float32[4] = mul_(input=%2, other=2.0)
               %4: X = mul(input=%0, other=%3)
               return %4""",
            None,
            0,
            {},
        ),
        (
            "not of what the caller gets, and not of random numbers",
            "%0: X",
            """const %1: float32[4] = "constant_1"
               %2: float32[4] = exp(input=%1)
               %3: float32[3] = rand(size=[3], generator=None, dtype=None, device=None, requires_grad=False)
               %4: float32[3] = exp(input=%3)
               return %2, %4""",
            None,
            0,
            {"freeze": True},
        ),
    ],
    "peephole": [
        (
            "times one, by one, minus minus",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = mul(input=%1, other=1)
               %3: X = div(input=%2, other=1.0)
               %4: X = neg(input=%3)
               %5: X = neg(input=%4)
               %6: X = mul(input=1, other=%5)
               return %6""",
            """%1: X = exp(input=%0)
               return %1""",
            4,
            {"dce": True},
        ),
        (
            "not of an input, whose strides are not known, and not times one of another dtype",
            "%0: X, %1: int64[3]",
            """%2: X = mul(input=%0, other=1)
               %3: float32[3] = mul(input=%1, other=1.0)
               return %2, %3""",
            None,
            0,
            {},
        ),
        (
            "plus zero of integers and of floats where it is -0.0",
            "%0: X, %1: int64[3]",
            """%2: X = neg(input=%0)
               %3: X = add(input=%2, other=0.0, alpha=1)
               %4: X = add(input=%3, other=-0.0, alpha=1)
               %5: int64[3] = neg(input=%1)
               %6: int64[3] = add(input=%5, other=0, alpha=1)
               return %4, %6""",
            """%2: X = neg(input=%0)
               %3: X = add(input=%2, other=0.0, alpha=1)
               %5: int64[3] = neg(input=%1)
               return %3, %5""",
            2,
            {},
        ),
        (
            "two transpositions, orders of dims",
            "%0: X",
            """%1: Y = t(input=%0)
               %2: X = transpose(input=%1, dim0=-1, dim1=0)
               %3: X = exp(input=%2)
               %4: Y = permute(input=%3, dims=[1, 0])
               %5: Y = permute(input=%4, dims=[0, 1])
               %6: Y = mul(input=%5, other=%5)
               return %6""",
            """%3: X = exp(input=%0)
               %4: Y = permute(input=%3, dims=[1, 0])
               %6: Y = mul(input=%4, other=%4)
               return %6""",
            2,
            {"dce": True},
        ),
        (
            "views of views, and to the sizes that are there",
            "%0: X",
            """%1: float32[12] = view(input=%0, size=[12])
               %2: float32[2, 6] = view(input=%1, size=[2, -1])
               %3: float32[2, 6] = reshape(input=%2, shape=[2, 6])
               %4: float32[2, 6] = exp(input=%3)
               return %4""",
            """%2: float32[2, 6] = view(input=%0, size=[2, -1])
               %4: float32[2, 6] = exp(input=%2)
               return %4""",
            2,
            {"dce": True},
        ),
        (
            "casts to the same dtype, and to a wider one and back",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = float(input=%1, memory_format=None)
               %3: float64[3, 4] = double(input=%2, memory_format=None)
               %4: X = float(input=%3, memory_format=None)
               %5: bfloat16[3, 4] = bfloat16(input=%4, memory_format=None)
               %6: X = float(input=%5, memory_format=None)
               return %6""",
            """%1: X = exp(input=%0)
               %5: bfloat16[3, 4] = bfloat16(input=%1, memory_format=None)
               %6: X = float(input=%5, memory_format=None)
               return %6""",
            2,
            {"dce": True},
        ),
        (
            "dropout in evaluation, what is so already, copies that nobody tells apart",
            "%0: X",
            """%1: X = dropout(input=%0, p=0.5, training=False, inplace=False)
               %2: X = relu(input=%1)
               %3: X = relu(input=%2)
               %4: X = contiguous(input=%3)
               %5: X = contiguous(input=%4)
               %6: X = exp(input=%5)
               %7: X = clone(input=%6)
               %8: float32[1, 3, 4] = unsqueeze(input=%7, dim=0)
               %9: X = squeeze(input=%8, dim=0)
               %10: X = floor(input=%9)
               return %10""",
            """%2: X = relu(input=%0)
               %4: X = contiguous(input=%2)
               %6: X = exp(input=%4)
               %10: X = floor(input=%6)
               return %10""",
            5,
            {"dce": True},
        ),
        (
            "not of what was written between the two",
            "%0: X",
            """%1: X = neg(input=%0)
               %2: X = neg(input=%1)
               %3: float32[4] = select(input=%2, dim=0, index=0)
               %4: float32[4] = mul_(input=%3, other=2.0)
               %5: X = neg(input=%2)
               %6: X = relu(input=%0)
               %7: X = neg(input=%6)
               %8: X = mul_(input=%6, other=2.0)
               %9: X = neg(input=%7)
               return %5, %9""",
            None,
            0,
            {},
        ),
        (
            "not what tells a copy from its source: a write, two results, an input as result",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = clone(input=%1)
               %3: X = mul_(input=%1, other=2.0)
               %4: X = relu(input=%0)
               %5: X = clone(input=%4)
               %6: X = view(input=%0, size=[3, 4])
               return %2, %3, %4, %5, %6""",
            None,
            0,
            {},
        ),
    ],
    "cse": [
        (
            "equal calls, and then those on their results",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = exp(input=%0)
               %3: X = relu(input=%1)
               %4: X = relu(input=%2)
               %5: X = mul(input=%3, other=%4)
               return %5""",
            """%1: X = exp(input=%0)
               %3: X = relu(input=%1)
               %5: X = mul(input=%3, other=%3)
               return %5""",
            2,
            {"gradients": False},
        ),
        (
            "not where gradients are added in another order, but where there are none",
            "%0: X, %1: int64[3]",
            """%2: X = exp(input=%0)
               %3: X = exp(input=%0)
               %4: X = mul(input=%2, other=%3)
               %5: int64[3] = add(input=%1, other=1, alpha=1)
               %6: int64[3] = add(input=%1, other=1, alpha=1)
               %7: int64[3] = mul(input=%5, other=%6)
               return %4, %7""",
            """%2: X = exp(input=%0)
               %3: X = exp(input=%0)
               %4: X = mul(input=%2, other=%3)
               %5: int64[3] = add(input=%1, other=1, alpha=1)
               %7: int64[3] = mul(input=%5, other=%5)
               return %4, %7""",
            1,
            {},
        ),
        (
            "not across a write to what they read, through a view; before it and after it",
            "%0: X",
            """%1: X = neg(input=%0)
               %2: float32[4] = select(input=%1, dim=0, index=0)
               %3: X = exp(input=%1)
               %4: X = exp(input=%1)
               %5: float32[4] = mul_(input=%2, other=2.0)
               %6: X = exp(input=%1)
               %7: X = exp(input=%1)
               %8: X = mul(input=%3, other=%4)
               %9: X = mul(input=%6, other=%7)
               return %8, %9""",
            """%1: X = neg(input=%0)
               %2: float32[4] = select(input=%1, dim=0, index=0)
               %3: X = exp(input=%1)
               %5: float32[4] = mul_(input=%2, other=2.0)
               %6: X = exp(input=%1)
               %8: X = mul(input=%3, other=%3)
               %9: X = mul(input=%6, other=%6)
               return %8, %9""",
            2,
            {"gradients": False},
        ),
        (
            "not of what is written, returned twice, or random; 0.0 is not -0.0",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = exp(input=%0)
               %3: X = mul_(input=%2, other=2.0)
               %4: X = relu(input=%0)
               %5: X = relu(input=%0)
               %6: float32[3] = rand(size=[3], generator=None, dtype=None, device=None, requires_grad=False)
               %7: float32[3] = rand(size=[3], generator=None, dtype=None, device=None, requires_grad=False)
               %8: X = mul(input=%0, other=0.0)
               %9: X = mul(input=%0, other=-0.0)
               %10: float32[3] = mul(input=%6, other=%7)
               return %1, %3, %4, %5, %8, %9, %10""",
            None,
            0,
            {"gradients": False},
        ),
        (
            "three of which one is returned",
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = exp(input=%0)
               %3: X = exp(input=%0)
               %4: X = mul(input=%1, other=%3)
               return %2, %4""",
            """%1: X = exp(input=%0)
               %4: X = mul(input=%1, other=%1)
               return %1, %4""",
            2,
            {"gradients": False},
        ),
    ],
    "dce": [
        (
            "what nobody reads, but for writes and random numbers",
            "%0: X",
            """const %1: float32[4] = "constant_1"
               %2: X = mul(input=%0, other=%1)
               %3: X = exp(input=%2)
               %4: float32[3] = rand(size=[3], generator=None, dtype=None, device=None, requires_grad=False)
               %5: X = relu(input=%0)
               %6: X = relu6(input=%5, inplace=True)
               return %5""",
            """%4: float32[3] = rand(size=[3], generator=None, dtype=None, device=None, requires_grad=False)
               %5: X = relu(input=%0)
               %6: X = relu6(input=%5, inplace=True)
               return %5""",
            2,
            {},
        ),
    ],
}
LISTED = [(name, *case) for name, cases in CASES.items() for case in cases]
TENSORS = {
    "constant_1": torch.tensor([1.0, 0.5, -0.0, 2.0]),
    "weight": torch.ones(4),
    "matrix": W.t().contiguous(),
}


@pytest.mark.parametrize(
    ("name", "head", "before", "after", "count", "options"),
    [pytest.param(c[0], *c[2:], id=f"{c[0]}: {c[1]}") for c in LISTED],
)
def test_pass(name: str, head: str, before: str, after: str | None, count: int, options: Any) -> None:
    graph = parse(graph_text(head, before), **TENSORS)
    given = [INT if "int64[3]" in part else X for part in head.split(", %")]
    want = outcome(graph, given)
    made = graph.copy()
    counts = made.optimise(**{**ONLY, name: True, **options})
    assert plain(made) == graph_text(head, after or before) and counts[name] == count
    assert plain(graph) == graph_text(head, before)
    assert strip_tape(outcome(made, given)) == strip_tape(want)
    constants = {made.values[i][3]: t for i, t in made.constants.items()}
    again = _C._OpGraph.parse(made.text(), {k: t.contiguous() for k, t in constants.items()})
    assert again.text() == made.text() and strip_tape(outcome(again, given)) == strip_tape(want)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (  # a random op as a constant
            """%1: float32[4] = rand(size=[4], generator=None, dtype=None, device=None, requires_grad=False)
               %2: X = mul(input=%0, other=%1)
               return %2""",
            """const %1: float32[4] = "constant_1"
               %2: X = mul(input=%0, other=%1)
               return %2""",
        ),
        (  # two of them as one
            """%1: float32[4] = rand(size=[4], generator=None, dtype=None, device=None, requires_grad=False)
               %2: float32[4] = rand(size=[4], generator=None, dtype=None, device=None, requires_grad=False)
               return %1, %2""",
            """%1: float32[4] = rand(size=[4], generator=None, dtype=None, device=None, requires_grad=False)
               return %1, %1""",
        ),
        (  # a write whose result nobody reads
            """%1: X = exp(input=%0)
               %2: X = mul_(input=%1, other=2.0)
               return %1""",
            """%1: X = exp(input=%0)
               return %1""",
        ),
        (  # the order of two writes
            """%1: X = exp(input=%0)
               %2: X = mul_(input=%1, other=2.0)
               %3: X = add_(input=%1, other=1.0, alpha=1)
               return %1""",
            """%1: X = exp(input=%0)
               %3: X = add_(input=%1, other=1.0, alpha=1)
               %2: X = mul_(input=%1, other=2.0)
               return %1""",
        ),
    ],
)
def test_verifier_finds_what_is_planted(before: str, after: str) -> None:
    good, bad = (parse(graph_text("%0: X", text), **TENSORS) for text in (before, after))
    good.verify_effects(good.copy())
    with pytest.raises(RuntimeError, match="which calls write memory or draw random numbers"):
        good.verify_effects(bad)


def test_outcomes_find_what_is_planted() -> None:
    """What common subexpressions would give that ignored a write."""
    before, after = (
        parse(
            graph_text(
                "%0: X",
                f"""%1: X = neg(input=%0)
                    %2: X = exp(input=%1)
                    %3: X = mul_(input=%1, other=2.0)
                    %4: X = exp(input=%1)
                    %5: X = add(input=%2, other=%{read}, alpha=1)
                    return %5""",
            )
        )
        for read in (4, 2)
    )
    before.verify_effects(after)  # the same writes
    assert outcome(before, [X]) != outcome(after, [X])


def test_unknown_passes() -> None:
    with pytest.raises(TypeError, match="no pass or option cme"):
        parse(graph_text("%0: X", "return %0")).optimise(cme=True)


def test_reused_memory_is_that_of_the_run_alone() -> None:
    """A result takes the memory of an operand that dies; never an input's, or one that a gradient needs."""
    graph = parse(
        graph_text(
            "%0: X",
            """%1: X = exp(input=%0)
               %2: X = relu(input=%1)
               %3: X = add(input=%2, other=%0, alpha=1)
               %4: X = mul(input=%3, other=%3)
               %5: X = relu6(input=%4, inplace=False)
               return %5""",
        )
    )
    made = graph.copy()
    assert made.optimise(**{**ONLY, "reuse_memory": True})["reuse_memory"] == 4
    assert made.text() == graph.text()
    want = outcome(graph, [X])
    assert outcome(made, [X]) == want
    x = X.clone().requires_grad_(True)
    y = torch.linspace(0, 1, 12).view(3, 4).requires_grad_(True)
    grads = []
    for g in (graph, made):
        grads.append(torch.autograd.grad(g.run([y])[0].sum(), y)[0])
    assert torch.equal(*grads)
    with torch.no_grad():
        assert summary(torch, made.run([x])) == summary(torch, graph.run([x]))
    made.run([X.t().contiguous().t()])  # strides that the results keep
    assert summary(torch, made.run([X.t().contiguous().t()])) == summary(
        torch, graph.run([X.t().contiguous().t()])
    )
