"""The same programs traced here and in PyTorch: the nodes of both graphs, and their code."""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from typing import Any

import pytest
import warptape

pytestmark = pytest.mark.parity
Make = Callable[[Any], Any]


def mlp(rt: Any) -> Any:
    nn = rt.nn
    return nn.Sequential(
        nn.Linear(4, 8), nn.GELU(), nn.Dropout(0.1), nn.Sequential(nn.Linear(8, 2), nn.Softmax(-1))
    )


def residual(rt: Any) -> Any:
    nn = rt.nn

    class Block(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv2d(3, 3, 3, padding=1), nn.Conv2d(3, 3, 1)
            self.bn1, self.bn2 = nn.BatchNorm2d(3), nn.BatchNorm2d(3)

        def forward(self, x):  # type: ignore[no-untyped-def]
            out = rt.relu(self.bn1(self.conv1(x)))
            out = self.bn2(self.conv2(out))
            out += x
            return rt.flatten(rt.relu(out).mean(dim=(2, 3), keepdim=True), 1)

    return nn.Sequential(Block(), Block())


def transformer(rt: Any) -> Any:
    nn, F = rt.nn, rt.nn.functional

    class Layer(nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.qkv, self.out = nn.LayerNorm(8), nn.Linear(8, 24), nn.Linear(8, 8)
            self.mlp = nn.Sequential(nn.Linear(8, 8), nn.GELU())
            self.scale = nn.Parameter(rt.ones(8))
            self.register_buffer("mask", rt.ones(4, 4))

        def forward(self, x, mask=None):  # type: ignore[no-untyped-def]
            b, n, c = x.shape
            q, k, v = self.qkv(self.norm(x)).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 1, 4).unbind(0)
            att = (q @ k.transpose(-2, -1)) * (c // 2) ** -0.5
            att = att.masked_fill(self.mask == 0, float("-inf"))
            att = F.softmax(att, dim=-1)
            x = x + self.out((att @ v).transpose(1, 2).reshape(b, n, c))
            return x + self.mlp(x) * self.scale, F.linear(x, self.scale)

    return Layer()


def arguments(rt: Any) -> Any:
    def f(x, y=2, *args, flag=True, **kw):  # type: ignore[no-untyped-def]
        z = rt.cat([x, args[0]], dim=kw["dim"])
        return {"z": [z[..., None, 1:], (y,)], "dtype": z.to(rt.float16), "s": slice(None, z.size(0))}

    return f


def operators(rt: Any) -> Any:
    def f(x, y):  # type: ignore[no-untyped-def]
        z = -x + 1 - y * 2 / x // 3 % 4
        z = abs(z) ** 2 @ y.T
        z = (z > 0) & (x < y) | (x == y) ^ ~(x != y)
        return 1 - z, 2 / z, 2**z, z << 1, z >> 1, rt.ones(2) + x, rt.ones(2) @ y, x[0], +z

    return f


def functions(rt: Any) -> Any:
    F = rt.nn.functional

    def f(x, y):  # type: ignore[no-untyped-def]
        a = F.scaled_dot_product_attention(x, y, y)
        b = rt.linalg.norm(rt.fft.fft(a)) + rt.special.erf(y)
        c = F.one_hot(y).to("cpu").unsqueeze(0).type_as(x)
        d = rt.add(x, y).view(x.shape[0], -1)
        e = rt.einsum("ij,jk->ik", x, y) + rt.where(x > 0, x, y).max(dim=0)[0]
        rt._assert(x.shape[0] == 2, "two")
        return rt.stack([a, b, c, d, e]), rt.zeros_like(x).fill_(3), F.gelu(x), rt.split(x, 2), rt.arange(3)

    return f


def tensors(rt: Any) -> Any:
    class Holds(rt.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.plain = rt.ones(2)
            self.register_buffer("buffer", rt.ones(2))
            self.lin = rt.nn.Linear(2, 2)

        def forward(self, x):  # type: ignore[no-untyped-def]
            x = x + self.plain + self.plain + rt.ones(2) + self.buffer
            return self.lin(x) + self.lin.weight + self.lin.weight

    return Holds()


def names(rt: Any) -> Any:
    def f(input, max, self_):  # type: ignore[no-untyped-def]
        a = input.relu().relu().relu_().sum().max()
        return a.float().type(rt.int64).abs().pow(2), max.view(-1), self_.T.shape

    return f


CASES: list[Make] = [mlp, residual, transformer, arguments, operators, functions, tensors, names]
SAME_CODE = {mlp, residual, arguments, operators, tensors, names}  # others call functions by other paths


def pattern(rt: Any) -> tuple[Any, Any]:
    return lambda x: rt.neg(x), lambda x: rt.sub(0, x)


def target(node: Any) -> str:
    if isinstance(node.target, str):
        return node.target
    name = node._pretty_print_target(node.target)
    name = re.sub(r"torch\._C\._nn\.", "torch.nn.functional.", name)
    name = re.sub(r"torch\._C\._(linalg|fft|special)\.\1_", r"torch.\1.", name)
    return name.replace("torch.functional.", "torch.").replace("_VariableFunctionsClass.", "")


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_the_nodes_are_pytorchs(make: Make) -> None:
    torch = importlib.import_module("torch")
    importlib.import_module("torch.fx")
    ours, theirs = (rt.fx.symbolic_trace(make(rt)) for rt in (warptape, torch))
    rows = [[(n.op, n.name, target(n)) for n in traced.graph.nodes] for traced in (ours, theirs)]
    assert rows[0] == rows[1]
    if make in SAME_CODE:
        assert ours.code.replace(" : typing_Any", "").replace(" -> typing_Any", "") == theirs.code


@pytest.mark.parametrize("make", [mlp, residual, tensors], ids=lambda make: make.__name__)
def test_edited_graphs_are_pytorchs(make: Make) -> None:
    torch = importlib.import_module("torch")
    importlib.import_module("torch.fx")
    codes = []
    for rt in (warptape, torch):
        traced = rt.fx.symbolic_trace(make(rt))
        for node in list(traced.graph.nodes):
            if node.op == "call_module":
                with traced.graph.inserting_after(node):
                    new = traced.graph.call_function(rt.neg, (node,))
                node.replace_all_uses_with(new, lambda user, new=new: user is not new)
        traced.graph.eliminate_dead_code()
        rt.fx.replace_pattern(traced, *pattern(rt))
        codes.append(rt.fx.Transformer(traced).transform().code)
    assert codes[0].replace(" : typing_Any", "").replace(" -> typing_Any", "") == codes[1]


def test_concrete_arguments_are_pytorchs() -> None:
    torch = importlib.import_module("torch")
    importlib.import_module("torch.fx")
    codes = []
    for rt in (warptape, torch):
        given = {"b": True, "c": {"d": rt.fx.PH}, "e": None}
        program = lambda x, b, c, e: [x if b and e is None else -x, c["d"]]
        codes.append(rt.fx.symbolic_trace(program, concrete_args=given).code)
    assert codes[0] == codes[1]
