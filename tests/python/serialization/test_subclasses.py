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
