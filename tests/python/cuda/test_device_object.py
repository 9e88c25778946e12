"""torch.device("cuda") without an index is the current device: an object that needs no GPU."""

from __future__ import annotations

import copy
import pickle

import pytest
import warptape as torch


def test_index_is_none_until_a_tensor_is_made() -> None:
    cuda = torch.device("cuda")
    assert (cuda.type, cuda.index, str(cuda), repr(cuda)) == ("cuda", None, "cuda", "device(type='cuda')")
    first = torch.device("cuda", 0)
    assert (first.index, str(first), repr(first)) == (0, "cuda:0", "device(type='cuda', index=0)")
    assert cuda != first and hash(cuda) != hash(first)
    assert first == torch.device("cuda:0") == torch.device(0)
    assert torch.device("cuda", None) == torch.device(type="cuda") == cuda


@pytest.mark.parametrize("text", ["cuda", "cuda:3", "cpu", "meta"])
def test_copies_are_equal(text: str) -> None:
    device = torch.device(text)
    assert pickle.loads(pickle.dumps(device)) == device
    assert copy.deepcopy(device) == device


@pytest.mark.parametrize("text", ["cuda:-1", "cuda:x", "cuda:", "gpu", "cuda:999"])
def test_bad_names_are_refused(text: str) -> None:
    with pytest.raises(torch.DeviceError, match="expected 'cpu', 'cuda', 'cuda:N' or 'meta'"):
        torch.device(text)


def test_two_indices_are_refused() -> None:
    with pytest.raises(torch.DeviceError, match="must not include an index"):
        torch.device("cuda:0", 0)


def test_default_device_and_context() -> None:
    try:
        torch.set_default_device("meta")
        assert torch.get_default_device() == torch.device("meta")
        assert torch.ones(2).is_meta and torch.tensor([1.0]).is_meta and torch.randn(2).is_meta
        assert torch.arange(3).is_meta and torch.ones(2, device="cpu").is_cpu
    finally:
        torch.set_default_device(None)
    with torch.device("meta"):
        assert torch.nn.Linear(2, 2).weight.is_meta
        with torch.device("cpu"):
            assert torch.zeros(1).is_cpu
        assert torch.zeros(1).is_meta
    assert torch.zeros(1).is_cpu and torch.get_default_device() == torch.device("cpu")


def test_cuda_of_another_kind_of_device_is_refused() -> None:
    with pytest.raises(torch.DeviceError, match="must be cuda device"):
        torch.ones(1).cuda("cpu")


@pytest.mark.parametrize("stream", [1, 0, "a"])
def test_dlpack_of_host_memory_takes_no_stream(stream: object) -> None:
    with pytest.raises((AssertionError, TypeError), match="stream"):
        torch.ones(2).__dlpack__(stream=stream)
    assert torch.ones(2).__dlpack_device__() == (1, 0)
    with pytest.raises(ValueError, match="meta"):
        torch.ones(2, device="meta").__dlpack_device__()


def test_from_dlpack_copies_when_told() -> None:
    import numpy as np

    array = np.arange(4.0)
    shared, own = torch.from_dlpack(array), torch.from_dlpack(array, copy=True)
    array[0] = 7
    assert shared[0] == 7 and own[0] == 0
    with pytest.raises(BufferError, match="copy"):
        torch.from_dlpack(array, device="meta", copy=False)


def test_precision_and_switches_hold_without_a_library() -> None:
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    try:
        torch.set_float32_matmul_precision("high")
        assert matmul.allow_tf32 and torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("medium")
        assert torch.get_float32_matmul_precision() == "medium"
        matmul.allow_tf32 = False
        assert torch.get_float32_matmul_precision() == "highest"
        matmul.allow_tf32 = True
        assert torch.get_float32_matmul_precision() in ("high", "medium")
        with pytest.warns(UserWarning, match="is not one of"):
            torch.set_float32_matmul_precision("x")
        cudnn.benchmark = True
        assert cudnn.benchmark is True
        with pytest.raises(TypeError, match="bool"):
            cudnn.enabled = 1
    finally:
        torch.set_float32_matmul_precision("highest")
        cudnn.benchmark = False
    assert matmul.allow_tf32 is False


def test_generators_of_devices_are_seeded_with_all_others() -> None:
    """They are host objects: their seed and state need no device."""
    cuda = torch._C._cuda_module()
    torch.manual_seed(17)
    third = cuda.default_generator(3)
    assert third.initial_seed() == 17 and third.device == torch.device("cuda:3")
    torch.cuda.manual_seed_all(-1)
    assert third.initial_seed() == 2**64 - 1 and torch.initial_seed() == 17
    state = third.get_state()
    third.manual_seed(5)
    assert third.set_state(state).initial_seed() == 2**64 - 1


def test_kinds_that_are_not_served_can_be_named() -> None:
    mps = torch.device("mps")
    assert (mps.type, mps.index, repr(mps), str(torch.device("xpu", 1))) == (
        "mps",
        None,
        "device(type='mps')",
        "xpu:1",
    )
    assert mps == torch.device(mps) == pickle.loads(pickle.dumps(mps)) and hash(mps) == hash(
        torch.device("mps")
    )
    assert mps not in (torch.device("cpu"), torch.device("mps:0"), torch.device("xpu"))
    assert torch.device(mps, 0) == torch.device("mps:0")


@pytest.mark.parametrize(
    "use",
    [
        lambda device: torch.ones(2, device=device),
        lambda device: torch.tensor([1.0], device=device),
        lambda device: torch.ones(2).to(device),
        lambda device: device.__enter__(),
        torch.set_default_device,
        torch.nn.Linear(2, 2).to,
    ],
)
def test_kinds_that_are_not_served_hold_no_tensors(use) -> None:
    with pytest.raises(torch.DeviceError, match="there are no mps devices here"):
        use(torch.device("mps"))
    assert torch.ones(1).is_cpu
