"""Program files of strangers: refused, or run within their memories."""

from __future__ import annotations

import io
import json
import random
import struct
import zlib

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import _C
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


def fnv(op):
    """The hash of a declaration, as csrc/graph/ir/graph.cpp has it."""
    types = {"Tensor": 0, "int": 3, "bool": 5}
    number = 2166136261
    for name, kind, optional, *_ in op[2]:
        for byte in [*name.encode(), types[kind], optional, 0]:
            number = ((number ^ byte) * 16777619) & 0xFFFFFFFF
    return ((number ^ 1) * 16777619) & 0xFFFFFFFF  # returns a tensor


def test_private_ops():
    """Those that trust their caller, or set the process's state."""
    _, parts = taken_apart(export(lambda x: x.relu(), (torch.ones(3, 4),)))
    ops = {op[0]: op for op in _C._list_ops()}
    for name in ("_complex_abs", "_complex_sgn", "_gemm_step"):
        op = ops[name]
        number = fnv(op)
        values = {"Tensor": "%0", "int": "1", "bool": "False"}
        args = ", ".join(f"{a[0]}={values[a[1]]}" for a in op[2])
        call = f"%1: float32[3, 4] = {name}#{number:08x}({args})"
        text = f"graph(%0: float32[3, 4]) {{\n  {call}\n  return %1\n}}\n"
        with pytest.raises(NotImplementedError, match="is private"):
            opened(text, parts)(torch.ones(3, 4))


def test_sizes_that_do_not_hold():
    text, parts = taken_apart(export(lambda x: x[:4] * 1, (torch.ones(6, 3),)))
    assert opened(text, parts)(torch.ones(6, 3)).shape == (4, 3)
    for old, new in (("float32[4, 3]", "float32[9, 3]"), ("end=4", "end=5"), ("float32[4, 3]", "float32[4]")):
        assert old in text
        with pytest.raises(torch.ShapeError, match="graph: "):
            opened(text.replace(old, new), parts)(torch.ones(6, 3))
    broken = text.replace("graph(", "graph<n in [5, 2]>(")
    with pytest.raises(RuntimeError, match="is none of sizes"):
        opened(broken, parts)
    with pytest.raises((RuntimeError, ValueError)):
        opened(text.replace("input=%0, dim", "input=%_, dim"), parts)


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
        lambda x: torch.cond(x.sum() > 0, lambda a: a[1:] * 2, lambda a: a[:-1] * 1, (x,)),
    ):
        for shapes in (None, n):
            try:
                yield taken_apart(export(f, (x,), dynamic_shapes=shapes))
            except NotImplementedError:
                assert shapes is not None


@pytest.fixture(scope="module")
def made():
    return [*programs()]


def with_other_numbers(text, rng):
    def replace(words, i, kind):
        k = rng.choice(numbers_in(words))
        larger = [str(int(words[k]) + d) for d in (1, 2, 5, 100)]
        words[k] = rng.choice(larger + ["0", "-1", "-7", "4294967296", str(1 << 62)])

    return mutated(pieces(text, strings=True), rng, 6, replace)


def test_mutated_files(made, pytestconfig):
    """No result holds a number of the memory around the inputs."""
    rng = random.Random(3)
    ran = refused = 0
    for _ in range(pytestconfig.getoption("--programs") * 20):
        text, parts = rng.choice(made)
        text = with_other_numbers(text, rng)
        around = torch.full((400, 3), GUARD)
        around[200:206] = torch.randn(6, 3)
        try:
            results = opened(text, parts)(around[200:206])
        except (RuntimeError, ValueError, TypeError, IndexError, MemoryError):
            refused += 1
            continue
        ran += 1
        # as_strided is the one op whose view of an input may leave it, for the rest of its storage.
        if "as_strided" not in text and "empty" not in text and "resize" not in text:
            for t in torch.utils._pytree.tree_leaves(results):
                assert not (t == GUARD).any(), text
        assert (around[:200] == GUARD).all() and (around[206:] == GUARD).all(), text
    assert ran and refused
