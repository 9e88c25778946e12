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


def test_weights_that_are_not_finite() -> None:
    linear = nn.Linear(4, 3)
    linear.weight[1, 2] = float("nan")
    with pytest.raises(ValueError, match="not finite"):
        Float8Linear(linear)
