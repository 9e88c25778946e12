"""safetensors files against the safetensors library: same bytes, same values, same refusals."""

from __future__ import annotations

import gc
import json
import os
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
import safetensors.numpy
import warptape as wt
from warptape.utils import safetensors as st

CODES = {"bool": "?", "uint8": "u1", "int8": "i1", "int16": "i2", "int32": "i4", "int64": "i8"}
CODES |= {"float16": "f2", "float32": "f4", "float64": "f8"}


def arrays() -> dict[str, np.ndarray]:
    found = {name: np.arange(6).reshape(2, 3).astype(code) for name, code in CODES.items()}
    return {
        **found,
        "scalar": np.array(2.5),
        "empty": np.zeros((0, 3), "f4"),
        "odd": np.arange(3, dtype="u1"),
    }


def tensors() -> dict[str, wt.Tensor]:
    return {name: wt.tensor(a) for name, a in arrays().items()}


def test_bytes_are_those_of_the_library(tmp_path: Path) -> None:
    metadata = {"format": "pt", "é": '"'}
    st.save_file(tensors(), tmp_path / "x.safetensors", metadata)
    assert st.save(tensors(), metadata) == (tmp_path / "x.safetensors").read_bytes()
    back = safetensors.numpy.load_file(tmp_path / "x.safetensors")
    for name, a in arrays().items():
        assert back[name].dtype == a.dtype and np.array_equal(back[name], a) and back[name].shape == a.shape
    one = {"w": np.arange(4, dtype="f4"), "b": np.arange(2, dtype="f8")}
    assert st.save({n: wt.tensor(a) for n, a in one.items()}, {"a": "b"}) == safetensors.numpy.save(
        one, {"a": "b"}
    )


def test_loads_what_the_library_saved(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.numpy.save_file(arrays(), path, {"format": "np"})
    data = path.read_bytes()
    for found in (st.load_file(path), st.load(data)):
        assert list(found) == sorted(arrays())
        for name, a in arrays().items():
            assert found[name].numpy().dtype == a.dtype and np.array_equal(found[name].numpy(), a)
    loaded = st.load_file(path)
    loaded["float32"].add_(1)  # in the mapping of this process alone
    assert path.read_bytes() == data and loaded["float32"][0, 0] == 1
    assert st.load_file(path, device="meta")["float32"].is_meta


def test_safe_open_reads_parts(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    x = wt.arange(60.0).reshape(5, 12).bfloat16()
    st.save_file({"b": x, "a": wt.ones(3)}, path, {"k": "v"})
    with st.safe_open(path, framework="pt", device="cpu") as file:
        assert (
            file.keys() == ["a", "b"] and file.metadata() == {"k": "v"} and file.offset_keys() == ["a", "b"]
        )
        part = file.get_slice("b")
        assert part.get_shape() == [5, 12] and part.get_dtype() == "BF16"
        for index in (2, slice(1, 3), (slice(None), slice(0, 12, 5)), (slice(-2, None), 3), ...):
            assert wt.equal(part[index], x[index])
        kept = file.get_tensor("b")
        with pytest.raises(st.SafetensorError, match="does not contain tensor c"):
            file.get_tensor("c")
    assert wt.equal(kept, x)  # lives on without the file


def test_what_is_not_saved(tmp_path: Path) -> None:
    path, x = tmp_path / "x.safetensors", wt.arange(6.0).reshape(2, 3)
    for wrong, error, match in (
        ({"a": x, "b": x[0]}, RuntimeError, "share memory"),
        ({"a": x.t()}, ValueError, "non contiguous tensor: `a`"),
        ({"a": 1}, ValueError, "Key `a` is invalid"),
        ([x], ValueError, "Expected a dict"),
    ):
        with pytest.raises(error, match=match):
            st.save_file(wrong, path)
    assert os.listdir(tmp_path) == []
    st.save_file({"a": x[0], "b": x[1]}, path)  # parts of one that do not overlap
    assert st.load_file(path)["b"].tolist() == [3, 4, 5]


def test_sharded(tmp_path: Path) -> None:
    state = {f"w{i}": wt.full((100,), float(i)) for i in range(7)}  # 400 bytes each
    st.save_sharded(state, tmp_path, max_shard_size="1KB")
    index = json.loads((tmp_path / st.INDEX).read_text())
    assert index["metadata"] == {"total_size": 2800}
    assert index["weight_map"]["w0"] == "model-00001-of-00004.safetensors" == index["weight_map"]["w1"]
    assert index["weight_map"]["w6"] == "model-00004-of-00004.safetensors"
    for again in (st.load_sharded(tmp_path), {}):
        for name, value in again.items():
            assert wt.equal(value, state[name])
    assert set(st.load_sharded(tmp_path)) == set(state)
    st.save_sharded({"w": wt.ones(1)}, tmp_path)  # one file now; the old index must not be found
    assert list(st.load_sharded(tmp_path)) == ["w"] and not (tmp_path / st.INDEX).exists()
    (tmp_path / st.SINGLE).unlink()
    for text in ("{", "[]", '{"weight_map": {"a": "../x"}}', '{"weight_map": {"a": 1}}', "[" * 100_000):
        (tmp_path / st.INDEX).write_text(text)
        with pytest.raises(st.SafetensorError, match="is no index"):
            st.load_sharded(tmp_path)


def file_of(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(kind: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": kind, "shape": shape, "data_offsets": offsets}


HOSTILE = {
    "nothing": b"",
    "short": b"1234567",
    "a huge header": struct.pack("<Q", 2**63) + b"{}",
    "a header beyond the end": struct.pack("<Q", 100) + b"{}",
    "no JSON": file_of(b"{"),
    "no object": file_of([]),
    "deep": file_of(b"[" * 100_000),
    "no UTF-8": file_of(b'{"\xff": 1}'),
    "a name twice": file_of(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2)),
    "no entry": file_of({"a": 1}),
    "a missing key": file_of({"a": {"dtype": "F32", "shape": [2]}}),
    "an unknown dtype": file_of({"a": entry("X9")}),
    "a dtype that is no string": file_of({"a": entry([1])}),
    "a negative size": file_of({"a": entry(shape=[-2])}),
    "a fraction": file_of({"a": entry(shape=[2.0])}),
    "sizes whose product is too large": file_of({"a": entry(shape=[2**32, 2**32])}),
    "sizes beyond 64 bits": file_of({"a": entry(shape=[2**70])}),
    "another size": file_of({"a": entry(shape=[3])}),
    "offsets the wrong way": file_of({"a": entry(offsets=[8, 0])}),
    "offsets out of the file": file_of({"a": entry(shape=[4], offsets=[0, 16])}),
    "three offsets": file_of({"a": entry(offsets=[0, 4, 8])}),
    "overlap": file_of({"a": entry(), "b": entry()}),
    "a gap": file_of({"a": entry(offsets=[8, 16])}, bytes(16)),
    "bytes behind": file_of({"a": entry()}, bytes(9)),
    "truncated": file_of({"a": entry()}, bytes(7)),
    "metadata that are no strings": file_of({"__metadata__": {"a": 1}, "a": entry()}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files(name: str, tmp_path: Path) -> None:
    data = HOSTILE[name]
    (tmp_path / "x").write_bytes(data)
    for read in (lambda: st.load(data), lambda: st.load_file(tmp_path / "x")):
        with pytest.raises(st.SafetensorError):
            read()
    if name != "a name twice":  # which the library lets pass
        with pytest.raises(safetensors.SafetensorError):
            safetensors.deserialize(data)


def test_random_changes_are_judged_as_the_library_does() -> None:
    good = st.save({"a": wt.arange(4.0), "b": wt.arange(3), "c": wt.tensor([True])}, {"k": "v"})
    length = 8 + int.from_bytes(good[:8], "little")
    rng = random.Random(0)
    for _ in range(3000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 2)):
            data[rng.randrange(length)] = rng.choice(b'0123456789[]{},:"FI ')
        found: list[Any] = []
        for read in (safetensors.deserialize, st.load):
            try:
                found.append(read(bytes(data)))
            except safetensors.SafetensorError:
                found.append(None)
        theirs, ours = found
        if theirs is None:
            assert ours is None, data
        elif ours is None:  # two of one name, or a dtype that is not here
            names = [name for name, _ in theirs]
            kinds = {e["dtype"] for _, e in theirs}
            assert len(set(names)) < 3 or not kinds <= set(st.KINDS), data
        else:
            for name, e in theirs:
                assert list(ours[name].shape) == e["shape"]
                assert bytes(wt._interchange.raw_bytes(ours[name].contiguous())) == bytes(e["data"])


@pytest.mark.parity
def test_with_pytorch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import safetensors.torch

    values = {name: torch.arange(6).reshape(2, 3).to(getattr(torch, name)) for name in (*CODES, "bfloat16")}
    safetensors.torch.save_file(values, tmp_path / "t")
    ours = st.load_file(tmp_path / "t")
    st.save_file(ours, tmp_path / "w")
    back = safetensors.torch.load_file(tmp_path / "w")
    for name, value in values.items():
        assert ours[name].tolist() == value.tolist() and torch.equal(back[name], value)


def test_many_names() -> None:
    """Headers of many tensors keep no lists and dicts, which the garbage collector would walk."""
    n = 100_000
    walked = [0]

    def seen(phase: str, info: dict[str, int]) -> None:
        if phase == "start" and info["generation"] == 2:
            walked.append(len(gc.get_objects()))

    gc.collect()
    before = len(gc.get_objects())
    gc.callbacks.append(seen)
    try:
        head = st.encode_header((f"model.layers.{i}.weight", "F32", (1,)) for i in range(n))
        found, _ = st.decode_header(head, len(head) + 4 * n)
    finally:
        gc.callbacks.remove(seen)
    assert list(found.items())[n - 1] == (
        f"model.layers.{n - 1}.weight",
        ("F32", (1,), len(head) + 4 * n - 4),
    )
    assert max(walked) < before + 1.5 * n


def test_storages_of_tensors() -> None:
    t = wt.arange(6.0)
    assert st.storage_ptr(t) == st.storage_ptr(t[2:]) == t.data_ptr()
    assert st.storage_size(t[2:]) == 24
    assert (st.storage_ptr(wt.empty(3, device="meta")), st.storage_size(wt.empty(3, device="meta"))) == (
        0,
        12,
    )
