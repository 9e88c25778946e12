"""Convolutions of frozen graphs: channels innermost, addition and ReLU in the call, packed weights."""

from __future__ import annotations

import io
import random

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._graphs import record

FUSE = {"freeze": True, "gradients": False, "fuse_frozen_conv_add_relu": True}
LAST = FUSE | {"channels_last": True}


def optimised(function, *args, **options):
    with torch.no_grad():
        return record(function, args).optimised(**options)


def calls(made):
    return [name for name in made.graph.text().replace("#", " ").split() if name in NAMES]


NAMES = ("conv2d", "_conv2d_add_relu", "add", "add_", "relu", "relu_", "contiguous", "mul", "mul_")


class Block(nn.Module):
    """relu(conv(relu(conv(x))) + x), or its input by a convolution, as it is written in several ways."""

    def __init__(self, wide, out, stride, way):
        super().__init__()
        self.one, self.two = nn.Conv2d(wide, out, 3, stride, 1), nn.Conv2d(out, out, 3, 1, 1, bias=False)
        self.down = nn.Conv2d(wide, out, 1, stride) if stride != 1 or wide != out else nn.Identity()
        self.way = way

    def forward(self, x):
        y = self.two(F.relu(self.one(x), inplace=self.way % 2 == 0))
        if self.way < 2:
            y += self.down(x)
            return y.relu_()
        if self.way == 2:
            return (self.down(x) + y).relu()
        return F.relu(torch.add(y, self.down(x)))


@pytest.mark.parametrize("way", range(4))
@pytest.mark.parametrize("sizes", [(3, 16, 2, 9), (16, 16, 1, 7), (8, 24, 1, 40), (32, 64, 2, 6)])
def test_blocks(sizes, way):
    wide, out, stride, side = sizes
    torch.manual_seed(way)
    model, x = Block(wide, out, stride, way).eval(), torch.randn(2, wide, side, side)
    threads = torch.get_num_threads()
    for options in (FUSE, LAST):
        plain, _ = optimised(model, x, **(options | {"fuse_frozen_conv_add_relu": False}))
        made, counts = optimised(model, x, **options)
        assert counts["fuse_frozen_conv_add_relu"] == 3
        names = calls(made)
        assert not {"add", "add_", "relu", "relu_"} & set(names) and "_conv2d_add_relu" in names
        try:
            for n in (1, 2, 4):
                torch.set_num_threads(n)
                with torch.no_grad():
                    got, want, eager = made(x), plain(x), model(x)
                assert torch.equal(got, want)
                assert got.stride() == eager.stride()
                torch.testing.assert_close(got, eager, rtol=1e-5, atol=1e-5)
        finally:
            torch.set_num_threads(threads)
        assert (options is LAST) or torch.equal(got, eager)


def test_gradients_of_the_input_and_other_dtypes():
    model, x = Block(8, 8, 1, 3), torch.randn(1, 8, 6, 6)
    made, _ = optimised(model, x, **FUSE)
    for grad in (made, model):
        a = x.clone().requires_grad_()
        grad(a).square().sum().backward()
        if grad is made:
            found = a.grad
    assert torch.equal(found, a.grad)
    for dtype in (torch.float64, torch.bfloat16):
        model = model.to(dtype)
        made, counts = optimised(model, x.to(dtype), **FUSE)
        assert counts["fuse_frozen_conv_add_relu"] == (3 if dtype == torch.float64 else 0)
        with torch.no_grad():
            assert torch.equal(made(x.to(dtype)).float(), model(x.to(dtype)).float())


class Hazards(nn.Module):
    """What lies between a convolution and its ReLU is read or written by others."""

    def __init__(self, kind):
        super().__init__()
        self.conv, self.kind = nn.Conv2d(4, 4, 3, 1, 1), kind

    def forward(self, x):
        x = x * 1.5
        y = self.conv(x)
        if self.kind == "read":
            return F.relu(y), y
        if self.kind == "view":
            seen = y.view(-1)
            y.relu_()
            return (seen,)
        if self.kind == "written input":
            x.mul_(2)
            return F.relu(y), x
        if self.kind == "written residual":
            z = y + x
            x.mul_(2)
            return F.relu(z), x
        if self.kind == "onto the residual":
            r = x.exp()
            r += y
            return r, r.relu()
        if self.kind == "broadcast":
            return (F.relu(y + x[:, :, :1]),)
        if self.kind == "alpha":
            return (torch.add(y, x, alpha=2).relu(),)
        return (F.relu(y + y),)


@pytest.mark.parametrize(
    "kind",
    [
        "read",
        "view",
        "written input",
        "written residual",
        "onto the residual",
        "broadcast",
        "alpha",
        "itself",
    ],
)
@pytest.mark.parametrize("options", [FUSE, LAST], ids=["fuse", "channels last"])
def test_what_others_see_stays(kind, options):
    torch.manual_seed(0)
    model, x = Hazards(kind).eval(), torch.randn(2, 4, 9, 9)
    made, counts = optimised(model, x, **options)
    with torch.no_grad():
        for got, want in zip(made(x), model(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-5, atol=1e-5)
            assert got.stride() == want.stride()
            assert options is LAST or torch.equal(got, want)
    assert counts["fuse_frozen_conv_add_relu"] == (kind == "written residual")


def test_random_networks(pytestconfig):
    """Convolutions, pools, views and in-place updates in any order, against the graph without the passes."""

    def network(seed):
        rng = random.Random(seed)
        torch.manual_seed(seed)
        width = rng.choice((4, 8, 16))
        convs = [nn.Conv2d(width, width, k, 1, k // 2, groups=g) for k in (1, 3) for g in (1, width)]
        plan = [rng.randrange(9) for _ in range(10)]
        picks = [rng.random() for _ in range(40)]

        def forward(x):
            seen, pick = [x], iter(picks)
            for kind in plan:
                a, b = (seen[int(next(pick) * len(seen))] for _ in range(2))
                if kind < 3:
                    seen.append(convs[int(next(pick) * 4)](a))
                elif kind == 3:
                    seen.append(F.relu(a))
                elif kind == 4:
                    seen.append(a + b)
                elif kind == 5 and a is not x:
                    a.relu_()
                elif kind == 6 and a is not x:
                    a += b
                elif kind == 7:
                    seen.append(F.max_pool2d(a, 3, 1, 1))
                else:
                    seen.append(a.reshape(a.shape[0], -1).view(a.shape) if a.is_contiguous() else a * 1)
            return seen[1:]

        return forward, torch.randn(2, width, 6, 6)

    changed = 0
    for seed in range(pytestconfig.getoption("--programs") // 2):
        forward, x = network(seed)
        with torch.no_grad():
            want = forward(x.clone())
        for options in (FUSE, LAST):
            made, counts = optimised(forward, x.clone(), **options)
            changed += counts["fuse_frozen_conv_add_relu"] + counts["channels_last"]
            with torch.no_grad():
                for a, b in zip(made(x.clone()), want, strict=True):
                    assert a.stride() == b.stride(), seed
                    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4)
                    assert options is LAST or torch.equal(a, b), seed
    assert changed > pytestconfig.getoption("--programs") // 4


def test_frozen_modules_and_files():
    model, x = nn.Sequential(Block(16, 16, 1, 0), nn.Flatten()).eval(), torch.randn(1, 16, 8, 8)
    frozen = torch.jit.freeze(torch.jit.trace(model, x))
    assert frozen.pass_counts["fuse_frozen_conv_add_relu"] == 3 and frozen.pass_counts["channels_last"] == 0
    assert torch.equal(frozen(x), model(x))
    torch.jit.optimize_for_inference(frozen)
    assert frozen.pass_counts["channels_last"] == 2
    torch.testing.assert_close(frozen(x), model(x), rtol=1e-5, atol=1e-5)
    file = io.BytesIO()
    torch.jit.save(frozen, file)
    file.seek(0)
    with torch.no_grad():
        assert torch.equal(torch.jit.load(file)(x), frozen(x))  # whose weights are packed when it is loaded
