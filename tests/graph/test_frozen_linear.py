"""Linear layers of frozen graphs: their weights are packed once, and every bit stays eager code's."""

from __future__ import annotations

import io

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._graphs import record

FREEZE = {"freeze": True, "gradients": False}


def frozen(function, *args):
    with torch.no_grad():
        return record(function, args).optimised(**FREEZE)[0]


def held():
    return torch._C._memory_stats()["allocated_bytes"]


def check(function, made, *args):
    """The same bits with any number of threads."""
    threads = torch.get_num_threads()
    try:
        for n in (1, 2, 8):
            torch.set_num_threads(n)
            with torch.no_grad():
                assert torch.equal(made(*args), function(*args))
    finally:
        torch.set_num_threads(threads)


ROWS = (0, 1, 8, 9, 12, 111, 128, 257, 520)


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 9), (7, 17), (255, 64), (400, 100), (1024, 65), (770, 200), (64, 8), (0, 12)]
)
def test_sizes(inputs, outputs, dtype):
    torch.manual_seed(inputs)
    layer = nn.Linear(inputs, outputs, bias=outputs % 2 == 0, dtype=getattr(torch, dtype))
    made = frozen(layer, torch.randn(12, inputs).to(layer.weight.dtype))
    for rows in ROWS if inputs * outputs > 20000 and dtype == "float32" else (0, 8, 12, 130):
        # A graph of fixed sizes takes its own number of rows alone.
        made = frozen(layer, torch.randn(rows, inputs).to(layer.weight.dtype))
        check(layer, made, torch.randn(rows, inputs).to(layer.weight.dtype))


def test_many_columns_and_rows_that_are_not_read_in_place():
    """A's rows 4,096 bytes apart are packed once for all tasks; several tasks down and across."""
    torch.manual_seed(0)
    layer = nn.Linear(1024, 900)
    x = torch.randn(300, 1024)
    check(layer, frozen(layer, x), x)
    want = x.double() @ layer.weight.double().t() + layer.bias.double()
    with torch.no_grad():
        torch.testing.assert_close(frozen(layer, x)(x).double(), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("how", ["1d", "4d", "transposed", "expanded", "sliced", "batch"])
def test_inputs_of_any_layout(how):
    torch.manual_seed(1)
    layer = nn.Linear(300, 48)
    x = {
        "1d": lambda: torch.randn(300),
        "4d": lambda: torch.randn(2, 3, 5, 300),
        "transposed": lambda: torch.randn(300, 40).t(),
        "expanded": lambda: torch.randn(1, 300).expand(20, 300),
        "sliced": lambda: torch.randn(20, 301)[:, 1:],
        "batch": lambda: torch.randn(4, 10, 300).transpose(0, 1),
    }[how]()
    check(layer, frozen(layer, x), x)


@pytest.mark.parametrize("how", ["transposed", "rows", "columns", "expanded"])
def test_weights_of_any_layout(how):
    torch.manual_seed(2)
    base = torch.randn(70, 400)
    w = {
        "transposed": lambda: base.t(),
        "rows": lambda: base[3:60],
        "columns": lambda: base[:, 5:300],
        "expanded": lambda: base[:1].expand(40, 400),
    }[how]()

    def function(x):
        return F.linear(x, w)

    x = torch.randn(33, w.shape[1])
    check(function, frozen(function, x), x)


def packed_bytes(function, x):
    before = held()
    made = frozen(function, x)
    made(x)
    after = held()
    del made
    return after - before


def test_what_is_packed():
    """Once, also where layers share a weight; not for few rows, few columns or narrow floats."""
    torch.manual_seed(3)
    w = torch.randn(512, 512)
    size = w.numel() * 4

    def twice(x):
        return F.linear(F.linear(x, w), w)

    x = torch.randn(64, 512)
    assert size <= packed_bytes(twice, x) < 1.5 * size
    assert packed_bytes(twice, x[:8]) < size / 2
    assert packed_bytes(lambda x: F.linear(x, w[:8]), x) < size / 2
    half = w.half()
    assert packed_bytes(lambda x: F.linear(x, half), x.half()) < size / 2


def test_a_weight_that_its_owner_writes_is_read_anew():
    torch.manual_seed(4)
    layer, x = nn.Linear(300, 64), torch.randn(40, 300)
    made = frozen(layer, x)
    check(layer, made, x)
    with torch.no_grad():
        layer.weight.mul_(2)
    check(layer, made, x)
    check(layer, frozen(layer, x), x)
    layer.weight.detach().numpy()[:] = 0.5  # of which no version tells
    check(layer, made, x)
    check(layer, frozen(layer, x), x)


def test_memory_of_others_is_not_packed():
    array = np.random.default_rng(0).standard_normal((64, 300)).astype(np.float32)
    w = torch.from_numpy(array)

    def function(x):
        return F.linear(x, w)

    x = torch.randn(40, 300)
    made = frozen(function, x)
    check(function, made, x)
    array *= 3
    check(function, made, x)


def test_a_weight_that_the_graph_writes():
    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("weight", torch.ones(32, 40))

        def forward(self, x):
            y = F.linear(x, self.weight)
            self.weight.add_(1)
            return y + F.linear(x, self.weight)

    model, x = Written(), torch.randn(16, 40)
    made = frozen(model, x)
    start = model.weight.clone()
    with torch.no_grad():
        got = [made(x), made(x)]
        model.weight.copy_(start)
        assert all(torch.equal(a, model(x)) for a in got)


def test_gradients_and_autocast():
    torch.manual_seed(5)
    layer, x = nn.Linear(256, 64).requires_grad_(False), torch.randn(40, 256)
    made = frozen(layer, x)
    a, b = x.clone().requires_grad_(), x.clone().requires_grad_()
    for t, f in ((a, made), (b, layer)):
        f(t).square().sum().backward()
    assert torch.equal(a.grad, b.grad)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        got, want = made(x), layer(x)
    assert got.dtype == want.dtype
    assert torch.equal(got, want)


def test_a_transformer_layer_frozen_saved_and_loaded():
    torch.manual_seed(6)
    model = nn.TransformerEncoderLayer(64, 4, 256, batch_first=True, activation="gelu").eval()
    x = torch.randn(2, 24, 64)
    traced = torch.jit.trace(model, (x,))
    made = torch.jit.optimize_for_inference(traced)
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    again = torch.jit.load(file)
    check(model, made, x)
    check(model, again, x)
