"""Which version of a model answers: pure decisions on plain values, told the time.

    offer ──▶ candidate, steps[0] % ──hold──▶ steps[1] % ──hold──▶ current (watched) ──▶ current
                    │ errors, rollback()               the old one: previous, kept loaded
                    ▼                                     │ errors while watched, rollback()
                 refused ◀────────────────────────────────┘ and the previous one is current again

A refused version is not offered again unless it is asked for by number or its files change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from .config import Rollout


@dataclass(frozen=True)
class RolloutState:
    """Which versions serve a model; values, replaced as a whole.

    Attributes:
        current: answers what no other does; None: nothing is loaded.
        previous: answered before; a rollback brings it back.
        candidate: takes a share of the requests.
        step: which of the rollout's steps the candidate is at.
        refused: versions that were rolled back or could not be loaded, with the reason.
        files: of those that could not be loaded, a digest of the files that were tried.
    """

    current: int | None = None
    previous: int | None = None
    candidate: int | None = None
    step: int = 0
    refused: Mapping[int, str] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)

    def without(self, numbers: Iterable[int]) -> RolloutState:
        """Only what is refused, but for these versions.

        Args:
            numbers: of versions.
        """
        refused = {n: reason for n, reason in self.refused.items() if n not in numbers}
        return RolloutState(refused=refused, files={n: f for n, f in self.files.items() if n in refused})

    def to_json(self) -> dict[str, Any]:
        """As the state file holds it."""
        return {
            "current": self.current,
            "previous": self.previous,
            "candidate": self.candidate,
            "step": self.step,
            "refused": {str(v): reason for v, reason in self.refused.items()},
            "files": {str(v): digest for v, digest in self.files.items()},
        }

    @staticmethod
    def from_json(data: Any) -> RolloutState:
        """What `to_json` made. Raises ValueError for anything else.

        Args:
            data: of JSON.
        """

        def version(key: str) -> int | None:
            value = data[key]
            if value is not None and (type(value) is not int or value < 1):
                raise ValueError(f"{key} must be a version or null, got {value!r:.100}")
            return value

        try:
            step = data["step"]
            if type(step) is not int or step < 0:
                raise ValueError(f"step must be a whole number, got {step!r:.100}")
            refused = {int(v): str(reason) for v, reason in data["refused"].items()}
            files = {int(v): str(digest) for v, digest in data.get("files", {}).items()}
            return RolloutState(
                version("current"), version("previous"), version("candidate"), step, refused, files
            )
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"expected current, previous, candidate, step and refused: {error!r}") from None

    @property
    def loaded(self) -> tuple[int, ...]:
        """The versions whose workers run."""
        return tuple(v for v in (self.current, self.previous, self.candidate) if v is not None)


@dataclass
class Counts:
    """Requests of one version since its step began.

    Args:
        requests: that were answered.
        errors: of these.
    """

    requests: int = 0
    errors: int = 0


class RolloutError(RuntimeError):
    """A switch that cannot be made: the message says why."""


def offered(switch: RolloutState, version: int) -> RolloutState:
    """After a version loaded and answered its samples.

    Raises: RolloutError while another candidate is on its way, or where the version serves already.
    """
    if switch.candidate is not None:
        raise RolloutError(f"version {switch.candidate} is taking over; roll it back or wait")
    if version == switch.current:
        raise RolloutError(f"version {version} serves already")
    refused = {v: reason for v, reason in switch.refused.items() if v != version}
    files = {v: digest for v, digest in switch.files.items() if v != version}
    if switch.current is None:
        return RolloutState(current=version, refused=refused, files=files)
    previous = None if switch.previous == version else switch.previous
    return replace(switch, candidate=version, previous=previous, step=0, refused=refused, files=files)


def refused(switch: RolloutState, version: int, reason: str, files: str = "") -> RolloutState:
    """After a version could not be loaded, or answered its samples wrongly.

    Args:
        files: a digest of its files; others are another try.
    """
    known = {**switch.files, version: files} if files else switch.files
    return replace(switch, refused={**switch.refused, version: reason}, files=known)


def rolled_back(switch: RolloutState, reason: str) -> RolloutState:
    """The candidate, or else the current version, is given up.

    Raises: RolloutError where there is nothing to go back to.
    """
    if switch.candidate is not None:
        bad = switch.candidate
        return replace(switch, candidate=None, step=0, refused={**switch.refused, bad: reason})
    if switch.current is None or switch.previous is None:
        raise RolloutError("there is no previous version to go back to")
    gone = {**switch.refused, switch.current: reason}
    gone.pop(switch.previous, None)
    return RolloutState(current=switch.previous, refused=gone, files=switch.files)


class Controller:
    """Decides when a candidate's share grows and when a version is rolled back.

    It changes nothing by itself: `decide` gives the switch that should be made next, `adopt` is told which
    one was, once the state file has it.
    """

    def __init__(self, rollout: Rollout, switch: RolloutState, now: float) -> None:
        self.rollout, self.switch = rollout, switch
        self.since = now  # when the step began
        self.watched = False  # the current version came by a rollout not long ago
        self.counts: dict[int, Counts] = {}
        self._credit = 0.0

    @property
    def share(self) -> int:
        """The candidate's percent."""
        if self.switch.candidate is None:
            return 0
        return self.rollout.steps[min(self.switch.step, len(self.rollout.steps) - 1)]

    def pick(self) -> int | None:
        """The version for the next request: of every 100 in a row the candidate gets exactly its share."""
        candidate = self.switch.candidate
        if candidate is None:
            return self.switch.current
        self._credit += self.share
        if self._credit >= 100:
            self._credit -= 100
            return candidate
        return self.switch.current

    def record(self, version: int, ok: bool) -> None:
        """One answer; what the caller did wrong counts as neither.

        Args:
            version: that answered.
            ok: whether all went well.
        """
        counts = self.counts.setdefault(version, Counts())
        counts.requests += 1
        counts.errors += not ok

    def _failing(self, version: int) -> str | None:
        counts = self.counts.get(version)
        if counts is None or counts.requests < self.rollout.min_requests:
            return None
        if counts.errors <= self.rollout.error_rate * counts.requests:
            return None
        return (
            f"{counts.errors} of {counts.requests} requests failed, more than {self.rollout.error_rate:.3g}"
        )

    def decide(self, now: float) -> RolloutState | None:
        """The switch to be made, or None.

        Args:
            now: of a clock that never goes back.
        """
        s = self.switch
        if s.candidate is not None:
            reason = self._failing(s.candidate)
            if reason:
                return rolled_back(s, reason)
            last = s.step >= len(self.rollout.steps) - 1
            if last or now - self.since >= self.rollout.hold_seconds:
                if self.rollout.steps[min(s.step + 1, len(self.rollout.steps) - 1)] < 100:
                    return replace(s, step=s.step + 1)
                return RolloutState(s.candidate, s.current, refused=s.refused, files=s.files)
        elif self.watched and s.current is not None and s.previous is not None:
            reason = self._failing(s.current)
            if reason:
                return rolled_back(s, reason)
            if now - self.since >= self.rollout.watch_seconds:
                self.watched = False
        return None

    def adopt(self, switch: RolloutState, now: float) -> None:
        """Takes a switch that was made. Counts begin anew.

        Args:
            switch: that was made.
            now: of a clock that never goes back.
        """
        old, self.switch = self.switch, switch
        step_changed = (old.candidate, old.step, old.current) != (
            switch.candidate,
            switch.step,
            switch.current,
        )
        if step_changed:
            taken_over = old.candidate is not None and switch.current == old.candidate
            self.watched = taken_over and switch.previous is not None
            self.since, self._credit = now, 0.0
            self.counts.clear()
