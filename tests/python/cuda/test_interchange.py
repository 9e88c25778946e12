"""DLPack and __cuda_array_interface__ with their streams."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as torch

pytestmark = pytest.mark.cuda


class Producer:
    """An array of another library: it notes the stream that it was asked with."""

    def __init__(self, t: torch.Tensor) -> None:
        self.t, self.asked = t, "never"

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.t.__dlpack_device__()

    def __dlpack__(self, stream: Any = None) -> Any:
        self.asked = stream
        return self.t.__dlpack__(stream=stream)


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.bool, torch.uint8]
)
def test_round_trip_shares_memory(dtype: torch.dtype) -> None:
    x = (torch.arange(24, device="cuda").reshape(4, 6) % 2).to(dtype).t()[1:]
    assert not x.is_contiguous() and x.__dlpack_device__() == (2, 0)
    y = torch.from_dlpack(x)
    assert y.data_ptr() == x.data_ptr() and y.stride() == x.stride() and y.dtype == dtype
    assert torch.equal(y.cpu(), x.cpu())
    own = torch.from_dlpack(x, copy=True)
    assert own.data_ptr() != x.data_ptr() and torch.equal(own.cpu(), x.cpu())


def test_consumer_names_its_stream() -> None:
    producer = Producer(torch.ones(3, device="cuda"))
    torch.from_dlpack(producer)
    assert producer.asked == 1  # the default stream: 0 would be ambiguous
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.from_dlpack(producer)
    assert producer.asked == side.cuda_stream


def test_producer_lets_the_consumer_wait() -> None:
    """Work queued on the producer's stream is seen by the consumer's, and not with -1's promise alone."""
    ours, theirs = torch.cuda.Stream(), torch.cuda.Stream()
    x = torch.zeros(20000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(ours):
        for _ in range(30):
            x.add_(1)
        capsule = x.__dlpack__(stream=theirs.cuda_stream)
    with torch.cuda.stream(theirs):
        y = torch.from_dlpack(capsule)
        total = y.sum().item()
    assert total == 30 * 20000
    torch.cuda.synchronize()


def test_bad_streams_are_refused() -> None:
    x = torch.ones(3, device="cuda")
    with pytest.raises(ValueError, match="ambiguous"):
        x.__dlpack__(stream=0)
    with pytest.raises(TypeError, match="stream must be"):
        x.__dlpack__(stream="1")
    with pytest.raises(BufferError, match="on cuda:0"):
        x.__dlpack__(dl_device=(1, 0))
    with pytest.raises(RuntimeError, match="require gradient"):
        x.requires_grad_().__dlpack__()


class Described:
    """Memory of another library, described by __cuda_array_interface__."""

    def __init__(self, t: torch.Tensor, **changes: Any) -> None:
        self.t = t
        self.__cuda_array_interface__ = {**t.__cuda_array_interface__, **changes}


def test_cuda_array_interface() -> None:
    x = torch.arange(12.0, device="cuda").reshape(3, 4)
    found = x.__cuda_array_interface__
    assert found == {
        "typestr": "<f4",
        "shape": (3, 4),
        "strides": None,
        "data": (x.data_ptr(), False),
        "version": 3,
        "stream": 1,
    }
    assert x.t().__cuda_array_interface__["strides"] == (4, 16)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        assert x.__cuda_array_interface__["stream"] == side.cuda_stream
    with pytest.raises(RuntimeError, match="requires grad"):
        _ = x.clone().requires_grad_().__cuda_array_interface__
    with pytest.raises(TypeError, match="bfloat16"):
        _ = x.bfloat16().__cuda_array_interface__


def test_described_memory_is_taken() -> None:
    x = torch.arange(12.0, device="cuda").reshape(3, 4).t()
    shared, own = torch.as_tensor(Described(x)), torch.tensor(Described(x))
    assert shared.data_ptr() == x.data_ptr() and own.data_ptr() != x.data_ptr()
    assert torch.equal(shared.cpu(), x.cpu()) and torch.equal(own.cpu(), x.cpu())
    x.add_(1)
    assert torch.equal(shared.cpu(), x.cpu()) and not torch.equal(own.cpu(), x.cpu())
    assert torch.as_tensor(Described(x), device="cpu", dtype=torch.float64).tolist() == x.tolist()
    address = x.data_ptr()
    kept = torch.as_tensor(Described(x))
    del x, shared
    assert kept.data_ptr() == address and kept[0, 0].item() == 1
    with pytest.raises(TypeError, match="type string"):
        torch.as_tensor(Described(kept, typestr="<U1"))
    with pytest.raises(ValueError, match="strides"):
        torch.as_tensor(Described(kept, strides=(-4, 16)))
    with pytest.raises(ValueError, match="masked"):
        torch.as_tensor(Described(kept, mask=object()))
