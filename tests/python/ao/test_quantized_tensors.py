"""Tensors in few bits, and quantize_."""

from __future__ import annotations

import copy
import io

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.ao import quantization as q
from warptape.inference import QuantLinear, pack_
from warptape.utils import safetensors

CONFIGS = {
    "int4": q.Int4WeightOnlyConfig(group_size=32),
    "int8": q.Int8WeightOnlyConfig(),
    "dynamic": q.Int8DynamicActivationInt8WeightConfig(),
    "float8": q.Float8WeightOnlyConfig(),
}
# Largest error of a weight, as a share of the largest of its row or group.
ERRORS = {
    "int4": 0.5 * 2 / 15 + 0.01,
    "int8": 0.5 / 127 + 0.001,
    "dynamic": 0.5 / 127 + 0.001,
    "float8": 0.07,
}


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 128)
        self.up, self.down = nn.Linear(128, 96), nn.Linear(96, 20, bias=False)
        self.conv = nn.Conv1d(1, 1, 3)
        self.lm_head = nn.Linear(20, 10)

    def forward(self, tokens):
        return self.lm_head(self.down(self.up(self.embed(tokens)).relu()))


@pytest.fixture
def model():
    wt.manual_seed(0)
    return Model()


@pytest.mark.parametrize("kind", CONFIGS)
def test_weights_are_near_and_the_report_says_which(model, kind):
    plain = copy.deepcopy(model)
    report = q.quantize_(model, CONFIGS[kind])
    assert list(report.quantized) == ["up", "down"]
    assert set(report.skipped) == {"embed", "conv", "lm_head"}
    assert "left alone by the filter" in report.skipped["lm_head"] and "Conv1d" in report.skipped["conv"]
    assert "2 layers quantised, 3 left alone" in str(report)
    for name in ("up", "down"):
        weight, before = getattr(model, name).weight, getattr(plain, name).weight
        assert isinstance(weight, nn.Parameter) and isinstance(weight, wt.Tensor)
        assert weight.shape == before.shape and weight.dtype == before.dtype and not weight.requires_grad
        error = (weight.dequantize() - before).abs().max() / before.abs().max()
        assert 0 < float(error) <= ERRORS[kind]
        assert name == "down" or weight.nbytes < before.nbytes / (5 if kind == "int4" else 3)
    with wt.no_grad():
        y, expected = model(wt.arange(10)), plain(wt.arange(10))
    assert float((y - expected).norm() / expected.norm()) < (0.1 if kind in ("int4", "float8") else 0.02)


def test_linear_runs_the_engine_s_kernel_and_gradients_pass_through_the_matrix(model):
    layer, plain = QuantLinear(model.up, 4, 32), model.up
    q.quantize_(model, CONFIGS["int4"])
    x = wt.randn(5, 128)
    with wt.no_grad():
        assert wt.equal(model.up(x), layer(x))
    x.requires_grad_()
    out = model.up(x)
    assert wt.equal(out, nn.functional.linear(x, model.up.weight.dequantize(), plain.bias))
    out.sum().backward()
    assert wt.allclose(x.grad, model.up.weight.dequantize().sum(0).expand(5, 128), atol=1e-5)
    assert model.up.bias.grad is not None and model.up.weight.grad is None


def test_other_functions_see_the_matrix(model):
    q.quantize_(model, CONFIGS["int8"])
    w = model.up.weight
    full = w.dequantize()
    assert type(full) is wt.Tensor
    assert wt.equal(w + 1, full + 1) and wt.equal(w[2], full[2]) and wt.equal(w.t(), full.t())
    assert np.array_equal(w.numpy(), full.numpy()) and "bits=8" in repr(w)
    with pytest.raises(NotImplementedError, match="add_: QuantizedTensor"):
        w.add_(1)
    with pytest.raises(NotImplementedError, match="requires_grad_"):
        w.requires_grad_()


@pytest.mark.parametrize("kind", ["int4", "dynamic", "float8"])
@pytest.mark.parametrize("way", ["save", "safetensors", "file", "deepcopy"])
def test_state_goes_through_files(model, kind, way, tmp_path):
    plain = copy.deepcopy(model)
    q.quantize_(model, CONFIGS[kind])
    state = model.state_dict()
    if way == "save":
        buffer = io.BytesIO()
        wt.save(state, buffer)
        buffer.seek(0)
        state = wt.load(buffer, weights_only=True)
    elif way == "safetensors":
        state = safetensors.load(safetensors.save(dict(state)))
    elif way == "file":
        safetensors.save_file(dict(state), tmp_path / "a.safetensors", {"a": "b"})
        state = safetensors.load_file(tmp_path / "a.safetensors")
    else:
        state = copy.deepcopy(model).state_dict()
    made = copy.deepcopy(plain)
    made.load_state_dict(state, assign=True)
    assert type(made.up.weight) is type(model.up.weight)
    other = copy.deepcopy(plain)
    q.quantize_(other, CONFIGS[kind])
    with wt.no_grad():
        for p in other.parameters():
            if not hasattr(p, "dequantize") or type(p) is nn.Parameter:
                p.zero_()
    other.load_state_dict(state)
    with wt.no_grad():
        expected = model(wt.arange(10))
        assert wt.equal(made(wt.arange(10)), expected) and wt.equal(other(wt.arange(10)), expected)


def test_damaged_files_are_refused(model):
    q.quantize_(model, CONFIGS["int4"])
    data = safetensors.save(dict(model.state_dict()))
    with pytest.raises(safetensors.SafetensorError, match="tensors in few bits are damaged"):
        safetensors.load(data.replace(b'\\"group\\": 32', b'\\"group\\": 64'))
    with pytest.raises(ValueError, match=r"expected packed of torch.uint8"):
        q.rebuild("QuantizedTensor", (16, 32), wt.float32, {"bits": 4, "group": 32, "packed": wt.zeros(3)})


def test_moves(model):
    q.quantize_(model, CONFIGS["int4"])
    before = model.up.weight.packed
    model.to(wt.bfloat16)
    assert model.up.weight.dtype == wt.bfloat16 and model.up.weight.packed is before
    with wt.no_grad():
        assert model(wt.arange(3)).dtype == wt.bfloat16
    model.to("meta")
    assert model.up.weight.device.type == model.up.weight.packed.device.type == "meta"


def test_packing_for_inference_keeps_the_codes(model):
    q.quantize_(model, CONFIGS["int4"])
    with wt.no_grad():
        expected = model(wt.arange(10))
        packed = pack_(copy.deepcopy(model), skip=("lm_head",))
        assert type(packed.up) is QuantLinear and wt.equal(packed(wt.arange(10)), expected)


def test_configurations_by_name(model):
    table = {"up": q.Int4WeightOnlyConfig(32), "re:d.*": q.Float8WeightOnlyConfig()}
    report = q.quantize_(model, q.FqnToConfig(table), filter_fn=lambda m, n: True)
    assert report.quantized == {"up": "Int4WeightOnlyConfig", "down": "Float8WeightOnlyConfig"}
    assert report.skipped["lm_head"] == "no configuration names it"


def test_a_shared_weight_stays_shared():
    a, b = nn.Linear(32, 32), nn.Linear(32, 32)
    b.weight = a.weight
    model = nn.Sequential(a, b)
    q.quantize_(model, q.Int8WeightOnlyConfig())
    assert a.weight is b.weight


def unchanged(model, state):
    return all(type(p) is nn.Parameter and wt.equal(p, state[n]) for n, p in model.named_parameters())


@pytest.mark.parametrize(
    ("config", "error", "words"),
    [
        (q.Int4WeightOnlyConfig(48), ValueError, "group_size must be 32, 64 or 128, got 48"),
        (q.Int4WeightOnlyConfig(64), ValueError, r"groups do not divide the inputs of down \(96 inputs\)"),
        (q.Float8DynamicActivationFloat8WeightConfig(), NotImplementedError, "no kernel on any device"),
        (4, TypeError, "expected one of the configurations"),
        (q.QATConfig(None), ValueError, "training needs a base_config"),
        (q.QATConfig(q.Int4WeightOnlyConfig(), step="now"), ValueError, "step must be"),
        (q.QATConfig(step="convert"), ValueError, "there is no layer"),
    ],
)
def test_what_cannot_be_done_changes_nothing(model, config, error, words):
    state = copy.deepcopy(model.state_dict())
    with pytest.raises(error, match=words):
        q.quantize_(model, config)
    assert unchanged(model, state)


def test_weights_that_are_not_finite_are_named(model):
    with wt.no_grad():
        model.down.weight[1, 2] = float("nan")
    state = copy.deepcopy(model.state_dict())
    for config in CONFIGS.values():
        with pytest.raises(ValueError, match="down"):
            q.quantize_(model, config)
        assert type(model.up.weight) is nn.Parameter and wt.equal(model.up.weight, state["up.weight"])


def test_quantize_dynamic_copies(model):
    made = q.quantize_dynamic(model, {nn.Linear}, dtype=wt.qint8)
    assert type(model.up.weight) is nn.Parameter and isinstance(made.lm_head.weight, q.QuantizedTensor)
    by_name = q.quantize_dynamic(model, {"down"})
    assert isinstance(by_name.down.weight, q.QuantizedTensor) and type(by_name.up.weight) is nn.Parameter
    with pytest.raises(ValueError, match="qint8"):
        q.quantize_dynamic(model, dtype=wt.float16)


def test_training_with_codes_gives_the_model_that_was_trained(model):
    base = q.Int4WeightOnlyConfig(32)
    data = wt.randint(0, 10, (64,))
    report = q.quantize_(model, q.QATConfig(base, step="prepare"))
    assert set(report.quantized) == {"up", "down"} and isinstance(model.up, q.FakeQuantizedLinear)
    before = model.up.weight.detach().clone()
    optimizer = wt.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(20):
        loss = nn.functional.cross_entropy(model(data), (data + 1) % 10)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2 and not wt.equal(before, model.up.weight)
    with wt.no_grad():
        trained = model(data)
    q.quantize_(model, q.QATConfig(base, step="convert"))
    assert type(model.up) is nn.Linear and isinstance(model.up.weight, q.QuantizedTensor)
    with wt.no_grad():
        assert wt.allclose(model(data), trained, atol=1e-4)
