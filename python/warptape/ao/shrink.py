"""Removing what is zero: a pruned model becomes a smaller one with the same outputs."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import numpy as np

from warptape import core as wt

from ..compiler.graphs import record
from ..core.pytree import tree_leaves
from ..models import Decoder
from ..nn import Module, Parameter
from ..nn.utils import prune
from .shrink_graph import follow
from .shrink_labels import ChannelGraph, Heads
from .shrink_modules import NarrowMultiheadAttention, refresh, set_heads

__all__ = ["PruneReport", "ShrinkError", "ShrinkReport", "prune_channels", "shrink"]

_ROUNDING = {wt.float64: 1e-9, wt.float32: 1e-4}


class ShrinkError(RuntimeError, ValueError):
    """A model that cannot be made smaller as asked; it is unchanged.

    The message names the op that stands in the way.
    """


@dataclasses.dataclass
class ShrinkReport:
    """What `shrink` removed.

    Attributes:
        shapes: by name of a parameter or buffer, its shape before and after.
        kept: parameters of attentions whose zero heads stay, as their code computes with a fixed width.
        unknown: ops whose channels stay as they are, for no rule is known of them.
        parameters: their number before and after.
    """

    shapes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    kept: list[str]
    unknown: list[str]
    parameters: tuple[int, int]

    def __str__(self) -> str:
        before, after = self.parameters
        lines = [f"parameters {before} -> {after}"]
        lines += [f"{name} {list(a)} -> {list(b)}" for name, (a, b) in self.shapes.items()]
        lines += [f"heads kept: {', '.join(self.kept)}"] if self.kept else []
        lines += [f"channels kept at: {', '.join(self.unknown)}"] if self.unknown else []
        return "\n".join(lines)


@dataclasses.dataclass
class PruneReport:
    """What `prune_channels` made zero: by weight, its channels and how many of these are zero now.

    Args:
        channels: by name of weight.
    """

    channels: dict[str, tuple[int, int]]

    def __str__(self) -> str:
        return "\n".join(f"{name}: {gone} of {n} channels" for name, (n, gone) in self.channels.items())


def _example(example_inputs: Any) -> tuple[Any, ...]:
    return tuple(example_inputs) if isinstance(example_inputs, (tuple, list)) else (example_inputs,)


def _copied(model: Module) -> Module:
    """A copy in which what was pruned by masks is zero for good."""
    memo: dict[int, Any] = {}
    for module in model.modules():
        for value in module.__dict__.values():
            if isinstance(value, wt.Tensor) and not value.is_leaf:  # masked weights are computed
                memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(model, memo)
    for module in copied.modules():
        for name in prune.pruned_names(module):
            prune.remove(module, name)
    return copied


def _run(model: Module, args: tuple[Any, ...]) -> list[wt.Tensor]:
    with wt.no_grad():
        return [x for x in tree_leaves(model(*args)) if isinstance(x, wt.Tensor)]


def _followed(model: Module, args: tuple[Any, ...]) -> ChannelGraph:
    names = {name for name, _ in model.named_parameters()} | {name for name, _ in model.named_buffers()}
    with wt.no_grad():
        return follow(record(model, args, strict=True).graph, names)


def _removable(graph: ChannelGraph) -> set[int]:
    """The sets of labels that add nothing, or a known number that goes into a bias."""
    find = graph.labels.find
    biases = [sink.bias for sink in graph.sinks]
    stay = {0}
    for sink in graph.sinks:
        shifts = sink.shifts if biases.count(sink.bias) == 1 else None
        for i, label in enumerate(sink.labels.tolist()):
            if not sink.harmless[i] and (shifts is None or np.isnan(shifts[i]).any()):
                stay.add(find(label))
    return {find(label) for label in range(len(graph.labels.parent))} - stay


def _kept(graph: ChannelGraph, gone: set[int]) -> dict[str, list[np.ndarray]]:
    """By name, of each dim whether an index stays. Raises: ShrinkError where none would."""
    out = {}
    for name, value in graph.params.items():
        keep = [
            np.ones(n, bool) if dim is None else ~np.isin(graph.labels.roots(dim), list(gone))
            for n, dim in zip(value.sizes, value.dims)
        ]
        if any(len(k) and not k.any() for k in keep):
            raise ShrinkError(
                f"shrink: {name} of shape {list(value.sizes)} would have no channel left, as all of them are "
                "zero; remove the layer, or prune less of it"
            )
        out[name] = keep
    return out


def _replace(model: Module, name: str, tensor: wt.Tensor) -> None:
    """Puts a tensor in the place of a parameter or buffer, wherever in the model it is used."""
    path, _, leaf = name.rpartition(".")
    old = getattr(model.get_submodule(path), leaf)
    new = Parameter(tensor, requires_grad=old.requires_grad) if isinstance(old, Parameter) else tensor
    for module in model.modules():
        for space in (module._parameters, module._buffers):
            for key, value in space.items():
                if value is old:
                    space[key] = new


def _cut(tensor: wt.Tensor, keep: list[np.ndarray]) -> wt.Tensor:
    for dim, mask in enumerate(keep):
        if not mask.all():
            at = wt.from_numpy(np.flatnonzero(mask)).to(tensor.device)
            tensor = tensor.index_select(dim, at)
    return tensor.detach().clone()


def _owners(graph: ChannelGraph, heads: Heads) -> list[str]:
    """The weights whose rows are the heads of an attention."""
    mine = set(graph.labels.roots(np.concatenate([heads.queries, heads.keys])).tolist()) - {0}
    outs = {name: graph.params[name].dims[dim] for name, dim in graph.outs}
    return [
        name
        for name, labels in outs.items()
        if labels is not None and mine & set(graph.labels.roots(labels).tolist())
    ]


def _smaller(model: Module, graph: ChannelGraph, gone: set[int]) -> None:
    """Removes sets of labels from a model's parameters and buffers."""
    keep = _kept(graph, gone)
    find = graph.labels.find
    shifts: dict[str, np.ndarray] = {}
    for sink in graph.sinks:
        lost = [i for i, x in enumerate(sink.labels.tolist()) if find(x) in gone and not sink.harmless[i]]
        if lost and sink.shifts is not None and sink.bias is not None:
            shifts[sink.bias] = sink.shifts[lost].sum(0)
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    changed = set()
    for name, masks in keep.items():
        tensor = tensors[name].detach()
        if name in shifts:
            tensor = (tensor.double() + wt.from_numpy(shifts[name]).to(tensor.device)).to(tensor.dtype)
        if name in shifts or not all(mask.all() for mask in masks):
            _replace(model, name, _cut(tensor, masks))
            changed.add(name.rpartition(".")[0])
    for path in {name.rpartition(".")[0] for name, _ in model.named_parameters(remove_duplicate=False)}:
        old = graph.params.get(f"{path}.weight".lstrip("."))
        refresh(model.get_submodule(path), None if old is None else old.sizes)
    for heads in graph.heads:
        left = [int((~np.isin(graph.labels.roots(x), list(gone))).sum()) for x in (heads.queries, heads.keys)]
        counts = len(heads.queries), len(heads.keys)
        if (left[0], left[1]) == counts:
            continue
        if heads.packed is not None:
            _narrow(model, heads.packed, left[0])
            continue
        for path in {name.rpartition(".")[0].rpartition(".")[0] for name in _owners(graph, heads)}:
            set_heads(model.get_submodule(path), counts, (left[0], left[1]))


def _narrow(model: Module, path: str, heads: int) -> None:
    old = model.get_submodule(path)
    new = NarrowMultiheadAttention.of(old, heads)
    if old is model:
        raise ShrinkError("shrink: the model is an nn.MultiheadAttention; put it into a module")
    for module in model.modules():
        for name, child in module._modules.items():
            if child is old:
                setattr(module, name, new)


def _configured(model: Module) -> None:
    """Gives a Decoder the config of its new shapes, where all of its layers have the same."""
    if not isinstance(model, Decoder):
        return
    first = model.layers[0]
    attention, mlp = first.self_attn, first.mlp
    shapes = [[tuple(p.shape) for p in layer.parameters()] for layer in model.layers]
    if all(s == shapes[0] for s in shapes):
        model.config = dataclasses.replace(
            model.config,
            num_attention_heads=attention.heads,
            num_key_value_heads=attention.kv_heads,
            head_dim=attention.head_dim,
            intermediate_size=mlp.down_proj.in_features,
        )


def _difference(found: list[wt.Tensor], expected: list[wt.Tensor]) -> str:
    """What is wrong with outputs that should be equal to rounding, "" for nothing."""
    if [x.shape for x in found] != [x.shape for x in expected]:
        return f"outputs of shapes {[list(x.shape) for x in found]}"
    for x, y in zip(found, expected):
        if not y.is_floating_point():
            if not wt.equal(x, y):
                return "other integers"
        elif y.numel():
            scale = max(float(y.abs().max()), 1e-3)
            error = float((x - y).abs().max())
            if not error <= _ROUNDING.get(y.dtype, 2e-2) * scale:
                return f"outputs that differ by {error:.3g}, of at most {scale:.3g}"
    return ""


def _shrunk(model: Module, args: tuple[Any, ...]) -> tuple[Module, ChannelGraph, set[int], list[str]]:
    """The smaller copy, what was followed, what is gone, and the attentions whose heads stay."""
    modes = [module.training for module in model.modules()]
    kept: list[str] = []
    blocked: set[int] = set()
    while True:
        small = _copied(model).eval()
        expected = _run(small, args)
        graph = _followed(small, args)
        gone = _removable(graph) - blocked
        problem = ""
        try:
            _smaller(small, graph, gone)
            problem = _difference(_run(small, args), expected)
        except ShrinkError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError, AssertionError) as error:
            problem = f"{type(error).__name__}: {str(error)[:300]}"
        if not problem:
            break
        # An attention whose code knows its width keeps its heads.
        heads = [h for h in graph.heads if h.packed is None]
        sets = {x for h in heads for x in graph.labels.roots(h.keys).tolist()} & gone
        if not sets:
            raise ShrinkError(
                f"shrink: without what is zero the model gives {problem}. Code that computes with a fixed "
                "number of channels must read it from its tensors (x.shape, flatten(1))"
            )
        blocked |= sets
        kept = sorted(
            {n for h in heads if set(graph.labels.roots(h.keys).tolist()) & sets for n in _owners(graph, h)}
        )
    _configured(small)
    for module, mode in zip(small.modules(), modes):
        module.training = mode
    return small, graph, gone, kept


def shrink(model: Module, example_inputs: Any, *, return_report: bool = False) -> Any:
    """A copy of the model without the channels, neurons and attention heads that are zero.

    They are followed through the ops that the model calls on the example: residual additions,
    concatenations, batch norms, depthwise and grouped convolutions, linear layers behind `flatten`, and
    attentions (nn.MultiheadAttention, which becomes a NarrowMultiheadAttention, and models.Decoder's, with
    grouped keys). A channel goes if nothing reads it, if the weights that read it are zero, or if it is the
    same number for every input and that goes into a bias. Inputs and outputs keep their shapes. Masks of
    `nn.utils.prune` are made permanent. Parameters that changed are new objects: make the optimizer after.

    Args:
        example_inputs: a tensor or a tuple of arguments; the copy must give on it, in evaluation mode, what
            the model gives, to rounding.
        return_report: also return a ShrinkReport.

    Raises: ShrinkError for a layer that would have no channel left, and where the copy's outputs would
    differ. The model is never changed.
    """
    args = _example(example_inputs)
    small, graph, _, kept = _shrunk(model, args)
    if not return_report:
        return small
    after = {**dict(small.named_parameters()), **dict(small.named_buffers())}
    shapes = {
        name: (value.sizes, tuple(after[name].shape))
        for name, value in graph.params.items()
        if tuple(after[name].shape) != value.sizes
    }
    counts = [sum(p.numel() for p in m.parameters()) for m in (model, small)]
    return small, ShrinkReport(shapes, kept, sorted(graph.unknown), (counts[0], counts[1]))


def _importance(graph: ChannelGraph, params: dict[str, Any], kind: str) -> dict[int, float]:
    """The sum over the weights that make a set's channels, by set."""
    totals: dict[int, float] = {}
    for name, dim in graph.outs:
        labels, p = graph.params[name].dims[dim], params[name].detach().double()
        if labels is None:
            continue
        if kind == "l1":
            score = p.abs()
        else:
            score = p * params[name].grad.double()
        rows = score.sum([d for d in range(p.ndim) if d != dim]).cpu().numpy()
        for root, value in zip(graph.labels.roots(labels).tolist(), rows.tolist()):
            totals[root] = totals.get(root, 0.0) + value
    return {root: abs(value) if kind == "l1" else value * value for root, value in totals.items()}


def _coupled(graph: ChannelGraph) -> list[tuple[list[str], list[int]]]:
    """The weights whose channels are the same, or overlap, and their sets."""
    coupled: list[tuple[list[str], set[int]]] = []
    for name, dim in graph.outs:
        labels = graph.params[name].dims[dim]
        mine = set() if labels is None else set(graph.labels.roots(labels).tolist()) - {0}
        if not mine:
            continue
        names = [name]
        apart = []
        for each in coupled:
            if each[1] & mine:
                names, mine = each[0] + [n for n in names if n not in each[0]], mine | each[1]
            else:
                apart.append(each)
        coupled = [*apart, (names, mine)]
    return [(names, sorted(sets)) for names, sets in coupled]


@wt.no_grad()
def _make_zero(tensors: dict[str, wt.Tensor], graph: ChannelGraph, gone: set[int]) -> None:
    """Zeros in all parameters at the labels of these sets. What batch norm measured stays."""
    for name, value in graph.params.items():
        for dim, labels in enumerate(value.dims):
            if labels is None or not isinstance(tensors[name], Parameter):
                continue
            at = np.flatnonzero(np.isin(graph.labels.roots(labels), list(gone)))
            if len(at):
                tensors[name].index_fill_(dim, wt.from_numpy(at).to(tensors[name].device), 0)


def prune_channels(
    model: Module,
    example_inputs: Any,
    amount: float,
    importance: str = "l1",
    *,
    skip: tuple[str, ...] = (),
) -> PruneReport:
    """Makes the least important channels, neurons and heads zero, all that belong together at once.

    Layers whose channels are added to each other lose the same ones; `shrink` then removes them.

    Args:
        amount: the share of each group of coupled layers, from 0.0 to below 1.0. One channel always stays.
        importance: "l1", the sum of the absolute weights that make a channel (Li et al. 2017, "Pruning
            filters for efficient ConvNets"), or "taylor", (sum of weight times gradient)^2 (Molchanov et al.
            2019, "Importance estimation for neural network pruning"), from the gradients that the parameters
            have.
        skip: modules by name that stay as they are, with all that is coupled to them.

    Raises: ValueError for other arguments, and for "taylor" without gradients; ShrinkError for a model that
    could not be shrunk. The model is then unchanged.
    """
    if not 0 <= amount < 1:
        raise ValueError(f"prune_channels: expected an amount from 0.0 to below 1.0, got {amount!r}")
    if importance not in ("l1", "taylor"):
        raise ValueError(f'prune_channels: expected importance "l1" or "taylor", got {importance!r}')
    if prune.is_pruned(model):
        raise ValueError("prune_channels: the model has masks; call nn.utils.prune.remove for each first")
    unknown = [s for s in skip if s not in dict(model.named_modules())]
    if unknown:
        raise ValueError(f"prune_channels: skip names no module of the model: {unknown}")
    args = _example(example_inputs)
    graph = _followed(_copied(model).eval(), args)
    params = dict(model.named_parameters())
    if importance == "taylor":
        missing = [name for name, _ in graph.outs if params[name].grad is None]
        if missing:
            raise ValueError(f"prune_channels: {missing[0]} has no gradient; call loss.backward() first")
    scores = _importance(graph, params, importance)

    def chosen(blocked: set[str]) -> tuple[set[int], dict[str, tuple[int, int]]]:
        gone: set[int] = set()
        counts = {}
        for names, sets in _coupled(graph):
            left_out = any(n == s or n.startswith(s + ".") for n in names for s in skip)
            number = 0 if left_out or blocked & set(names) else min(round(amount * len(sets)), len(sets) - 1)
            gone.update(sorted(sets, key=lambda x: scores[x])[:number])
            counts.update(dict.fromkeys(names, (len(sets), number)))
        return gone, counts

    trial = _copied(model)
    gone, counts = chosen(set())
    _make_zero(dict(trial.named_parameters()) | dict(trial.named_buffers()), graph, gone)
    kept = _shrunk(trial, args)[3]
    if kept:
        gone, counts = chosen(set(kept))
    _make_zero(dict(model.named_parameters()) | dict(model.named_buffers()), graph, gone)
    return PruneReport(counts)
