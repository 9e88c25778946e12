"""Mixtures of experts in place of an MLP: each token passes k of E networks.

B batch, T tokens of a sequence, N tokens in all, C width, E experts, k of each token, I inner width of one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..nn import functional as F
from ..nn.routing import choose_experts
from .layers import MLP, activate
from .parts import ExpertsConfig


def outputs_of(layer: Any, x: Tensor, first: int, count: int) -> Tensor:
    """The outputs first to first + count - 1 of a linear layer, [.., count].

    Args:
        layer: nn.Linear, or one with a method `outputs`, as those that warptape.inference packs.
        x: [.., inputs].
        first, count: which.
    """
    if not isinstance(layer, nn.Linear):
        out: Tensor = layer.outputs(x, first, count)
        return out
    bias = None if layer.bias is None else layer.bias[first : first + count]
    return F.linear(x, layer.weight[first : first + count], bias)


class Experts(nn.Module):
    """E gated networks, their matrices one below the other: `gate_up_proj` is a linear layer with E 2 I
    outputs, of which an expert has 2 I neighbours, and `down_proj` one of I inputs with E C outputs. So
    whatever packs, quantises or splits linear layers does that to them.

    Args:
        config: sizes, and what an expert computes.
        hidden_act: activation of the gate.
        factory: device and dtype.
    """

    #: Joins the parts of ranks among which each expert is split by its inner width.
    joined: Callable[[Tensor], Tensor] | None = None

    def __init__(self, config: ExpertsConfig, width: int, hidden_act: str, **factory: Any) -> None:
        super().__init__()
        self.config, self.hidden_act = config, hidden_act
        count, inner = config.count, config.width
        self.gate_up_proj = nn.Linear(width, count * 2 * inner, bias=config.bias, **factory)
        self.down_proj = nn.Linear(inner, count * width, bias=config.bias, **factory)

    def _gated(self, x: Tensor) -> Tensor:
        """[.., 2 I] -> [.., I]"""
        gate, up = (x[..., ::2], x[..., 1::2]) if self.config.alternating else x.chunk(2, -1)
        if (limit := self.config.limit) is None:
            return activate(self.hidden_act, gate) * up
        gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return (up + 1) * (gate * (gate * self.config.alpha).sigmoid())

    def _products(self, layer: nn.Module, rows: Tensor, counts: Tensor, of_row: Tensor) -> Tensor:
        """Rows [N k, ..], sorted by expert, times the matrix of each expert."""
        count = self.config.count
        each = layer.out_features // count
        if not isinstance(layer, nn.Linear):  # of packed weights each product has one expert's
            bounds, parts, start = counts.tolist(), [], 0
            for expert, n in enumerate(bounds):
                if n:
                    parts.append(outputs_of(layer, rows[start : start + n], expert * each, each))
                start += n
            return wt.cat(parts)
        matrices = layer.weight.view(count, each, -1).transpose(1, 2)
        out = F.grouped_mm(rows, matrices, offs=counts.cumsum(0))
        return out if layer.bias is None else out + layer.bias.view(count, each).index_select(0, of_row)

    def forward(self, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """What the chosen experts of each token make of it, by weight: [N, C] -> [N, C].

        A token's terms are added in the order of its choices, so that its sum does not depend on others.

        Args:
            x: tokens.
            chosen: int64 [N, k].
            weights: [N, k].
        """
        k = chosen.shape[1]
        of_choice = chosen.reshape(-1)
        order = of_choice.argsort(stable=True)  # sorted by expert
        of_row = of_choice.index_select(0, order)
        counts = of_choice.new_zeros(self.config.count).index_add(0, of_choice, wt.ones_like(of_choice))
        rows = x.index_select(0, order // k)
        inner = self._gated(self._products(self.gate_up_proj, rows, counts, of_row))
        out = self._products(self.down_proj, inner, counts, of_row)
        terms = out.index_select(0, order.argsort()).view(*chosen.shape, -1)  # [N, k, C]
        weights = weights.to(x.dtype)
        y = terms[:, 0] * weights[:, :1]
        for i in range(1, k):
            y = y + terms[:, i] * weights[:, i : i + 1]
        return y if self.joined is None else self.joined(y)


class MixtureOfMLPs(nn.Module):
    """A router, experts, and what all tokens pass beside them: [B, T, C] -> [B, T, C].

    Args:
        config: of the experts.
        width: C.
        hidden_act: activation of the gates.
        factory: device and dtype.
    """

    def __init__(self, config: ExpertsConfig, width: int, hidden_act: str, **factory: Any) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(width, config.count, bias=config.bias, **factory)
        self.choice_bias: nn.Parameter | None = None
        if config.choice_bias:  # of float32 whatever the model is: small differences decide
            zeros = wt.zeros(config.count, dtype=wt.float32, device=factory.get("device"))
            self.choice_bias = nn.Parameter(zeros, requires_grad=False)
        self.experts = Experts(config, width, hidden_act, **factory)
        self.shared_mlp: MLP | None = None
        self.shared_gate: nn.Linear | None = None
        if config.shared_width:
            self.shared_mlp = MLP(width, config.shared_width, hidden_act, gated=True, bias=False, **factory)
        if config.shared_width and config.shared_gate:
            self.shared_gate = nn.Linear(width, 1, bias=False, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
        """
        config, tokens = self.config, x.reshape(-1, x.shape[-1])
        chosen, weights, _ = choose_experts(
            self.router(tokens),
            config.per_token,
            scores=config.scores,
            normalize=config.normalize,
            correction=self.choice_bias,
            groups=config.groups,
            kept=config.groups_kept,
            best=config.group_best,
        )
        y = self.experts(tokens, chosen, weights if config.scale == 1 else weights * config.scale)
        if self.shared_mlp is not None:
            shared = self.shared_mlp(tokens)
            y = y + (shared if self.shared_gate is None else self.shared_gate(tokens).sigmoid() * shared)
        return y.view(x.shape)
