"""torch.layout, torch.memory_format, torch.Size, torch.Stream and torch.Event as types."""

from __future__ import annotations

import copy
import pickle

import pytest
import warptape as torch

SPARSE = ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"]
LAYOUTS = ["strided", *SPARSE, "_mkldnn", "jagged"]
FORMATS = ["contiguous_format", "preserve_format", "channels_last", "channels_last_3d"]


@pytest.mark.parametrize("name", [*LAYOUTS, *FORMATS])
def test_layouts_and_formats_are_one_object_each(name: str, tmp_path) -> None:
    value = getattr(torch, name)
    assert type(value) is (torch.layout if name in LAYOUTS else torch.memory_format)
    assert repr(value) == str(value) == f"torch.{name}"
    assert pickle.loads(pickle.dumps(value)) is copy.deepcopy(value) is copy.copy(value) is value
    if name in LAYOUTS:
        torch.save({"value": value}, tmp_path / "file")
        assert torch.load(tmp_path / "file")["value"] is value
    assert value != str(value) and {value: 1}[value] == 1


def test_the_types_make_no_objects_and_have_no_subclasses() -> None:
    for kind in (torch.layout, torch.memory_format, torch.dtype):
        with pytest.raises(TypeError, match="cannot create"):
            kind()
        with pytest.raises(TypeError, match="not an acceptable base"):
            type("Derived", (kind,), {})
        assert (kind | None) is not None


def test_they_are_arguments() -> None:
    x = torch.ones(2, 3, 4, 5, layout=torch.strided)
    assert x.layout is torch.strided
    assert x.contiguous(memory_format=torch.channels_last).stride() == (60, 1, 15, 3)
    for wrong in (torch.strided, 3):
        with pytest.raises(TypeError, match="memory_format"):
            x.contiguous(memory_format=wrong)
    for layout in ("torch.strided", torch.channels_last):
        with pytest.raises(TypeError, match=r"'layout' must be torch\.layout"):
            torch.empty(2, layout=layout)
    with pytest.raises(NotImplementedError, match="sparse_csr"):
        torch.empty(2, layout=torch.sparse_csr)


def test_size_stays_a_size() -> None:
    size = torch.Size([1, 2, 3])
    for made in (size[1:], size + (4,), (4,) + size, size * 2, 2 * size, size[::-1], copy.deepcopy(size)):
        assert type(made) is torch.Size
    assert isinstance(size, tuple) and size == (1, 2, 3) and hash(size) == hash((1, 2, 3))
    assert size.numel() == 6 and repr(size) == "torch.Size([1, 2, 3])" and size[0] == 1
    assert pickle.loads(pickle.dumps(size)) == size
    for wrong, text in (([1], "not list"), (1, "not int")):
        with pytest.raises(TypeError, match=rf"can only concatenate tuple \({text}\) to torch.Size"):
            size + wrong
    with pytest.raises(TypeError, match="item 0 is 'str'"):
        torch.Size(["a"])


def test_streams_of_the_cpu() -> None:
    stream = torch.Stream()
    assert repr(stream) == "torch.Stream device_type=cpu, device_index=-1, stream_id=0"
    assert stream == torch.Stream(device="cpu", priority=1) and hash(stream) == hash(torch.Stream())
    assert (stream.device, stream.query(), stream.is_capturing()) == (torch.device("cpu"), True, False)
    assert stream.synchronize() is None and stream.wait_event(torch.Event()) is None
    with stream as entered:
        assert entered is stream
    for call in (stream.record_event, lambda: stream.wait_stream(stream), torch.Event().record):
        with pytest.raises(RuntimeError, match=r"cpu backend doesn't support events\."):
            call()


def test_events_of_the_cpu() -> None:
    event = torch.Event(enable_timing=True)
    assert repr(event) == "torch.Event device_type=cpu, device_index=-1, event_flag=1, event_id=0"
    assert event.query() and event.synchronize() is None and event.wait() is None
    with pytest.raises(ValueError, match="enable_timing=True"):
        event.elapsed_time(torch.Event())


def test_cudas_are_of_the_same_types() -> None:
    assert issubclass(torch.cuda.Stream, torch.Stream) and issubclass(torch.cuda.Event, torch.Event)
    if not torch.cuda.is_available():
        for kind in (torch.Stream, torch.Event):
            with pytest.raises(RuntimeError, match="not linked with support for cuda"):
                kind("cuda")
