"""How many prompt tokens a step may have in which other requests generate, by the times that steps take.

What is computed with what never changes a token, so times may decide it.
"""

from __future__ import annotations

FIRST = 2  # tokens, until both costs are known
GROWTH = 1.25  # of the last step with prompts: the first rows cost next to nothing, later ones do not
REFRESH = 16  # of so many steps one has no prompt tokens: what a step takes without them changes, too
WEIGHT = 0.2  # of the latest step in the running means


class Pacer:
    """Keeps steps with prompts within `slowdown` times the time of steps without.

    Args:
        slowdown: above 1.
        most: tokens, however fast they are.

    Raises: ValueError for a slowdown of 1 or less.
    """

    def __init__(self, slowdown: float, most: int) -> None:
        if not slowdown > 1:
            raise ValueError(f"max_prefill_slowdown must be above 1, got {slowdown}")
        self._slowdown, self._most = slowdown, most
        self._decode: float | None = None  # seconds of a step without prompts
        self._token: float | None = None  # seconds that a prompt token adds
        self._last = FIRST  # tokens of the last step that had some
        self._since = 0  # steps with prompts since the last without

    def observe(self, seconds: float, generating: int, prompt_tokens: int) -> None:
        """Takes what a step took."""
        if generating == 0:
            return
        self._since = self._since + 1 if prompt_tokens else 0
        if prompt_tokens == 0:
            self._decode = _mean(self._decode, seconds)
        elif self._decode is not None:
            token = max(seconds - self._decode, 0.0) / prompt_tokens
            self._token = max(token, _mean(self._token, token))
            self._last = prompt_tokens

    def tokens(self) -> int:
        """What the next step may have; 0 where it is to show what a step takes without prompts."""
        if self._since >= REFRESH - 1:
            return 0
        if self._decode is None or self._token is None:
            return min(FIRST, self._most)
        room = (self._slowdown - 1) * self._decode
        return max(1, min(self._most, int(room / max(self._token, 1e-9)), int(GROWTH * self._last) + 1))


def _mean(before: float | None, now: float) -> float:
    return now if before is None else (1 - WEIGHT) * before + WEIGHT * now
