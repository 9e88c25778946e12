"""What ranks ask for when they make a group, compared through the store before it is made."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta

from .._C import DistBackendError, DistStoreError
from .._C import _distributed as _C
from .state import RankState

LOOK = 0.5  # seconds between looks at who is gone
AT_ONCE = 16  # ranks that are looked at, for all may look
READING = 2.0  # seconds in which the others must have read why there is no group


class Agreement:
    """One call that all `members` (ranks of the job) make: the `number`th of its kind under `key`."""

    def __init__(self, here: RankState, key: str, members: Sequence[int], asked: str) -> None:
        self.here, self.members, self.asked = here, members, asked
        self.store, self.at = here.store, f"asked/{key}"
        self.site = _C._call_site()

    def _said(self, rank: int, asked: str, site: str) -> str:
        return f"\n  rank {rank}: {asked} at {site}"

    def refuse(self, error: str) -> None:
        """Tells the others that what this rank asks for cannot be; it does not wait for them."""
        if len(self.members) > 1:
            self._come()
            said = self._said(self.here.rank, self.asked, self.site)
            self.store.set(f"{self.at}/end", f"a rank asks for a group that cannot be:{said}: {error}")

    def _come(self) -> None:
        mine = f"{self.here.rank}\n{self.asked}\n{self.site}"
        self.store.set(f"{self.at}/{self.here.rank}", mine)
        self.store.set(f"asked/last/{self.here.rank}", mine)
        if self.store.add(f"{self.at}/came", 1) == 1:
            self.store.set(f"{self.at}/first", mine)

    def wait(self, timeout: timedelta) -> None:
        """Returns when all have asked for the same. Raises DistBackendError on every rank that came, which
        says what two asked for that differ, or who did not come."""
        if len(self.members) == 1:
            return
        deadline = time.monotonic() + timeout.total_seconds()
        self._come()
        rank, asked, site = self.store.get(f"{self.at}/first").decode().split("\n", 2)
        if asked != self.asked:
            both = sorted([(int(rank), asked, site), (self.here.rank, self.asked, self.site)])
            text = "the ranks ask for different groups:" + "".join(self._said(*each) for each in both)
            self.store.set(f"{self.at}/end", text)
        elif self.store.add(f"{self.at}/agreed", 1) == len(self.members):
            self.store.set(f"{self.at}/end", "")
        self._wait_for_end(deadline, timeout)
        end = self.store.get(f"{self.at}/end").decode()
        if self.store.add(f"{self.at}/read", 1) == len(self.members):
            for key in ("came", "first", "agreed", "end", "read", *self.members):
                self.store.delete_key(f"{self.at}/{key}")
        elif end:
            self._let_read()
        if end:
            raise DistBackendError(end)

    def _wait_for_end(self, deadline: float, timeout: timedelta) -> None:
        looked_at = 0
        while True:
            left = deadline - time.monotonic()
            try:
                self.store.wait([f"{self.at}/end"], timedelta(seconds=max(0.001, min(left, LOOK))))
                return
            except DistStoreError:
                if left <= 0:
                    self._late(timeout, left)
            for _ in range(min(AT_ONCE, len(self.members))):
                rank = self.members[looked_at % len(self.members)]
                looked_at += 1
                if self.store.check([f"gone/{rank}"]):
                    reason = self.store.get(f"gone/{rank}").decode()
                    raise DistBackendError(f"{self.asked} at {self.site} on rank {self.here.rank}: {reason}")

    def _late(self, timeout: timedelta, left: float) -> None:
        missing = [rank for rank in self.members if not self.store.check([f"{self.at}/{rank}"])]
        if not missing and left > -READING:
            return  # they have come, and are about to agree
        named = (
            f"rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing))}" if missing else "their answers"
        )
        text = (
            f"{self.asked} at {self.site} on rank {self.here.rank}: timed out after "
            f"{timeout.total_seconds():g} s waiting for {named}"
        )
        for rank in missing[:4]:
            if self.store.check([f"asked/last/{rank}"]):
                _, asked, site = self.store.get(f"asked/last/{rank}").decode().split("\n", 2)
                text += f"; rank {rank} last asked for {asked} at {site}"
            else:
                text += f"; rank {rank} has asked for no group"
        raise DistBackendError(text)

    def _let_read(self) -> None:
        """Rank 0 may serve the store, and end its process next."""
        end = time.monotonic() + READING
        while self.here.rank == 0 and time.monotonic() < end:
            if self.store.add(f"{self.at}/read", 0) >= self.store.add(f"{self.at}/came", 0):
                return
            time.sleep(0.005)
