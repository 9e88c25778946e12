"""Models whose files have matrices in few bits: layers keep the codes that are stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
from model_configs import SMALL, tokens
from quantized_files import edit, quantised_folder, write_decoder
from warptape.inference import LLM, QuantLinear, SamplingParams
from warptape.inference.llm import load_model, prepare
from warptape.inference.packed_file import save_packed
from warptape.models import Codes, Decoder, DecoderConfig

WIDE = {**SMALL, "hidden_size": 64, "intermediate_size": 256, "num_key_value_heads": 2}


def linears(model: Decoder) -> dict[str, wt.nn.Module]:
    kinds = (QuantLinear, wt.nn.Linear)
    return {name: layer for name, layer in model.named_modules() if isinstance(layer, kinds)}


def pair(path: Path) -> tuple[Decoder, Decoder]:
    """A model with floating matrices, and with the codes."""
    return Decoder.from_pretrained(path), Decoder.from_pretrained(path, coded=QuantLinear.from_codes)


def check_same(plain: Decoder, coded: Decoder, wanted: int, tolerance: float) -> None:
    """That layers stand for the same matrices, relative to the largest of each, and the outputs agree."""
    found = 0
    for name, layer in linears(coded).items():
        if isinstance(layer, QuantLinear):
            found += 1
            want = plain.get_submodule(name).weight.detach()
            assert (layer.dequantize() - want).abs().max() <= tolerance * want.abs().max(), name
            bias = plain.get_submodule(name).bias
            assert (layer.bias is None) == (bias is None) and (bias is None or wt.equal(layer.bias, bias))
    assert found == wanted, linears(coded)
    with wt.no_grad():
        a, b = plain(tokens()), coded(tokens())
    assert (a - b).std() < 0.1 * a.std()  # activations are rounded, too


@pytest.mark.parametrize(("kind", "tolerance"), [("Q4_0", 0), ("Q4_1", 0), ("Q8_0", 0), ("Q4_K", 2e-3)])
def test_gguf(kind: str, tolerance: float, tmp_path: Path) -> None:
    wide = 256 if kind == "Q4_K" else 64  # what rows are whole blocks of
    config = DecoderConfig(**{**WIDE, "hidden_size": wide})
    wt.manual_seed(0)
    write_decoder(tmp_path / "x.gguf", Decoder(config), kind)
    plain, coded = pair(tmp_path / "x.gguf")
    assert type(coded.lm_head) is wt.nn.Linear
    assert coded.layers[0].self_attn.qkv_proj.bits == (8 if kind == "Q8_0" else 4)
    check_same(plain, coded, 4 * config.num_hidden_layers, tolerance)


@pytest.mark.parametrize(
    ("method", "bits", "settings", "tolerance"),
    [
        ("gptq", 4, {"desc_act": False}, 1e-3),
        ("gptq", 8, {"sym": True}, 0),
        ("gptq", 4, {"sym": True, "desc_act": True}, 0),
        ("gptq", 4, {"desc_act": True}, 1e-3),
        ("gptq", 4, {"sym": True, "group": 64}, 0),
        ("awq", 4, {"version": "gemm"}, 1e-3),
    ],
)
def test_folders(method: str, bits: int, settings: dict[str, Any], tolerance: float, tmp_path: Path) -> None:
    """Minima, scale times zero, are rounded to float16; about zero there are none."""
    config = DecoderConfig(**WIDE, architecture="qwen2", qkv_bias=True)
    quantised_folder(tmp_path, method, bits, config, **{"group": 32, **settings})
    plain, coded = pair(tmp_path)
    layer = coded.layers[0].mlp.down_proj
    assert (layer.minima is None) == ("sym" in settings) and layer.bits == bits
    assert (layer.order is not None) == bool(settings.get("desc_act"))
    check_same(plain, coded, 4 * config.num_hidden_layers, tolerance)


def test_one_scale_for_all_inputs(tmp_path: Path) -> None:
    """group_size -1, which layers have as equal scales of groups."""
    config = DecoderConfig(**WIDE, architecture="qwen2", qkv_bias=True)
    quantised_folder(tmp_path, "gptq", 4, config, group=64, sym=True, desc_act=False)
    path = tmp_path / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    for name in [n for n in arrays if n.endswith((".scales", ".qzeros"))]:
        arrays[name] = arrays[name][:1]
    for name in [n for n in arrays if n.endswith(".g_idx")]:
        arrays[name] = np.zeros_like(arrays[name])
    safetensors.numpy.save_file(arrays, path)
    edit(tmp_path, group_size=-1)
    plain, coded = pair(tmp_path)
    layers = [coded.layers[0].self_attn.o_proj, coded.layers[0].mlp.down_proj]
    assert [(layer.bits, layer.group, layer.order) for layer in layers] == [(4, 64, None), (4, 128, None)]
    check_same(plain, coded, 4 * config.num_hidden_layers, 0)


@pytest.mark.parametrize("bits", [4, 8])
def test_act_order_in_every_use(bits: int, tmp_path: Path) -> None:
    """Codes whose inputs are permuted: packed files, and rows by themselves."""
    config = DecoderConfig(**WIDE, architecture="qwen2", qkv_bias=True)
    quantised_folder(tmp_path, "gptq", bits, config, group=32, sym=True, desc_act=True)
    plain, coded = pair(tmp_path)
    layer = coded.layers[1].mlp.down_proj
    assert layer.bits == bits and wt.equal(layer.dequantize(), plain.layers[1].mlp.down_proj.weight)
    x = wt.randn(5, 256)
    with wt.inference_mode():
        want = x @ plain.layers[1].mlp.down_proj.weight.t()
        got = layer(x)
        assert (got - want).abs().max() < 0.02 * want.abs().max()  # of rounded activations
        assert wt.equal(wt.cat([layer(row) for row in x.split(1)]), got)
        assert wt.equal(layer(x.bfloat16()), layer(x.bfloat16().float()).bfloat16())
    model = prepare(load_model(tmp_path), None, True)
    save_packed(model, tmp_path / "packed")
    with wt.inference_mode():
        assert wt.equal(load_model(tmp_path / "packed")(tokens()), model(tokens()))


def test_what_has_no_such_layer_is_rounded(tmp_path: Path) -> None:
    """Matrices of one layer with inputs in several orders, groups of other numbers of inputs, groups of 8 and
    of 16, layers of several types: in 8 bits."""
    config = DecoderConfig(**WIDE, architecture="qwen2", qkv_bias=True)
    for i, settings in enumerate(({"group": 32, "desc_act": "each"}, {"group": 8})):
        (tmp_path / str(i)).mkdir()
        quantised_folder(tmp_path / str(i), "gptq", 4, config, **settings)
        plain, coded = pair(tmp_path / str(i))
        assert coded.layers[0].self_attn.qkv_proj.bits == 8
        check_same(plain, coded, 4 * config.num_hidden_layers, 1 / 254 + 1e-3)
    path = tmp_path / "0" / "model.safetensors"
    arrays = safetensors.numpy.load_file(path)
    arrays["model.layers.0.self_attn.o_proj.g_idx"][:] = np.arange(64) // 33
    safetensors.numpy.save_file(arrays, path)
    plain, coded = pair(tmp_path / "0")
    assert coded.layers[0].self_attn.o_proj.bits == 8 and coded.layers[1].self_attn.o_proj.bits == 4
    check_same(plain, coded, 4 * config.num_hidden_layers, 1 / 254 + 1e-3)
    config = DecoderConfig(**{**WIDE, "hidden_size": 256})
    write_decoder(tmp_path / "x.gguf", Decoder(config), "Q4_K", others={"attn_v": "Q6_K", "ffn_down": "Q6_K"})
    plain, coded = pair(tmp_path / "x.gguf")
    bits = {
        name.rpartition(".")[2]: layer.bits for name, layer in linears(coded).items() if name != "lm_head"
    }
    assert bits == {"qkv_proj": 8, "o_proj": 4, "gate_up_proj": 4, "down_proj": 8}
    check_same(plain, coded, 4 * config.num_hidden_layers, 1 / 254 + 1e-3)


def test_inputs_that_fill_no_group_are_floating(tmp_path: Path) -> None:
    config = DecoderConfig(**{**WIDE, "hidden_size": 48}, architecture="qwen2", qkv_bias=True)
    quantised_folder(tmp_path, "gptq", 4, config, group=16)
    plain, coded = pair(tmp_path)
    kinds = {type(layer) for name, layer in linears(coded).items() if "qkv" in name}
    assert kinds == {wt.nn.Linear} and isinstance(coded.layers[0].mlp.down_proj, QuantLinear)
    assert wt.equal(coded.layers[0].self_attn.qkv_proj.weight, plain.layers[0].self_attn.qkv_proj.weight)


def test_packed_files(tmp_path: Path) -> None:
    """A GGUF file, packed: the same logits to the bit from the file that is mapped."""
    wt.manual_seed(0)
    write_decoder(tmp_path / "x.gguf", Decoder(DecoderConfig(**WIDE)), "Q4_1")
    model = prepare(load_model(tmp_path / "x.gguf"), None, True)
    save_packed(model, tmp_path / "packed")
    with wt.inference_mode():
        assert wt.equal(load_model(tmp_path / "packed")(tokens()), model(tokens()))


def test_codes_of_any_number_of_rows() -> None:
    rng = np.random.default_rng(0)
    for outputs in (1, 16, 37):
        codes = wt.tensor(rng.integers(0, 16, (outputs, 64), dtype=np.uint8))
        scales = wt.tensor(rng.random((outputs, 2)).astype(np.float16)).float()
        layer = QuantLinear.from_codes(Codes(4, codes, scales, None), None, wt.float32)
        want = (codes.float() - 8) * scales.repeat_interleave(32, 1)
        assert wt.equal(layer.dequantize(), want)
        x = wt.tensor(rng.standard_normal((3, 64)).astype(np.float32))
        exact = x @ want.t()
        assert (layer(x) - exact).abs().max() < 0.01 * exact.abs().max()


def test_generation(tmp_path: Path) -> None:
    """LLM takes the file as it is: the same tokens as the layers by themselves."""
    wt.manual_seed(0)
    write_decoder(tmp_path / "x.gguf", Decoder(DecoderConfig(**WIDE)), "Q8_0")
    llm = LLM(tmp_path / "x.gguf", skip_tokenizer_init=True)
    prompts = [{"prompt_token_ids": row.tolist()} for row in tokens(2, 5)]
    got = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True))
    want = pair(tmp_path / "x.gguf")[1].generate(tokens(2, 5), 8)
    assert [out.outputs[0].token_ids for out in got] == want[:, 5:].tolist()


@pytest.mark.parametrize("outputs", [1, 16, 37])
@pytest.mark.parametrize(("bits", "half"), [(8, 0), (4, 0), (4, 16), (4, 32)])
def test_packed_codes(bits: int, half: int, outputs: int) -> None:
    """Each code at its place by the layout's definition (kernels/quant/quant_linear.h)."""
    inputs = 192
    codes = np.random.default_rng(0).integers(0, 1 << bits, (outputs, inputs), np.uint8)
    stored = codes
    if half:
        blocks = codes.reshape(outputs, -1, 2, half)
        stored = (blocks[:, :, 0] | blocks[:, :, 1] << 4).reshape(outputs, -1)
    whole = Codes(bits, wt.from_numpy(stored), wt.ones(outputs, inputs // 32), None, half)
    assert np.array_equal(whole.plain().codes.numpy(), codes)
    packed = QuantLinear.from_codes(whole, None, wt.float32).packed.numpy()
    for output, k in np.ndindex(outputs, inputs):
        panel, lane = divmod(output, 16)
        if bits == 8:
            got = packed[panel, k // 4, lane, k % 4]
        else:
            got = packed[panel, k // 8, lane, k % 4] >> (k & 4) & 15
        assert got == codes[output, k], (output, k)
    assert not packed.reshape(len(packed), -1, 16, 4)[-1, :, (outputs - 1) % 16 + 1 :].any()


def test_codes_that_cannot_be_packed() -> None:
    pack = wt._C._private._pack_linear_codes
    with pytest.raises(ValueError, match="expected bits 4, or 8 with half 0"):
        pack(wt.zeros(1, 32, dtype=wt.uint8), 8, 16)
    with pytest.raises(wt.DtypeError, match="expected codes of uint8, got"):
        pack(wt.zeros(1, 32), 4, 0)
    with pytest.raises(wt.ShapeError, match="expected a multiple of 64 inputs, got 32"):
        pack(wt.zeros(1, 16, dtype=wt.uint8), 4, 32)
