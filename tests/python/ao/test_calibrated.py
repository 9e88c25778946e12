"""GPTQ, AWQ and SmoothQuant against their papers' formulas in float64, and the files that they end in."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import warptape as wt
from quantized_files import AWQ_ORDER
from warptape import nn
from warptape.ao import quantization as q
from warptape.ao.quantization import _calibration, gptq, smoothing
from warptape.inference import LLM, QuantLinear, SamplingParams, tensor_parallel
from warptape.models import Decoder, DecoderConfig


def grid(group, bits):
    """Scale, as float16 keeps it, and integer zero of each row."""
    low, high = np.minimum(group.min(1), 0), np.maximum(group.max(1), 0)
    scale = np.maximum((high - low) / (2**bits - 1), 1e-5).astype(np.float16).astype(np.float64)
    return scale, np.clip(np.round(-low / scale), 0, 2**bits - 1)


def rounded(values, scale, zero, bits):
    return scale * (np.clip(np.round(values / scale) + zero, 0, 2**bits - 1) - zero)


def quantise_by_elimination(weight, hessian, bits, group):
    """OBQ in a fixed order, as section 3 of GPTQ's paper begins: the inverse of the Hessian over the columns
    that are left, by Gaussian elimination, equations 2 and 3. Slow, and no Cholesky decomposition."""
    w, h = weight.copy(), hessian.copy()
    h[np.diag_indices_from(h)] += 0.01 * np.mean(np.diag(h))
    inverse, out = np.linalg.inv(h), np.zeros_like(w)
    for i in range(w.shape[1]):
        if i % group == 0:
            scale, zero = grid(w[:, i : i + group], bits)
        out[:, i] = rounded(w[:, i], scale, zero, bits)
        error = (w[:, i] - out[:, i]) / inverse[i, i]
        w -= np.outer(error, inverse[i])
        inverse -= np.outer(inverse[:, i], inverse[i]) / inverse[i, i]
    return out


@pytest.mark.parametrize("bits", [3, 4])
def test_gptq_is_its_paper_s(bits):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 96)) @ rng.normal(size=(96, 96))
    weight, hessian = rng.normal(size=(20, 96)), 2 * x.T @ x
    args = wt.from_numpy(weight), wt.from_numpy(hessian), bits, 32
    expected = quantise_by_elimination(weight, hessian, bits, 32)
    for block in (32, 96):  # groups within blocks of updates, and one block
        got = _calibration.value_of(*gptq.gptq_codes(*args, block=block)).numpy()
        assert np.mean(np.abs(got - expected) > 1e-6) < 0.002  # codes at a tie may fall otherwise
    nearest = _calibration.value_of(*_calibration.nearest(args[0], bits, 32)).numpy()

    def loss(w):
        return np.sum(((w - weight) @ x.T) ** 2)

    assert loss(got) < 0.5 * loss(nearest)


def test_gptq_of_inputs_that_are_never_there():
    weight, hessian = wt.randn(4, 32), wt.eye(32)
    hessian[3, 3] = 0
    codes, scales, zeros = gptq.gptq_codes(weight, hessian, 4, 32)
    assert float(_calibration.value_of(codes, scales, zeros)[:, 3].abs().max()) == 0


def test_awq_is_its_paper_s():
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(64, 64)) * np.exp(rng.normal(size=64))).astype(np.float32)
    weight = rng.normal(size=(24, 64)).astype(np.float32)
    mean = np.abs(x).mean(0).astype(np.float64)
    losses, factors = [], []
    for step in range(20):
        s = np.maximum(mean ** (step / 20), 1e-4)
        s = s / np.sqrt(s.max() * s.min())
        scaled, made = weight * s, np.zeros((24, 64))
        for g in (0, 32):
            scale, zero = grid(scaled[:, g : g + 32], 3)
            made[:, g : g + 32] = rounded(scaled[:, g : g + 32], scale[:, None], zero[:, None], 3)
        losses.append(np.mean((x @ (made / s - weight).T) ** 2))
        factors.append(s)
    best = int(np.argmin(losses))
    assert best > 0 and losses[best] < 0.9 * losses[0]
    got = smoothing.awq_factor(
        wt.from_numpy(x), wt.from_numpy(mean.astype(np.float32)), [wt.from_numpy(weight)], 3, 32
    )
    assert np.allclose(got.numpy(), factors[best], rtol=1e-4)


def test_smooth_quant_is_its_paper_s():
    rng = np.random.default_rng(2)
    most, weights = rng.random(16) * 10, [rng.normal(size=(n, 16)) for n in (5, 7)]
    largest = np.abs(np.concatenate(weights)).max(0)
    got = smoothing.smoothing_factor(wt.from_numpy(most), [wt.from_numpy(w) for w in weights], 0.3)
    assert np.allclose(got.numpy(), most**0.3 / largest**0.7)


def decoder(**more):
    wt.manual_seed(0)
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64}
    model = Decoder(DecoderConfig(vocab_size=96, hidden_size=64, intermediate_size=128, **sizes, **more))
    with wt.no_grad():  # channels of norms that differ, as trained ones do
        for layer in model.layers:
            layer.input_layernorm.weight.copy_(wt.exp(wt.randn(64)))
            layer.post_attention_layernorm.weight.copy_(wt.exp(wt.randn(64)))
    return model.eval()


@pytest.fixture(scope="module")
def model():
    return decoder(num_key_value_heads=2)


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    return [wt.from_numpy(rng.integers(0, 96, (4, 32))) for _ in range(3)]


def error(model, plain, tokens):
    with wt.no_grad():
        y = plain(tokens)
        return float((model(tokens) - y).norm() / y.norm())


def test_errors_of_a_decoder(model, data):
    made = {}
    for name, method in (("nearest", None), ("gptq", q.gptq_), ("awq", q.awq_)):
        made[name] = copy.deepcopy(model)
        if method is None:
            q.round_to_nearest_(made[name], bits=3, group_size=32)
        else:
            method(made[name], data, bits=3, group_size=32)
    errors = {name: error(m, model, data[0]) for name, m in made.items()}
    assert errors["gptq"] < 0.8 * errors["nearest"] and errors["awq"] < errors["nearest"]
    smooth = q.smooth_quant_(copy.deepcopy(model), data)
    assert error(smooth, model, data[0]) < 1e-5
    assert not wt.equal(smooth.layers[0].self_attn.qkv_proj.weight, model.layers[0].self_attn.qkv_proj.weight)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_files_are_read_and_served(model, data, method, tmp_path):
    made = copy.deepcopy(model)
    (q.gptq_ if method == "gptq" else q.awq_)(made, data, group_size=32)
    q.save_quantized(made, tmp_path, method)
    floats = dict(Decoder.from_pretrained(tmp_path).named_parameters())
    for name, p in made.named_parameters():
        own = p.dequantize() if isinstance(p, q.QuantizedTensor) else p
        assert wt.allclose(floats[name], own, atol=2e-3), name
    coded = Decoder.from_pretrained(tmp_path, coded=QuantLinear.from_codes)
    with wt.no_grad():
        assert wt.allclose(coded(data[0]), made(data[0]), atol=1e-3)
    params = SamplingParams(max_tokens=8, temperature=0)
    prompt = [{"prompt_token_ids": [1, 2, 3]}]
    texts = [
        LLM(m, skip_tokenizer_init=True).generate(prompt, params)[0].outputs[0].token_ids
        for m in (copy.deepcopy(made), tmp_path)
    ]
    assert texts[0] == texts[1]


def test_bits_of_the_files(model, data, tmp_path):
    """A layer of each layout, taken apart by NumPy as AutoGPTQ's and AutoAWQ's kernels do."""
    made = copy.deepcopy(model)
    q.gptq_(made, data, group_size=32)
    weight = made.layers[1].self_attn.o_proj.weight.dequantize().numpy()
    stem = "model.layers.1.self_attn.o_proj."
    for method in ("gptq", "awq"):
        q.save_quantized(made, tmp_path / method, method)
        file = wt.utils.safetensors.load_file(tmp_path / method / "model.safetensors")
        part = {k.removeprefix(stem): v.numpy() for k, v in file.items() if k.startswith(stem)}
        shifts = np.arange(8) * 4
        if method == "gptq":
            codes = (part["qweight"][:, None, :] >> shifts[:, None] & 15).reshape(64, 64)
            zeros = (part["qzeros"][:, :, None] >> shifts & 15).reshape(2, 64)
            version = wt.models.pretrained.read_json(tmp_path / method / "config.json")
            zeros = zeros + (version["quantization_config"]["checkpoint_format"] == "gptq")
            rows = part["g_idx"]
        else:
            place = [AWQ_ORDER.index(i) for i in range(8)]
            codes = (part["qweight"][:, :, None] >> shifts & 15)[:, :, place].reshape(64, 64)
            zeros = (part["qzeros"][:, :, None] >> shifts & 15)[:, :, place].reshape(2, 64)
            rows = np.arange(64) // 32
        got = (codes - zeros[rows]) * part["scales"].astype(np.float64)[rows]
        assert np.allclose(got.T, weight, atol=2e-3)


@pytest.mark.parametrize("method", [q.gptq_, q.awq_, q.smooth_quant_])
def test_bad_data_leave_the_model(model, data, method):
    made, bad = copy.deepcopy(model), copy.deepcopy(model)
    size = {} if method is q.smooth_quant_ else {"group_size": 32}
    with pytest.raises(ValueError, match="have no batches"):
        method(made, [], **size)
    with wt.no_grad():
        bad.embed_tokens.weight[5] = float("nan")
    layers = {n: p.detach().clone() for n, p in bad.named_parameters() if n.startswith("layers")}
    with pytest.raises(ValueError, match="NaN or infinity"):
        method(bad, [wt.full((1, 4), 5)], **size)
    after = dict(bad.named_parameters())
    assert layers and all(type(after[n]) is nn.Parameter and after[n].equal(p) for n, p in layers.items())
    if method is not q.smooth_quant_:
        with pytest.raises(ValueError, match="groups of 128 do not divide the inputs of"):
            method(made, data, group_size=128)
        with pytest.raises(ValueError, match="expected bits of"):
            method(made, data, bits=5)
    assert all(p.equal(dict(model.named_parameters())[n]) for n, p in made.named_parameters())


def test_weights_in_few_bits_are_not_split_among_ranks(model):
    made = copy.deepcopy(model)
    q.quantize_(made, q.Int8WeightOnlyConfig())
    with pytest.raises(NotImplementedError, match="got a QuantizedTensor"):
        tensor_parallel._check(made, 2)


def test_what_files_cannot_hold(model, data, tmp_path):
    made = copy.deepcopy(model)
    with pytest.raises(ValueError, match="expected weights of one number of bits"):
        q.save_quantized(made, tmp_path)
    q.quantize_(made, q.Int4WeightOnlyConfig(32))
    with pytest.raises(ValueError, match="its zeros are no integers"):
        q.save_quantized(made, tmp_path)
    with pytest.raises(TypeError, match="Decoder"):
        q.save_quantized(nn.Linear(2, 2), tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="no norms before linear layers"):
        q.awq_(nn.Sequential(nn.Linear(32, 32)), [wt.randn(2, 32)], group_size=32)
    with pytest.raises(ValueError, match="has no linear layer"):
        q.gptq_(nn.Sequential(nn.Conv2d(1, 1, 1)), [wt.randn(2, 32)])
