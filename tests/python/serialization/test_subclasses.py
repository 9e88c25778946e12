"""Files of tensors of other classes, of functions that rebuild tensors, and files that are mapped."""

from __future__ import annotations

import copy
import io
import mmap
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
from warptape import serialization


class Wrapper(wt.Tensor):
    """A tensor with another one in a slot."""

    __slots__ = ["elem"]

    @staticmethod
    def __new__(cls, elem: wt.Tensor) -> Any:
        made = wt.Tensor._make_subclass(cls, elem.to("meta"), elem.requires_grad)
        made.elem = elem
        return made

    def clone(self) -> Any:
        return type(self)(self.elem.clone())


class WithState(Wrapper):
    """A tensor that says what its state is."""

    __slots__ = []

    def __getstate__(self) -> Any:
        return "mark", self.elem, self.__dict__

    def __setstate__(self, state: Any) -> None:
        mark, self.elem, self.__dict__ = state
        assert mark == "mark"
        self.reloaded = True


def trip(obj: Any, **options: Any) -> Any:
    file = io.BytesIO()
    wt.save(obj, file)
    file.seek(0)
    return wt.load(file, **options)


@pytest.mark.parametrize("cls", [Wrapper, WithState])
@pytest.mark.parametrize("weights_only", [False, True])
def test_slots_and_states(cls: type, weights_only: bool) -> None:
    x = cls(wt.tensor([1.0, 2.0]))
    x.name = "one"
    with serialization.safe_globals([cls]):
        found = trip(x, weights_only=weights_only)
    assert type(found) is cls and found.name == "one"
    assert found.elem.tolist() == [1.0, 2.0]
    assert getattr(found, "reloaded", False) is (cls is WithState)


def test_deep_copies_have_what_is_in_slots() -> None:
    x = Wrapper(wt.tensor([1.0, 2.0]))
    x.name = ["one"]
    found = copy.deepcopy(x)
    assert type(found) is Wrapper and found.elem.tolist() == [1.0, 2.0]
    assert found.elem is not x.elem and found.name == ["one"] and found.name is not x.name


def test_what_rebuilds_tensors_has_pytorchs_name() -> None:
    class Spoiled:
        def __reduce_ex__(self, protocol: Any) -> Any:
            parts = (wt.tensor([[3], [1]]), wt.ones(1), wt.Size([3, 3]))
            return wt._utils._rebuild_sparse_tensor, (wt.sparse_coo, parts)

    file = io.BytesIO()
    wt.save(Spoiled(), file)
    assert b"ctorch._utils\n_rebuild_sparse_tensor\n" in file.getvalue()
    file.seek(0)
    with pytest.raises(RuntimeError, match="size is inconsistent with indices"):
        wt.load(file)


def test_writes_to_mapped_files(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    wt.save(wt.ones(64), path)
    wt.load(path, mmap=True).zero_()
    assert wt.load(path).sum() == 64
    with serialization.set_default_mmap_options(mmap.MAP_SHARED):
        wt.load(path, mmap=True)[:3].zero_()
        assert wt.load(path, mmap=True).sum() == 61
    assert serialization.get_default_mmap_options() == mmap.MAP_PRIVATE
    with pytest.raises(RuntimeError):  # without the mapping the checksum is looked at
        wt.load(path)
    with pytest.raises(ValueError, match=r"expected mmap\.MAP_PRIVATE"):
        serialization.set_default_mmap_options(77)


def test_records_one_by_one(tmp_path: Path) -> None:
    records = {"a": b"123", "b/c": b"4567"}
    for target in (tmp_path / "x.zip", io.BytesIO()):
        with serialization._open_zipfile_writer(target) as file:
            for name, data in records.items():
                file.write_record(name, data, len(data))
            file.write_record("text", "little", 6)
            file.write_record_metadata("later", 3)
        if not isinstance(target, Path):
            target.seek(0)
            assert serialization._is_zipfile(target) and target.tell() == 0
        with serialization._open_zipfile_reader(target) as found:
            assert {name: found.get_record(name) for name in records} == records
            assert found.get_record("text") == b"little" and found.has_record("later")
            assert found.get_record_offset("a") % 64 == 0 and not found.has_record("none")
            with pytest.raises(RuntimeError, match="failed locating file none"):
                found.get_record("none")
    with serialization._open_zipfile_reader(tmp_path / "x.zip") as found:
        assert found.get_all_records() == ["a", "b/c", "text", "later", "version"]
    assert not serialization._is_zipfile(io.BytesIO(b"PK\5\6"))


def parts_of_a_storage(first: int) -> bytes:
    """Two storages of one element each, of one of two elements, as PyTorch 0.3 wrote them."""
    import pickle

    class Part:
        def __init__(self, first: int) -> None:
            self.first = first

    class Pickler(pickle._Pickler):  # type: ignore[name-defined,misc]
        def persistent_id(self, obj: Any) -> Any:
            if isinstance(obj, Part):
                return "storage", wt.FloatStorage, "7", "cpu", 2, (str(obj.first), obj.first, 1)
            return None

    plain = [
        0x1950A86A20F9469CFC6C,
        1001,
        {"little_endian": True, "protocol_version": 1001, "type_sizes": {}},
    ]
    out = io.BytesIO()
    for fact in plain:
        pickle.dump(fact, out, 2)
    Pickler(out, 2).dump((Part(0), Part(first)))
    pickle.dump(["7"], out, 2)
    out.write((2).to_bytes(8, "little") + wt.tensor([1.0, 2.0]).numpy().tobytes())
    return out.getvalue().replace(b"cwarptape.storage\n", b"ctorch\n").replace(b"cwarptape\n", b"ctorch\n")


def test_parts_of_storages() -> None:
    first, second = wt.load(io.BytesIO(parts_of_a_storage(1)))
    assert (first[0], second[0]) == (1.0, 2.0) and first.data_ptr() + 4 == second.data_ptr()
    with pytest.raises(RuntimeError, match="does not lie in it"):
        wt.load(io.BytesIO(parts_of_a_storage(2)))
