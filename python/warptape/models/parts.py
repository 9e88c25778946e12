"""Configs of parts that few decoders have: mixtures of experts, and latent attention."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from ..nn.routing import SCORES


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig:
    """What a mixture of experts consists of.

    Args:
        count, per_token, width: E, k and I.
        layers: for each layer whether its MLP is a mixture; None: all.
        shared_width: inner width of an MLP that all tokens pass; 0: there is none.
        shared_gate: whether its output is multiplied by the sigmoid of a linear layer (Qwen2-MoE).
        scores, normalize: see nn.routing.choose_experts; scale: what weights are multiplied by.
        choice_bias: whether a number of each expert is added to its score for the choice alone.
        groups, groups_kept, group_best: see choose_experts.
        bias: whether router and experts have biases.
        alternating: whether the rows of gate and up alternate.
        limit: up is clamped to +-limit, gate to at most it, and an expert computes down((up + 1) * gate *
            sigmoid(alpha * gate)) (gpt-oss); None: act(gate) * up as an MLP.
        alpha: see limit.

    Raises: ValueError that names the field and says what it may be.
    """

    count: int
    per_token: int
    width: int
    layers: tuple[bool, ...] | None = None
    shared_width: int = 0
    shared_gate: bool = False
    scores: str = "softmax"
    normalize: bool = False
    scale: float = 1.0
    choice_bias: bool = False
    groups: int = 1
    groups_kept: int = 1
    group_best: int = 1
    bias: bool = False
    alternating: bool = False
    limit: float | None = None
    alpha: float = 1.702

    def __post_init__(self) -> None:
        sizes = ("count", "per_token", "width", "groups", "groups_kept", "group_best")
        for name in (*sizes, "shared_width"):
            value = getattr(self, name)
            if type(value) is not int or not (name in sizes) <= value < 1 << 40:
                self._refuse(name, "a whole number above 0")
        for name in ("shared_gate", "normalize", "choice_bias", "bias", "alternating"):
            if type(getattr(self, name)) is not bool:
                self._refuse(name, "True or False")
        for name in ("scale", "alpha", "limit"):
            value = getattr(self, name)
            if not (name == "limit" and value is None) and not (
                type(value) in (int, float) and math.isfinite(value) and value > 0
            ):
                self._refuse(name, "a finite number above 0")
        if self.scores not in SCORES:
            self._refuse("scores", "one of " + ", ".join(SCORES))
        if self.per_token > self.count:
            self._refuse("per_token", f"at most the {self.count} experts")
        size = self.count // self.groups
        if self.count % self.groups or self.groups_kept > self.groups or self.group_best > size:
            self._refuse("groups", f"a divisor of {self.count} experts, for groups_kept and group_best too")
        if self.groups > 1 and self.per_token > self.groups_kept * size:
            self._refuse("groups_kept", f"enough groups of {size} for {self.per_token} experts of a token")
        if isinstance(self.layers, list):
            object.__setattr__(self, "layers", tuple(self.layers))
        if self.layers is not None and not all(type(each) is bool for each in self.layers):
            self._refuse("layers", "True or False for each layer")
        if self.layers is not None and all(self.layers):
            object.__setattr__(self, "layers", None)

    def _refuse(self, name: str, expected: str) -> None:
        raise ValueError(f"ExpertsConfig: expected {name} to be {expected}, got {getattr(self, name)!r:.80}")

    def are_in(self, layer: int) -> bool:
        """Whether a layer's MLP is a mixture.

        Args:
            layer: its number.
        """
        return self.layers is None or self.layers[layer]


@dataclass(frozen=True, kw_only=True)
class LatentConfig:
    """Sizes of latent attention.

    Args:
        kv_rank: numbers of a token's latent.
        query_rank: of the vector that queries are made of; None: they are made of the input.
        plain_width, rotary_width, value_width: P, R and V.

    Raises: ValueError that names the field and says what it may be.
    """

    kv_rank: int
    plain_width: int
    rotary_width: int
    value_width: int
    query_rank: int | None = None

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if value is None and each.name == "query_rank":
                continue
            if type(value) is not int or not 0 < value < 1 << 40:
                raise ValueError(
                    f"LatentConfig: expected {each.name} to be a whole number above 0, got {value!r:.80}"
                )
        if self.value_width > self.head_dim:
            raise ValueError(
                f"LatentConfig: expected value_width to be at most a key's {self.head_dim} numbers, got "
                f"{self.value_width}"
            )

    @property
    def head_dim(self) -> int:
        """D."""
        return self.plain_width + self.rotary_width
