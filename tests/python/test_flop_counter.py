"""FlopCounterMode: counts against PyTorch's of the same calls, a GPT against a formula, what counts when."""

from __future__ import annotations

import importlib
from types import ModuleType

import pytest
import warptape as torch
import warptape.nn.functional as F
from tensor_models import train_gpt
from warptape import nn
from warptape.utils.checkpoint import checkpoint
from warptape.utils.flop_counter import FlopCounterMode, flop_registry, register_flop_formula
from warptape.utils.op_observer import OpObserver


def leaf(rt, *shape):
    return rt.ones(*shape, requires_grad=True)


# (name, call, FLOPs of the forward pass, of both): what PyTorch 2.13 counts, where it counts.
ROWS = [
    ("mm", lambda rt, r: r(2, 3) @ r(3, 4), 48, 144),
    ("mm, one gradient", lambda rt, r: rt.mm(rt.ones(2, 3), r(3, 4)), 48, 96),
    ("addmm", lambda rt, r: rt.addmm(r(4), r(2, 3), r(3, 4)), 48, 144),
    ("addmm, other gradients", lambda rt, r: rt.addmm(r(4), rt.ones(2, 3), rt.ones(3, 4)), 48, 48),
    ("bmm", lambda rt, r: rt.bmm(r(5, 2, 3), r(5, 3, 4)), 240, 720),
    ("baddbmm", lambda rt, r: rt.baddbmm(r(5, 2, 4), r(5, 2, 3), r(5, 3, 4)), 240, 720),
    ("broadcast", lambda rt, r: rt.matmul(r(5, 2, 3), r(3, 4)), 240, 720),
    ("vector", lambda rt, r: rt.matmul(r(3), r(3, 4)), 24, 72),
    ("linear", lambda rt, r: rt.nn.functional.linear(r(5, 2, 3), bias=r(4), weight=r(4, 3)), 240, 720),
    ("einsum", lambda rt, r: rt.einsum("bij,bjk->bik", r(5, 2, 3), r(5, 3, 4)), 240, 720),
    ("einsum ...", lambda rt, r: rt.einsum("...ij,jk", r(5, 2, 3), r(3, 4)), 240, 720),
    ("tensordot", lambda rt, r: rt.tensordot(r(2, 3, 5), r(5, 3, 4), dims=([1, 2], [1, 0])), 240, 720),
    ("conv1d", lambda rt, r: rt.nn.functional.conv1d(r(2, 4, 9), r(6, 4, 3), r(6)), 2016, 6048),
    (
        "conv2d",
        lambda rt, r: rt.nn.functional.conv2d(r(2, 4, 9, 9), r(6, 4, 3, 3), r(6), stride=2, padding=1),
        21600,
        64800,
    ),
    (
        "conv2d of data",
        lambda rt, r: rt.nn.functional.conv2d(rt.ones(2, 4, 9, 9), r(6, 4, 3, 3), stride=2),
        13824,
        27648,
    ),
    ("conv3d", lambda rt, r: rt.nn.functional.conv3d(r(2, 4, 5, 5, 5), r(6, 4, 3, 3, 3)), 69984, 209952),
    ("transposed 1d", lambda rt, r: rt.nn.functional.conv_transpose1d(r(2, 4, 9), r(4, 6, 3)), 2592, 7776),
    (
        "transposed 2d",
        lambda rt, r: rt.nn.functional.conv_transpose2d(r(2, 4, 9, 9), r(4, 6, 3, 3), stride=2),
        69984,
        209952,
    ),
    (
        "attention",  # PyTorch's of other widths of keys and values: two products, which are not fused
        lambda rt, r: rt.nn.functional.scaled_dot_product_attention(
            r(2, 3, 5, 8), r(2, 3, 7, 8), r(2, 3, 7, 6)
        ),
        5880,
        17640,
    ),
    (
        "multi-head",
        lambda rt, r: rt.nn.MultiheadAttention(8, 2)(r(5, 3, 8), r(6, 3, 8), r(6, 3, 8))[0],
        11328,
        33984,
    ),
]


def total(counter, recompute=True):
    counts = counter.get_flop_counts().get("Global", {})
    return sum(n for name, n in counts.items() if recompute or not str(name).endswith("_recompute"))


def counts(rt, call, counter_type, *, backward):
    with counter_type(display=False) as counter:
        y = call(rt, lambda *shape: leaf(rt, *shape))
        if backward:
            y.sum().backward()
    return total(counter, recompute=False)


@pytest.mark.parametrize(("name", "call", "forward", "both"), ROWS, ids=[row[0] for row in ROWS])
def test_counts_are_pytorchs(name, call, forward, both):
    assert counts(torch, call, FlopCounterMode, backward=False) == forward
    assert counts(torch, call, FlopCounterMode, backward=True) == both


@pytest.mark.parity
@pytest.mark.parametrize(("name", "call", "forward", "both"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_is_pytorchs(name, call, forward, both):
    peer: ModuleType = importlib.import_module("torch")
    mode = importlib.import_module("torch.utils.flop_counter").FlopCounterMode
    assert counts(peer, call, mode, backward=False) == forward
    assert counts(peer, call, mode, backward=True) == both


def test_what_pytorch_does_not_count_or_counts_otherwise():
    def r(*shape):
        return leaf(torch, *shape)

    with FlopCounterMode(display=False) as counter:
        F.conv1d(r(2, 4, 9), r(6, 2, 3), groups=2).sum().backward()
    # PyTorch's formula of the weight's gradient takes no note of groups.
    assert counter.get_flop_counts()["Global"] == {"conv1d": 1008, "conv1d_backward": 2016}
    with FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(r(2, 3, 5, 8), r(2, 3, 7, 8), torch.ones(2, 3, 7, 8)).sum().backward()
    pairs = 2 * 2 * 3 * 5 * 7
    want = {"": 16 * pairs, "_backward": (8 + 8 + 8) * pairs, "_recompute": 8 * pairs}
    assert counter.get_flop_counts()["Global"] == {
        f"scaled_dot_product_attention{k}": n for k, n in want.items()
    }
    with FlopCounterMode(display=False) as counter:
        F.scaled_dot_product_attention(
            torch.ones(2, 3, 5, 8), torch.ones(2, 3, 7, 8), r(2, 3, 7, 8)
        ).sum().backward()
    assert counter.get_flop_counts()["Global"]["scaled_dot_product_attention_backward"] == 8 * pairs
    with FlopCounterMode(display=False) as counter:
        torch.nn.LSTM(3, 4)(torch.ones(5, 2, 3))
        F.bilinear(torch.ones(5, 3), torch.ones(5, 4), torch.ones(6, 3, 4))
        torch.mv(torch.ones(5, 3), torch.ones(3))
        torch.ones(2, 4).addmm_(torch.ones(2, 3), torch.ones(3, 4))
        torch.einsum("ab,bc,cd->ad", torch.ones(2, 3), torch.ones(3, 4), torch.ones(4, 5))
        torch.einsum("ii->i", torch.ones(3, 3))
        torch.einsum("ab,cd->cd", torch.ones(2, 3), torch.ones(4, 5))
    assert counter.get_flop_counts()["Global"] == {
        "recurrent_layer": 2 * 10 * 16 * (3 + 4),
        "bilinear": 2 * 5 * 6 * (3 + 1) * 4,
        "mv": 30,
        "addmm": 48,
        "einsum": 2 * 2 * 3 * 4 + 2 * 2 * 4 * 5 + 2 * 4 * 5,
    }


def test_a_gpt_takes_6n_and_12lht_per_token():
    """PaLM (2022), appendix B: 6 for each parameter in a product, forward and backward, and 12 L H Q T of
    attention; without the scores that attention computes again."""
    layers, width, block, batch = 2, 128, 32, 2
    model = train_gpt.GPT(layers, 2, width, block)
    tokens = torch.zeros(batch, block, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        model(tokens).sum().backward()
    per_token = total(counter, recompute=False) / tokens.numel()
    products = 12 * layers * width**2 + train_gpt.VOCABULARY * width
    assert per_token == 6 * products + 12 * layers * width * block
    # N is all parameters but the embeddings; of these the head's product has the tokens'.
    n = sum(p.numel() for p in model.parameters()) - model.positions.weight.numel()
    assert per_token == pytest.approx(6 * n + 12 * layers * width * block, rel=0.01)
    again = counter.get_flop_counts()["Global"]["scaled_dot_product_attention_recompute"]
    assert again == 2 * layers * width * block * tokens.numel()
    blocks = [counter.get_flop_counts()[f"GPT.layers.{i}"] for i in range(layers)]
    assert blocks[0] == blocks[1]
    assert sum(blocks[0].values()) == 6 * 12 * width**2 * 64 + 14 * width * block * 64


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.rest = nn.Linear(3, 4), nn.Sequential(nn.ReLU(), nn.Linear(4, 5))

    def forward(self, x):
        return self.rest(self.first(x))


def test_gradients_count_for_the_modules_that_called():
    with FlopCounterMode(display=False) as counter:
        Net()(torch.ones(2, 3)).sum().backward()
    found = counter.get_flop_counts()
    assert found["Net.first"] == {"linear": 48, "linear_backward": 48}  # the data wants none
    assert found["Net.rest"] == found["Net.rest.1"] == {"linear": 80, "linear_backward": 160}
    assert found["Net"] == found["Global"] == {"linear": 128, "linear_backward": 208}
    assert counter.get_total_flops() == 336


def test_table(capsys):
    with FlopCounterMode() as counter:
        Net()(torch.ones(2, 3))
    shown = capsys.readouterr().out
    assert [line.split() for line in shown.splitlines()] == [
        ["Module", "FLOP", "%", "Total"],
        ["Net", "128", "100.00%"],
        ["-", "linear", "128", "100.00%"],
        ["Net.first", "48", "37.50%"],
        ["-", "linear", "48", "37.50%"],
        ["Net.rest", "80", "62.50%"],
        ["-", "linear", "80", "62.50%"],
    ]
    assert len(counter.get_table(depth=1).splitlines()) == 3
    assert "Net.rest.1" not in shown and "Net.rest.1" in counter.get_table(depth=3)
    with FlopCounterMode(display=False) as counter:
        Net()(torch.ones(2, 3))
        torch.ones(1000, 1000) @ torch.ones(1000)
    assert counter.get_table().splitlines()[1].split() == ["Global", "2.000M", "100.00%"]
    assert FlopCounterMode(display=False).get_table().splitlines()[1].split() == ["Global", "0", "0.00%"]


def linear_counts(f):
    with FlopCounterMode(display=False) as counter:
        f()
    found = counter.get_flop_counts().get("Global", {})
    return found.get("linear", 0), found.get("linear_backward", 0)


def test_what_runs_again_counts_again():
    x, w = leaf(torch, 2, 3), leaf(torch, 4, 3)

    def twice():
        y = F.linear(x, w).sum()
        y.backward(retain_graph=True)
        torch.autograd.grad(y, [x, w])

    assert linear_counts(twice) == (48, 2 * 96)


@pytest.mark.parametrize("reentrant", [True, False])
def test_what_a_checkpoint_computes_again_counts_again(reentrant):
    x, w = leaf(torch, 2, 3), leaf(torch, 4, 3)

    def layer(x, w):  # what is computed again ends with what exp saves
        return F.linear(x, w).exp()

    def run():
        checkpoint(layer, x, w, use_reentrant=reentrant).sum().backward()

    assert linear_counts(run) == (2 * 48, 96)


def test_only_what_runs_inside_counts():
    x, w = leaf(torch, 2, 3), leaf(torch, 4, 3)
    before = F.linear(x, w).sum()
    assert linear_counts(before.backward) == (0, 0)
    with FlopCounterMode(display=False) as counter:
        y = F.linear(x, w).sum()
    y.backward()
    assert counter.get_flop_counts()["Global"] == {"linear": 48}
    with FlopCounterMode(display=False) as counter:
        y = F.linear(x, w).sum()
    with counter:
        y.backward()  # of the first time
    assert counter.get_total_flops() == 0


class Nodes(OpObserver):
    def __enter__(self):
        self.seen = []
        return super().__enter__()

    def before_backward(self, call, node, first, gradients):
        self.seen.append((call.name, node))


def test_each_node_belongs_to_the_call_that_recorded_it():
    """Also where in-place ops on views move what was recorded before them."""
    y = F.linear(leaf(torch, 2, 3), leaf(torch, 4, 3))
    with Nodes() as nodes:
        z = F.linear(y, leaf(torch, 5, 4))
        z[0].mul_(2)
        z[:, 1] = 3
        z.sum().backward()
    assert nodes.seen.count(("linear", "LinearBackward0")) == 1
    assert [name for name, node in nodes.seen if node == "LinearBackward0"] == ["linear"]
    assert {"sum", "__setitem__", "mul"} <= {name for name, _ in nodes.seen}


@pytest.mark.parametrize("backward", [torch.autograd.backward, torch.Tensor.backward])
def test_a_backward_that_breaks_off_leaves_the_count_right(backward):
    x, w = leaf(torch, 2, 3), leaf(torch, 4, 3)

    def run():
        y = F.linear(x, w).sum()
        handle = x.register_hook(lambda g: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            backward(y, retain_graph=True)
        handle.remove()
        backward(y)
        with pytest.raises(ValueError):
            F.linear(x, torch.ones(3, 4))

    assert linear_counts(run) == (48, 2 * 96)


def test_a_module_that_raises_leaves_the_place():
    class Broken(nn.Module):
        def forward(self, x):
            raise KeyError("planted")

    with FlopCounterMode(display=False) as counter:
        with pytest.raises(KeyError):
            Broken()(torch.ones(1))
        nn.Linear(2, 2)(torch.ones(2))
    assert set(counter.get_flop_counts()) == {"Global", "Linear"}


def test_formulas_of_ones_own():
    mapping = {
        F.softmax: lambda x, dim, out_shape=None: 3 * x.numel() + out_shape[0],
        torch.ops.aten.mm: lambda *_, **__: 7,
    }
    with FlopCounterMode(display=False, custom_mapping=mapping) as counter:
        F.softmax(leaf(torch, 4, 5), -1).sum().backward()
        torch.mm(torch.ones(2, 2), torch.ones(2, 2))
        torch.ones(2, 2).mm(torch.ones(2, 2))
    assert counter.get_flop_counts()["Global"] == {"softmax": 64, "mm": 14}


def test_registered_formulas():
    @torch.library.custom_op("flops::scaled", mutates_args=())
    def scaled(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (x @ w) * 2

    with FlopCounterMode(display=False) as counter:
        scaled(torch.ones(2, 3), torch.ones(3, 4))
    assert counter.get_flop_counts()["Global"] == {"matmul": 48}
    before = dict(flop_registry)
    try:

        @register_flop_formula([torch.ops.flops.scaled, F.gelu], get_raw=True)
        def formula(x, *more, out_val=None, **_):
            return x.numel() + out_val.numel()

        with FlopCounterMode(display=False) as counter:
            torch.ops.flops.scaled(torch.ones(2, 3), torch.ones(3, 4))
            scaled(torch.ones(2, 3), torch.ones(3, 4))
            F.gelu(torch.ones(3))
        assert counter.get_flop_counts()["Global"] == {"scaled": 28, "gelu": 6}
        with pytest.raises(RuntimeError, match="has a formula already"):
            register_flop_formula(F.gelu)
    finally:
        flop_registry.clear()
        flop_registry.update(before)
    with pytest.raises(ValueError, match="expected functions, or ops"):
        register_flop_formula("gelu")


def test_old_argument_warns():
    with pytest.warns(UserWarning, match="mods argument is not needed"):
        FlopCounterMode(Net(), display=False)
