"""The layout pass: copies that change the layout alone are dropped, results are the same to the bit."""

from __future__ import annotations

import itertools
import random

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape._C import _Program as Program

from .test_compile import same
from .test_program_text import after, lines

# ---- the pass on texts -------------------------------------------------------------------------------------

READ_BY_A_PRODUCT = """
    %0: 1200 bytes in
    %1: 1200 bytes in
    %3: 900 bytes out
    %2[15, 20] = copy(%0[15, 20] strides [1, 15])
    %3[15, 15] = op mm(%2[15, 20], %1[20, 15])
    """


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            READ_BY_A_PRODUCT,
            """
            %0: 1200 bytes in
            %1: 1200 bytes in
            %3: 900 bytes out
            dead %2[15, 20] = copy(%0[15, 20] strides [1, 15])
            %3[15, 15] = op mm(%0[15, 20] strides [1, 15], %1[20, 15])
            """,
            id="a product takes strides",
        ),
        pytest.param(
            """
            %0: 9600 bytes in
            %1: 38400 bytes in
            %3: 12800 bytes out
            %2[2, 4, 10, 30] = copy(%0[2, 4, 10, 30] strides [1200, 30, 120, 1])
            %3[2, 4, 10, 40] = op matmul(%2[2, 4, 10, 30], %1[2, 4, 30, 40])
            """,
            """
            %0: 9600 bytes in
            %1: 38400 bytes in
            %3: 12800 bytes out
            dead %2[2, 4, 10, 30] = copy(%0[2, 4, 10, 30] strides [1200, 30, 120, 1])
            %3[2, 4, 10, 40] = op matmul(%0[2, 4, 10, 30] strides [1200, 30, 120, 1], %1[2, 4, 30, 40])
            """,
            id="heads of attention",
        ),
        pytest.param(
            """
            %0: 1200 bytes in
            %1: 1200 bytes in
            %3: 1600 bytes out
            %2[15, 20] = copy(%0[15, 20] strides [1, 15])
            %3[20, 20] = node MmBackward0(%2[20, 15] strides [1, 20], %1[15, 20])
            """,
            """
            %0: 1200 bytes in
            %1: 1200 bytes in
            %3: 1600 bytes out
            dead %2[15, 20] = copy(%0[15, 20] strides [1, 15])
            %3[20, 20] = node MmBackward0(%0[20, 15], %1[15, 20])
            """,
            id="backward reads a view of the copy",
        ),
        pytest.param(
            """
            %0: 48 bytes in
            %3: 48 bytes out
            %1[4, 3] = copy(%0[4, 3] strides [1, 4])
            %2[3, 4] = copy(%1[3, 4] strides [1, 3])
            %3[3, 4] = op roll(%2[3, 4])
            """,
            """
            %0: 48 bytes in
            %3: 48 bytes out
            dead %1[4, 3] = copy(%0[4, 3] strides [1, 4])
            dead %2[3, 4] = copy(%0[3, 4])
            %3[3, 4] = op roll(%0[3, 4])
            """,
            id="two copies undo each other",
        ),
        pytest.param(
            """
            %0: 48 bytes in
            %2: 48 bytes out
            %3: 48 bytes out
            %1[4, 3] = copy(%0[4, 3] strides [1, 4])
            %2[3, 4] = copy(%1[3, 4] strides [1, 3])
            %3[4, 3] = exp(%1[4, 3])
            """,
            """
            %0: 48 bytes in
            %2: 48 bytes out
            %3: 48 bytes out
            %1[4, 3] = copy(%0[4, 3] strides [1, 4])
            %2[3, 4] = copy(%0[3, 4])
            %3[4, 3] = exp(%1[4, 3])
            """,
            id="a copy that others read, too, stays",
        ),
    ],
)
def test_the_pass(before, expected):
    assert after("layout", lines(before)) == lines(expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("%3[15, 15] = op", "%0[1] = neg(%1[1])\n%3[15, 15] = op"),  # the original has changed
        ("%3[15, 15] = op", "%2[1] = neg(%1[1])\n%3[15, 15] = op"),  # so has the copy
        ("%3[15, 15] = op", "%4[15, 20] = exp(%2[15, 20])\n%3[15, 15] = op"),  # others read it
        ("%3: 900 bytes out", "%2: 1200 bytes out\n%3: 900 bytes out"),  # others see it
        ("op mm", "op cdist"),
        ("%2[15, 20] =", "%2:float64[15, 20] ="),  # it converts
        ("mm(%2[15, 20], %1[20, 15])", "mm(%2[15, 20], %1[20, 8])"),  # few columns: dot products
        ("mm(%2[15, 20]", "mm(%2[15, 10] offset 10"),  # begins elsewhere
        ("%2[15, 20] = copy", "%2[15, 20] = neg"),
    ],
)
def test_copies_that_stay(old, new):
    assert READ_BY_A_PRODUCT.count(old) == 1
    text = Program.parse(lines(READ_BY_A_PRODUCT.replace(old, new))).text()
    assert after("layout", text) == text


# ---- compiled functions ------------------------------------------------------------------------------------


def compiled(function):
    made = torch.compile(function)
    made.region.adaptive = False
    return made


def check(function, *, copies):
    """Results are eager's on any number of threads, with the pass and without, which drops so many copies."""
    made, off = compiled(function), compiled(function)
    off.region.drops_copies = False
    before = torch.get_num_threads()
    try:
        for n in (1, 2, 4):
            torch.set_num_threads(n)
            expected = function()
            for other in (made, off):
                assert all(same(a, b) for a, b in zip(other(), expected, strict=True))
    finally:
        torch.set_num_threads(before)
    found = made.explain()
    assert (found.copies, off.explain().copies) == (copies, 0)
    assert found.programs[0].after("recorded").count("copy(") >= copies
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(9, 9, 9), (20, 33, 50), (130, 700, 300), (64, 3000, 40), (600, 70, 90)])
def test_products(size, dtype):
    torch.manual_seed(0)
    m, k, n = size
    a, b, r = torch.randn(k, m, dtype=dtype), torch.randn(n, k, dtype=dtype), torch.randn(m, n, dtype=dtype)
    check(lambda: [a.t().contiguous() @ b.t().contiguous()], copies=2)
    check(lambda: [torch.addmm(r, a.t().clone(memory_format=torch.contiguous_format), b.t())], copies=1)
    check(lambda: [F.linear(a.t().contiguous(), b.t().contiguous().t())], copies=2)
    check(lambda: [(a.t().contiguous() @ b.t()).relu() + r], copies=1)  # with its epilogue


@pytest.mark.parametrize("columns", [1, 8])
def test_few_columns_take_dot_products(columns):
    a, b = torch.randn(400, 30), torch.randn(columns, 400)
    check(lambda: [a.t().contiguous() @ b.t()], copies=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_sixteen_bits(dtype):
    a, b = (torch.randn(130, 70).to(dtype) for _ in range(2))
    check(lambda: [(a.t().contiguous() @ b).float()], copies=1)


def test_attention_and_its_backward():
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 24, 3, 16, requires_grad=True) for _ in range(3))

    def step():
        for t in (q, k, v):
            t.grad = None
        heads = [t.transpose(1, 2).contiguous() for t in (q, k, v)]
        scores = (heads[0] @ heads[1].transpose(-2, -1)).softmax(-1)
        y = (scores @ heads[2]).transpose(1, 2).contiguous().view(2, 24, 48)
        y.square().sum().backward()
        return [y, q.grad, k.grad, v.grad]

    check(step, copies=3)


def test_copies_that_undo_each_other():
    x, w = torch.randn(3, 50, 40), torch.randn(40, 20)
    check(lambda: [(x.mT.contiguous().mT.contiguous() + 1).exp()], copies=2)
    check(lambda: [x.mT.contiguous().mT.contiguous()], copies=1)  # the result is a tensor of its own
    check(
        lambda: [x.clone().cumsum(0), x.permute(2, 0, 1).contiguous().permute(1, 2, 0).contiguous().argmax()],
        copies=3,
    )
    images = torch.randn(2, 3, 8, 8)
    check(
        lambda: [images.contiguous(memory_format=torch.channels_last).contiguous().flatten().cumsum(0)],
        copies=2,
    )
    check(lambda: [(x[0].t().contiguous().t().contiguous().relu() @ w)], copies=2)


def test_what_is_written_later():
    x = torch.randn(20, 30)

    def before(y):
        y = y + 0
        t = y.t().contiguous()
        y.add_(1)
        return [t @ y, y]

    def behind(y):
        y = y + 0
        p = y.t().contiguous() @ y
        y.mul_(2)
        return [p, y]

    def onto_itself(y):
        y = y[:, :20] + 0
        y.copy_(y.t().contiguous())
        return [y]

    check(lambda: before(x), copies=0)
    check(lambda: behind(x), copies=1)
    check(lambda: onto_itself(x), copies=0)


def test_other_arguments_of_the_same_form():
    f = compiled(lambda a, b: a.t().contiguous() @ b)
    for seed in range(3):
        torch.manual_seed(seed)
        a, b = torch.randn(30, 20), torch.randn(30, 40)
        assert same(f(a, b), a.t().contiguous() @ b)
        assert same(f(torch.randn(40, 20)[5:35].copy_(a), b), a.t().contiguous() @ b)  # begins elsewhere
    assert f.explain().copies == f.explain().graph_count


def test_random_layouts(pytestconfig):
    dropped = 0
    for seed in range(pytestconfig.getoption("--programs") // 4):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        sizes = [rng.choice((1, 2, 9, 12, 20)) for _ in range(4)]
        x = torch.randn(*sizes).requires_grad_(rng.random() < 0.5)
        w = torch.randn(rng.choice((4, 12, 16)), sizes[rng.randrange(4)])

        def program(rng=rng, x=x, w=w, seed=seed):
            rng.seed(seed)
            x.grad = None
            live = [x * 1]
            for _ in range(10):
                t = rng.choice(live)
                kind = rng.randrange(6)
                if kind < 3:
                    live.append(t.permute(rng.sample(range(4), 4)).contiguous())
                elif kind == 3:
                    live.append(t.mT @ t if rng.random() < 0.7 else t @ t.mT.contiguous())
                elif kind == 4 and t.shape[-1] == w.shape[1]:
                    live.append(F.linear(t, w.t().contiguous().t()))
                elif x.requires_grad:
                    live.append(t.relu())
                else:
                    rng.choice(live).add_(1.0)
            if x.requires_grad:
                torch.stack([t.square().mean() for t in live[-3:]]).sum().backward()
            return [*live[-3:], *([x.grad] if x.grad is not None else [])]

        made = compiled(program)
        for a, b in itertools.islice(zip(program(), made(), strict=True), 4):
            assert same(a.detach(), b.detach()), seed
        dropped += made.explain().copies
    assert dropped > 10
