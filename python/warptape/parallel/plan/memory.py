"""The memory of a rank as formulas, part by part, for the first stage and the last; they are in memory.txt.

What the tape keeps of a layer follows its ops: a norm its input, a product its input, attention queries,
keys, values, its output and one number a row, an activation its input. "Reducing Activation
Recomputation in Large Transformer Models" (Korthikanti et al. 2022), section 4, counts so for Megatron-LM.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from .cost_model import CostModel, terms
from .hardware import Cluster
from .layout import PRECISIONS, Program
from .shape import COLUMN, ROW, ModelShape

FORMULAS = Path(__file__).with_suffix(".txt")
PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")


@lru_cache(maxsize=64)
def memory_model(model: ModelShape) -> CostModel:
    """The formulas of a rank of this model.

    Args:
        model: its sizes.
    """
    split = sum(p.parameters * p.layers for p in model.products if not p.expert and p.split in (COLUMN, ROW))
    # A row-split product's bias is whole on every rank.
    outputs = sum(p.fan_out * p.layers * (model.top_k if p.expert else 1) for p in model.products)
    row_bias = sum(p.fan_out * p.layers for p in model.products if p.split == ROW and p.bias and not p.expert)
    unsplit = model.layer_parameters - split
    text = (
        f"layer_split = ({split - row_bias} / tp + {unsplit + row_bias}) / L"
        "  # parameters of a layer on a rank, without experts"
        f"\noutput_width = {outputs} / L  # elements that a layer's products give for a token"
        f"\nlayer_experts = {model.expert_parameters} / L  # parameters of a layer's experts"
    )
    return CostModel(terms(text) + terms(FORMULAS.read_text(encoding="utf-8")))


def memory_inputs(model: ModelShape, cluster: Cluster, program: Program, sequence: int) -> dict[str, Any]:
    """What the formulas read beside the layout and the stage (first, last, rank).

    Args:
        model: its sizes.
        cluster: its devices.
        program: precision and optimizer.
        sequence: tokens of one.
    """
    weight, gradient, state, activation, _ = PRECISIONS[program.precision]
    return {
        "s": sequence,
        "L": model.layers,
        "C": model.width,
        "V": model.vocabulary,
        "heads": model.heads,
        "qkv_width": model.heads * model.qk_dim + model.kv_heads * (model.qk_dim + model.v_dim),
        "out_width": model.heads * model.v_dim,
        "inner": model.inner,
        "gated": int(model.gated),
        "rotary": int(model.rotary),
        "turned": 1.0,
        "fused": int(program.fused_attention),
        "dropout": int(program.dropout),
        "norm_size": 16,
        "regather": int(program.regather),
        "latent": model.latent,
        "kept_size": 1 if program.precision == "fp8" else activation,
        "top_k": model.top_k,
        "expert_share": model.expert_layers / model.layers,
        "embedding": model.vocabulary * model.width,
        "positions": model.positions * model.width,
        "end_norm": model.end_norm,
        "tied": int(model.tied),
        "size": activation,
        "weight_size": weight,
        "gradient_size": gradient,
        "state_size": state,
        "logits_size": activation + 8,
        "master": 0 if program.precision == "fp32" else 1,
        "overhead": program.overhead,
    }
