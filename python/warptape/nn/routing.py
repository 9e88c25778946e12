"""Which experts of a mixture a token goes to, and with what weights.

N tokens, E experts, k of each token.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..core import float32, promote_types

if TYPE_CHECKING:
    from ..core import Tensor

#: Scores are a softmax over all experts, a sigmoid of each, or a softmax over the chosen ones' logits.
SCORES = ("softmax", "sigmoid", "chosen")


def choose_experts(
    logits: Tensor,
    k: int,
    *,
    scores: str = "softmax",
    normalize: bool = False,
    correction: Tensor | None = None,
    groups: int = 1,
    kept: int = 1,
    best: int = 1,
) -> tuple[Tensor, Tensor, Tensor]:
    """The k experts with the highest scores, their weights, and the scores of all.

    Args:
        logits: [N, E].
        k: experts of a token.
        scores: one of SCORES.
        normalize: whether the k weights of a token are divided by their sum.
        correction: [E], added to scores for the choice alone (DeepSeek-V3, section 2.1.2); None: nothing.
        groups: E is cut into so many groups, of which `kept` have the token's experts; 1: there are none.
        kept: groups of a token: those whose `best` highest scores have the largest sum (DeepSeek-V2,
            arXiv:2405.04434, section 2.2.2, with 1; V3 with 2).
        best: see kept.

    Returns: experts int64 [N, k], weights [N, k], scores [N, E]. The choice alone has no gradient.

    >>> from warptape.nn.routing import choose_experts
    >>> choose_experts(torch.tensor([[1.0, 3.0, 2.0]]), 2, normalize=True)[:2]
    (tensor([[1, 2]]), tensor([[0.7311, 0.2689]]))
    """
    if scores == "chosen":
        chosen = logits.detach().topk(k)[1]
        return chosen, logits.gather(1, chosen).softmax(-1), logits
    wide = logits.to(promote_types(logits.dtype, float32))
    every = wide.softmax(-1) if scores == "softmax" else wide.sigmoid()
    ranking = every.detach()
    if correction is not None:
        ranking = ranking + correction
    if groups > 1:
        apart = ranking.unflatten(1, (groups, -1))  # [N, groups, E / groups]
        sums = apart.topk(best)[0].sum(-1)
        inside = sums.new_zeros(sums.shape).scatter(1, sums.topk(kept)[1], 1.0).bool()
        ranking = apart.masked_fill(~inside.unsqueeze(-1), float("-inf")).flatten(1)
    chosen = ranking.topk(k)[1]
    weights = every.gather(1, chosen)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return chosen, weights, every
