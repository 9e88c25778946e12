"""Plants single-bit faults into a training run, and has two traces say where.

`python tests/planted_faults.py 200` plants so many. A fault is one bit of one value of one record of the
clean run, flipped in the memory that the program goes on with: of an op's result (by a mode around the
trace), of what a node of the tape gives, of a gradient, a batch, a parameter or what a collective gave. The
trace must name that record, its rank and its step, and clean pairs must be equal. A fault may end the run
with an error, as one of a token does.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

import warptape as torch
from warptape import distributed as dist
from warptape import nn
from warptape.distributed.simulation import RankFailed, simulate
from warptape.nn import functional as F
from warptape.tools.trace import Record, compare, read_run, recorder, trace_hashes

RANKS, STEPS = 2, 3
KINDS = ("op", "random", "backward", "gradient", "batch", "input", "parameter", "collective")


class Block(nn.Module):
    """Attention and a feed-forward part, with dropout."""

    def __init__(self, d: int) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(d), nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.mlp = nn.Sequential(nn.LayerNorm(d), nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.drop = nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, 2, d // 2).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(seen.transpose(1, 2).reshape(b, t, d)))
        return x + self.mlp(x)


def flip(t: torch.Tensor, bit: int) -> bool:
    """Changes one bit of a tensor's memory; False of one that has none of its own order."""
    size = t.numel() * t.element_size()
    if not size or not t.is_contiguous():
        return False
    byte = (ctypes.c_ubyte * size).from_address(t.data_ptr())
    byte[bit // 8 % size] ^= 1 << bit % 8
    return True


class FaultyTrace(trace_hashes):
    """A trace of a run in which one bit flips at the place of a record.

    Ops get their fault before the trace sees the result, by a mode around it; what hooks tell gets it as the
    hook is called.
    """

    place: tuple[int, int] | None = None
    of_op = False
    planted = False
    bit = 0

    def __enter__(self) -> Any:
        torch._C._push_dispatch_mode(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        torch._C._pop_dispatch_mode()

    def _due(self) -> bool:
        assert self._writer is not None
        return not self.planted and (self._writer.step, self._writer.index) == self.place

    def _called(self, place: str, name: str, args: Any, kwargs: Any) -> Any:
        function = recorder._function(place, name)
        out = function(*args, **kwargs)
        if self.of_op and self._due() and name not in ("detach", "contiguous"):
            self._plant(recorded_results(name, function, args, kwargs, out))
        return out

    def _record(self, kind: str, name: str, site: str, module: str, tensors: Any) -> None:
        if tensors and not self.of_op and self._due():
            self._plant(tensors)
        super()._record(kind, name, site, module, tensors)

    def _plant(self, tensors: Any) -> None:
        for t in tensors:
            if not self.planted:
                self.planted = flip(t, self.bit)


def recorded_results(name: str, function: Any, args: Any, kwargs: Any, out: Any) -> list[torch.Tensor]:
    """What an op has made or changed, by rules of its own: nothing for views and memory without values."""
    if name.startswith("empty"):
        return []
    written = list(function._written(*args, **kwargs))
    made = [t for t in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(t, torch.Tensor)]
    given = [t for t in (*args, *kwargs.values()) if isinstance(t, torch.Tensor)]
    storages = {t.untyped_storage().data_ptr() for t in given}
    return written + [t for t in made if t.untyped_storage().data_ptr() not in storages]


def train(folder: str, place: tuple[int, int, int] | None = None, of_op: bool = False, bit: int = 0) -> bool:
    """Trains on ranks with a trace of each; whether the fault could be planted.

    Args:
        folder: of the traces.
        place: rank, step and record of the fault.
        of_op: whether that record is an op's.
        bit: which of the value's bits.
    """
    faulty: list[FaultyTrace] = []

    def rank() -> None:
        torch.manual_seed(7)
        d, me = 16, dist.get_rank()
        model = nn.Sequential(nn.Embedding(32, d), Block(d), nn.LayerNorm(d), nn.Linear(d, 32))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        tokens = torch.randint(0, 32, (2 * STEPS, RANKS, 9))[:, me]
        loader = torch.utils.data.DataLoader(tokens, batch_size=2)
        with FaultyTrace(folder) as trace:
            if place is not None and place[0] == me:
                trace.place, trace.of_op, trace.bit = place[1:], of_op, bit
                faulty.append(trace)
            for batch in loader:
                logits = model(batch[:, :-1])
                loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
                for p in model.parameters():
                    dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)
                optimizer.step()

    with contextlib.suppress(*([RankFailed] if place else [])):
        simulate(RANKS, rank)
    return any(trace.planted for trace in faulty)


def candidates(folder: str) -> list[tuple[int, Record]]:
    """The records of a clean run that can have a fault, with their ranks."""
    found = []
    for rank, trace in read_run(folder).items():
        stepped = False
        for r in trace.records:
            stepped |= r.key.kind == "gradient"
            # Parameters after a step are what the optimizer's op wrote, and their fault is that op's.
            if r.key.kind in KINDS and not (stepped and r.key.kind == "parameter"):
                found.append((rank, r))
    return found


def named(clean: str, faulty: str, rank: int, wanted: Record) -> str:
    """Nothing where the comparison names the fault, else what it says."""
    out = compare(clean, faulty)
    if out.parts is None:
        return "no difference"
    found = out.parts.record
    if (out.parts.rank, found.step, found.number, found.key) == (
        rank,
        wanted.step,
        wanted.number,
        wanted.key,
    ):
        return ""
    return f"rank {out.parts.rank} {found}"


def campaign(count: int, seed: int, folder: Path) -> list[str]:
    """Plants faults one at a time.

    Args:
        count: how many.
        seed: of their places.
        folder: for the traces.

    Returns:
        A line for each that was not named, and for each clean pair that was not equal.
    """
    draw = random.Random(seed)
    clean = str(folder / "clean")
    train(clean)
    places = candidates(clean)
    failures = []
    done = 0
    while done < count:
        kind = draw.choice(KINDS)
        rank, r = draw.choice([p for p in places if p[1].key.kind == kind])
        faulty = str(folder / "faulty")
        of_op = r.key.kind in ("op", "random")
        if not train(faulty, (rank, r.step, r.number), of_op, draw.randrange(1 << 20)):
            continue  # of a value without memory in its own order
        done += 1
        if problem := named(clean, faulty, rank, r):
            failures.append(f"planted in rank {rank} {r}\n  found {problem}")
    return failures


def false_alarms(count: int, folder: Path) -> int:
    """In how many of so many clean pairs a difference is found.

    Args:
        count: of pairs.
        folder: for the traces.
    """
    clean = str(folder / "clean")
    train(clean)
    alarms = 0
    for _ in range(count):
        train(str(folder / "again"))
        alarms += not compare(clean, str(folder / "again")).equal
    return alarms


def main() -> int:
    """Prints how many of the faults were named, and how many clean pairs were equal."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("count", type=int, nargs="?", default=200)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        failures = campaign(given.count, given.seed, Path(name))
        print(*failures, sep="\n")
        print(f"{given.count - len(failures)} of {given.count} planted faults were named")
        alarms = false_alarms(given.count, Path(name))
        print(f"{alarms} false alarms in {given.count} clean pairs")
    return int(bool(failures or alarms))


if __name__ == "__main__":
    sys.exit(main())
