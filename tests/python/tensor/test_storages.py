"""Storages: mapped files, parts that share memory, tensors made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import warptape as torch


def test_mapped_file(tmp_path: Path) -> None:
    path = tmp_path / "numbers"
    np.arange(8, dtype=np.float32).tofile(path)
    storage = torch.UntypedStorage.from_file(str(path), False, 24)
    assert (storage.nbytes(), torch.asarray(storage, dtype=torch.float32).tolist()) == (
        24,
        [0, 1, 2, 3, 4, 5],
    )
    torch.asarray(storage, dtype=torch.float32)[0] = 9.0
    assert np.fromfile(path, np.float32)[0] == 0  # writes stay in memory
    assert torch.asarray(storage, dtype=torch.float32)[0] == 9
    assert torch.FloatStorage.from_file(path, False, 3).tolist() == [0, 1, 2]
    assert torch.UntypedStorage.from_file(path).nbytes() == 0
    with pytest.raises(RuntimeError, match="has 32 bytes, 33 are asked for"):
        torch.UntypedStorage.from_file(path, False, 33)
    with pytest.raises(NotImplementedError, match="shared=True"):
        torch.UntypedStorage.from_file(path, True, 8)
    with pytest.raises(FileNotFoundError):
        torch.UntypedStorage.from_file(tmp_path / "none", False, 8)


def test_slices_share_memory() -> None:
    t = torch.arange(4.0)
    part = t.untyped_storage()[4:12]
    assert part.nbytes() == 8 and part.data_ptr() == t.data_ptr() + 4
    torch.asarray(part, dtype=torch.float32)[1] = 7.0
    assert t.tolist() == [0, 1, 7, 3]
    assert torch.arange(4.0).storage()[1:3].tolist() == [1, 2]
    assert len(t.untyped_storage()[3:3]) == len(t.untyped_storage()[5:2]) == 0
    kept = torch.arange(1000.0).untyped_storage()[400:408]  # the tensor itself is gone
    assert torch.asarray(kept, dtype=torch.float32).tolist() == [100, 101]
    with pytest.raises(RuntimeError, match="step 2"):
        t.untyped_storage()[::2]


def test_tensors_of_storages() -> None:
    storage = torch.tensor([1.0]).untyped_storage()
    assert torch.asarray(storage, dtype=torch.uint8).tolist() == [0, 0, 128, 63]
    assert torch.asarray(torch.arange(3.0).storage()).tolist() == [0, 1, 2]


@pytest.mark.parametrize("make", [torch.tensor, torch.asarray])
def test_pythons_types_are_dtypes(make) -> None:
    wanted = {int: torch.int64, float: torch.float64, bool: torch.bool, complex: torch.complex128}
    assert {kind: make([1], dtype=kind).dtype for kind in wanted} == wanted
    with pytest.raises(TypeError, match=r"must be torch\.dtype, not type"):
        make([1], dtype=str)


def test_dense_form_of_a_dense_tensor() -> None:
    t = torch.arange(3.0)
    assert t.to_dense() is t and t.to_dense(torch.float64).dtype == torch.float64
