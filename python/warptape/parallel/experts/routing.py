"""Which experts a token goes to: scores, top-k, balance, capacity."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from warptape import core as wt

from ... import nn
from ...core import Tensor
from ...distributed import all_reduce as sum_in_place
from ...distributed import functional as dist_functional
from ...nn import functional as F
from ...nn.routing import choose_experts
from ..shard.progress import in_backward

SCORES, BALANCES = ("softmax", "sigmoid"), ("loss", "bias", None)


class Routing(NamedTuple):
    """N tokens, k experts of each: `experts` int64 and `weights`, both [N, k]; `losses`: scalars by name.

    Args:
        experts: numbers of the chosen experts.
        weights: on their outputs.
        losses: what training may add to its loss.
    """

    experts: Tensor
    weights: Tensor
    losses: dict[str, Tensor]


class TopKRouter(nn.Module):
    """Scores [N, E] of tokens [N, C], of which the k largest choose.

    Args:
        dim: C.
        num_experts: E.
        top_k: k.
        scores: "softmax" over all experts, or "sigmoid" of each (DeepSeek-V3, arXiv:2412.19437, eq. 15).
        normalize: the k weights of a token are divided by their sum.
        balance: "loss" gives `losses["balance"]`, E sum_e f_e P_e with the share f_e of choices and the mean
            score P_e (Switch Transformer, arXiv:2101.03961, eq. 4 to 6; 1 when balanced). "bias" adds to each
            score, for the choice alone, a bias that `update_bias` raises for experts with few tokens and
            lowers for those with many (DeepSeek-V3, section 2.1.2). None does neither.
        group: the ranks among which shares and means are taken; None: this process alone.

    `losses["z"]` is the mean of logsumexp(logits)^2 (ST-MoE, arXiv:2202.08906, eq. 5). Losses are not added
    to anything here: `MixtureOfExperts.loss` weighs them.

    Raises: ValueError for a k over E, or names that do not exist.
    """

    bias: Tensor
    counts: Tensor

    def __init__(
        self,
        dim: int,
        num_experts: int,
        top_k: int,
        *,
        scores: str = "softmax",
        normalize: bool = True,
        balance: str | None = "loss",
        group: Any = None,
    ) -> None:
        super().__init__()
        if not 1 <= top_k <= num_experts:
            raise ValueError(f"TopKRouter: top_k must be from 1 to the {num_experts} experts, got {top_k}")
        if scores not in SCORES:
            raise ValueError(f"TopKRouter: expected scores of {SCORES}, got {scores!r}")
        if balance not in BALANCES:
            raise ValueError(f"TopKRouter: expected balance of {BALANCES}, got {balance!r}")
        self.num_experts, self.top_k, self.group = num_experts, top_k, group
        self.scores, self.normalize, self.balance = scores, normalize, balance
        self.gate = nn.Linear(dim, num_experts, bias=False)
        self.register_buffer("bias", wt.zeros(num_experts))
        self.register_buffer("counts", wt.zeros(num_experts), persistent=False)  # since update_bias

    def forward(self, x: Tensor) -> Routing:
        """[N, C] -> Routing

        Args:
            x: tokens.
        """
        logits = self.gate(x)
        chosen, weights, scores = choose_experts(
            logits,
            self.top_k,
            scores=self.scores,
            normalize=self.normalize,
            correction=self.bias if self.balance == "bias" else None,
        )
        weights = weights.to(logits.dtype)
        share = count_choices(chosen, self.num_experts).to(scores.dtype)  # [E]
        if self.training and not in_backward():  # a checkpoint's second run counts nobody twice
            self.counts += share
        losses = {"z": logits.logsumexp(-1).square().mean()}
        if self.balance == "loss":
            losses["balance"] = self._balance_loss(scores, share, len(x))
        return Routing(chosen, weights, losses)

    def _balance_loss(self, scores: Tensor, share: Tensor, tokens: int) -> Tensor:
        if self.scores == "sigmoid":
            scores = scores / scores.sum(-1, keepdim=True)
        mean = scores.mean(0)
        if self.group is not None:
            share = share.clone()
            sum_in_place(share, group=self.group)
            mean = dist_functional.all_reduce_all_reduce(mean, self.group) / self.group.size()
            tokens *= self.group.size()  # every rank has as many
        return self.num_experts * (share / (tokens * self.top_k) * mean).sum()

    def update_bias(self, speed: float = 1e-3) -> None:
        """After an optimizer's step: bias += speed * sign(mean - count) of tokens since the last call.

        From Wang et al., "Auxiliary-Loss-Free Load Balancing Strategy for Mixture-of-Experts" (2024).

        Args:
            speed: the size of a step.
        """
        counts = self.counts.clone()
        if self.group is not None:
            sum_in_place(counts, group=self.group)
        self.bias += speed * (counts.mean() - counts).sign()
        self.counts.zero_()


def count_choices(chosen: Tensor, num_experts: int) -> Tensor:
    """int64 [E]: how often each was chosen. bincount and one_hot would read the choices on the host.

    Args:
        chosen: int64, any shape.
        num_experts: E.

    >>> from warptape.parallel.experts.routing import count_choices
    >>> count_choices(torch.tensor([[0, 2], [2, 2]]), 3)
    tensor([1, 0, 3])
    """
    chosen = chosen.reshape(-1)
    return chosen.new_zeros(num_experts).index_add(0, chosen, wt.ones_like(chosen))


def kept_choices(experts: Tensor, num_experts: int, capacity_factor: float) -> Tensor:
    """Bool [N, k]: the choices within an expert's capacity, ceil(factor N k / E) tokens.

    All first choices stand before all second ones, then tokens by position (GShard, arXiv:2006.16668, 2.2).
    """
    tokens, k = experts.shape
    capacity = math.ceil(capacity_factor * tokens * k / num_experts)
    order = F.one_hot(experts.t().reshape(-1), num_experts)  # [k N, E]
    place = (order.cumsum(0) * order).sum(1)  # 1 for the first token of an expert
    return (place <= capacity).view(k, tokens).t()
