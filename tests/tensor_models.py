"""Models that know nothing of ranks, and plans for them.

Shapes: B batch, T sequence, C width, H heads, K key heads, D head size, V vocabulary; n ranks.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn
from warptape.parallel import tensor as tp
from warptape.utils.checkpoint import checkpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import train_gpt

LIMIT = timedelta(seconds=60)
B, T, C, V = 2, 8, 16, 24
TOLERANCE = 1e-10
Shard, Replicate = tp.Shard, tp.Replicate
Colwise, Rowwise, Sequence = tp.ColwiseParallel, tp.RowwiseParallel, tp.SequenceParallel


def simulate(n: int, rank: Callable[[], Any]) -> list[Any]:
    return dist.simulate(n, rank, timeout=LIMIT)


def mesh() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("tp",))


# ------------------------------------------------------------- models that know nothing of ranks


def rotate(x: wt.Tensor) -> wt.Tensor:
    """[B, H, T, D] turned by place, as in "RoFormer", section 3.2.2."""
    half = x.shape[-1] // 2
    turns = wt.exp(wt.arange(half, dtype=x.dtype) * (-9.2 / half))
    angles = wt.arange(x.shape[-2], dtype=x.dtype).unsqueeze(1) * turns
    a, b = x[..., :half], x[..., half:]
    return wt.cat([a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()], -1)


class Attention(nn.Module):
    """Grouped heads, separate projections; dropout in the fused attention or as a module."""

    def __init__(self, heads: int, kv_heads: int, composed: bool) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.composed, self.size = heads, kv_heads, composed, C // heads
        self.q, self.v = (nn.Linear(C, h * self.size) for h in (heads, kv_heads))
        self.k = nn.Linear(C, kv_heads * self.size, bias=False)
        self.proj = nn.Linear(C, C)
        self.drop, self.out_drop = nn.Dropout(0.2), nn.Dropout(0.1)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        b, t = x.shape[:2]
        q = rotate(self.q(x).view(b, t, self.heads, self.size).transpose(1, 2))
        k = rotate(self.k(x).view(b, t, self.kv_heads, self.size).transpose(1, 2))
        v = self.v(x).view(b, t, self.kv_heads, self.size).transpose(1, 2)
        if self.composed:
            k, v = (z.repeat_interleave(self.heads // self.kv_heads, 1) for z in (k, v))
            y = self.drop(F.softmax(q @ k.transpose(-2, -1) / self.size**0.5, -1)) @ v
        else:
            p = 0.2 if self.training else 0.0
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=True, enable_gqa=True)
        return self.out_drop(self.proj(y.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    def __init__(self, composed: bool) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(C), nn.RMSNorm(C)
        self.attn = Attention(8, 4, composed)
        self.gate, self.up, self.down = nn.Linear(C, 4 * C), nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.inner_drop, self.drop = nn.Dropout(0.3), nn.Dropout(0.1)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = x + self.attn(self.norm1(x))
        h = self.norm2(x)
        return x + self.drop(self.down(self.inner_drop(F.silu(self.gate(h)) * self.up(h))))


class Llama(nn.Module):
    """Tokens [B, T] -> logits [B, T, V]: grouped heads, rotary places, SwiGLU; and biases and dropout, so
    that these are tried, too."""

    def __init__(self, composed: bool = False, remat: bool = False) -> None:
        super().__init__()
        self.remat = remat
        self.embed, self.drop = nn.Embedding(V, C), nn.Dropout(0.1)
        self.layers = nn.ModuleList(Block(composed) for _ in range(2))
        self.norm, self.head = nn.RMSNorm(C), nn.Linear(C, V)

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.drop(self.embed(tokens))
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.remat else layer(x)
        return self.head(self.norm(x))


class FusedAttention(nn.Module):
    """As nanoGPT writes it: the width is an attribute and is read from the input."""

    def __init__(self) -> None:
        super().__init__()
        self.n_embd, self.n_head = C, 4
        # A bias of keys has a gradient of zero, so its rounding errors would be all there is to compare.
        self.c_attn, self.c_proj = nn.Linear(C, 3 * C, bias=False), nn.Linear(C, C)
        self.resid_dropout = nn.Dropout(0.1)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        b, t, c = x.shape
        q, k, v = (
            z.view(b, t, self.n_head, c // self.n_head).transpose(1, 2)
            for z in self.c_attn(x).split(self.n_embd, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1 if self.training else 0.0, is_causal=True)
        return self.resid_dropout(self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c)))


class FusedBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(C), FusedAttention(), nn.LayerNorm(C)
        self.c_fc, self.c_proj, self.dropout = nn.Linear(C, 4 * C), nn.Linear(4 * C, C), nn.Dropout(0.1)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.c_proj(F.gelu(self.c_fc(self.ln_2(x)))))


class GPT2(nn.Module):
    """Tokens [B, T] -> logits [B, T, V]; queries, keys and values in one matrix, the head tied to the
    embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = nn.Embedding(V, C), nn.Embedding(T, C), nn.Dropout(0.1)
        self.h = nn.ModuleList(FusedBlock() for _ in range(2))
        self.ln_f, self.lm_head = nn.LayerNorm(C), nn.Linear(C, V, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(wt.arange(tokens.shape[1])))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


# ------------------------------------------------------------------------------------- plans


def gpt_plan(sequence: bool = False) -> dict[str, Any]:
    """For examples/train_gpt.py's model; docs/guides/parallel.md shows it."""
    plan: dict[str, Any] = {
        "tokens": Rowwise(),
        "layers.*.attention": tp.divide("heads", width_of_input=True),
        "layers.*.attention.qkv": Colwise(parts=3),
        "layers.*.attention.out": Rowwise(),
        "layers.*.mlp.0": Colwise(),
        "layers.*.mlp.2": Rowwise(),
        "head": Colwise(),
    }
    if not sequence:
        return plan
    gather = tp.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    return plan | {
        "tokens": Rowwise(output_layouts=Shard(1)),
        "positions": tp.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0)),
        "layers.*.norm?": Sequence(),
        "norm": Sequence(),
        "layers.*.attention": [gather, tp.divide("heads", width_of_input=True)],
        "layers.*.attention.out": Rowwise(output_layouts=Shard(1)),
        "layers.*.mlp.0": Colwise(input_layouts=Shard(1)),
        "layers.*.mlp.2": Rowwise(output_layouts=Shard(1)),
        "head": Colwise(input_layouts=Shard(1)),
    }


def llama_plan(sequence: bool = False) -> dict[str, Any]:
    out = Rowwise(output_layouts=Shard(1)) if sequence else Rowwise()
    into = Colwise(input_layouts=Shard(1)) if sequence else Colwise()
    plan: dict[str, Any] = {
        "embed": out,
        "layers.*.attn": tp.divide("heads", "kv_heads"),
        "layers.*.attn.[qkv]": Colwise(),
        "layers.*.attn.drop": tp.ShardedDropout(1),
        "layers.*.attn.proj": out,
        "layers.*.gate": into,
        "layers.*.up": into,
        "layers.*.inner_drop": tp.ShardedDropout(-1),
        "layers.*.down": out,
        "head": into,
    }
    if sequence:
        gather = tp.PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
        plan["layers.*.attn"] = [gather, tp.divide("heads", "kv_heads")]
        names = ("drop", "norm", "layers.*.norm?", "layers.*.drop", "layers.*.attn.out_drop")
        plan |= {name: Sequence() for name in names}
    return plan


def gpt2_plan(sequence: bool = False) -> dict[str, Any]:
    out = Rowwise(output_layouts=Shard(1)) if sequence else Rowwise()
    into = Colwise(input_layouts=Shard(1)) if sequence else Colwise()
    divide = tp.divide("n_head", "n_embd", width_of_input=True)
    plan: dict[str, Any] = {
        "wte": out,
        "h.*.attn": divide,
        "h.*.attn.c_attn": Colwise(parts=(C, C, C)),
        "h.*.attn.c_proj": out,
        "h.*.c_fc": into,
        "h.*.c_proj": out,
        "lm_head": into,
    }
    if sequence:
        split = tp.PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
        gather = tp.PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
        plan |= {"wpe": split, "h.*.attn": [gather, divide]}
        names = ("drop", "h.*.ln_?", "h.*.attn.resid_dropout", "h.*.dropout", "ln_f")
        plan |= {name: Sequence() for name in names}
    return plan


def columns_plan(sequence: bool = False) -> dict[str, Any]:
    """Without a layer split by rows: what columns give is gathered."""
    gathered = Colwise(output_layouts=Replicate())
    cut = Colwise(output_layouts=Shard(1), parts=4)  # left along the sequence, and gathered from there
    back = tp.PrepareModuleOutput(output_layouts=Shard(1), desired_output_layouts=Replicate())
    plain = ("layers.*.attn.[qkv]", "layers.*.attn.proj", "layers.*.gate", "layers.*.down")
    return {
        **dict.fromkeys(("embed", *plain), gathered),
        "layers.*.up": [cut, back],
        "head": Colwise(),
    }


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[..., dict[str, Any]], int]] = {
    "example": (lambda: train_gpt.GPT(2, 4, C, T), gpt_plan, train_gpt.VOCABULARY),
    "gpt2": (GPT2, gpt2_plan, V),
    "llama": (Llama, llama_plan, V),
    "composed": (lambda: Llama(composed=True), llama_plan, V),
    "remat": (lambda: Llama(remat=True), llama_plan, V),
    "columns": (Llama, columns_plan, V),
}


def batches(steps: int, vocabulary: int) -> list[tuple[wt.Tensor, wt.Tensor]]:
    generator = wt.Generator().manual_seed(5)
    both = [wt.randint(vocabulary, (B, T + 1), generator=generator) for _ in range(steps)]
    return [(t[:, :-1], t[:, 1:]) for t in both]
