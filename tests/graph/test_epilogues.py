"""Epilogues: elementwise steps that run in the kernel of the product of matrices before them, to the bit."""

from __future__ import annotations

import random
import re

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._C import _Program as Program

from .test_compile import peak_of, same
from .test_program_text import lines


def compiled(function, least=1):
    made = torch.compile(function)
    made.region.adaptive, made.region.least_epilogue_bytes = False, least
    return made


def explained(made, function, *args, threads=(1, 2, 4)):
    """explain() of a compiled function, whose results are eager's for several numbers of threads."""
    before = torch.get_num_threads()
    try:
        for n in threads:
            torch.set_num_threads(n)
            for a, b in zip(made(*args), function(*args), strict=True):
                assert same(a, b)
    finally:
        torch.set_num_threads(before)
    return made.explain()


def check(function, *args, count):
    made = compiled(function)
    assert explained(made, function, *args).epilogues == count
    return made


def tensors(dtype, *shapes):
    torch.manual_seed(0)
    return [torch.randn(*s, dtype=dtype) for s in shapes]


# By the ways that the kernel takes: one task, tiles of rows and of columns, all of B packed, dot products of
# few rows and columns, no product at all.
SIZES = [
    (3, 5, 7),
    (40, 30, 50),
    (600, 70, 90),
    (130, 400, 300),
    (20, 64, 2000),
    (2, 400, 30),
    (300, 512, 3),
    (9, 0, 4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", SIZES)
def test_bias_activation_residual(size, dtype):
    m, k, n = size
    x, w, b, r, s = tensors(dtype, (m, k), (n, k), (n,), (m, n), (m, 1))
    check(lambda: [F.gelu(F.linear(x, w, b))], count=1)
    check(lambda: [r + (F.linear(x, w, b) * s).relu() * 0.5], count=1)
    check(lambda: [(x @ w.t() > 0).to(dtype) * r], count=1)
    check(lambda: [torch.addmm(r, x, w.t()).tanh(), torch.addmm(b, x, w.t(), beta=0.5).sigmoid()], count=2)


def test_products_that_others_read():
    x, w, r = tensors(torch.float32, (70, 40), (30, 40), (70, 30))

    def both():
        y = F.linear(x, w)
        return y, y.exp() + r, (y * 2).cos().sum(0)

    check(both, count=1)

    def onto():
        y = F.linear(x, w)
        y += r
        return [y.mul_(2)]

    check(onto, count=1)

    def copied():  # what is copied is stored behind what is computed
        y = F.linear(x, w)
        return y.clone(), y.exp()

    check(copied, count=1)


def test_views_and_batches():
    x, w, r = tensors(torch.float32, (4, 25, 40), (30, 40), (100, 30))
    a, b = tensors(torch.float32, (3, 80, 40), (3, 40, 20))
    check(lambda: [F.linear(x, w).view(100, 30) * r], count=1)
    check(lambda: [(a @ b).relu()], count=1)
    check(lambda: [(a @ b).transpose(1, 2).relu()], count=0)  # another order
    check(lambda: [F.linear(x, w)[:, :3].exp()], count=0)  # not all of it


def test_training():
    torch.manual_seed(0)
    up, down = nn.Linear(48, 96), nn.Linear(96, 48)
    x = torch.randn(150, 48)

    def step():
        for p in (*up.parameters(), *down.parameters()):
            p.grad = None
        y = x + down(F.gelu(up(x))) * 0.5
        y.square().mean().backward()
        return [y, *(p.grad for p in (*up.parameters(), *down.parameters()))]

    made = check(step, count=3)  # two forward, one backward
    assert "gelu_backward" in made.explain().programs[0]
    off = torch.compile(step)
    off.region.adaptive, off.region.fuses_epilogues, off.region.least_epilogue_bytes = False, False, 1
    assert all(same(a, b) for a, b in zip(off(), step(), strict=True)) and off.explain().epilogues == 0


def test_a_product_that_nobody_else_reads_has_no_memory():
    x, w = tensors(torch.float32, (2048, 256), (1024, 256))
    made = compiled(lambda: F.gelu(F.linear(x, w)))
    off = compiled(lambda: F.gelu(F.linear(x, w)))
    off.region.fuses_epilogues = False
    assert peak_of(made) < 0.6 * peak_of(off)


def test_small_and_short_products_stay_apart():
    x, w = tensors(torch.float32, (64, 64), (64, 64))
    small = torch.compile(lambda: F.linear(x, w).relu())
    small.region.adaptive = False
    small()
    assert small.explain().epilogues == 0
    check(lambda: [F.linear(x.bfloat16(), w.bfloat16()).relu().float()], count=0)


def test_random_epilogues(pytestconfig):
    """Products, then random ops on them, on what came before and on each other."""
    unary = ["relu", "tanh", "exp", "neg", "sigmoid", "square", "clone", "abs", "erf"]

    def program(seed):
        rng = random.Random(seed)
        m, k, n = (rng.choice((1, 7, 33, 150, 600)) for _ in range(3))
        x, w, b = tensors(torch.float32, (m, k), (n, k), (n,))
        seen = [torch.randn(m, n), torch.randn(m, 1)]
        products = []
        for _ in range(2):
            products.append(F.linear(x, w, b) if rng.random() < 0.5 else x @ w.t())
            seen.append(products[-1])
            for _ in range(rng.randrange(1, 5)):
                a, c = rng.choice(seen[-3:]), rng.choice(seen)
                kind = rng.randrange(4)
                if kind == 0:
                    seen.append(getattr(torch, rng.choice(unary))(a))
                elif kind == 1:
                    seen.append(a * c)
                elif kind == 2 and a.shape == (m, n):
                    a.add_(c)
                else:
                    seen.append(a - 0.5)
            x = seen[-1].expand(m, n)[:, :1].expand(m, k) if rng.random() < 0.5 else x
        return [t for t in seen if rng.random() < 0.5] + seen[-1:]

    found = 0
    for seed in range(pytestconfig.getoption("--programs")):
        made = compiled(lambda seed=seed: program(seed))
        for a, b in zip(made(), program(seed), strict=True):
            assert same(a, b), seed
        found += made.explain().epilogues
    assert found > pytestconfig.getoption("--programs") // 2


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs", None])
def test_tuning(mode):
    """Both ways are measured, one is kept; the bits are those of eager code in all runs."""
    x, w, r = tensors(torch.float32, (300, 64), (96, 64), (300, 96))

    def work():
        return F.gelu(F.linear(x, w)), (x @ w.t()) * r, x[:2] @ w.t() + r[:2]

    made = torch.compile(work, mode=mode)
    made.region.adaptive = False
    want = work()
    for run in range(12):
        assert all(same(a, b) for a, b in zip(made(), want, strict=True))
        tuned = made.explain().tuned
        assert len(tuned) == (3 if mode and run >= 7 else 0)
    assert made.explain().epilogues == (3 if mode else 0)
    for line in tuned:
        chosen, within, apart = re.fullmatch(
            r"(?:linear|matmul) \[\d+, 96\]: (with its epilogue|apart), (\S+) us with, (\S+) us apart", line
        ).groups()
        assert (chosen == "apart") == (float(apart) < float(within)), line
    assert ("tuned: linear [300, 96]: " in str(made.explain())) == bool(mode)


# ---- the pass and what verify() refuses --------------------------------------------------------------------

MLP = """
    %0: 64 bytes in
    %1: 64 bytes in
    %4: 64 bytes out
    %2[4, 4] = op linear(%0[4, 4], %1[4, 4])
    %3[4, 4] = op roll(%0[4, 4])
    %4[4, 4] = add(%2[4, 4], %1[4, 4])
    %5[4, 4] = op roll(%3[4, 4])
    """


def passed(text):
    program = Program.parse(lines(text))
    program.run_pass("fuse_epilogues", least_epilogue_bytes=64)
    return program.text()


def test_the_pass():
    expected = """
        %0: 64 bytes in
        %1: 64 bytes in
        %4: 64 bytes out
        fused {
        %2[4, 4] = op linear(%0[4, 4], %1[4, 4])
        [2] %4[4, 4] = add(%2[4, 4], %1[4, 4])
        }
        %3[4, 4] = op roll(%0[4, 4])
        %5[4, 4] = op roll(%3[4, 4])
        """
    assert passed(MLP) == lines(expected)
    assert Program.parse(lines(expected)).text() == lines(expected)
    with pytest.raises(ValueError, match="fuse_epilogues takes programs before fuse_epilogues"):
        passed(expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("roll(%0", "roll(%2"),  # reads the product, so the next step does not count
        ("add(%2[4, 4], %1", "mul(%2[4, 4], %3"),  # not ready before what changes the product's operand
        ("%4[4, 4] = add(%2[4, 4], %1[4, 4])", "%1[4, 4] = add(%2[4, 4], %1[4, 4])"),  # others see it
        ("add(%2[4, 4]", "add(%2[4, 4] strides [1, 4]"),
        ("add(%2[4, 4], %1[4, 4])", "add(%2[4], %1[4, 4])"),
        ("%4[4, 4] = add", "%4[4, 4] strides [1, 4] = add"),
        ("%5[4, 4] = op roll(%3[4, 4])", "%2[4, 4] = op roll(%3[4, 4])\n%5[4, 4] = op roll(%2[4, 4])"),
        ("op linear", "op einsum"),
        ("%2[4, 4] = op linear(%0[4, 4], %1[4, 4])", "%2[4, 4] = op linear(%0[4, 4], %4[4, 4])"),
    ],
)
def test_what_the_pass_leaves_alone(old, new):
    text = MLP.replace(old, new)
    if "mul" in new:
        text = text.replace("%3[4, 4] = op roll(%0[4, 4])", "%3[4, 4], %0[4, 4] = op f(%1[4, 4])")
    assert text != MLP
    if "roll(%2[4, 4])" in new:
        assert "fused {" in passed(text)
    else:
        assert passed(text) == lines(text)


JOINED = """
    %0: 64 bytes in
    %1: 64 bytes in out
    %5: 64 bytes in out
    fused {
    %2[4, 4] = op linear(%0[4, 4], %1[4, 4])
    %3[4, 4] = add(%2[4, 4], %1[4, 4])
    %4[4, 4] = exp(%3[4, 4])
    }
    %5[4, 4] = op roll(%4[4, 4])
    """


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("%4[4, 4] = exp(", "%4[4, 4] = op exp(", r"2 \(exp\) is no elementwise instruction"),
        ("%3[4, 4] = add(", "%3[4, 4] = add<int64>(", r"1 \(add\) is no elementwise instruction"),
        ("add(%2[4, 4]", "add(%2[4, 4] strides [1, 4]", r"1 \(add\) sees the product before it in another"),
        ("add(%2[4, 4]", "add(%2[4]", r"1 \(add\) sees the product before it in another"),
        ("%3[4, 4] = add", "%3[4, 4] strides [1, 4] = add", r"1 \(add\) writes other elements"),
        ("%4[4, 4] = exp(%3[4, 4])", "%0[4, 4] = exp(%3[4, 4])", r"2 \(exp\) writes in the epilogue"),
        ("linear(%0[4, 4]", "linear(%4[4, 4]", r"2 \(exp\) writes what the product before it still reads"),
        ("%2[4, 4] = op", "%5[4, 4] = op", r"1 \(add\) is in the epilogue of a product that"),
    ],
)
def test_planted_bugs(old, new, message):
    assert Program.parse(lines(JOINED)).text() == lines(JOINED)
    text = lines(JOINED).replace(lines(old).strip(), lines(new).strip())
    assert text != lines(JOINED)
    with pytest.raises(ValueError, match=r"graph: line \d+: instruction " + message):
        Program.parse(text)
