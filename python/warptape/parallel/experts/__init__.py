"""Mixtures of experts: routing, one product per expert, experts shared out among ranks."""

from .grouped import grouped_mm
from .layer import Experts, MixtureOfExperts, SplitExperts, expert_parallel, update_biases
from .routing import Routing, TopKRouter, kept_choices

__all__ = [
    "Experts",
    "MixtureOfExperts",
    "Routing",
    "SplitExperts",
    "TopKRouter",
    "expert_parallel",
    "grouped_mm",
    "kept_choices",
    "update_biases",
]
