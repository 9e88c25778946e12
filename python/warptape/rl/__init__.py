"""Reinforcement learning of language models: GRPO, with the sampler and the trainer in one process."""

from .grpo import GRPOConfig, GRPOTrainer, Rollout, StepReport
from .losses import get_soft_overlong_punishment, group_advantages, policy_loss

__all__ = [
    "GRPOConfig",
    "GRPOTrainer",
    "Rollout",
    "StepReport",
    "get_soft_overlong_punishment",
    "group_advantages",
    "policy_loss",
]
