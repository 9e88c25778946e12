"""What PyTorch saved loads here, what is saved here loads here and there."""

from __future__ import annotations

import fcntl
import importlib.util
import io
import os
import pickle
import signal
import stat
import subprocess
import sys
import warnings
import zipfile
import zlib
from collections import OrderedDict, defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape import serialization
from warptape.utils.safetensors import save_file

spec = importlib.util.spec_from_file_location("record", Path(__file__).with_name("record.py"))
record = importlib.util.module_from_spec(spec)
spec.loader.exec_module(record)
GOLDEN = record.GOLDEN


def trip(obj: Any, rt: Any = wt, **options: Any) -> Any:
    file = io.BytesIO()
    rt.save(obj, file)
    file.seek(0)
    return rt.load(file, **options)


def check(found: dict[str, Any], rt: Any, plain: bool = True) -> None:
    """That it is everything(), with what is shared shared."""
    assert list(found) == [k for k in record.everything(rt) if plain or k != "plain"]
    for name, t in found["dtypes"].items():
        assert t.dtype == getattr(rt, name)
        assert t.tolist() == [
            [bool(v) if name == "bool" else v for v in row] for row in ([0, 1, 2], [3, 4, 5])
        ]
    assert found["row"].tolist() == [4, 5, 6, 7] and found["row"].storage_offset() == 4
    assert found["turned"].stride() == (1, 4) and found["turned"][3, 2] == 11
    assert found["steps"].tolist() == [1, 4, 7, 10]
    found["base"][4] = -1  # three views of one storage
    assert found["row"][0] == found["turned"][0, 1] == found["steps"][1] == -1
    assert found["wide"].stride() == (0, 0) and found["wide"].tolist() == [[1] * 3] * 2
    assert found["scalar"].item() == 2.5 and found["scalar"].shape == ()
    assert found["empty"].shape == (0, 3) and found["empty"].dtype == rt.float32
    assert found["grad"].requires_grad and found["grad"].is_leaf and type(found["grad"]) is rt.Tensor
    assert type(found["parameter"]) is rt.nn.Parameter and not found["parameter"].requires_grad
    assert found["tied"][0] is found["tied"][1] and found["tied"][0].mark == "set"
    assert found["tied"][0].requires_grad and found["tied"][0].shape == (2, 3)
    assert found["attributed"].note == [1, 2]
    assert found["meta"].is_meta and found["meta"].shape == (2, 3)
    state = found["state_dict"]
    assert type(state) is OrderedDict and state._metadata["1"] == {"version": 2}
    assert list(state)[-1] == "1.num_batches_tracked" and state["1.num_batches_tracked"].dtype == rt.int64
    values = [rt.Size([1, 2]), rt.device("cpu"), rt.device("cuda", 1), rt.bfloat16]
    assert found["values"] == values and type(found["values"][0]) is rt.Size
    if plain:
        assert repr(found["plain"]) == repr(record.PLAIN)


def test_loads_what_pytorch_saved() -> None:
    check(wt.load(GOLDEN / "everything.pt"), wt)
    check(wt.load(GOLDEN / "everything.pt", mmap=True), wt)
    check(wt.load(GOLDEN / "everything.pt", weights_only=False), wt)
    with open(GOLDEN / "everything.pt", "rb") as file:
        check(wt.load(file), wt)


@pytest.mark.parametrize("weights_only", [True, False])
def test_loads_the_format_before_1_6(weights_only: bool) -> None:
    check(wt.load(GOLDEN / "legacy.pt", weights_only=weights_only), wt, plain=False)
    with pytest.raises(RuntimeError, match="mmap"):
        wt.load(GOLDEN / "legacy.pt", mmap=True)


def test_round_trip() -> None:
    check(trip(record.everything(wt)), wt)
    extra = [slice(1, None, 2), frozenset({1, (2, 3)}), "\ud800"]
    assert trip(extra) == extra


def test_training_goes_on_with_the_same_numbers() -> None:
    saved, losses = wt.load(GOLDEN / "training.pt"), wt.load(GOLDEN / "losses.pt")["losses"]
    for state in (saved, trip(saved)):
        model, optimizer, step = record.training(wt)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        np.testing.assert_allclose([step() for _ in losses], losses, rtol=1e-12)
        assert all(s["step"].item() == 8 for s in optimizer.state.values())


def test_whole_modules_where_the_file_is_trusted() -> None:
    with pytest.raises(serialization._errors.UnpicklingError, match="add_safe_globals"):
        wt.load(GOLDEN / "module.pt")
    model = wt.load(GOLDEN / "module.pt", weights_only=False)
    assert type(model[0]) is wt.nn.Linear and model(wt.ones(3, 2)).shape == (3, 1)
    again = trip(model, weights_only=False)
    assert wt.equal(again(wt.ones(3, 2)), model(wt.ones(3, 2)))
    unsafe = serialization.get_unsafe_globals_in_checkpoint(GOLDEN / "module.pt")
    assert {"torch.nn.modules.linear.Linear", "torch.nn.modules.container.Sequential"} <= set(unsafe)
    needed = [wt.nn.Sequential, wt.nn.Linear, wt.nn.ReLU]
    with serialization.safe_globals(needed):
        assert serialization.get_safe_globals() == needed
        assert wt.load(GOLDEN / "module.pt")(wt.ones(3, 2)).shape == (3, 1)
        assert serialization.get_unsafe_globals_in_checkpoint(GOLDEN / "module.pt") == []
    assert serialization.get_safe_globals() == []


class Options:
    def __init__(self, **options: Any) -> None:
        self.__dict__.update(options)


class Slotted(list):
    __slots__ = ("tag",)


def test_users_classes() -> None:
    name = f"{__name__}.Options"
    obj = Options(lr=0.1)
    with pytest.raises(RuntimeError, match="Options"):
        trip(obj)
    assert trip(obj, weights_only=False).lr == 0.1
    slotted = Slotted([1, 2])
    slotted.tag = "t"
    serialization.add_safe_globals([(Options, name), Slotted, defaultdict, list])
    try:
        assert trip([obj, obj])[0].lr == 0.1
        back = trip(slotted)
        assert back == [1, 2] and back.tag == "t"
        assert trip(defaultdict(list, {1: [2]})) == {1: [2]}
    finally:
        serialization.clear_safe_globals()
    with pytest.raises(RuntimeError, match="not among"):
        trip(defaultdict(list))


def test_cycles_and_identity() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    back = trip(loop)
    assert back[1] is back
    shared = {"a": 1}
    one, two = trip((shared, shared))
    assert one is two


def test_loading_without_the_pickle_module() -> None:
    code = f"""
import sys
sys.modules["pickle"] = sys.modules["_pickle"] = None
import warptape as wt
assert wt.load({str(GOLDEN / "training.pt")!r})["model"]
wt.load({str(GOLDEN / "legacy.pt")!r})
try:
    wt.load({str(GOLDEN / "module.pt")!r})
except RuntimeError as error:
    print(type(error).__mro__[1].__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "UnpicklingError", done.stderr


def test_map_location(tmp_path: Path) -> None:
    x = wt.arange(4.0)
    wt.save([x, x[1:]], tmp_path / "x.pt")
    for where in ("meta", wt.device("meta"), {"cpu": "meta"}, lambda s, loc: s.to("meta")):
        a, b = wt.load(tmp_path / "x.pt", map_location=where)
        assert a.is_meta and b.is_meta and b.shape == (3,)
    seen: list[Any] = []
    a, b = wt.load(tmp_path / "x.pt", map_location=lambda s, loc: seen.append((s.nbytes(), loc)))
    assert seen == [(16, "cpu")] and a.tolist() == [0, 1, 2, 3]
    a[1] = 5
    assert b[0] == 5
    with pytest.raises(RuntimeError, match="no CUDA device" if wt.cuda.is_available() else "map_location="):
        wt.load(tmp_path / "x.pt", map_location="cuda:99")
    with pytest.raises(ZeroDivisionError):  # the function's own error, not "a damaged file"
        wt.load(tmp_path / "x.pt", map_location=lambda s, loc: 1 / 0)
    with pytest.raises(TypeError, match="storage"):
        wt.load(tmp_path / "x.pt", map_location=lambda s, loc: 1)
    with pytest.raises(RuntimeError, match="location of 'tpu'"):
        wt.load(tmp_path / "x.pt", map_location={"cpu": "tpu"})


def test_mmap_shares_the_file_and_never_writes_it(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    wt.save({"w": wt.arange(1000.0)}, path)
    before = path.read_bytes()
    loaded = wt.load(path, mmap=True)
    loaded["w"].add_(1)
    assert loaded["w"][999] == 1000 and path.read_bytes() == before
    wt.save(loaded, path)  # in the place of the file that is mapped
    assert loaded["w"][0] == 1 and wt.load(path)["w"][999] == 1000
    with pytest.raises(ValueError, match="file path"):
        wt.load(io.BytesIO(before), mmap=True)


def test_storages() -> None:
    x = wt.arange(4.0)
    storage = x[2:].untyped_storage()
    assert (storage.nbytes(), len(storage), storage.data_ptr()) == (16, 16, x.data_ptr())
    typed = x.storage()
    assert typed.tolist() == [0, 1, 2, 3] and typed[2] == 2 and typed[1:3].tolist() == [1, 2]
    typed[0] = 7
    assert x[0] == 7 and wt.is_storage(typed) and not wt.is_storage(x)
    back_x, back_typed = trip([x, typed])
    back_typed[1] = 9
    assert back_x.tolist() == [7, 9, 2, 3] and back_typed.dtype == wt.float32
    with pytest.raises(RuntimeError, match="different types"):
        trip([x, storage])


def test_a_path_has_the_whole_file_or_what_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, link = tmp_path / "x.pt", tmp_path / "link.pt"
    wt.save(1, path)
    os.chmod(path, 0o640)
    link.symlink_to(path)

    class Unpicklable:
        def __reduce_ex__(self, protocol: int) -> Any:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wt.save([wt.ones(3), Unpicklable()], path)
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        wt.save(2, path)
    monkeypatch.undo()
    assert wt.load(path) == 1 and sorted(os.listdir(tmp_path)) == ["link.pt", "x.pt"]
    wt.save(2, link)
    assert wt.load(path) == 2 and link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    wt.save(3, "/dev/null")
    with pytest.raises(RuntimeError, match="does not exist"):
        wt.save(1, tmp_path / "none" / "x.pt")
    with pytest.raises(FileNotFoundError):
        wt.load(tmp_path / "none.pt")


@pytest.mark.parametrize("unnamed", [True, False])
def test_what_takes_a_name_is_on_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unnamed: bool
) -> None:
    """The file is synced before it takes its name, and the folder after it, against power cuts."""
    if not unnamed:
        monkeypatch.setattr(os, "O_TMPFILE", os.O_DIRECTORY)  # as old kernels read it
    synced: list[int] = []
    fsync, replace = os.fsync, os.replace

    def seen_fsync(fd: int) -> None:
        fsync(fd)
        synced.append(os.fstat(fd).st_ino)

    def seen_replace(old: str, new: str) -> None:
        assert synced == [os.stat(old).st_ino]
        replace(old, new)
        synced.clear()

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "replace", seen_replace)
    for write in (
        lambda: wt.save({"x": wt.ones(9)}, tmp_path / "x"),
        lambda: save_file({"x": wt.ones(9)}, tmp_path / "x"),
    ):
        write()
        assert synced == [tmp_path.stat().st_ino]
        synced.clear()
    assert os.listdir(tmp_path) == ["x"]


KILLED = """
import os, signal, sys
import warptape as wt
from warptape.serialization import files as _files
if sys.argv[2] == "named":
    os.O_TMPFILE = os.O_DIRECTORY
write = _files.write_all
def killed(file, pieces):
    write(file, pieces)
    os.kill(os.getpid(), signal.SIGKILL)
_files.write_all = killed
wt.save(wt.ones(1000), sys.argv[1])
"""


def test_a_kill_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    wt.save(1, path)
    for kind, left in (("unnamed", 1), ("named", 2)):
        done = subprocess.run([sys.executable, "-c", KILLED, str(path), kind], check=False)
        assert done.returncode == -signal.SIGKILL and len(os.listdir(tmp_path)) == left
        assert wt.load(path) == 1
    with open(tmp_path / ".warptape-0123456789abcdef.tmp", "wb") as other:  # another process's save
        fcntl.flock(other, fcntl.LOCK_EX)
        wt.save(2, path)
        assert sorted(os.listdir(tmp_path)) == [".warptape-0123456789abcdef.tmp", "x.pt"]
    wt.save(3, path)
    assert os.listdir(tmp_path) == ["x.pt"]


def test_files_that_only_write_or_read_a_part_at_a_time(tmp_path: Path) -> None:
    class Trickle:
        def __init__(self, data: bytes = b"") -> None:
            self.data, self.at = bytearray(data), 0

        def write(self, part: Any) -> int:
            self.data += part[:7]
            return len(part[:7])

        def read(self, n: int = -1) -> bytes:
            part = bytes(self.data[self.at :][: min(n, 7)])
            self.at += len(part)
            return part

        def seek(self, at: int, whence: int = 0) -> int:
            self.at = at + (len(self.data) if whence == 2 else 0)
            return self.at

        def tell(self) -> int:
            return self.at

    file = Trickle()
    wt.save({"a": wt.arange(5)}, file)
    file.seek(0)
    assert wt.load(file)["a"].tolist() == [0, 1, 2, 3, 4]
    both = io.BytesIO(b"before" + bytes(file.data))
    both.seek(6)
    assert wt.load(both)["a"][4] == 4


def test_arguments() -> None:
    with pytest.raises(AttributeError, match="'write'"):
        wt.save(1, 5)
    with pytest.raises(AttributeError, match="seekable"):
        wt.load(5)
    import pickle

    with pytest.raises(RuntimeError, match="pickle_module"):
        wt.load(GOLDEN / "module.pt", pickle_module=pickle, weights_only=True)
    assert type(wt.load(GOLDEN / "module.pt", pickle_module=pickle)[0]) is wt.nn.Linear
    with pytest.raises(pickle.PicklingError, match="lambda"):
        trip(lambda: 1)
    with pytest.raises(pickle.UnpicklingError):
        wt.load(GOLDEN / "module.pt")
    with pytest.raises(EOFError):
        wt.load(io.BytesIO())


def test_checksums_are_those_of_zip() -> None:
    rng = np.random.default_rng(0)
    for size in (*range(200), 511, 512, 640, 4097, 1 << 20):
        data = rng.bytes(size)
        for cut in (0, size // 3):
            assert wt._C._crc32(data[cut:], wt._C._crc32(data[:cut])) == zlib.crc32(data)


def test_large_archives(monkeypatch: pytest.MonkeyPatch) -> None:
    """zip64, with its limits lowered to what fits here."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 600)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 7)
    tensors = [wt.arange(float(n)) for n in (200, 10, 150, 10)]
    for t, back in zip(tensors, trip(tensors)):
        assert wt.equal(t, back)


def test_numpy_files(tmp_path: Path) -> None:
    x = wt.arange(6.0).reshape(2, 3).t()
    np.save(tmp_path / "x.npy", x)
    assert np.load(tmp_path / "x.npy").tolist() == x.tolist()
    np.savez(tmp_path / "x.npz", a=x, b=wt.tensor([True]))
    with np.load(tmp_path / "x.npz") as found:
        assert wt.from_numpy(found["a"]).tolist() == x.tolist() and found["b"].dtype == np.bool_


# ------------------------------------------------------------------------------- with PyTorch itself


@pytest.mark.parity
def test_pytorch_loads_what_was_saved_here(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    wt.save(record.everything(wt), tmp_path / "x.pt")
    model, optimizer, step = record.training(wt)
    step()
    wt.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "training.pt")
    model.activation = wt.nn.functional.relu
    wt.save(model, tmp_path / "module.pt")
    losses = [step() for _ in range(5)]
    code = f"""
import sys; sys.path[:0] = {[str(Path(__file__).parent)]!r}
import torch, test_files, record
test_files.check(torch.load({str(tmp_path / "x.pt")!r}, weights_only=True), torch)
test_files.check(torch.load({str(tmp_path / "x.pt")!r}, weights_only=True, mmap=True), torch)
model, optimizer, step = record.training(torch)
state = torch.load({str(tmp_path / "training.pt")!r}, weights_only=True)
model.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"])
print([step() for _ in range(5)])
print(torch.load({str(tmp_path / "module.pt")!r}, weights_only=False)(torch.ones(2, 3).double()).shape)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    numbers, shape = done.stdout.splitlines()
    np.testing.assert_allclose([float(x) for x in numbers.strip("[]").split(",")], losses, rtol=1e-12)
    assert shape == "torch.Size([2, 1])"


@pytest.mark.parity
def test_random_strides_both_ways() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    for _ in range(100):
        complexes = [name for name in ("complex64", "complex128") if hasattr(wt, name)]
        name = str(rng.choice([*record.DTYPES, *complexes]))
        sizes = [int(n) for n in rng.integers(0, 4, rng.integers(0, 4))]
        strides = [int(n) for n in rng.integers(0, 5, len(sizes))]
        offset = int(rng.integers(0, 4))
        pair = [rt.arange(40).to(getattr(rt, name)).as_strided(sizes, strides, offset) for rt in (torch, wt)]
        for one, save, load in ((pair[0], torch.save, wt.load), (pair[1], wt.save, torch.load)):
            for legacy in (False, True) if save is torch.save else (False,):
                file = io.BytesIO()
                save([one, one], file, _use_new_zipfile_serialization=not legacy)
                file.seek(0)
                found = load(file)[0]
                assert found.tolist() == pair[0].tolist() and found.stride() == tuple(strides)
                assert str(found.dtype) == str(one.dtype) and found.storage_offset() == offset


def test_sparse_tensors() -> None:
    x = wt.sparse_coo_tensor(wt.tensor([[0, 1], [1, 0]]), wt.tensor([1.0, 2.0]), (2, 3))
    for one in (x, x.coalesce()):
        again, same = trip([one, one])
        assert again is same and again.is_coalesced() == one.is_coalesced() and again.shape == (2, 3)
        assert again.to_dense().tolist() == [[0, 1, 0], [2, 0, 0]]
    with pytest.raises(RuntimeError, match="inconsistent with indices"):
        trip(wt.sparse.CooTensor.make(x._indices(), x._values(), (1, 1), True))


@pytest.mark.parity
def test_sparse_tensors_both_ways() -> None:
    torch = pytest.importorskip("torch")
    for made, load in ((torch, wt.load), (wt, torch.load)):
        file = io.BytesIO()
        made.save(made.tensor([[0, 1.0], [2, 0]]).to_sparse(), file)
        file.seek(0)
        assert load(file).to_dense().tolist() == [[0, 1], [2, 0]]


@pytest.mark.parity
def test_whole_modules_of_the_format_before_1_6() -> None:
    """They have the source of their classes, which PyTorch compares and nobody needs."""
    torch = pytest.importorskip("torch")
    module, file = torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU()), io.BytesIO()
    torch.save(module, file, _use_new_zipfile_serialization=False)
    file.seek(0)
    found = wt.load(file, weights_only=False)(wt.ones(3, 2))
    np.testing.assert_allclose(found.detach().numpy(), module(torch.ones(3, 2)).detach().numpy(), rtol=1e-6)
    file.seek(0)
    with pytest.raises(RuntimeError, match="not among"):
        wt.load(file)


@pytest.mark.parity
def test_files_without_checksums() -> None:
    torch = pytest.importorskip("torch")
    torch.serialization.set_crc32_options(False)
    try:
        file = io.BytesIO()
        torch.save({"a": torch.ones(3)}, file)
    finally:
        torch.serialization.set_crc32_options(True)
    file.seek(0)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert wt.load(file)["a"].tolist() == [1, 1, 1]
    assert "no checksums" in str(seen[0].message)


def test_checksums_may_be_left_out() -> None:
    file = io.BytesIO()
    assert wt.serialization.get_crc32_options()
    wt.serialization.set_crc32_options(False)
    try:
        assert not wt.serialization.get_crc32_options()
        wt.save({"a": wt.ones(3)}, file)
    finally:
        wt.serialization.set_crc32_options(True)
    with zipfile.ZipFile(file) as archive, pytest.raises(zipfile.BadZipFile, match="Bad CRC-32"):
        archive.read("archive/data/0")
    file.seek(0)
    with pytest.warns(UserWarning, match="no checksums"):
        assert wt.load(file)["a"].tolist() == [1, 1, 1]


def test_names_that_are_refused() -> None:
    class Greeting:
        def __reduce__(self) -> object:
            return print, ("hello",)

    file = io.BytesIO()
    wt.save(Greeting(), file)
    file.seek(0)
    with pytest.raises(
        pickle.UnpicklingError, match=r"Weights only load failed.*Unsupported global: GLOBAL print "
    ):
        wt.load(file)


def test_the_format_before_1_6_goes_both_ways() -> None:
    shared = wt.arange(6.0)
    obj = {"a": shared, "b": shared[2:], "n": [1, "text", None], "h": wt.ones(3, dtype=wt.bfloat16)}
    file = io.BytesIO()
    file.write(b"before")
    wt.save(obj, file, _use_new_zipfile_serialization=False)
    file.write(b"behind")
    file.seek(6)
    found = wt.load(file)
    assert file.read() == b"behind"  # where the object ended
    assert found["n"] == obj["n"] and wt.equal(found["h"], obj["h"])
    found["a"][3] = 9
    assert found["b"].tolist() == [2, 9, 4, 5]  # one storage


def test_an_open_file_can_be_read_by_its_name_at_once(tmp_path) -> None:
    with open(tmp_path / "t.pt", "wb") as file:
        wt.save(wt.arange(3), file)
        assert wt.load(tmp_path / "t.pt").tolist() == [0, 1, 2]


def test_locations_of_storages() -> None:
    storage = wt.arange(3.0).untyped_storage()
    assert serialization.location_tag(storage) == "cpu"
    assert serialization.default_restore_location(storage, "cpu") is storage
    with pytest.raises(RuntimeError, match="don't know how to restore data location"):
        serialization.default_restore_location(storage, "nowhere")


def as_big_endian(obj: Any, mark: bool) -> io.BytesIO:
    """The file of float32 or complex64 numbers as a machine with the high byte first writes it."""
    from warptape.serialization._archive import pieces
    from warptape.serialization._pickler import Pickler

    records = []
    for name, data in Pickler(obj).records(mark):
        if name == "byteorder":
            data = b"big"
        elif name.startswith("data/"):
            data = np.frombuffer(data, "<f4").astype(">f4").tobytes()
        records.append((name, data))
    out = io.BytesIO()
    for piece in pieces("archive", iter(records)):
        out.write(piece)
    out.seek(0)
    return out


def test_numbers_with_their_high_byte_first() -> None:
    x = wt.tensor([1.5, -2.0, 3e10])
    for value in (x, wt.complex(x, x)):
        assert wt.load(as_big_endian(value, True)).tolist() == value.tolist()
        unmarked = as_big_endian(value, False)
        assert wt.load(unmarked).tolist() != value.tolist()
        serialization.set_default_load_endianness(serialization.LoadEndianness.BIG)
        try:
            unmarked.seek(0)
            assert wt.load(unmarked).tolist() == value.tolist()
            assert trip(value).tolist() == value.tolist()  # its record says otherwise
        finally:
            serialization.set_default_load_endianness(None)
    file = io.BytesIO()
    wt.save(x, file, _disable_byteorder_record=True)
    assert not any("byteorder" in name for name in zipfile.ZipFile(file).namelist())
    file.seek(0)
    assert wt.load(file).tolist() == x.tolist()
    with pytest.raises(TypeError, match="set_default_load_endianness"):
        serialization.set_default_load_endianness("big")  # type: ignore[arg-type]
    assert serialization.get_default_load_endianness() is None


def test_strings_of_python_2() -> None:
    def unpickled(encoding: str) -> Any:
        from warptape.serialization._unpickler import Unpickler

        data = b"\x80\x02U\x02\xc3\xb3."
        return Unpickler(io.BytesIO(data), len(data), lambda _: None, encoding).load()

    assert unpickled("utf-8") == "\u00f3"
    assert unpickled("bytes") == b"\xc3\xb3"
