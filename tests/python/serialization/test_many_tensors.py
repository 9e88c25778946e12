"""Files of many small tensors: what other readers make of them, and what one more costs."""

from __future__ import annotations

import io
import pickle
import sys
import zipfile

import pytest
import warptape as torch
from warptape.serialization._archive import pieces


def calls(fn) -> int:
    """Functions that a call runs, Python's and C's: its time, without the machine's."""
    count = 0

    def see(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(see)
    try:
        fn()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize("new_format", [True, False])
def test_one_more_tensor_costs_few_calls(new_format) -> None:
    def save(n: int) -> int:
        state = {f"layer{i}.weight": torch.ones(3, 4) for i in range(n)}
        return calls(lambda: torch.save(state, io.BytesIO(), _use_new_zipfile_serialization=new_format))

    save(1)
    assert (save(1100) - save(100)) / 1000 < 140  # it was 540


def test_the_same_tensor_text_and_storage_are_written_once() -> None:
    t, key = torch.arange(6.0), "a key"
    for new_format in (True, False):
        file = io.BytesIO()
        state = [t, t, t.view(2, 3), {key: t[1:], "other": key}, torch.ones(2, requires_grad=True)]
        torch.save(state, file, _use_new_zipfile_serialization=new_format)
        file.seek(0)
        a, b, c, d, e = torch.load(file)
        assert a is b and c.data_ptr() == a.data_ptr() and d[key].data_ptr() == a.data_ptr() + 4
        assert d == {key: d[key], "other": key} and e.requires_grad and a.tolist() == t.tolist()


@pytest.mark.parametrize(
    "t",
    [
        torch.tensor(3),
        torch.empty(0, 5),
        torch.ones(1, 2, 3, 4, 5),
        torch.arange(70_000)[300:].view(2, -1).t(),
        torch.ones(2, dtype=torch.bfloat16),
        torch.ones(2, dtype=torch.float8_e4m3fn),
        torch.ones(2, dtype=torch.complex64),
        torch.empty(3, device="meta"),
    ],
    ids=lambda t: f"{t.dtype} {list(t.shape)}",
)
def test_layouts_come_back(t) -> None:
    file = io.BytesIO()
    torch.save({"t": t}, file)
    file.seek(0)
    found = torch.load(file)["t"]
    assert (found.shape, found.stride(), found.dtype) == (t.shape, t.stride(), t.dtype)
    assert t.is_meta or found.tolist() == t.tolist()


def test_large_numbers_in_strides() -> None:
    from warptape.serialization._pickler import _number

    for n in (0, 255, 256, 65535, 65536, -1, 2**31 - 1, 2**31, -(2**31) - 1, 2**62):
        assert pickle.loads(b"\x80\x02" + _number(n) + b".") == n


class Large:
    """A buffer of which only the size is looked at."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size


def test_archives_are_those_of_zipfile() -> None:
    records = [(f"data/{i}é"[: 8 - i % 2], bytes([i % 256]) * (i % 5)) for i in range(100)]
    records += [(f"more/{i}", b"x") for i in range(70_000)]  # more than fit without zip64
    records = list(dict(records).items())
    file = io.BytesIO(b"".join(map(bytes, pieces("folder", records))))
    with zipfile.ZipFile(file) as archive:
        assert archive.testzip() is None
        assert [info.filename for info in archive.infolist()] == [f"folder/{name}" for name, _ in records]
        assert archive.read(f"folder/{records[7][0]}") == records[7][1]


def test_sizes_beyond_four_bytes_are_in_zip64_fields() -> None:
    size = 5 << 30
    head, _, second, _, directory = pieces("f", [("a", Large(size)), ("b", b"xy")], checksums=False)
    wide = (b"\x01\x00\x10\x00" + size.to_bytes(8, "little") * 2) in bytes(head)
    assert wide and (len(head) + size + len(second)) % 64 == 0
    at = len(head) + size
    assert b"\x01\x00\x08\x00" + at.to_bytes(8, "little") in bytes(directory)
    assert b"PK\x06\x06" in directory and b"PK\x06\x07" in directory


def test_paths_of_safetensors_are_loaded(tmp_path) -> None:
    from warptape.utils import safetensors

    path = tmp_path / "x.safetensors"
    safetensors.save_file({"a": torch.arange(3.0)}, path)
    for options in ({}, {"weights_only": False}, {"mmap": True}, {"map_location": "cpu"}):
        assert torch.load(path, **options)["a"].tolist() == [0, 1, 2]
    assert torch.load(str(path), map_location=torch.device("cpu"))["a"].dtype == torch.float32
    for where, kind in (({"cpu": "cpu"}, "dict"), (lambda storage, place: storage, "callable")):
        with pytest.raises(RuntimeError, match=f"safetensors file with {kind} map_location"):
            torch.load(path, map_location=where)
    with pytest.raises(pickle.UnpicklingError, match=r"load_file\(path\)"):
        torch.load(io.BytesIO(path.read_bytes()))
    other = tmp_path / "saved.safetensors"
    torch.save({"b": 1}, other)  # whatever its name says
    assert torch.load(other) == {"b": 1}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(safetensors.SafetensorError, match="truncated"):
        torch.load(path)
