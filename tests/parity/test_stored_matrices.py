"""Matrices as bitsandbytes and compressed-tensors store them, against what these make of them themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.models.stored_matrices import float8_of, looked_up_of, packed_of

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity


def ours(tensors: dict[str, Any]) -> dict[str, wt.Tensor]:
    return {f"x.{name}": wt.from_numpy(t.contiguous().numpy()) for name, t in tensors.items()}


def drawn(outputs: int, inputs: int) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal((outputs, inputs)).astype(np.float32))


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("nested", [False, True])
def test_bitsandbytes_in_4_bits(kind: str, nested: bool) -> None:
    bnb = pytest.importorskip("bitsandbytes")
    # Blocks are whole in rows: where they are not, bitsandbytes 0.50's CPU code gives back other numbers.
    packed, state = bnb.functional.quantize_4bit(
        drawn(48, 192), blocksize=64, compress_statistics=nested, quant_type=kind
    )
    want = bnb.functional.dequantize_4bit(packed, state).numpy()
    parts = {f"weight.{key}": value for key, value in state.as_dict(packed=True).items()}
    got = looked_up_of("x", kind, ours({"weight": packed, **parts})).read().numpy()
    assert np.abs(want).max() > 1 and np.abs(got - want).max() <= 1e-6 * np.abs(want).max()


def test_bitsandbytes_in_8_bits() -> None:
    bnb = pytest.importorskip("bitsandbytes")
    codes, scales, _ = bnb.functional.int8_vectorwise_quant(drawn(48, 160).half())
    want = bnb.functional.int8_vectorwise_dequant(codes, scales).numpy()
    matrix = float8_of("x", ours({"weight": codes, "SCB": scales}))
    assert matrix is not None and np.abs(matrix.read().numpy() - want).max() <= 1e-6 * np.abs(want).max()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("zeros", [False, True])
def test_compressed_tensors(bits: int, zeros: bool) -> None:
    helpers = pytest.importorskip("compressed_tensors.compressors.pack_quantized.helpers")
    rng, half = np.random.default_rng(1), 2 ** (bits - 1)
    codes = torch.from_numpy(rng.integers(-half, half, (40, 128)).astype(np.int8))
    points = torch.from_numpy(rng.integers(-half, half, (40, 4)).astype(np.int8) * zeros)
    scales = torch.from_numpy(rng.random((40, 4)).astype(np.float32))
    parts = {"weight_packed": helpers.pack_to_int32(codes, bits), "weight_scale": scales}
    parts["weight_shape"] = torch.tensor([40, 128])
    if zeros:
        parts["weight_zero_point"] = helpers.pack_to_int32(points, bits, packed_dim=0)
    apart = codes.float().reshape(40, 4, 32) - points.float().unsqueeze(-1)
    want = (apart * scales.unsqueeze(-1)).reshape(40, 128).numpy()
    got = packed_of("x", ours(parts)).read().numpy()
    assert np.abs(got - want).max() <= 1e-6 * np.abs(want).max()
