"""Kills, full disks, damaged and hostile files: a checkpoint stays whole, or is refused."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import shutil
import signal
import threading
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
from checkpoint_layouts import simulate
from warptape import nn, optim
from warptape.distributed.checkpoint import layout

CheckpointException = dcp.CheckpointException
CALLS = [
    "open",
    "write",
    "fsync",
    "close",
    "mkdir",
    "rename",
    "unlink",
    "rmdir",
    "stat",
    "fstat",
    "scandir",
    "listdir",
    "replace",
]


def state_of(version: int) -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optimizer = optim.AdamW(model.parameters())
    for p in model.parameters():
        p.grad = wt.ones_like(p)
    optimizer.step()
    with wt.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.fill_(version)
        for state in optimizer.state.values():
            state["exp_avg"].fill_(version)
    return {"model": model, "optimizer": optimizer, "version": version}


def version_at(path: Path) -> int:
    """Loads all of it: the version, which all that is in it must have."""
    state = state_of(-1)
    dcp.load(state, checkpoint_id=path)
    values = [*state["model"].parameters(), *state["model"].buffers()]
    values += [s["exp_avg"] for s in state["optimizer"].state.values()]
    for value in values:
        assert (value == state["version"]).all()
    assert len(values) == 11
    return state["version"]


class Faults:
    """Counts file system calls of the package os; at the n-th one, does something instead."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, what: Callable[[], None]) -> None:
        self.count, self.at, self.what, self.on = 0, at, what, False
        self.lock = threading.Lock()
        for name in CALLS:
            monkeypatch.setattr(os, name, self.wrap(getattr(os, name)))

    def wrap(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if self.on:
                with self.lock:
                    self.count += 1
                    hit = self.count == self.at
                if hit:
                    self.what()
            return real(*args, **kwargs)

        return call


def full() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def calls_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many there are in a save over a checkpoint."""
    with monkeypatch.context() as patch:
        faults = Faults(patch, 0, full)
        faults.on = True
        dcp.save(state_of(1), checkpoint_id=path)
        return faults.count


def test_a_kill_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch):
    path = tmp_path / "run"
    dcp.save(state_of(0), checkpoint_id=path)
    calls = calls_of(path, monkeypatch)
    assert calls > 20
    lost, seen = 0, []
    for at in range(1, calls + 2):
        before = version_at(path)
        child = os.fork()
        if child == 0:
            try:
                faults = Faults(pytest.MonkeyPatch(), at, lambda: os.kill(os.getpid(), signal.SIGKILL))
                state = state_of(before + 1)
                faults.on = True
                dcp.save(state, checkpoint_id=path)
                os._exit(0)
            finally:
                os._exit(3)
        status = os.waitpid(child, 0)[1]
        assert os.WIFSIGNALED(status) or (os.WEXITSTATUS(status) == 0 and at > calls - 3), f"call {at}"
        try:
            seen.append(version_at(path) - before)
        except CheckpointException:
            lost += 1
    assert lost == 0
    assert set(seen) == {0, 1}
    dcp.save(state_of(99), checkpoint_id=path)
    assert version_at(path) == 99
    assert [p.name for p in tmp_path.iterdir()] == ["run"]  # what the kills left is gone


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_full_disk_at_any_call_leaves_a_whole_checkpoint(tmp_path, monkeypatch, ranks):
    path, raised = tmp_path / "run", 0
    dcp.save(state_of(0), checkpoint_id=path)
    for at in range(1, calls_of(path, monkeypatch) + 12 * (ranks - 1)):
        before = version_at(path)
        with monkeypatch.context() as patch:
            faults = Faults(patch, at, full)

            def rank(faults: Faults = faults, before: int = before) -> str:
                state = state_of(before + 1)
                if ranks > 1:
                    dist.barrier()
                faults.on = True
                try:
                    dcp.save(state, checkpoint_id=path)
                except CheckpointException as error:
                    return str(error)
                return ""

            said = simulate(ranks, rank) if ranks > 1 else [rank()]
        assert len(set(said)) == 1, "one rank knows and another does not"
        raised += "No space left on device" in said[0]
        assert bool(said[0]) == ("No space left on device" in said[0])
        assert version_at(path) in ((before, before + 1) if said[0] else (before + 1,))
    assert raised > 20
    dcp.save(state_of(99), checkpoint_id=path)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_everything_is_on_the_disk_before_it_takes_its_name(tmp_path, monkeypatch):
    path, log, names = tmp_path / "run", [], {}
    opened, synced, renamed = os.open, os.fsync, os.rename

    def open_(name: Any, flags: int, *args: Any, **kwargs: Any) -> int:
        fd = opened(name, flags, *args, **kwargs)
        names[fd] = Path(name)
        if flags & os.O_CREAT:
            log.append(("new", Path(name)))
        return fd

    monkeypatch.setattr(os, "open", open_)
    monkeypatch.setattr(os, "fsync", lambda fd: (log.append(("sync", names[fd])), synced(fd))[1])
    monkeypatch.setattr(os, "rename", lambda a, b: (log.append(("name", Path(b))), renamed(a, b))[1])
    dcp.save(state_of(0), checkpoint_id=path)
    new = [name for what, name in log if what == "new"]
    assert sorted(name.name for name in new) == [".metadata", "manifest.json", "shard-00000.safetensors"]
    named = log.index(("name", path))
    for name in new:
        assert log.index(("sync", name)) < log.index(("sync", name.parent)) < named
    assert ("sync", tmp_path) in log[named:]


def test_a_full_disk_in_the_background_is_told(tmp_path, monkeypatch):
    path = tmp_path / "run"
    dcp.save(state_of(5), checkpoint_id=path)
    real = os.fsync
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: full())
        future = dcp.async_save(state_of(6), checkpoint_id=path)
        with pytest.raises(CheckpointException, match="No space left"):
            future.result()
    assert os.fsync is real
    assert version_at(path) == 5
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


def test_what_fails_on_one_rank_is_told_to_all(tmp_path):
    """A copy that one rank has no memory for, and a part that cannot take its state."""

    class Stubborn:
        def state_dict(self) -> dict[str, int]:
            return {"a": 1}

        def load_state_dict(self, state: dict[str, int]) -> None:
            if dist.get_rank() == 1:
                raise MemoryError(state)

    class Unreadable(nn.Parameter):
        def detach(self) -> Any:
            raise MemoryError("no room for a copy")

    def rank() -> None:
        dcp.save({"s": Stubborn(), "model": nn.Linear(2, 2)}, checkpoint_id=tmp_path / "run")
        with pytest.raises(CheckpointException, match="rank 1: MemoryError"):
            dcp.load({"s": Stubborn()}, checkpoint_id=tmp_path / "run")
        model = nn.Linear(2, 2)
        if dist.get_rank() == 0:
            model.weight.__class__ = Unreadable
        with pytest.raises(CheckpointException, match="rank 0: MemoryError: no room"):
            dcp.save({"model": model}, checkpoint_id=tmp_path / "run")

    simulate(2, rank)
    dcp.load({"model": nn.Linear(2, 2)}, checkpoint_id=tmp_path / "run")
    assert [p.name for p in tmp_path.iterdir()] == ["run"]


# ------------------------------------------------------------------------------------ damaged files


def owner_of(manifest: dict[str, Any], file: str, at: int) -> str | None:
    """The tensor that has a byte of a file."""
    for name, entry in manifest["tensors"].items():
        width = layout.itemsize(entry["dtype"])
        for piece in entry["pieces"]:
            size = width
            for n in piece["box"][1]:
                size *= n
            if piece["file"] == file and piece["at"] <= at < piece["at"] + size:
                return name
    return None


def test_every_flipped_bit_is_refused(tmp_path, request, record_property):
    path, flips = tmp_path / "run", request.config.getoption("--flips")
    dcp.save(state_of(1), checkpoint_id=path)
    manifest = json.loads((path / "manifest.json").read_text())
    mark, *files = sorted(path.iterdir())
    assert [f.name for f in files] == ["manifest.json", "shard-00000.safetensors"]
    assert mark.name == ".metadata" and mark.stat().st_size == 0  # by which programs see that it is whole
    rng, named, state = random.Random(0), 0, state_of(-1)
    for i in range(flips):
        file = files[i % 2]
        data = bytearray(file.read_bytes())
        header = manifest["files"][file.name]["header"] if i % 2 and i % 10 != 1 else 0  # most in the data
        at, bit = rng.randrange(header, len(data)), 1 << rng.randrange(8)
        data[at] ^= bit
        file.write_bytes(data)
        tensor = owner_of(manifest, file.name, at)
        with pytest.raises(CheckpointException) as caught:
            dcp.load(state, checkpoint_id=path)
        assert (f"tensor {tensor} is damaged" if tensor else file.name) in str(caught.value)
        named += tensor is not None
        data[at] ^= bit
        file.write_bytes(data)
        if i % 50 == 0:
            assert state["version"] == -1
            assert (state["model"][0].weight == -1).all()
            assert version_at(path) == 1
    assert named > flips // 3
    record_property("flips", flips)


def test_damage_that_one_rank_reads_stops_all(tmp_path):
    path = tmp_path / "run"
    dcp.save(state_of(1), checkpoint_id=path)
    shard = path / "shard-00000.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)

    def rank() -> str:
        state = state_of(-1) if dist.get_rank() else {"version": 0}  # rank 0 reads no tensor
        with pytest.raises(CheckpointException) as caught:
            dcp.load(state, checkpoint_id=path)
        return str(caught.value)

    said = simulate(2, rank)
    assert said[0] == said[1]
    assert "rank 1: tensor" in said[0]


def test_truncated_and_missing_files_are_refused(tmp_path):
    path = tmp_path / "run"
    dcp.save(state_of(1), checkpoint_id=path)
    for file in sorted(path.glob("[!.]*")):
        whole = file.read_bytes()
        for size in {0, 1, 7, 8, 100, len(whole) // 2, len(whole) - 1}:
            file.write_bytes(whole[:size])
            with pytest.raises(CheckpointException, match=file.name):
                version_at(path)
        file.write_bytes(whole + b"\0")
        with pytest.raises(CheckpointException, match=file.name):
            version_at(path)
        file.unlink()
        with pytest.raises(CheckpointException):
            version_at(path)
        (path / "elsewhere").write_bytes(whole)
        file.symlink_to(path / "elsewhere")
        with pytest.raises(CheckpointException):
            version_at(path)
        file.unlink()
        os.mkfifo(file)
        with pytest.raises(CheckpointException):
            version_at(path)
        file.unlink()
        file.write_bytes(whole)
    assert version_at(path) == 1


HUGE = 1 << 62


def hostile() -> dict[str, Callable[[dict[str, Any]], None]]:
    """Manifests with a right checksum that lie."""

    def piece(m: dict[str, Any]) -> dict[str, Any]:
        return m["tensors"]["model.0.weight"]["pieces"][0]

    def rename(name: str) -> Callable[[dict[str, Any]], None]:
        def change(m: dict[str, Any]) -> None:
            m["files"][name] = m["files"].pop("shard-00000.safetensors")
            for entry in m["tensors"].values():
                for p in entry["pieces"]:
                    p["file"] = name

        return change

    weight = lambda m: m["tensors"]["model.0.weight"]
    return {
        "out of the folder": rename("../other.safetensors"),
        "absolute": rename("/etc/passwd.safetensors"),
        "hidden": rename(".safetensors"),
        "a null byte": rename("a\0.safetensors"),
        "not a shard": rename("manifest.json"),
        "before the data": lambda m: piece(m).update(at=0),
        "behind the file": lambda m: piece(m).update(at=1 << 40),
        "negative": lambda m: piece(m).update(at=-8),
        "no number": lambda m: piece(m).update(at="8"),
        "a fraction": lambda m: piece(m).update(at=8.0),
        "truth for a number": lambda m: piece(m).update(at=True),
        "not a number": lambda m: piece(m).update(at=float("nan")),
        "huge": lambda m: piece(m).update(at=1 << 70),
        "a huge shape": lambda m: weight(m).update(shape=[HUGE - 1] * 8),
        "many dims": lambda m: weight(m).update(shape=[1] * 100_000),
        "a huge box": lambda m: piece(m).update(box=[[0, 0], [HUGE - 1, HUGE - 1]]),
        "a box outside": lambda m: piece(m).update(box=[[1, 0], [4, 3]]),
        "overlapping": lambda m: weight(m)["pieces"].append(dict(piece(m))),
        "a hole": lambda m: weight(m).update(pieces=[]),
        "fewer checksums": lambda m: piece(m).update(checksums=[]),
        "another dtype": lambda m: weight(m).update(dtype="F8"),
        "a wider dtype": lambda m: weight(m).update(dtype="F64"),
        "no file": lambda m: piece(m).update(file="shard-00001.safetensors"),
        "a large header": lambda m: m["files"]["shard-00000.safetensors"].update(header=HUGE - 1),
        "tensors as a list": lambda m: m.update(tensors=[1]),
        "no objects": lambda m: m.pop("objects"),
        "an object of another kind": lambda m: m["objects"].update(version={"value": {"code": "x"}}),
        "no object": lambda m: m["objects"].update(version=[]),
        "an alias of nothing": lambda m: m["aliases"].update({"model.0.weight": "x"}),
        "another version": lambda m: m.update(version=3),
        "the first version": lambda m: m.update(version=1),
        "another checksum": lambda m: m.update(checksum="CRC-16"),
        "no checksum": lambda m: m.pop("checksum"),
        "a checksum of another kind": lambda m: m.update(checksum=[]),
        "another format": lambda m: m.update(format="x"),
        "groups of another kind": lambda m: m["objects"].update({"optimizer.groups": {"value": 5}}),
    }


@pytest.mark.parametrize("lie", hostile())
def test_a_manifest_that_lies_is_refused(tmp_path, lie):
    path = tmp_path / "run"
    dcp.save(state_of(1), checkpoint_id=path)
    (tmp_path / "other.safetensors").write_bytes((path / "shard-00000.safetensors").read_bytes())
    manifest = json.loads((path / "manifest.json").read_text())
    manifest.pop("crc32")
    hostile()[lie](manifest)
    body = json.dumps(manifest)[1:].encode()
    (path / "manifest.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(body) + body + b"\n")
    with pytest.raises(CheckpointException):
        version_at(path)


def test_a_checkpoint_of_the_first_version_loads(tmp_path):
    path = tmp_path / "run"
    dcp.save(state_of(1), checkpoint_id=path)
    manifest = json.loads((path / "manifest.json").read_text())
    assert (manifest.pop("checksum"), manifest.pop("version")) == ("CRC-32C", 2)
    shard = path / "shard-00000.safetensors"
    data = shard.read_bytes()
    for file in manifest["files"].values():
        del file["checksum"]
        file["crc32"] = zlib.crc32(data[: file["header"]])
    for entry in manifest["tensors"].values():
        for piece in entry["pieces"]:  # each smaller than a block
            size = layout.itemsize(entry["dtype"]) * math.prod(piece["box"][1])
            assert len(piece.pop("checksums")) == (size > 0)
            piece["crc32"] = [zlib.crc32(data[piece["at"] : piece["at"] + size])] if size else []
    manifest.pop("crc32")
    body = json.dumps({"version": 1, **manifest})[1:].encode()
    (path / "manifest.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(body) + body + b"\n")
    assert version_at(path) == 1
    shard.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(CheckpointException, match=r"tensor .* is damaged"):
        version_at(path)


@pytest.mark.parametrize("body", [b"", b"[" * 100_000, b'"format": 1}', b"\xff", b"null}"])
def test_a_manifest_that_is_none_is_refused(tmp_path, body):
    path = tmp_path / "run"
    dcp.save(state_of(1), checkpoint_id=path)
    (path / "manifest.json").write_bytes(b'{"crc32": "%08x",\n' % zlib.crc32(body) + body + b"\n")
    with pytest.raises(CheckpointException):
        version_at(path)


def test_a_checkpoint_that_was_left_aside_is_found(tmp_path):
    path = tmp_path / "run"
    dcp.save(state_of(4), checkpoint_id=path)
    path.rename(tmp_path / ".run.old")
    assert version_at(path) == 4
    shutil.copytree(tmp_path / ".run.old", tmp_path / ".run.tmp-0123")
    dcp.save(state_of(5), checkpoint_id=path)
    assert [p.name for p in tmp_path.iterdir()] == ["run"]
    assert version_at(path) == 5
