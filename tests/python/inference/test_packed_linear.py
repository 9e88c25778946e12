"""Linear layers on packed weights: equal to the bit for every number of rows, split and thread count, right.

Legend: M rows, K inputs, N outputs.
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest
import warptape as wt
from packed_weights import DTYPES, bits_of, drawn, inference
from warptape import _C, nn
from warptape.inference import PackedLinear, pack_

ops: Any = _C._private
__all__ = ["inference"]  # a fixture of every test here
#: [N, K]: one panel and less, half pairs, several tasks, several blocks of k
SHAPES = [(1, 1), (16, 2), (100, 33), (64, 257), (250, 1030), (70, 4101)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_a_row_depends_on_itself_alone(n: int, k: int, dtype: wt.dtype) -> None:
    x, bias = drawn(40, k, dtype=dtype), drawn(n, dtype=dtype, seed=2)
    packed = ops._pack_linear_weight(drawn(n, k, dtype=dtype, seed=1))
    wt.set_num_threads(1)
    alone = np.concatenate([bits_of(ops._packed_linear(x[i : i + 1], packed, n, bias)) for i in range(40)])
    for threads in (1, 2, 3):
        wt.set_num_threads(threads)
        for m in range(1, 41):
            assert np.array_equal(bits_of(ops._packed_linear(x[:m], packed, n, bias)), alone[:m]), (
                m,
                threads,
            )
            rest = bits_of(ops._packed_linear(x[m:], packed, n, bias))
            assert np.array_equal(rest, alone[m:]), (m, threads)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_many_rows(dtype: wt.dtype) -> None:
    """More rows than one task takes."""
    x, packed = drawn(1000, 65, dtype=dtype), ops._pack_linear_weight(drawn(130, 65, dtype=dtype, seed=1))
    whole = bits_of(ops._packed_linear(x.view(8, 125, 65), packed, 130)).reshape(1000, 130)
    for i in (0, 479, 480, 481, 999):
        assert np.array_equal(bits_of(ops._packed_linear(x[i], packed, 130)), whole[i])


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("n", "k"), SHAPES)
def test_values(n: int, k: int, dtype: wt.dtype, biased: bool) -> None:
    x, weight = drawn(7, k, dtype=dtype), drawn(n, k, dtype=dtype, seed=1)
    bias = drawn(n, dtype=dtype, seed=2) if biased else None
    out = ops._packed_linear(x, ops._pack_linear_weight(weight), n, bias).double().numpy()
    a, b = x.double().numpy(), weight.double().numpy()
    exact = a @ b.T + (0 if bias is None else bias.double().numpy())
    bound = np.abs(a) @ np.abs(b).T * k * 2.0**-24 + 1e-6  # of sums in float32
    assert (np.abs(out - exact) <= bound + (np.abs(exact) * 2.0**-8 if dtype == wt.bfloat16 else 0)).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_packed_weight(dtype: wt.dtype) -> None:
    weight = drawn(19, 5, dtype=dtype)
    padded = np.zeros((32, 6), np.float32)
    padded[:19, :5] = weight.float().numpy()
    packed = ops._pack_linear_weight(weight).float().numpy()
    if dtype == wt.float32:
        assert np.array_equal(packed, padded[:, :5].reshape(2, 16, 5).transpose(0, 2, 1))
    else:
        assert np.array_equal(packed, padded.reshape(2, 16, 3, 2).transpose(0, 2, 1, 3))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_empty_and_not_finite(dtype: wt.dtype) -> None:
    packed = ops._pack_linear_weight(wt.ones(20, 3, dtype=dtype))
    assert ops._packed_linear(wt.ones(0, 3, dtype=dtype), packed, 20).shape == (0, 20)
    bias = drawn(4, dtype=dtype)
    nothing = ops._packed_linear(
        wt.ones(2, 0, dtype=dtype), ops._pack_linear_weight(wt.ones(4, 0, dtype=dtype)), 4, bias
    )
    assert np.array_equal(bits_of(nothing), np.stack([bits_of(bias)] * 2))
    x = wt.ones(9, 3, dtype=dtype)
    x[4, 1] = float("nan")
    bad = ops._packed_linear(x, packed, 20).isnan()
    assert bool(bad[4].all()) and int(bad.sum()) == 20
    meta = ops._packed_linear(wt.ones(2, 3, dtype=dtype, device="meta"), packed.to("meta"), 20)
    assert meta.shape == (2, 20)


def test_strided_arguments() -> None:
    weight, x = drawn(33, 20), drawn(12, 20, seed=1)
    expected = bits_of(ops._packed_linear(x, ops._pack_linear_weight(weight), 33))
    packed = ops._pack_linear_weight(weight.t().contiguous().t())
    assert np.array_equal(bits_of(ops._packed_linear(x.t().contiguous().t(), packed, 33)), expected)


@pytest.mark.parametrize(
    ("error", "change"),
    [
        (wt.ShapeError, {"x": (2, 6)}),
        (wt.ShapeError, {"x": ()}),
        (wt.ShapeError, {"out": 16}),
        (wt.ShapeError, {"out": -1}),
        (wt.ShapeError, {"bias": (21,)}),
        (wt.ShapeError, {"packed": (20, 5)}),
        (wt.DtypeError, {"dtype": wt.bfloat16}),
        (wt.DtypeError, {"dtype": wt.float64}),
        (wt.DtypeError, {"bias_dtype": wt.bfloat16}),
    ],
    ids=str,
)
def test_refused(error: type[Exception], change: dict[str, Any]) -> None:
    x = wt.ones(change.get("x", (2, 5)), dtype=change.get("dtype", wt.float32))
    packed = wt.ones(change["packed"]) if "packed" in change else ops._pack_linear_weight(wt.ones(20, 5))
    bias = wt.ones(change.get("bias", (20,)), dtype=change.get("bias_dtype", wt.float32))
    with pytest.raises(error, match="_packed_linear"):
        ops._packed_linear(x, packed, change.get("out", 20), bias)


def test_refused_weights() -> None:
    with pytest.raises(wt.ShapeError, match=r"weight must be \[out, in\]"):
        ops._pack_linear_weight(wt.ones(3))
    with pytest.raises(wt.DtypeError, match="float32 or bfloat16"):
        ops._pack_linear_weight(wt.ones(3, 3, dtype=wt.float16))


def test_no_gradient() -> None:
    with wt.inference_mode(False), wt.enable_grad():
        layer = PackedLinear(nn.Linear(4, 3))
        with pytest.raises(NotImplementedError, match="has no gradient"):
            layer(wt.ones(2, 4, requires_grad=True))
        with wt.no_grad():
            assert layer(wt.ones(2, 4, requires_grad=True)).shape == (2, 3)
        assert not layer(wt.ones(2, 4)).requires_grad
        assert list(layer.parameters()) == []


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 8)
        self.up = nn.Linear(8, 24)
        self.again = self.up
        self.down = nn.Sequential(nn.GELU(), nn.Linear(24, 8, bias=False))
        self.own = nn.modules.linear.NonDynamicallyQuantizableLinear(8, 8)
        self.lm_head = nn.Linear(8, 50, bias=False)
        self.lm_head.weight = self.embedding.weight

    def forward(self, ids: wt.Tensor) -> wt.Tensor:
        x = self.embedding(ids)
        return self.lm_head(self.own(x + self.down(self.up(x))))


@pytest.mark.parametrize("dtype", [None, wt.bfloat16], ids=str)
def test_pack_a_model(dtype: wt.dtype | None) -> None:
    model, ids = Tied(), wt.tensor([[3, 7, 49], [0, 1, 2]])
    before = model(ids)
    assert pack_(model, dtype=dtype, skip=("down",)) is model
    assert isinstance(model.up, PackedLinear) and model.again is model.up
    assert isinstance(model.lm_head, PackedLinear)
    assert type(model.down[1]) is nn.Linear and not isinstance(model.own, PackedLinear)
    assert [name for name, _ in model.named_parameters()][:1] == ["embedding.weight"]
    after = model(ids)
    assert after.dtype == before.dtype
    assert np.allclose(after.numpy(), before.numpy(), atol=0.05 if dtype else 1e-5)
    assert np.array_equal(bits_of(model(ids[:1, :1])), bits_of(after[:1, :1])) or dtype is None
    state = model.state_dict()
    assert state["up.packed"].dtype == (dtype or wt.float32) and state["up.bias"].shape == (24,)


def test_nothing_twice_in_memory() -> None:
    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(8)])
    gc.collect()
    held = _C._memory_stats()["allocated_bytes"]
    _C._reset_peak_memory()
    pack_(model)
    stats = _C._memory_stats()
    layer = 512 * 513 * 4
    assert stats["peak_allocated_bytes"] <= held + 1.1 * layer
    assert abs(stats["allocated_bytes"] - held) < 0.1 * layer


def test_a_bare_layer() -> None:
    with pytest.raises(ValueError, match="no parent"):
        pack_(nn.Linear(2, 2))
    assert "in_features=2, out_features=3, bias=True" in repr(PackedLinear(nn.Linear(2, 3)))
