"""What rewards and log-probabilities become: advantages in groups, and the clipped loss of GRPO and DAPO.

"DeepSeekMath: Pushing the Limits of Mathematical Reasoning in Open Language Models", section 4; "DAPO: An
Open-Source LLM Reinforcement Learning System at Scale", section 3; "Understanding R1-Zero-Like Training".

G prompts, n answers to each, S = G n answers in all; an answer of T tokens has T log-probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from warptape import core as wt

from ..core import Tensor

LOSSES = ("grpo", "dapo", "dr_grpo")


def group_advantages(rewards: Tensor, num_generations: int, scale_rewards: bool = True) -> Tensor:
    """[S]: how much better each answer is than the others to its prompt.

    Args:
        rewards: [S], the answers to a prompt one after the other.
        num_generations: n.
        scale_rewards: whether the difference is divided by the group's standard deviation, plus 1e-4.

    >>> import warptape as torch
    >>> from warptape.rl import group_advantages
    >>> group_advantages(torch.tensor([1.0, 0.0, 2.0, 2.0]), 2, scale_rewards=False)
    tensor([ 0.5000, -0.5000,  0.0000,  0.0000])
    """
    groups = rewards.reshape(-1, num_generations)
    difference = groups - groups.mean(1, keepdim=True)
    if scale_rewards:
        difference = difference / (groups.std(1, keepdim=True) + 1e-4)
    return difference.flatten()


def kl_of(new: Tensor, other: Tensor) -> Tensor:
    """An estimate of KL(new, other) at each token that `new` drew: exp(d) - d - 1 with d = other - new. It is
    never negative, and 0 where the two are equal.

    Args:
        new, other: log-probabilities of the same tokens.
    """
    difference = other - new
    return difference.exp() - difference - 1


def policy_loss(
    new: Sequence[Tensor],
    old: Sequence[Tensor],
    advantages: Sequence[float],
    *,
    epsilon: float = 0.2,
    epsilon_high: float | None = None,
    loss_type: str = "dapo",
    divisor: float,
    reference: Sequence[Tensor] | None = None,
    beta: float = 0.0,
) -> tuple[Tensor, float]:
    """A summand of the loss, of some of a step's answers, and how many of their tokens were clipped.

    Args:
        new, old: log-probabilities of the answers' tokens: the trainer's now, and those at which they were
            drawn.
        advantages: of each answer.
        epsilon, epsilon_high: the ratio of probabilities is clipped to [1 - epsilon, 1 + epsilon_high]; None:
            both are epsilon.
        loss_type: "grpo": each answer's mean over its tokens; "dapo" and "dr_grpo": sums over tokens.
        divisor: what `divisor_of` says of all the step's answers.
        reference, beta: log-probabilities of a reference, and the weight of the KL to it.
    """
    high = epsilon if epsilon_high is None else epsilon_high
    total, clipped = wt.zeros(()), 0.0
    for i, (mine, drawn, advantage) in enumerate(zip(new, old, advantages, strict=True)):
        ratio = (mine - drawn).exp()
        within = ratio.clamp(1 - epsilon, 1 + high)
        gain = wt.minimum(ratio * advantage, within * advantage)
        clipped += float((within * advantage < ratio * advantage).sum())
        loss = -gain
        if reference is not None and beta:
            loss = loss + beta * kl_of(mine, reference[i])
        total = total + (loss.mean() if loss_type == "grpo" else loss.sum())
    return total / divisor, clipped


def divisor_of(lengths: Sequence[int], loss_type: str, max_completion_length: int) -> float:
    """By what the summands of a step's loss are divided.

    Args:
        lengths: tokens of the answers that count.
        loss_type: "grpo": their number; "dapo": their tokens; "dr_grpo": the tokens that they could have had.
        max_completion_length: of an answer.

    >>> from warptape.rl.losses import divisor_of
    >>> [divisor_of([3, 5], kind, 10) for kind in ("grpo", "dapo", "dr_grpo")]
    [2, 8, 20]
    """
    if loss_type == "grpo":
        return max(len(lengths), 1)
    return max(sum(lengths) if loss_type == "dapo" else len(lengths) * max_completion_length, 1)


def get_soft_overlong_punishment(
    max_completion_len: int, soft_punish_cache: int
) -> Callable[..., list[float]]:
    """DAPO's reward of length: 0 up to max_completion_len - soft_punish_cache tokens, from there on it falls
    to -1 at max_completion_len. trl's name.

    Args:
        max_completion_len: of an answer.
        soft_punish_cache: tokens over which it falls.

    >>> from warptape.rl import get_soft_overlong_punishment
    >>> get_soft_overlong_punishment(10, 4)(completion_ids=[[0] * n for n in (6, 8, 10, 12)])
    [0.0, -0.5, -1.0, -1.0]
    """
    free = max_completion_len - soft_punish_cache

    def soft_overlong_punishment(completion_ids: Sequence[Sequence[int]], **_: Any) -> list[float]:
        return [-min(max(len(each) - free, 0) / soft_punish_cache, 1.0) + 0.0 for each in completion_ids]

    return soft_overlong_punishment
