"""Hugging Face's layout of GPT-2 and Llama, into models of any layout and back.

Shapes: B batch, T sequence, C width, H heads, K key heads, D head size, F inner width, V vocabulary.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
import warptape.nn.functional as F
from checkpoint_layouts import simulate
from warptape import nn
from warptape.parallel import parallelize_module
from warptape.parallel import pipeline as pp
from warptape.parallel.tensor import ColwiseParallel, RowwiseParallel, divide, full_state_dict

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt

L, C, T = 2, 16, 8
H, K, D, INNER, V = 4, 2, 4, 24, 32


def both(ours: str, theirs: str) -> dict[str, str]:
    return {f"{ours}.*": f"{theirs}.*"}


GPT2 = dcp.NameMap(
    {
        **both("tokens", "wte"),
        **both("positions", "wpe"),
        **both("layers.*.norm1", "h.*.ln_1"),
        **both("layers.*.attention.qkv", "h.*.attn.c_attn"),
        **both("layers.*.attention.out", "h.*.attn.c_proj"),
        **both("layers.*.norm2", "h.*.ln_2"),
        **both("layers.*.mlp.0", "h.*.mlp.c_fc"),
        **both("layers.*.mlp.2", "h.*.mlp.c_proj"),
        **both("norm", "ln_f"),
        "head.weight": "lm_head.weight",
    },
    transpose=dcp.GPT2.transpose,
    prefix=dcp.GPT2.prefix,
    ignore=dcp.GPT2.ignore,
)


class Norm(nn.RMSNorm):
    def __init__(self) -> None:
        super().__init__(C, eps=1e-6)


class LlamaAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads, self.kv_heads = H, K
        self.qkv, self.out = nn.Linear(C, (H + 2 * K) * D, bias=False), nn.Linear(H * D, C, bias=False)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        b, t = x.shape[:2]
        sizes = [self.heads * D, self.kv_heads * D, self.kv_heads * D]
        q, k, v = (a.view(b, t, -1, D).transpose(1, 2) for a in self.qkv(x).split(sizes, -1))
        speed = 10000.0 ** (-wt.arange(0, D, 2, dtype=wt.float32) / D)
        angles = wt.arange(t, dtype=wt.float32).unsqueeze(1) * wt.cat([speed, speed])
        turn = lambda a: a * angles.cos() + wt.cat([-a[..., D // 2 :], a[..., : D // 2]], -1) * angles.sin()
        y = F.scaled_dot_product_attention(turn(q), turn(k), v, is_causal=True, enable_gqa=True)
        return self.out(y.transpose(1, 2).reshape(b, t, -1))


class LlamaBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = Norm(), LlamaAttention(), Norm()
        self.gate_up, self.down = nn.Linear(C, 2 * INNER, bias=False), nn.Linear(INNER, C, bias=False)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = x + self.attention(self.norm1(x))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


def llama() -> nn.Sequential:
    """Queries, keys and values in one matrix, and gate and up in another, which theirs are not."""
    head = nn.Linear(C, V, bias=False)
    return nn.Sequential(nn.Embedding(V, C), LlamaBlock(), LlamaBlock(), Norm(), head)


ATTENTION = tuple(f"self_attn.{x}_proj.weight" for x in "qkv")
LLAMA = dcp.NameMap(
    {
        "0.weight": "embed_tokens.weight",
        "3.weight": "norm.weight",
        "4.weight": "lm_head.weight",
        **{
            f"{i}.{ours}.weight": tuple(f"layers.{i - 1}.{each}" for each in theirs)
            for i in (1, 2)
            for ours, theirs in {
                "norm1": ("input_layernorm.weight",),
                "norm2": ("post_attention_layernorm.weight",),
                "attention.qkv": ATTENTION,
                "attention.out": ("self_attn.o_proj.weight",),
                "gate_up": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
                "down": ("mlp.down_proj.weight",),
            }.items()
        },
    },
    prefix="model.",
    sizes={"*.attention.qkv.weight": (H * D, K * D, K * D)},
)


def gpt2() -> nn.Module:
    return train_gpt.GPT(L, 4, C, T)


def shapes_of_gpt2() -> dict[str, tuple[int, ...]]:
    """As transformers writes it: matrices are [inputs, outputs], the head is not there."""
    norm = {"weight": (C,), "bias": (C,)}
    found: dict[str, tuple[int, ...]] = {"wte.weight": (256, C), "wpe.weight": (T, C)}
    for i in range(L):
        found |= {f"h.{i}.{n}.{k}": s for n in ("ln_1", "ln_2") for k, s in norm.items()}
        for name, (a, b) in {"attn.c_attn": (C, 3 * C), "attn.c_proj": (C, C)}.items():
            found |= {f"h.{i}.{name}.weight": (a, b), f"h.{i}.{name}.bias": (b,)}
        for name, (a, b) in {"mlp.c_fc": (C, 4 * C), "mlp.c_proj": (4 * C, C)}.items():
            found |= {f"h.{i}.{name}.weight": (a, b), f"h.{i}.{name}.bias": (b,)}
    found |= {f"ln_f.{k}": s for k, s in norm.items()}
    return {f"transformer.{name}": shape for name, shape in found.items()}


def shapes_of_llama() -> dict[str, tuple[int, ...]]:
    found = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,), "lm_head.weight": (V, C)}
    for i in range(L):
        inside = {
            "input_layernorm": (C,),
            "post_attention_layernorm": (C,),
            "self_attn.q_proj": (H * D, C),
            "self_attn.k_proj": (K * D, C),
            "self_attn.v_proj": (K * D, C),
            "self_attn.o_proj": (C, H * D),
            "mlp.gate_proj": (INNER, C),
            "mlp.up_proj": (INNER, C),
            "mlp.down_proj": (C, INNER),
        }
        found |= {f"model.layers.{i}.{name}.weight": shape for name, shape in inside.items()}
    return found


GPT_PLAN = {
    "tokens": RowwiseParallel(),
    "layers.*.attention": divide("heads", width_of_input=True),
    "layers.*.attention.qkv": ColwiseParallel(parts=3),
    "layers.*.attention.out": RowwiseParallel(),
    "layers.*.mlp.0": ColwiseParallel(),
    "layers.*.mlp.2": RowwiseParallel(),
    "head": ColwiseParallel(),
}
LLAMA_PLAN = {
    "0": RowwiseParallel(),
    "*.attention": divide("heads", "kv_heads"),
    "*.attention.qkv": ColwiseParallel(parts=(H * D, K * D, K * D)),
    "*.attention.out": RowwiseParallel(),
    "*.gate_up": ColwiseParallel(parts=2),
    "*.down": RowwiseParallel(),
    "4": ColwiseParallel(),
}
MODELS: dict[str, tuple[Callable[[], Any], Any, Any, dict[str, tuple[int, ...]]]] = {
    "gpt2": (gpt2, GPT2, GPT_PLAN, shapes_of_gpt2()),
    "llama": (llama, LLAMA, LLAMA_PLAN, shapes_of_llama()),
}


def theirs(which: str, folder: Path) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    arrays = {n: rng.standard_normal(s).astype(np.float32) for n, s in MODELS[which][3].items()}
    folder.mkdir()
    safetensors.numpy.save_file(arrays, folder / "model.safetensors", {"format": "pt"})
    return arrays


def check(which: str, state: dict[str, wt.Tensor], arrays: dict[str, np.ndarray]) -> None:
    """A whole state dict against theirs, written out by hand."""
    got = {name: value.detach().numpy() for name, value in state.items()}
    for i in range(L):
        if which == "gpt2":
            at, of = f"layers.{i}", f"transformer.h.{i}"
            assert np.array_equal(got[f"{at}.attention.qkv.weight"], arrays[f"{of}.attn.c_attn.weight"].T)
            assert np.array_equal(got[f"{at}.mlp.2.weight"], arrays[f"{of}.mlp.c_proj.weight"].T)
            assert np.array_equal(got[f"{at}.attention.out.bias"], arrays[f"{of}.attn.c_proj.bias"])
            assert np.array_equal(got[f"{at}.norm2.bias"], arrays[f"{of}.ln_2.bias"])
        else:
            at, of = f"{i + 1}", f"model.layers.{i}"
            qkv = np.concatenate([arrays[f"{of}.self_attn.{x}_proj.weight"] for x in "qkv"])
            assert np.array_equal(got[f"{at}.attention.qkv.weight"], qkv)
            both = np.concatenate([arrays[f"{of}.mlp.{x}_proj.weight"] for x in ("gate", "up")])
            assert np.array_equal(got[f"{at}.gate_up.weight"], both)
            assert np.array_equal(got[f"{at}.down.weight"], arrays[f"{of}.mlp.down_proj.weight"])
    embedding = "tokens.weight" if which == "gpt2" else "0.weight"
    assert np.array_equal(got[embedding], arrays[next(iter(arrays))])


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("which", MODELS)
def test_into_a_split_model_and_back(tmp_path, which, ranks):
    build, names, plan, _ = MODELS[which]
    arrays = theirs(which, tmp_path / "theirs")

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (ranks,), mesh_dim_names=("tp",))
        model = parallelize_module(build(), mesh, plan)
        dcp.load_huggingface(model, tmp_path / "theirs", names)
        check(which, full_state_dict(model), arrays)
        dcp.save({"model": model}, checkpoint_id=tmp_path / "ours")

    simulate(ranks, rank)
    dcp.save_huggingface(tmp_path / "ours", tmp_path / "back", names)
    back = safetensors.numpy.load_file(tmp_path / "back" / "model.safetensors")
    assert back.keys() == arrays.keys()
    assert all(np.array_equal(back[name], arrays[name]) for name in arrays)
    dcp.save_huggingface(tmp_path / "ours", tmp_path / "many", names, max_shard_size=4096)
    index = json.loads((tmp_path / "many" / "model.safetensors.index.json").read_text())
    assert index["weight_map"].keys() == arrays.keys()
    assert len(set(index["weight_map"].values())) > 3
    assert index["metadata"]["total_size"] == sum(a.nbytes for a in arrays.values())
    model = build()
    dcp.load_huggingface(model, tmp_path / "many", names)
    check(which, model.state_dict(), arrays)


def test_into_the_stages_of_a_pipeline(tmp_path):
    arrays = theirs("llama", tmp_path / "theirs")

    def rank() -> dict[str, wt.Tensor]:
        (stage,) = pp.split_into_stages(llama(), balance=[2, 3])
        dcp.load_huggingface(stage, tmp_path / "theirs", LLAMA)
        return stage.submod.state_dict()

    first, second = simulate(2, rank)
    check("llama", {**first, **second}, arrays)


def test_what_does_not_fit_is_refused(tmp_path):
    arrays = theirs("gpt2", tmp_path / "theirs")
    file = tmp_path / "theirs" / "model.safetensors"
    whole = file.read_bytes()

    def refused(match: str) -> None:
        model = gpt2()
        before = [p.detach().clone() for p in model.parameters()]
        with pytest.raises(dcp.CheckpointException, match=match):
            dcp.load_huggingface(model, tmp_path / "theirs", GPT2)
        assert all(wt.equal(a, b.detach()) for a, b in zip(before, model.parameters()))

    def changed(**change: Any) -> None:
        safetensors.numpy.save_file({**arrays, **change}, file)

    changed(**{"transformer.h.2.ln_1.weight": np.zeros(3, np.float32)})
    refused("nothing here is called transformer.h.2.ln_1.weight")
    changed(**{"transformer.h.0.ln_1.weight": np.zeros(3, np.float32)})
    refused(r"layers.0.norm1.weight is \[3\] there and \[16\] here")
    changed(**{"lm_head.weight": arrays["transformer.wte.weight"] + 1})
    refused("head.weight is one parameter")
    changed(
        **{"lm_head.weight": arrays["transformer.wte.weight"], "transformer.h.0.attn.bias": np.ones((1, 1))}
    )
    dcp.load_huggingface(gpt2(), tmp_path / "theirs", GPT2)
    safetensors.numpy.save_file({k: v for k, v in arrays.items() if "wpe" not in k}, file)
    refused("wpe.weight is missing there, for positions.weight")
    for size in (0, 7, 100, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:size])
        refused("model.safetensors")
    file.write_bytes((1 << 60).to_bytes(8, "little") + whole[8:])
    refused("model.safetensors")
    file.unlink()
    refused("expected model.safetensors")
    (tmp_path / "theirs" / "model.safetensors.index.json").write_text('{"weight_map": {"a": "../x"}}')
    refused("leads out")


@pytest.mark.parity
@pytest.mark.parametrize("which", MODELS)
def test_logits_are_those_of_transformers(tmp_path, which):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    if which == "gpt2":
        config = transformers.GPT2Config(
            vocab_size=256, n_positions=T, n_embd=C, n_layer=L, n_head=4, initializer_range=0.3
        )
        other = transformers.GPT2LMHeadModel(config).eval()
    else:
        config = transformers.LlamaConfig(
            vocab_size=V,
            hidden_size=C,
            intermediate_size=INNER,
            num_hidden_layers=L,
            num_attention_heads=H,
            num_key_value_heads=K,
            initializer_range=0.3,
        )
        other = transformers.LlamaForCausalLM(config).eval()
    other.save_pretrained(tmp_path / "theirs")
    build, names, *_ = MODELS[which]
    model = build()
    dcp.load_huggingface(model, tmp_path / "theirs", names)
    tokens = np.random.default_rng(1).integers(0, V, (2, T))
    with torch.no_grad():
        expected = other(torch.from_numpy(tokens)).logits.numpy()
    assert np.abs(model(wt.from_numpy(tokens)).detach().numpy() - expected).max() < 1e-4
    dcp.save({"model": model}, checkpoint_id=tmp_path / "ours")
    dcp.save_huggingface(tmp_path / "ours", tmp_path / "back", names)
    config.save_pretrained(tmp_path / "back")
    again = type(other).from_pretrained(tmp_path / "back").eval()
    with torch.no_grad():
        assert torch.equal(again(torch.from_numpy(tokens)).logits, torch.from_numpy(expected))
