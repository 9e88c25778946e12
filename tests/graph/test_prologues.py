"""Prologues: steps that run by rows and make a product's first operand where it is multiplied, to the bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._C import _Program as Program

from .test_compile import peak_of, same
from .test_epilogues import explained, tensors
from .test_program_text import lines


def compiled(function: Callable[..., Any], least: int = 1) -> Any:
    made = torch.compile(function)
    made.region.adaptive = False
    for name in ("least_prologue_bytes", "least_epilogue_bytes", "least_recomputed_bytes"):
        setattr(made.region, name, least)
    return made


def check(function: Callable[..., Any], count: int, threads: tuple[int, ...] = (1, 2, 4)) -> Any:
    made = compiled(function)
    assert explained(made, function, threads=threads).prologues == count
    return made


# By the ways of the kernel: one task, tiles of rows, of columns (the operand as a whole), all of B packed
# with tasks of different sizes, dot products of few rows and of few columns.
SIZES = [
    (3, 5, 7),
    (40, 30, 50),
    (600, 70, 90),
    (130, 400, 300),
    (1000, 384, 200),
    (20, 64, 2000),
    (2, 400, 30),
    (300, 512, 3),
    (1, 40, 1),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_chains_and_norms(size, dtype):
    m, k, n = size
    x, w, b, r, s, g = tensors(dtype, (m, k), (n, k), (n,), (m, k), (m, 1), (k,))
    y = torch.randn(m, n, dtype=dtype)
    check(lambda: [F.linear(F.gelu(x), w, b)], count=1)
    check(lambda: [((x + r) * s * g) @ w.t()], count=1)
    check(lambda: [F.gelu(F.linear(x.relu() * 2, w, b)) + y], count=1)  # with an epilogue
    rows = int(m >= 4)  # kernels of fewer rows are none that run by rows
    check(lambda: [F.linear(F.layer_norm(x, (k,), g, g), w, b)], count=rows)
    check(lambda: [F.linear(F.rms_norm((x + r).sigmoid(), (k,), g) * r, w).tanh()], count=1)
    check(lambda: [torch.mm((x * 0.1).softmax(-1), w.t())], count=rows)


def test_what_else_the_prologue_makes():
    x, w, r, c = tensors(torch.float32, (150, 40), (30, 40), (150, 40), (150, 30))

    def residual():
        y = x + r  # others see it
        return y, F.linear(F.layer_norm(y, (40,)), w) + c

    check(residual, count=1)

    def in_place():
        y = x * 2
        y.add_(r).relu_()
        return [y @ w.t()]

    check(in_place, count=1)

    def read_twice():
        y = x.exp()
        return y @ w.t(), y.sum(0)

    check(read_twice, count=0)

    def both_operands():
        y = x[:40].exp()
        return [y @ y]

    check(both_operands, count=0)

    def of_the_epilogue():  # which would read rows that the prologue of others makes
        y = x[:, :30] + 1
        return y, F.linear(y.relu(), w[:, :30]) * y

    check(of_the_epilogue, count=0)


def test_views_and_batches():
    x, w, t = tensors(torch.float32, (4, 25, 40), (30, 40), (40, 100))
    check(lambda: [F.linear(x.tanh(), w)], count=1)
    check(lambda: [F.linear(x.tanh().view(100, 40), w)], count=1)
    check(lambda: [F.linear(x.view(100, 40).tanh().view(50, 2, 40), w)], count=1)
    check(lambda: [F.linear(x.tanh().view(50, 80)[:, :40], w)], count=0)
    check(lambda: [t.tanh().t() @ w.t()], count=0)  # made by columns
    check(lambda: [x.tanh() @ x.transpose(1, 2)], count=0)  # a product for each of a batch


def test_autocast_and_16_bits():
    x, w = tensors(torch.float32, (150, 64), (48, 64))

    def cast():
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return [F.linear(F.gelu(x), w).float()]

    check(cast, count=0)
    check(lambda: [F.linear(F.gelu(x.bfloat16()), w.bfloat16()).float()], count=0)


def test_training():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.GELU(), nn.Linear(48, 48)) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(150, 48)

    def step():
        for p in model.parameters():
            p.grad = None
        loss = model(x).square().mean()
        loss.backward()
        return [loss, *(p.grad for p in model.parameters())]

    made = compiled(step)
    made.region.fuses_epilogues = False  # each GELU would run behind the product before it
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(made(), step(), strict=True))
    e = made.explain()
    # What is computed again for backward has one reader in forward.
    assert e.recomputed >= 2 and e.prologues >= 1
    off = compiled(step)
    off.region.fuses_prologues = False
    assert all(same(a, b) for a, b in zip(off(), step(), strict=True)) and off.explain().prologues == 0


def test_the_operand_has_no_memory():
    x, w = tensors(torch.float32, (2048, 1024), (64, 1024))
    made = compiled(lambda: F.linear(F.gelu(x), w))
    off = compiled(lambda: F.linear(F.gelu(x), w))
    off.region.fuses_prologues = False
    assert peak_of(made) < 0.5 * peak_of(off)


def test_small_products_stay_apart():
    x, w = tensors(torch.float32, (64, 64), (64, 64))
    small = torch.compile(lambda: F.linear(x.relu(), w))
    small.region.adaptive = False
    small()
    assert small.explain().prologues == 0


def test_random_prologues(pytestconfig):
    """Random ops on what came before and on each other, then products of some of them."""
    unary = ["relu", "tanh", "exp", "neg", "sigmoid", "square", "clone", "abs", "erf"]

    def program(seed: int) -> list[Any]:
        rng = random.Random(seed)
        m, k, n = (rng.choice((1, 7, 33, 150, 600)) for _ in range(3))
        w, b = tensors(torch.float32, (n, k), (n,))
        seen = [torch.randn(m, k), torch.randn(m, 1), torch.randn(k)]
        kept = []
        for _ in range(rng.randrange(1, 4)):
            for _ in range(rng.randrange(1, 5)):
                a, c = rng.choice(seen), rng.choice(seen)
                kind = rng.randrange(5)
                if kind == 0:
                    seen.append(getattr(torch, rng.choice(unary))(a))
                elif kind == 1:
                    seen.append(a * c)
                elif kind == 2 and a.shape == (m, k):
                    a.add_(c)
                elif kind == 3:
                    seen.append(F.layer_norm(a, a.shape[-1:]))
                else:
                    seen.append(a - 0.5)
            a = rng.choice([t for t in seen if t.shape == (m, k)][-2:])
            product = F.linear(a, w, b) if rng.random() < 0.5 else a @ w.t()
            kept.append(product.tanh() if rng.random() < 0.5 else product)
            if rng.random() < 0.3:
                a.mul_(2)
        return kept + [t for t in seen if rng.random() < 0.2]

    found = 0
    for seed in range(pytestconfig.getoption("--programs")):
        made = compiled(lambda seed=seed: program(seed))
        for a, b in zip(made(), program(seed), strict=True):
            assert same(a, b), seed
        found += made.explain().prologues
    assert found > pytestconfig.getoption("--programs") // 4


# ---- the pass and what verify() refuses --------------------------------------------------------------------

MLP = """
    %0: 64 bytes in
    %1: 64 bytes in
    %4: 64 bytes out
    %2[4, 4] = add(%0[4, 4], %1[4, 4])
    %3[4, 4] = op roll(%0[4, 4])
    %4[4, 4] = op linear(%2[4, 4], %1[4, 4])
    %5[4, 4] = op roll(%3[4, 4])
    """
JOINED = """
    %0: 64 bytes in
    %1: 64 bytes in
    %4: 64 bytes out
    [1] %3[4, 4] = op roll(%0[4, 4])
    fused {
    %2[4, 4] = add(%0[4, 4], %1[4, 4])
    %4[4, 4] = op linear(%2[4, 4], %1[4, 4])
    }
    %5[4, 4] = op roll(%3[4, 4])
    """


def passed(text: str) -> str:
    program = Program.parse(lines(text))
    program.run_pass("fuse_prologues", least_prologue_bytes=64)
    return program.text()


def test_the_pass():
    assert passed(MLP) == lines(JOINED)
    assert Program.parse(lines(JOINED)).text() == lines(JOINED)
    for name in ("fuse_prologues", "fuse_epilogues", "fuse"):
        with pytest.raises(ValueError, match=f"{name} takes programs before fuse_prologues"):
            Program.parse(lines(JOINED)).run_pass(name)
    # What the step between reads of the prologue keeps both where the prologue was.
    text = MLP.replace("roll(%0", "roll(%6").replace(
        "%2[4, 4] = add", "%6[4, 4] = exp(%0[4, 4])\n%2[4, 4] = add"
    )
    program = Program.parse(lines(text))
    assert "fused {" in passed(text) and program.text() != passed(text)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("roll(%3[4, 4])", "roll(%2[4, 4])"),  # others need the operand
        ("roll(%0[4, 4])", "roll(%2[4, 4])"),
        ("%4: 64 bytes out", "%2: 64 bytes out\n%4: 64 bytes out"),
        ("linear(%2[4, 4], %1[4, 4])", "linear(%2[4, 4], %2[4, 4])"),
        ("linear(%2[4, 4]", "linear(%2[4, 4] strides [1, 4]"),
        ("%2[4, 4] = add", "%2[4, 4] strides [1, 4] = add"),
        ("linear(%2[4, 4], %1", "linear(%1[4, 4], %2"),  # the other operand
        ("op linear", "op addmm"),
        ("op linear", "op conv2d"),
        ("%1[4, 4])\n    %3", "%1[4, 4] strides [1, 4])\n    %3[4, 4], %1[4, 4] = op f(%0[4, 4])\n    %6"),
    ],
)
def test_what_the_pass_leaves_alone(old, new):
    text = MLP.replace(old, new)
    assert text != MLP
    assert passed(text) == lines(text)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%2[4, 4] = add(", "%2[4, 4] = op add(", "does not run by the rows"),
        ("op linear", "op addmm", "is before what multiplies no rows"),
        ("%2[4, 4] = add", "%2[4, 4] strides [1, 4] = add", "does not run by the rows"),
        ("linear(%2[4, 4], %1[4, 4])", "linear(%2[4, 4], %2[4, 4])", "makes both operands"),
        ("linear(%2[4, 4]", "linear(%2[4, 4] strides [1, 4]", "is the prologue of a product whose operand"),
        ("%5[4, 4] = op roll(%3", "%5[4, 4] = op roll(%2", "makes an operand that others use"),
        ("linear(%2[4, 4]", "linear(%3[4, 4]", "does not end with the operand"),
        ("%4: 64", "%2: 64 bytes out\n%4: 64", "is the prologue of a product whose operand"),
        ("%2[4, 4] = add", "%1[4, 4] = exp(%0[4, 4])\n%2[4, 4] = add", "uses what the step's product"),
    ],
)
def test_planted_bugs(old, new, message):
    text = lines(JOINED.replace(old, new))
    if "exp" in new:
        text = text.replace("[1] ", "")
    assert text != lines(JOINED)
    with pytest.raises(ValueError, match=r"graph: line \d+: instruction \d+ \(\w+\) .*" + message):
        Program.parse(text)
