"""Files of programs with other numbers in their text, run where nobody may touch memory around a tensor's.

As a program: `python -m graph.stranger_files SEED COUNT` with WARPTAPE_GUARD_PAGES=1. A read or write outside
ends it by a signal.
"""

from __future__ import annotations

import io
import json
import random
import struct
import sys
import zlib
from typing import Any

import warptape as torch
import warptape.nn.functional as F
from warptape.export import Dim, export, load, save

from .mutated_text import mutated, numbers_in, pieces

GUARD = 1234567.0


def taken_apart(program):
    """(text of the graph, all else that a file holds) of a program."""
    file = io.BytesIO()
    save(program, file)
    data = file.getvalue()
    n = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + n]), data[8 + n :]
    parts = {k: (v, body[slice(*v["data_offsets"])]) for k, v in header.items() if k != "__metadata__"}
    return parts.pop("__graph__")[1].decode(), parts


def put_together(text, parts):
    """The file, with its checksum made right."""
    header, body = {}, b""
    graph = text.encode()
    for name, (entry, data) in {
        **parts,
        "__graph__": ({"dtype": "U8", "shape": [len(graph)]}, graph),
    }.items():
        header[name] = {**entry, "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    header["__metadata__"] = {"format": "warptape.graph.1", "crc32": f"{zlib.crc32(body):08x}"}
    packed = json.dumps(header).encode()
    return struct.pack("<Q", len(packed)) + packed + body


def opened(text, parts):
    return load(io.BytesIO(put_together(text, parts))).module()


def programs():
    table = torch.randn(7, 3)
    n = ({0: Dim("n", min=2, max=60)},)
    x = torch.randn(6, 3)
    for f in (
        lambda x: x[1:5:2] * 1 + x[-1],
        lambda x: x.narrow(0, 1, 3).unfold(0, 2, 1) * 1,
        lambda x: x.as_strided((4, 2), (3, 1), 2) * 1,
        lambda x: x.T.diagonal(1).clone().view(-1, 1),
        lambda x: table[: x.shape[0]].sum() + x.gather(0, torch.tensor([[0, 1, 2]])),
        lambda x: F.embedding(torch.tensor([0, 5, 6]), table) + x.select(0, 2),
        lambda x: torch.cat(x.split(2)[::-1]).index_select(0, torch.tensor([0, 3])),
        lambda x: x[torch.tensor([0, 4])].index_put((torch.tensor([1]),), torch.zeros(3)),
        lambda x: F.pad(x, (1, 2)).reshape(2, -1).expand(2, 2, -1) * 1,
        lambda x: x[x > 0][1:3] * 1,
        lambda x: F.conv1d(x.T[None], table[:3, :, None].expand(3, 3, 2), stride=2),
        lambda x: torch.zeros(x[x > 0].numel(), 2) + x[x > 0][:, None],
        lambda x: x.take(torch.tensor([0, 7])) + x.flatten().topk(2)[0],
        lambda x: torch.zeros(7, 3).scatter_add(0, torch.tensor([[0, 6, 2]]), x) @ table.T,
        lambda x: F.max_pool1d(F.pad(x.T[None], (2, 1)), 3, stride=2, padding=1).unfold(2, 2, 1) * 1,
        lambda x: F.conv2d(
            x.reshape(1, 1, -1, 3), table[None, None, :2, :2].expand(2, 1, 2, 2), padding=1, dilation=2
        ),
        lambda x: F.one_hot(torch.tensor([0, 2]), 3).float() @ x.T.cumsum(1) + x.sort(0)[0].roll(1, 0).sum(),
        lambda x: F.interpolate(x.T[None], scale_factor=2.0).repeat(1, 2, 1).tril(-1).movedim(1, 2) * 1,
        lambda x: torch.bincount(torch.tensor([1, 3]), minlength=5)[1:] + x.argmax(0).sum(),
        lambda x: torch.cond(x.sum() > 0, lambda a: a[1:] * 2, lambda a: a[:-1] * 1, (x,)),
    ):
        for shapes in (None, n):
            try:
                yield taken_apart(export(f, (x,), dynamic_shapes=shapes))
            except NotImplementedError:
                assert shapes is not None


def with_other_numbers(text, rng):
    def replace(words, i, kind):
        k = rng.choice(numbers_in(words))
        larger = [str(int(words[k]) + d) for d in (1, 2, 5, 100)]
        words[k] = rng.choice(larger + ["0", "-1", "-7", "4294967296", str(1 << 62)])

    return mutated(pieces(text, strings=True), rng, 6, replace)


def run(text: str, parts: Any, x: Any) -> list[Any] | None:
    """The results for `x`; None where the file, or the run, is refused."""
    try:
        return torch.utils._pytree.tree_leaves(opened(text, parts)(x))
    except (RuntimeError, ValueError, TypeError, IndexError, MemoryError):
        return None


def main(seed: int, count: int) -> None:
    """Runs that many texts and prints how many ran and how many were refused."""
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    made, rng = [*programs()], random.Random(seed)
    ran = 0
    for i in range(count):
        text, parts = rng.choice(made)
        text = with_other_numbers(text, rng)
        print(i, text, sep="\n", file=sys.stderr) if "--verbose" in sys.argv else None
        around = torch.full((400, 3), GUARD)
        x = around[200:206].copy_(torch.randn(6, 3))
        results = run(text, parts, x.clone() if i % 2 else x)
        ran += results is not None
        assert (around[:200] == GUARD).all() and (around[206:] == GUARD).all(), text
        # as_strided is the one op whose view of an input may leave it, for the rest of its storage.
        if "as_strided" not in text and "empty" not in text and "resize" not in text:
            assert not any((t == GUARD).any() for t in results or ()), text
    print(ran, count - ran)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
