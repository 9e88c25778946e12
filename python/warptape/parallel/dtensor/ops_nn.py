"""Rules of nn.functional: layers by batch dims, losses, attention by heads, tables by rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ...core import Tensor
from ...nn import functional as F
from .calls import to_full_tensor
from .rules import Call, Labels, Rule, rule


def _leading(call: Call, count: int) -> list[Labels]:
    """The first dims of the first tensor may be split; nothing of the others."""
    first = (*range(count), *(None,) * (len(call.shapes[0]) - count))
    return [first] + [(None,) * len(s) for s in call.shapes[1:]]


@rule("layer_norm rms_norm native_layer_norm")
def norm_of_last(call: Call) -> Rule:
    """The dims that are normalized must not be split."""
    shape = call.arg(1, "normalized_shape")
    inner = 1 if isinstance(shape, int) else len(shape)
    inputs = _leading(call, len(call.shapes[0]) - inner)
    return Rule(inputs, [inputs[0]])


@rule("role=convolution", "group_norm", "instance_norm")
@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "interpolate")
@rule("max_pool1d", "max_pool2d", "max_pool3d")
@rule("avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d")
def by_batch(call: Call) -> Rule | None:
    """By the batch alone."""
    spatial = next((int(x) for x in call.name if x.isdigit()), 0)
    if spatial and len(call.shapes[0]) != spatial + 2:
        return None
    if call.name == "instance_norm" and call.arg(1, "running_mean") is not None:
        return None
    inputs = _leading(call, 1)
    ndim = len(call.shapes[0])
    return Rule(inputs, [(0, *(None,) * (ndim - 1))])


@rule("batch_norm")
def batch_norm(call: Call) -> Rule | None:
    """With running statistics alone by the batch; those of a batch that is split take nn.SyncBatchNorm."""
    if call.arg(5, "training", False):
        return None
    return by_batch(call)


@rule("pad")
def pad(call: Call) -> Rule:
    """Dims that are padded must not be split."""
    padded, n = len(call.arg(1, "pad")) // 2, len(call.shapes[0])
    names = tuple(i if i < n - padded else None for i in range(n))
    return Rule([names], [names])


@rule("scaled_dot_product_attention")
def attention(call: Call) -> Rule | None:
    """[.., T, D]: batch and heads may be split where queries, keys and values have as many."""
    q, k, v = call.shapes[:3]
    n = len(q)
    if any(len(s) != n for s in (k, v)):
        return None
    names = tuple(i if q[i] == k[i] == v[i] else None for i in range(n - 2))
    if call.kwargs.get("enable_gqa") and n > 2 and q[n - 3] != k[n - 3]:
        # A rank's queries need its keys: both counts must be cut alike.
        fits = call.divides(n - 3, 0) and call.divides(n - 3, 1)
        names = (*names[:-1], n - 3 if fits else None)
    full: Labels = (*names, None, None)
    inputs: list[Labels] = [full, full, full]
    for shape in call.shapes[3:]:
        ahead = n - len(shape)
        inputs.append(
            tuple(None if s == 1 or i + ahead >= n - 2 else names[i + ahead] for i, s in enumerate(shape))
        )
    rule_of = Rule(inputs, [full])
    if call.kwargs.get("enable_gqa"):
        rule_of.shapes = [(*q[:-1], v[-1])]
    return rule_of


@rule("embedding")
def embedding(call: Call) -> Rule:
    """Indices [*] and a table [V, C]: by columns, by indices, and by rows, which leaves a sum."""
    index, table = call.tensor(0, "input"), call.tensor(1, "weight")
    assert index is not None and table is not None
    lead = tuple(("index", i) for i in range(len(call.shapes[index])))
    inputs: list[Labels] = [()] * 2
    inputs[index], inputs[table] = lead, ("v", "c")
    if any(call.kwargs.get(k) for k in ("max_norm", "scale_grad_by_freq", "sparse")):
        inputs[table] = (None, "c")
        return Rule(inputs, [(*lead, "c")])
    return Rule(inputs, [(*lead, "c")], sums={"v": "sum"}, run=_batch_of_shard, layout_of=table)


def _batch_of_shard(
    table: Any, input: Tensor, weight: Tensor, padding_idx: int | None = None, *more: Any, **named: Any
) -> Tensor:
    """Rows of a table of which a rank holds some; zeros for those of others."""
    if table is None or weight.shape[0] == table.shape[0]:
        return F.embedding(input, weight, padding_idx, *more, **named)
    size, (first, held) = table.shape[0], table.regions()[0][0]
    if bool(((input < 0) | (input >= size)).any()):
        raise IndexError(f"embedding: expected indices from 0 to {size - 1}")
    if held == 0:
        return weight.new_zeros((*input.shape, weight.shape[1])) + weight.sum()
    away = (input < first) | (input >= first + held)
    row = None if padding_idx is None else padding_idx % size - first
    rows = F.embedding(
        (input - first).masked_fill(away, 0), weight, row if row is not None and 0 <= row < held else None
    )
    return rows.masked_fill(away.unsqueeze(-1), 0)


def _reduction(call: Call) -> str:
    return str(call.kwargs.get("reduction", "mean"))


@rule("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
@rule("binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin_loss")
def pointwise_loss(call: Call) -> Rule | None:
    """Element by element, then none, the sum, or the average."""
    if call.kwargs.get("size_average") is not None or call.kwargs.get("reduce") is not None:
        return None
    shape, kind = call.shapes[0], _reduction(call)
    if any(s != shape for s in call.shapes[:2]) or len(call.shapes) > 2 or len(call.args) > 2:
        return None
    every = tuple(range(len(shape)))
    if kind == "none":
        return Rule([every, every], [every])
    if kind == "sum":
        return Rule([every, every], [()], sums=dict.fromkeys(every, "sum"))
    if kind != "mean":
        return None
    over = [d for d in every if call.divides(d)]
    names = tuple(d if d in over else None for d in every)
    return Rule([names, names], [()], sums=dict.fromkeys(over, "avg"))


@rule("kl_div")
def kl_div(call: Call) -> Rule | None:
    """As the other losses element by element; "batchmean" is the sum, divided by the rows of the full
    tensor."""
    if _reduction(call) != "batchmean":
        return pointwise_loss(call)
    summed = pointwise_loss(replace(call, kwargs={**call.kwargs, "reduction": "sum"}))
    rows = max(call.shapes[0][0], 1) if call.shapes[0] else 1
    if summed is not None:
        summed.run = lambda *args, **more: call.func(*args, **{**more, "reduction": "sum"}) / rows
    return summed


@rule("cross_entropy nll_loss")
def cross_entropy(call: Call) -> Rule | None:
    """[N, V] and [N], by rows. The average of rows of which some may be ignored is the sum of the ranks'
    sums, divided by the count of all rows that count."""
    if len(call.shapes) != 2 or len(call.args) > 2 or call.kwargs.get("size_average") is not None:
        return None
    logits, target = call.shapes
    if len(logits) not in (2, 3, 4) or len(target) != len(logits) - 1 or len(logits) != len(target) + 1:
        return None
    spatial = tuple(range(1, len(target)))
    names = (0, None, *(d for d in spatial))
    rows = (0, *spatial)
    kind = _reduction(call)
    if kind == "none":
        return Rule([names, rows], [rows])
    if kind == "sum":
        return Rule([names, rows], [()], sums=dict.fromkeys(rows, "sum"))
    ignored = call.kwargs.get("ignore_index", -100)
    classes: Any = next(a for a in (*call.args[1:], *call.kwargs.values()) if isinstance(a, Tensor))
    cut = any(call.splits(t, d) > 1 for t in (0, 1) for d in range(len(call.shapes[t])))
    if not cut:
        return Rule([(None,) * len(logits), (None,) * len(target)], [()])
    counted = (to_full_tensor(classes) != ignored).sum()

    def run(*args: Any, **kwargs: Any) -> Tensor:
        return call.func(*args, **{**kwargs, "reduction": "sum"}) / counted

    return Rule([names, rows], [()], sums=dict.fromkeys(rows, "sum"), run=run)
