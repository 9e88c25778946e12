"""Linear layers on weights of float8_e4m3fn: their definition, lone rows, models and packed files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from model_configs import build, tokens
from packed_weights import drawn, inference
from warptape import _C, nn
from warptape.inference import LLM, Float8Linear, SamplingParams, float8_
from warptape.inference.llm import load_model, prepare
from warptape.inference.packed_file import save_packed

ops: Any = _C._private
__all__ = ["inference"]  # a fixture of every test here


def layer_of(n: int, k: int, bias: bool = True) -> tuple[nn.Linear, Float8Linear]:
    linear = nn.Linear(k, n, bias=bias)
    linear.weight.copy_(drawn(n, k, seed=1))
    return linear, Float8Linear(linear)


def test_definition() -> None:
    """Codes of rows and outputs by their largest value, products of these in float64."""
    linear, layer = layer_of(33, 70)
    x = drawn(5, 70, seed=2)
    x[3] = 0

    def coded(t: Any) -> np.ndarray:
        scale = np.maximum(t.abs().amax(-1, keepdim=True).numpy() / 448, np.float32(1e-12))
        return (t / wt.tensor(scale)).to(wt.float8_e4m3fn).double().numpy() * scale

    want = coded(x) @ coded(linear.weight.detach()).T + linear.bias.detach().numpy()
    assert np.abs(layer(x).numpy() - want).max() < 1e-5 * np.abs(want).max()
    exact = linear(x).numpy()
    assert np.abs(layer(x).numpy() - exact).max() < 0.05 * np.abs(exact).max()
    assert wt.equal(layer(x.bfloat16()), layer(x.bfloat16().float()).bfloat16())


def test_rows_do_not_depend_on_each_other() -> None:
    _, layer = layer_of(48, 200)
    x = drawn(40, 200, seed=2)
    x[7, 3] = float("inf")
    whole = layer(x)
    for first, end in ((0, 7), (8, 9), (8, 40)):
        assert wt.equal(layer(x[first:end]), whole[first:end])
    assert not whole[7].isfinite().any()
    assert layer(x[:0]).shape == (0, 48) and layer(x.view(2, 20, 200)).shape == (2, 20, 48)


def test_models(tmp_path: Path) -> None:
    model = float8_(build("llama"))
    assert {type(m) for m in model.layers.modules() if hasattr(m, "in_features")} == {Float8Linear}
    assert type(model.lm_head) is nn.Linear
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=1)
    prompts = [{"prompt_token_ids": row.tolist()} for row in tokens(3, 5)]
    llm = LLM(build("llama"), quantization="fp8")
    together = llm.generate(prompts, params)
    for prompt, out in zip(prompts, together, strict=True):
        [alone] = llm.generate([prompt], params)
        assert alone.outputs[0].logprobs == out.outputs[0].logprobs
    packed = prepare(build("llama"), "fp8", True)
    save_packed(packed, tmp_path)
    assert wt.equal(load_model(tmp_path)(tokens()), packed(tokens()))


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda x, w: ops._float8_linear(x.float(), w), wt.DtypeError, "expected input and weight of float8"),
        (lambda x, w: ops._float8_linear(x[:, :3], w), wt.ShapeError, "layer expects 4 features"),
        (lambda x, w: ops._float8_linear(x, w[0]), wt.ShapeError, "weight must be"),
        (lambda x, w: layer_of(3, 4)[1](drawn(2, 5)), wt.ShapeError, "layer expects 4 features"),
        (lambda x, w: prepare(build("llama"), "fp4", True), ValueError, "one of .'fp8', 'int4', 'int8'."),
    ],
)
def test_errors(call: Any, error: Any, text: str) -> None:
    x, w = (drawn(n, 4).to(wt.float8_e4m3fn) for n in (2, 3))
    with pytest.raises(error, match=text):
        call(x, w)


E4M3, E5M2 = wt.float8_e4m3fn, wt.float8_e5m2


@pytest.mark.parametrize("dtypes", [(E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2), (E5M2, E5M2)])
@pytest.mark.parametrize("by_rows", [False, True])
def test_scaled_mm(dtypes: tuple[Any, Any], by_rows: bool) -> None:
    a, b = drawn(5, 33).to(dtypes[0]), drawn(33, 7).to(dtypes[1])
    scales = (drawn(5, 1).abs(), drawn(1, 7).abs()) if by_rows else (wt.tensor(0.5), wt.tensor([[3.0]]))
    bias = drawn(7)
    product = a.double() @ b.double() * scales[0].double() * scales[1].double()
    wt.testing.assert_close(wt._scaled_mm(a, b, *scales, out_dtype=wt.float32), product.float())
    across = wt._scaled_mm(a, b.t().contiguous().t(), *scales, out_dtype=wt.float32)
    wt.testing.assert_close(across, product.float())
    out = wt._scaled_mm(a, b, *scales, bias.bfloat16(), None, wt.bfloat16, use_fast_accum=True)
    wt.testing.assert_close(out, (product + bias.bfloat16().double()).bfloat16())
    narrow = wt._scaled_mm(a, b, *scales)
    assert narrow.dtype == dtypes[0] and wt._scaled_mm(a[:0], b, wt.ones(()), wt.ones(())).shape == (0, 7)
    wt.testing.assert_close(narrow.float(), product.to(dtypes[0]).float(), rtol=0.26, atol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda a, b, s: wt._scaled_mm(a, b.t(), s, s), wt.ShapeError, r"expected matrices \(m, k\) and"),
        (
            lambda a, b, s: wt._scaled_mm(a.float(), b, s, s),
            wt.DtypeError,
            "expected matrices of float8_e4m3fn",
        ),
        (lambda a, b, s: wt._scaled_mm(a, b, s.double(), s), wt.DtypeError, "expected scales of float32"),
        (lambda a, b, s: wt._scaled_mm(a, b, s, s, scale_result=s), NotImplementedError, "no scale_result"),
        (lambda a, b, s: wt._scaled_mm(a, b, wt.ones(2, 1), s), ValueError, "Invalid scaling configuration"),
        (lambda a, b, s: wt._scaled_mm(a, b, wt.ones(3, 1), wt.ones(1, 4)), ValueError, r"shapes \(2, 1\)"),
    ],
)
def test_scaled_mm_errors(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call(drawn(2, 3).to(E4M3), drawn(3, 4).to(E4M3), wt.ones(()))


def test_weights_that_are_not_finite() -> None:
    linear = nn.Linear(4, 3)
    linear.weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        Float8Linear(linear)
