"""Damaged and hostile files: refused with a typed error, without running or allocating what they ask for."""

from __future__ import annotations

import io
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import warptape as wt

GOLDEN = Path(__file__).with_name("golden")


def archive(pickled: bytes, *storages: bytes, **kwargs: Any) -> bytes:
    """A file with this pickle and these storages, else one of 16 bytes."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", **kwargs) as z:
        z.writestr("x/data.pkl", pickled)
        for i, storage in enumerate(storages or [bytes(16)]):
            z.writestr(f"x/data/{i}", storage)
        z.writestr("x/version", "3\n")
    return file.getvalue()


def load(data: bytes, **options: Any) -> Any:
    return wt.load(io.BytesIO(data), **options)


def refused(data: bytes, match: str | None = None, **options: Any) -> None:
    with pytest.raises(pickle.UnpicklingError, match=match) as seen:
        load(data, **options)
    assert isinstance(seen.value, RuntimeError)


# ---------------------------------------------------------------------------------------- damage


def flipped(data: bytes, same: Any) -> tuple[set[tuple[bytes, int]], int]:
    """Where a flipped bit goes unseen, as (kind of zip header, byte of it); and how many are refused. What
    loads must be the same."""
    unseen, refusals = set(), 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << at % 8
        try:
            found = load(bytes(changed))
        except RuntimeError:
            refusals += 1
            continue
        assert same(found)
        begin = max(data.rfind(b"PK" + s, 0, at + 1) for s in (b"\1\2", b"\3\4", b"\5\6", b"\6\6", b"\6\7"))
        unseen.add((data[begin + 2 : begin + 4], at - begin))
    return unseen, refusals


def test_every_flipped_byte_is_refused_or_means_nothing() -> None:
    obj = {"w": wt.arange(6.0).reshape(2, 3), "b": wt.tensor([1, 2], dtype=wt.int16)}
    file = io.BytesIO()
    wt.save(obj, file)

    def same(found: Any) -> bool:
        return all(wt.equal(found[k], v) and found[k].dtype == v.dtype for k, v in obj.items())

    unseen, refusals = flipped(file.getvalue(), same)
    # of the directory: the program that wrote, and attributes of a file system
    nothing = {(b"\1\2", at) for at in (4, 5, 36, 37, 38, 39, 40, 41)}
    assert unseen == nothing and refusals == len(file.getvalue()) - 7 * len(nothing)
    theirs = (GOLDEN / "losses.pt").read_bytes()
    losses = load(theirs)
    unseen, refusals = flipped(theirs, lambda found: found == losses)
    assert unseen <= nothing | {(b"\6\6", at) for at in (12, 13, 14, 15)} and refusals > 0.9 * len(theirs)


def test_the_damaged_record_is_named() -> None:
    data = bytearray((GOLDEN / "training.pt").read_bytes())
    with zipfile.ZipFile(GOLDEN / "training.pt") as z:
        for info in z.infolist():
            changed = bytearray(data)
            changed[changed.find(info.filename.encode()) + len(info.filename) + 40] ^= 4
        at = data.find(z.read("training/data/3"))
    data[at] ^= 1
    refused(bytes(data), match="'training/data/3' is damaged")


@pytest.mark.parametrize("name", ["losses.pt", "legacy.pt"])
def test_every_truncation_is_refused(name: str) -> None:
    data = (GOLDEN / name).read_bytes()
    for length in range(1, len(data), 1 if name == "losses.pt" else 7):
        refused(data[:length])
    refused(data + b"\0") if name == "losses.pt" else None


def test_random_changes_of_pickles() -> None:
    """With right checksums: what loads is an object, all else one kind of error."""
    with zipfile.ZipFile(GOLDEN / "training.pt") as z:
        good = z.read("training/data.pkl")
        storages = [z.read(f"training/data/{i}") for i in range(len(z.namelist()) - 6)]
    load(archive(good, *storages))
    rng, refusals = random.Random(0), 0
    for _ in range(1500):
        changed = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            at, what = rng.randrange(len(changed)), rng.random()
            if what < 0.5:
                changed[at] = rng.randrange(256)
            elif what < 0.75:
                del changed[at : at + rng.randint(1, 20)]
            else:
                changed[at:at] = changed[rng.randrange(len(changed)) :][: rng.randint(1, 20)]
        try:
            load(archive(bytes(changed), *storages))
        except RuntimeError:  # also for storages that lie "on tpu"
            refusals += 1
    assert 500 < refusals < 1500


# ---------------------------------------------------------------------------------------- hostile


class Runs:
    def __init__(self, what: Any, *args: Any) -> None:
        self.reduced = what, args

    def __reduce__(self) -> Any:
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
def test_code_is_not_run(protocol: int, tmp_path: Path) -> None:
    import os
    import runpy

    mark = tmp_path / "ran"
    for what in (
        Runs(os.system, f"touch {mark}"),
        Runs(eval, f"open({str(mark)!r}, 'w')"),
        Runs(getattr, "", "join"),
        Runs(runpy.run_path, str(mark)),
        Runs(__import__, "this"),
    ):
        for data in (archive(pickle.dumps(what, protocol)), legacy(pickle.dumps({"a": [what]}, protocol))):
            refused(
                data,
                match="not among|is blocked|opcode"
                if protocol > 1
                else "opcode|not among|is blocked|protocol",
            )
    assert not mark.exists()


def legacy(pickled: bytes, rest: bytes = b"") -> bytes:
    facts = {"protocol_version": 1001, "little_endian": True}
    head = (0x1950A86A20F9469CFC6C, 1001, facts)
    return b"".join(pickle.dumps(x, 2) for x in head) + pickled + (rest or pickle.dumps([], 2))


def tensor(*, offset: Any = 0, size: Any = (2,), stride: Any = (1,), count: Any = 4, key: Any = "0") -> bytes:
    """The pickle of a tensor on a storage of four float32."""

    def plain(obj: Any) -> bytes:
        return pickle.dumps(obj, 2)[2:-1].replace(b"q\0", b"").replace(b"q\1", b"")

    kind = b"ctorch\nFloatStorage\n"
    pid = b"(" + plain("storage") + kind + plain(key) + plain("cpu") + plain(count) + b"tQ"
    hooks = b"ccollections\nOrderedDict\n)R"
    rest = plain(offset) + plain(size) + plain(stride) + b"\x89" + hooks
    return b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + pid + rest + b"tR."


def test_tensors_stay_in_their_storage() -> None:
    assert load(archive(tensor())).tolist() == [0, 0]
    for wrong in (
        {"size": (5,)},
        {"size": (2,), "stride": (4,)},
        {"size": (2,), "stride": (2**62,)},
        {"size": (2**62, 2**62), "stride": (0, 0)},
        {"size": (2**70,)},
        {"size": (-1,)},
        {"stride": (-1,)},
        {"offset": -1},
        {"offset": 3},
        {"offset": 2**62},
        {"size": (2, 2)},
        {"size": (1,) * 1000, "stride": (1,) * 1000},
        {"size": "ab"},
        {"size": 5},
        {"count": 5},
        {"count": -4},
        {"count": 2**60},
        {"key": "1"},
        {"key": 0},
        {"key": "../0"},
    ):
        refused(archive(tensor(**wrong)))


def test_objects_that_ask_for_much() -> None:
    for what in (
        b"cbuiltins\nbytearray\n\x8a\x05\0\0\0\0\1\x85R.",
        b"ctorch\nTensor\n\x8a\x05\0\0\0\0\1\x85R.",
        b"ctorch\nTensor\n\x8a\x05\0\0\0\0\1\x85\x81.",
        b"ctorch\nFloatStorage\n\x8a\x05\0\0\0\0\1\x85R.",
        b"ctorch\nByteStorage\n)R.",
        b"\x8d" + struct.pack("<Q", 2**60) + b"a.",
        b"X" + struct.pack("<I", 2**32 - 1) + b"a.",
        b"\x8b" + struct.pack("<I", 2**32 - 1) + b"a.",
        b"\x96" + struct.pack("<Q", 2**50) + b"a.",
        b"c" + b"a" * 5000,
        b"N" * 10_000,
        b"(" * 10_000 + b"t" * 10_000 + b".",  # and is no tensor: a tuple, 10,000 deep
    ):
        if what.startswith(b"(("):
            load(archive(b"\x80\x02" + what))
        else:
            refused(archive(b"\x80\x02" + what))


def test_keys_that_take_forever_to_hash() -> None:
    deep = b")" + b"\x85" * 1_000_000
    wide = b")" + b"q\0h\0\x86" * 200
    for key in (deep, wide):
        refused(archive(b"\x80\x02}" + key + b"Ns."), match="1000 parts")
        refused(archive(b"\x80\x02cbuiltins\nset\n]" + key + b"a\x85R."), match="1000 parts")
        refused(archive(b"\x80\x02\x8f(" + key + b"\x90."), match="1000 parts")
        refused(archive(b"\x80\x02" + key + b")R."), match="may not be called")
        refused(archive(b"\x80\x02ctorch.serialization\n_get_layout\n" + key + b"\x85R."))
        refused(archive(b"\x80\x02ccollections\nCounter\n]" + key + b"a\x85R."))
        refused(
            archive(b"\x80\x02ccollections\nOrderedDict\n]]" + key + b"Neaa\x85R.".replace(b"eaa", b"aa"))
        )
        load(archive(b"\x80\x02" + key + b"."))  # no harm as a value


def test_attributes_are_those_of_the_instance() -> None:
    state = b"}X\x09\0\0\0__class__NX\x05\0\0\0itemsNu".replace(b"}", b"}(")
    found = load(archive(b"\x80\x02ccollections\nOrderedDict\n)R" + state + b"b."))
    assert type(found).__name__ == "OrderedDict"
    refused(archive(b"\x80\x02]" + state + b"b."), match="list cannot be set")


def test_archives_that_are_no_file_of_tensors() -> None:
    good = tensor()
    refused(archive(good, compression=zipfile.ZIP_DEFLATED), match="compressed")
    refused(archive(good, bytes(1 << 22), compression=zipfile.ZIP_DEFLATED), match="compressed")  # a bomb
    data = bytearray(archive(good))
    entry = data.find(b"PK\1\2", data.find(b"PK\1\2") + 4)  # of x/data/0
    for at, change in (
        (20, struct.pack("<2L", 2**31, 2**31)),  # sizes
        (20, struct.pack("<2L", 2**32 - 1, 2**32 - 1)),  # sizes in a zip64 field that is not there
        (42, struct.pack("<L", 0)),  # over the first record
        (42, struct.pack("<L", 2**32 - 2)),
        (28, struct.pack("<H", 65535)),  # the length of the name
        (8, struct.pack("<H", 1)),  # encrypted
    ):
        changed = bytearray(data)
        changed[entry + at : entry + at + len(change)] = change
        refused(bytes(changed))
    for at, change in ((8, b"\xff\xff\xff\xff"), (12, b"\xff\xff\xff\xff"), (16, b"\xff\xff\xff\xff")):
        changed = bytearray(data)
        changed[len(data) - 22 + at : len(data) - 22 + at + 4] = change  # of the end of the directory
        refused(bytes(changed))
    twice = archive(b"\x80\x02N.", b"", b"").replace(b"x/data/1", b"x/data/0")
    refused(twice, match="two records")
    for name in ("x/data.pkl", "x/version"):
        file = io.BytesIO()
        with zipfile.ZipFile(file, "w") as z:
            z.writestr(name, b"3\n")
        refused(file.getvalue(), match="no record")
    refused(b"PK\3\4" + bytes(1000))
    refused(bytes(1000), match="not a file that torch.save wrote")
    refused(b"warptape.1\nold")


def test_legacy_files_that_ask_for_much() -> None:
    good = tensor().replace(b"tQ", b"NtQ")  # its ids have six parts
    keys, data = pickle.dumps(["0"], 2), struct.pack("<q4f", 4, 1, 2, 3, 4)
    assert load(legacy(good, keys + data)).tolist() == [1, 2]
    huge = tensor(count=2**60).replace(b"tQ", b"NtQ")
    refused(legacy(huge, keys + struct.pack("<q", 2**60) + data))
    refused(legacy(good, keys + struct.pack("<q", -4) + data))
    refused(legacy(good, pickle.dumps(["1"], 2) + data))
    refused(legacy(good, pickle.dumps([], 2)))


def test_memory_stays_within_twice_the_file(tmp_path: Path) -> None:
    """Under a limit of the address space; overlapping records would want many times the file."""
    storage = 8 << 20
    names = {"good": tensor(count=storage // 4), "bomb": tensor(count=2**40)}
    for name, pickled in names.items():
        (tmp_path / name).write_bytes(archive(pickled, bytes(storage)))
    data = bytearray(archive(tensor(count=storage // 4), bytes(storage)))
    start, size, count = data.rfind(b"PK\1\2", 0, data.rfind(b"PK\1\2")), 0, 100
    start = data.find(b"PK\1\2", data.find(b"PK\1\2") + 4)
    first, end = data.find(b"PK\1\2"), data.rfind(b"PK\5\6")
    entry = bytes(data[start : data.find(b"PK\1\2", start + 4)])
    copies = [entry.replace(b"data/0", b"data/" + bytes([65 + i % 60])) for i in range(count)]
    directory = bytes(data[first:end]) + b"".join(copies)
    size = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, 3 + count, 3 + count, len(directory), first, 0)
    (tmp_path / "overlap").write_bytes(bytes(data[:first]) + directory + size)
    (tmp_path / "strings").write_bytes(archive(b"\x80\x02\x8d" + struct.pack("<Q", 2**40) + bytes(storage)))
    long = archive(b"\x80\x02\x8d" + struct.pack("<Q", storage) + b"a" * storage + b"s.")
    (tmp_path / "long").write_bytes(long)  # a string that is there, on which an item is set
    code = """
import resource, sys, warptape as wt, pickle
from warptape.serialization import _read
wt.set_num_threads(1)
for name in ("good", "bomb", "overlap", "strings", "long"):
    path = f"{sys.argv[1]}/{name}"
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    import os
    limit = used + 2 * os.path.getsize(path)
    resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    try:
        wt.load(path)
        print(name, "loaded")
    except pickle.UnpicklingError as error:
        print(name, "refused", "memory" in str(error).lower())
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False
    )
    refusals = [f"{name} refused False" for name in ("bomb", "overlap", "strings", "long")]
    assert done.stdout.splitlines() == ["good loaded", *refusals], done.stderr
