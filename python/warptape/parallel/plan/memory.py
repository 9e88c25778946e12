"""The memory of a rank as formulas, part by part, for the first stage and the last.

What the tape keeps of a layer follows its ops: a norm its input, a product its input, attention queries,
keys, values, its output and one number a row, an activation its input. "Reducing Activation
Recomputation in Large Transformer Models" (Korthikanti et al. 2022), section 4, counts so for Megatron-LM.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from .hardware import Cluster
from .layout import PRECISIONS, Program
from .shape import COLUMN, ROW, ModelShape
from .sheet import Sheet, rows

_PARAMETERS = """
stage = ceil(L / pp)  # layers of the largest stage; ends may have one less
stage_layers = where((L / pp == stage) + (first + last == 0), stage, where(first * last, L, stage - 1))  #
... of this one
stage_dense = stage_layers * layer_split + first * (embedding / tp + positions) + last * (end_norm +
... where(first * tied, 0, embedding / tp)) # parameters of a rank's stage, without experts
stage_experts = stage_layers * layer_experts / (tp * ep)  # parameters of experts on a rank
copies = dp * cp  # ranks that share a stage's weights
expert_copies = copies / ep  # ranks that share an expert's weights
whole = stage_dense + stage_experts  # parameters of a stage, before ZeRO
shared = stage_dense / copies + stage_experts / expert_copies  # a rank's part of them
"""

_PARTS = """
layer_weights = layer_split + layer_experts / (tp * ep)  # parameters of a layer
largest_unit = max(layer_weights, where(first + last, embedding / tp, 0))  # that ZeRO 3 puts together at
... once
weights [B] = weight_size * where(zero == 3, shared, where(zero == 2, whole + where(master, 0, shared),
... whole)) * where(schedule == 4, 2, 1) # whole, or with ZeRO 3 a part; ZeRO 2 has whole ones from
... forward to backward, beside the optimizer's
gradients [B] = gradient_size * where(zero >= 2, shared, whole)  # whole, or from ZeRO 2 on a part
optimizer [B] = state_size * where(zero >= 1, shared, whole)  # Adam's moments, and the copy of weights in
... float32
T = b * s / cp  # tokens of a micro-batch on a rank
spread = where(sp, tp, 1)  # sequence parallelism spreads norms and residuals
scores [B] = where(fused, 0, b * heads / tp * s * s / cp * (2 * size + dropout))  # probabilities of a
... layer, and what dropout kept
heads_kept = qkv_width * (1 + rotary * turned) + 2 * out_width  # elements: queries, keys, values,
... attention's output as it comes and as the product takes it
experts_kept = expert_share * top_k * C  # elements of tokens as experts take them
mlp_kept = inner * (2 + 2 * gated)  # elements: what the activation and the products take
kept [B] = T * (kept_size * (2 * C / spread + 2 * C / where(regather, spread, 1) + experts_kept +
... (heads_kept + mlp_kept) / tp) + 4 * heads / tp + norm_size / spread) + scores + dropout * T * 2 * C /
... spread # of a layer and a micro-batch, without recomputation
kept_selective [B] = T * (kept_size * (2 * C / spread + experts_kept + (where(latent, latent * tp +
... out_width, heads_kept) + inner * (1 + gated)) / tp) + 4 * heads / tp) # norms' outputs, the
... activation's, latent attention's heads and attention's scores are made again
kept_full [B] = T * size * C / spread  # a layer's input alone
layer_kept [B] = where(recompute == 2, kept_full, where(recompute == 1, kept_selective, kept))  # as this
... layout keeps it
virtual = pp * chunks  # stages of the model
held = where(schedule == 0, n, where(schedule == 2, min(n * chunks, virtual - pp + 2 * (pp - rank) - 1) /
... chunks, where(schedule == 3, min(n, pp), where(schedule == 4, pp + 1, min(n, pp - rank))))) #
... micro-batches whose activations the rank keeps at once
ends_kept [B] = first * T * 8 + last * size * T * 2 * C / spread  # tokens; the last norm's input and
... output
logits [B] = last * T * V / tp * logits_size  # logits, what the loss keeps of them, and their gradient
activations [B] = held * (stage_layers * layer_kept + first * T * 8) + last * size * T * 2 * C / spread  #
... kept for backward
work [B] = T * size * (2 * C + max(mlp_kept, heads_kept) / tp) + scores  # gradients and results of one
... layer in the works
again [B] = where(recompute > 0, kept - layer_kept, 0)  # what recomputation of one layer keeps for a
... while
gathered [B] = where(zero == 3, 2 * largest_unit * weight_size, 0)  # whole weights of two layers
pending [B] = where(schedule == 3, min(rank, n) * stage_layers * T * size * output_width / tp, 0) # ZB-H1
... leaves weight gradients for later, with the gradients of outputs that they need
outputs [B] = where(pp > 1, held * chunks * T * size * C / spread, 0)  # of stages, as they were sent
buffers [B] = max(logits, where(recompute > 0, work + again, where(n > held, work, 0))) + where((recompute
... > 0) * (zero == 3), 2 * largest_unit * gradient_size, 0) + gathered + outputs + pending +
... where(separate_buckets * (copies > 1) * (pp == 1) * (zero < 2) * (n > 1) > 0, gradients, 0) # what
... comes and goes
"""

_TOTAL = """
early = (n > held) + (copies > 1) * (pp == 1) * (zero < 2) > 0  # gradients are there while most
... activations # are: of earlier micro-batches, or because they lie in the buckets that are sent
static [B] = weights + optimizer + overhead  # always there
peak_forward [B] = static + where(early, gradients, 0) + activations + buffers  # as the last forward ends
peak_backward [B] = static + gradients + activations * (held - 1 + 1 / max(stage_layers, 1)) / held + work
... + where(zero >= 2, 2 * largest_unit * gradient_size, 0) + gathered + outputs # as the first
... micro-batch's backward ends; ZeRO 2 and 3 have whole gradients of two layers
memory [B] = max(peak_forward, peak_backward)  # a rank's peak
"""

PARTS = ("weights", "gradients", "optimizer", "activations", "buffers", "overhead")


@lru_cache(maxsize=64)
def memory_sheet(model: ModelShape) -> Sheet:
    """The formulas of a rank of this model."""
    split = sum(p.parameters * p.layers for p in model.products if not p.expert and p.split in (COLUMN, ROW))
    # A row-split product's bias is whole on every rank.
    outputs = sum(p.fan_out * p.layers * (model.top_k if p.expert else 1) for p in model.products)
    row_bias = sum(p.fan_out * p.layers for p in model.products if p.split == ROW and p.bias and not p.expert)
    whole = model.layer_parameters - split
    text = (
        f"layer_split = ({split - row_bias} / tp + {whole + row_bias}) / L"
        "  # parameters of a layer on a rank, without experts"
        f"\noutput_width = {outputs} / L  # elements that a layer's products give for a token"
        f"\nlayer_experts = {model.expert_parameters} / L  # parameters of a layer's experts"
    )
    return Sheet(rows("\n".join([text, _PARAMETERS, _PARTS, _TOTAL])))


def memory_inputs(model: ModelShape, cluster: Cluster, program: Program, sequence: int) -> dict[str, Any]:
    """What the formulas read beside the layout and the stage (first, last, rank)."""
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
        "separate_buckets": int(program.separate_buckets),
        "kept_size": 1 if program.precision == "fp8" else activation,
        "top_k": model.top_k,
        "expert_share": model.expert_layers / model.layers,
        "embedding": model.vocabulary * model.width,
        "positions": model.positions * model.width,
        "end_norm": model.norm_parameters // 2,
        "tied": int(model.tied),
        "size": activation,
        "weight_size": weight,
        "gradient_size": gradient,
        "state_size": state,
        "logits_size": activation + 8,
        "master": 0 if program.precision == "fp32" else 1,
        "overhead": program.overhead,
    }
