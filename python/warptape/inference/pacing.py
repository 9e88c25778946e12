"""How many prompt tokens a step may have in which other requests generate, by the times that steps take.

What is computed with what never changes a token, so times may decide it.
"""

from __future__ import annotations

from collections import deque
from statistics import median

FIRST = 2  # tokens, where it is known only what a step takes without
GROWTH = 1.25  # of the last step with prompts: the first rows cost next to nothing, later ones do not
REFRESH = 16  # of so many steps one has no prompt tokens: what a step takes without them changes, too
SLOWER = 1.15  # times as long as before: a second step without prompts has to confirm it
ALONE = 3  # steps without prompts: their median counts, or the last one where it took less
FORGET = 0.97  # what a measured step weighs beside the next one
PULL = 0.002  # towards costs in proportion to the tokens, where steps were too alike to tell
SMOOTH = 0.2  # of the latest step in the running mean of the speed, 0.1 in that of the spread
LEAST_SPREAD = 0.01  # of costs about the fitted ones, in steps without prompts


class _Cost:
    """What n prompt tokens that attend to k keys in all add to a step: a + b n + c k steps without prompts.

    The coefficients fit the measured steps, the later ones better.
    """

    def __init__(self) -> None:
        self._products = [[0.0] * 3 for _ in range(3)]  # sums of those of (1, n, k), later steps weigh more
        self._costs = [0.0] * 3  # sums of (1, n, k) times the cost

    def __bool__(self) -> bool:
        return self._products[0][0] > 0

    def add(self, tokens: int, keys: int, cost: float) -> None:
        """Takes a measured step.

        Args:
            tokens: of the step.
            keys: that they attended to.
            cost: seconds.
        """
        x = (1.0, float(tokens), float(keys))
        self._products = [[FORGET * s + a * b for s, b in zip(row, x)] for row, a in zip(self._products, x)]
        self._costs = [FORGET * s + a * cost for s, a in zip(self._costs, x)]

    def copy(self) -> _Cost:
        """The same, to be changed apart."""
        out = _Cost()
        out._products, out._costs = [row[:] for row in self._products], self._costs[:]
        return out

    def scale(self, factor: float) -> None:
        """All steps cost so many times as much from now on.

        Args:
            factor: positive.
        """
        self._costs = [factor * s for s in self._costs]

    def of(self, tokens: float, keys: float) -> float:
        """The expected cost of a step; 0 where none was measured.

        Args:
            tokens: of the step.
            keys: that they attend to.
        """
        a, b, c = self.coefficients() if self else (0.0, 0.0, 0.0)
        return a + b * tokens + c * keys

    def coefficients(self) -> tuple[float, float, float]:
        """a, b and c; no token and no key makes a step faster."""
        each = max(self._costs[0] / self._products[0][1], 0.0)  # a token's, if costs were in proportion
        for used in (3, 2):
            a, b, c = (*self._least_squares(used, each), 0.0)[:3]
            if b >= 0 and c >= 0:
                return a, b, c
        return 0.0, each, 0.0

    def _least_squares(self, used: int, each: float) -> list[float]:
        """The first `used` coefficients, drawn a little towards (0, each, 0)."""
        rows = []
        for i in range(used):
            pull = PULL * self._products[i][i] + 1e-12
            row = [self._products[i][j] + (pull if i == j else 0.0) for j in range(used)]
            rows.append([*row, self._costs[i] + (pull * each if i == 1 else 0.0)])
        for i in range(used):  # positive definite: no pivoting
            for j in range(i + 1, used):
                factor = rows[j][i] / rows[i][i]
                rows[j] = [x - factor * y for x, y in zip(rows[j], rows[i])]
        out = [0.0] * used
        for i in reversed(range(used)):
            known = sum(rows[i][j] * out[j] for j in range(i + 1, used))
            out[i] = (rows[i][-1] - known) / rows[i][i]
        return out


class RateControl:
    """Keeps steps with prompts within `slowdown` times the time of steps without.

    Delays that are not the steps' own change little: a single time far off the expected one is not believed.
    Between two steps without prompts it is unknown whether prompts or all steps got slower or faster;
    until the second tells, what allows fewer tokens is supposed.

    Args:
        slowdown: above 1.
        most: tokens, however fast they are.

    Raises: ValueError for a slowdown of 1 or less.
    """

    def __init__(self, slowdown: float, most: int) -> None:
        if not slowdown > 1:
            raise ValueError(f"max_prefill_slowdown must be above 1, got {slowdown}")
        self._slowdown, self._most = slowdown, most
        self._alone: deque[float] = deque(maxlen=ALONE)  # seconds of the latest steps without prompts
        self._generating = self._generating_alone = 0  # requests of the last step, the last without prompts
        self._again = False  # whether a step without prompts took so long that the next is to be one, too
        self._base = 0.0  # seconds of a step without prompts
        self._window: list[tuple[int, int, float]] = []  # tokens, keys and seconds of the steps since
        self._speed = 1.0  # seconds of these over the expected ones
        self._cost = self._settled = _Cost()  # the latter without the window
        self._spread = LEAST_SPREAD
        self._above = 0.0  # the last cost, above the fitted one
        self._doubted = False  # whether the last cost was not believed
        self._last, self._position = FIRST, 0.0  # of the last step with prompts: tokens, keys of one
        self._largest = 0  # tokens of a step so far

    def observe(self, seconds: float, generating: int, prompt_tokens: int, keys: int = 0) -> None:
        """Takes what a step took, whose prompt tokens attended to so many keys in all.

        Args:
            seconds: of the step.
            generating: requests that got a token.
            prompt_tokens: of new prompts.
            keys: that these attended to.
        """
        if generating == 0:
            return
        self._generating = generating
        if prompt_tokens == 0:
            self._generating_alone = generating
            self._alone.append(seconds)
            self._again = 0 < SLOWER * self._base < seconds and not self._again
            if not self._again:
                self._settle(min(seconds, median(self._alone)))
        elif self._alone:
            self._window.append((prompt_tokens, keys, seconds))
            self._last, self._position = prompt_tokens, keys / prompt_tokens
            expected = self._cost.of(prompt_tokens, keys)
            self._speed += SMOOTH * (min(seconds / self._base / (1 + expected), 1.2) - self._speed)
            self._learn(prompt_tokens, keys, seconds / self._base / min(self._speed, 1.0) - 1)

    def _settle(self, base: float) -> None:
        """Takes the steps of the window by what is known of steps without prompts before and after it."""
        least, most = sorted((base, self._base or base))
        self._cost, self._doubted = self._settled, False
        for tokens, keys, seconds in self._window:
            expected = self._cost.of(tokens, keys)
            unit = min(max(seconds / (1 + max(expected, 0.0)), least), most)
            self._learn(tokens, keys, seconds / unit - 1)
        self._base, self._settled, self._window, self._speed = base, self._cost.copy(), [], 1.0

    def _learn(self, tokens: int, keys: int, cost: float) -> None:
        expected = self._cost.of(tokens, keys)
        off, doubt = abs(cost - expected), max(4 * self._spread, 0.1)
        far = off > doubt and tokens <= self._largest
        self._doubted = far and not self._doubted
        if self._doubted:
            return
        if far and cost > expected > 0:
            self._cost.scale(cost / expected)
        self._largest = max(self._largest, tokens)
        self._spread = max(LEAST_SPREAD, self._spread + SMOOTH / 2 * (min(off, doubt) - self._spread))
        self._cost.add(tokens, keys, cost)
        self._above = max(cost - self._cost.of(tokens, keys), 0.0)

    def tokens(self) -> int:
        """What the next step may have; 0 where it is to show what a step takes without prompts."""
        since, fewer = len(self._window), 2 * self._generating <= self._generating_alone
        if not self._alone or self._again or since >= REFRESH - 1 or (fewer and since >= REFRESH // 4):
            return 0
        if not self._cost:
            return min(FIRST, self._most)
        a, b, c = self._cost.coefficients()
        room = self._slowdown - 1 - self._spread - self._above - a
        fit = room / max(b + c * (self._position + self._last), 1e-9)
        # Half of the way to more, for the next rows may cost more than those before.
        halfway = max(self._last + 1, (self._last + fit) / 2)
        return max(1, min(self._most, int(min(fit, halfway, GROWTH * self._last + 1))))
