"""Says why a job hung or failed, from the flight records of its ranks.

    python -m warptape.distributed.diagnose DUMPS...

DUMPS are files that ranks wrote (flight_<job>_rank<r>.json), or folders of them; some may be missing. A rank
writes one when a call of its group timed out, and on SIGUSR2. Exit code: 0 when ranks are named that others
wait for or that called something else, 1 when nothing of the kind is there, 2 when files cannot be read.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ._flight import Dump, FlightError, RecordedCall, read_dumps

SHORT = 1.0  # seconds: whoever waits no longer may be about to be joined


@dataclass
class Problem:
    """A call that not all ranks made, or not the same. Ranks are those of the job.

    Args:
        group: the group's name.
        what: the call in words.
        calls: each rank's.
        blamed: ranks at fault.
        differs: whether the calls are not the same.
        hints: what may help.
        waited: seconds.
        failed: whether a rank failed.
    """

    group: str
    what: str
    calls: dict[int, RecordedCall]  # of those that wait in it, or that differ
    blamed: list[int] = field(default_factory=list)  # whom they wait for, or who differ from most
    differs: bool = False
    hints: list[str] = field(default_factory=list)
    waited: float = 0.0  # seconds, by whoever waited longest
    failed: bool = False

    @property
    def certain(self) -> bool:
        """Whether it is no snapshot of a job at work."""
        return self.differs or self.failed or self.waited >= SHORT


def ranks_text(ranks: Iterable[int]) -> str:
    """ "rank 1", "ranks 0, 2-5".

    Args:
        ranks: in any order.

    >>> from warptape.distributed.diagnose import ranks_text
    >>> ranks_text([0, 2, 3, 4, 5])
    'ranks 0, 2-5'
    """
    out: list[list[int]] = []
    for rank in sorted(ranks):
        if out and out[-1][1] == rank - 1:
            out[-1][1] = rank
        else:
            out.append([rank, rank])
    spans = [str(a) if a == b else f"{a}-{b}" if b > a + 1 else f"{a}, {b}" for a, b in out]
    return ("rank " if len(out) == 1 and out[0][0] == out[0][1] else "ranks ") + ", ".join(spans)


def _seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 120 else f"{value / 60:.0f} min"


class Analysis:
    """What the dumps of one job, by rank, say together.

    Args:
        dumps: what each rank wrote.
    """

    def __init__(self, dumps: dict[int, Dump]) -> None:
        self.dumps = dumps
        first = next(iter(dumps.values()))
        self.job, self.world_size = first.job, first.world_size
        self.groups: dict[str, list[int]] = {}
        for dump in dumps.values():
            self.groups.update(dump.groups)
        for dump in dumps.values():  # of a group that was destroyed, those are left who called it
            for call in dump.calls:
                if call.group not in dump.groups and dump.rank not in self.groups.get(call.group, []):
                    self.groups.setdefault(call.group, []).append(dump.rank)
        # of each group: by rank, its collectives by number
        self._collectives: dict[str, dict[int, dict[int, RecordedCall]]] = defaultdict(dict)
        for dump in dumps.values():
            for call in dump.calls:
                if call.sequence:
                    self._collectives[call.group].setdefault(dump.rank, {})[call.sequence] = call
        self.problems = [p for name in self.groups if (p := self._collective_problem(name))]
        self.problems += self._unmatched()
        self._order()

    def unknown(self, ranks: Iterable[int]) -> list[int]:
        """Those without a dump.

        Args:
            ranks: of the job.
        """
        return [rank for rank in ranks if rank not in self.dumps]

    def _waiting(self, problem: Problem) -> Problem:
        """Fills in how long they have waited."""
        for rank, call in problem.calls.items():
            end = call.ended if call.state == "failed" else self.dumps[rank].time
            problem.waited = max(problem.waited, end - call.queued)
            problem.failed |= call.state == "failed"
        return problem

    # ---- collectives ----

    def _collective_problem(self, group: str) -> Problem | None:
        """The first call of the group that went wrong."""
        members = [rank for rank in self.groups[group] if rank in self.dumps]
        calls = {rank: self._collectives[group].get(rank, {}) for rank in members}
        last = {rank: max(each, default=0) for rank, each in calls.items()}
        last_over = max((n for each in calls.values() for n, call in each.items() if call.over), default=0)
        unknown = self.unknown(self.groups[group])
        by_number: dict[int, dict[int, RecordedCall]] = defaultdict(dict)
        for rank, each in calls.items():
            for sequence, call in each.items():
                by_number[sequence][rank] = call
        for sequence, here in sorted(by_number.items()):
            if len({call.call for call in here.values()}) > 1:
                if last_over > sequence:
                    continue  # all were told, and went on
                return self._difference(group, sequence, here, calls)
            if any(call.over for call in here.values()):
                continue
            # One whose record begins later, or who is already further, has made it.
            blamed = [rank for rank in members if last[rank] < sequence] + unknown
            if blamed:
                what = f"call {sequence} was not made by {ranks_text(blamed)}"
                return self._waiting(Problem(group, what, here, blamed))
        return None

    def _difference(
        self,
        group: str,
        sequence: int,
        here: dict[int, RecordedCall],
        calls: dict[int, dict[int, RecordedCall]],
    ) -> Problem:
        count = Counter(call.call for call in here.values())
        (usual, most), *others = count.most_common()
        odd = [rank for rank, call in here.items() if call.call != usual]
        clear = most > others[0][1]
        problem = Problem(
            group,
            f"call {sequence} is not the same on all ranks",
            here,
            odd if clear else sorted(here),
            differs=True,
        )

        def at(rank: int, number: int) -> str | None:
            call = calls[rank].get(number)
            return call.call if call else None

        for rank in odd if clear else sorted(here):
            rest = [other for other in here if at(other, sequence) != at(rank, sequence)]
            if any(at(other, sequence + 1) == at(rank, sequence) for other in rest):
                problem.hints.append(f"rank {rank} seems to have left out {here[rest[0]]}")
            elif clear and any(at(rank, sequence + 1) == at(other, sequence) for other in rest):
                problem.hints.append(f"rank {rank} seems to have made one call more: {here[rank]}")
        return problem

    # ---- send and recv ----

    def _unmatched(self) -> list[Problem]:
        """Sends and receives that are not over and have no other side."""
        posted: Counter[tuple[str, str, int, int, int]] = Counter()  # group, op, caller, peer, tag
        open_calls: list[tuple[int, RecordedCall, int, int]] = []  # rank, call, peer, how many like it before
        for rank, dump in self.dumps.items():
            for call in dump.calls:
                if call.point_to_point:
                    members = self.groups[call.group]
                    peer = members[call.root] if 0 <= call.root < len(members) else -1
                    key = (call.group, call.op, rank, peer, call.tag)
                    if not call.over:
                        open_calls.append((rank, call, peer, posted[key]))
                    posted[key] += 1
        unmatched: dict[tuple[str, int, str, int], Problem] = {}
        present = {name: [r for r in ranks if r in self.dumps] for name, ranks in self.groups.items()}
        for rank, call, peer, before in open_calls:
            key2 = (call.group, rank, call.op, peer)
            if key2 in unmatched:
                continue
            partner = "recv" if call.op == "send" else "send"
            there = [r for r in present[call.group] if (r == peer if peer >= 0 else r != rank)]
            if not all(self.dumps[r].whole for r in [rank, *there]):
                continue  # the counts are not known
            sides = {(r, to) for r in there for to in ((rank, -1) if call.op == "send" else (rank,))}
            if sum(posted[call.group, partner, r, to, call.tag] for r, to in sides) > before:
                continue
            blamed = [peer] if peer >= 0 else [r for r in self.groups[call.group] if r != rank]
            who = ranks_text(blamed) if peer >= 0 else "any rank"
            what = f"the {partner} of {who} for a {call.op} of rank {rank} is not there"
            unmatched[key2] = self._waiting(Problem(call.group, what, {rank: call}, blamed))
        return list(unmatched.values())

    # ---- all together ----

    def _order(self) -> None:
        """Where ranks are blamed that do not wait themselves comes first, then what began first."""
        waits = {rank for p in self.problems if not p.differs for rank in p.calls}
        self.culprits = sorted(
            {r for p in self.problems if p.certain for r in p.blamed if p.differs or r not in waits}
        )
        culprits = set(self.culprits)
        self.problems.sort(
            key=lambda p: (
                culprits.isdisjoint(p.blamed),
                min(call.queued for call in p.calls.values()),
            )
        )

    def place(self, rank: int, group: str = "world") -> str:
        """Where the rank is, or was last.

        Args:
            rank: of the job.
            group: the call's.
        """
        dump = self.dumps.get(rank)
        if dump is None:
            number = self.groups[group].index(rank)  # by which errors name it
            for other in self.dumps.values():
                if left := re.search(
                    rf"rank {number} (?:\(process \d+\) )?(has left the group.*|has died)", other.failure
                ):
                    return f"rank {rank} left no dump: it {left[1].removesuffix(' and will not join')}"
            return f"rank {rank} left no dump: it had ended, was killed or stopped, or its file was not given"
        waiting = [c for c in dump.calls if not c.over and c.state != "failed"] or [
            c for c in dump.calls if c.state == "failed"
        ]
        if waiting:
            state = "waits in" if waiting[0].state != "failed" else "waited, till it failed, in"
            return f"rank {rank} {state} {waiting[0]} (group {waiting[0].group})"
        if not dump.calls:
            return f"rank {rank} has made no call"
        last = max(dump.calls, key=lambda call: call.id)
        since = _seconds(dump.time - last.ended)
        return f"rank {rank} is in no call since {since}; its last was {last} (group {last.group})"

    def _describe(self, problem: Problem) -> list[str]:
        out = [f"group {problem.group}: {problem.what}"]
        by_call: dict[str, list[int]] = defaultdict(list)
        for rank, call in problem.calls.items():
            by_call[str(call)].append(rank)
        for text, ranks in by_call.items():
            how = ":" if problem.differs else " wait in" if len(ranks) > 1 else " waits in"
            out.append(f"  {ranks_text(ranks)}{how} {text}")
        if not problem.differs:
            over = "until the time was over" if problem.failed else "so far"
            out.append(f"  for {_seconds(problem.waited)} {over}")
            missing = problem.blamed if len(problem.blamed) <= 8 else problem.blamed[:8]
            out += [f"  {self.place(rank, problem.group)}" for rank in missing]
        return out + [f"  {hint}" for hint in problem.hints]

    def _conclusion(self) -> str:
        if self.culprits:
            differ = {r for p in self.problems if p.differs for r in p.blamed}
            verb = "look at" if set(self.culprits) <= differ else "all wait for"
            return f"=> {verb} {ranks_text(self.culprits)}"
        if any(p.certain for p in self.problems):
            waiting = {rank for p in self.problems for rank in p.calls}
            return f"=> deadlock: {ranks_text(waiting)} wait for each other; call in one order on all ranks"
        if self.problems:
            return f"=> no rank has waited for {SHORT:g} s: the job may be running normally; dump again"
        return "=> every call that was made was made by all ranks alike: no fault found"

    @property
    def conclusive(self) -> bool:
        """Whether a rank is at fault, or there is a deadlock."""
        return any(p.certain for p in self.problems)

    def report(self, most: int = 6) -> str:
        """A few lines that say who did what, where; of at most `most` problems.

        Args:
            most: problems.
        """
        out = [f"job {self.job}: {self.world_size} ranks, dumps of {ranks_text(self.dumps)}"]
        if missing := self.unknown(range(self.world_size)):
            out.append(f"no dump of {ranks_text(missing)}")
        for failure in list(
            dict.fromkeys(d.failure.split("\n")[0] for d in self.dumps.values() if d.failure)
        )[:3]:
            out.append(f"reported: {failure}")
        for problem in self.problems[:most]:
            out += self._describe(problem)
        if len(self.problems) > most:
            out.append(f"and {len(self.problems) - most} more")
        return "\n".join([*out, self._conclusion()])


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns its exit code.

    Args:
        arguments: of the command line; those of the process if None.
    """
    parser = argparse.ArgumentParser(prog="warptape diagnose", description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument(
        "dumps", nargs="+", metavar="DUMPS", help="flight_*.json of ranks, or folders of them"
    )
    try:
        analysis = Analysis(read_dumps(parser.parse_args(arguments).dumps))
    except FlightError as error:
        print(f"diagnose: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("diagnose: there is not enough memory for these files; give fewer", file=sys.stderr)
        return 2
    print(analysis.report())
    return 0 if analysis.conclusive else 1


if __name__ == "__main__":
    sys.exit(main())
