"""Tensors of two devices in one call are refused by every op, with an error that names both."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import warptape as torch
from op_table import convert
from op_table.checks import Missing, resolve, samples_for
from op_table.driver import rows

# Rows whose tensors may lie on several devices, and why.
EXEMPT = {
    "Tensor.copy_": "copies between devices",
    "Tensor.__getitem__": "index tensors come along to the tensor's device",
    "Tensor.__setitem__": "likewise",
    "index_put": "likewise",
    "Tensor.to": "moves",
    "Tensor.type_as": "moves",
    **dict.fromkeys(
        ("_foreach_add_", "_foreach_mul_", "_foreach_norm", "_foreach_zero_"),
        "each tensor of a list by itself, as in PyTorch",
    ),
}
MESSAGE = "same device"


def arrays(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Where in a sample's arguments there are tensors of at least one dimension."""
    if isinstance(value, torch.Tensor):
        if value.ndim:
            yield path
    elif isinstance(value, dict):
        for key, each in value.items():
            yield from arrays(each, (*path, key))
    elif isinstance(value, (list, tuple)):
        for i, each in enumerate(value):
            yield from arrays(each, (*path, i))


def moved(value: Any, path: tuple, device: str) -> Any:
    """`value` with the tensor at `path` on another device."""
    if not path:
        return value.detach().to(device)
    if isinstance(value, dict):
        return {k: moved(v, path[1:], device) if k == path[0] else v for k, v in value.items()}
    return type(value)(moved(v, path[1:], device) if i == path[0] else v for i, v in enumerate(value))


def mixed_calls(op: Any, device: str) -> Iterator[tuple[tuple, dict]]:
    for dtype in op.dtypes[:1]:
        for _, original, sample in samples_for(op, dtype):
            args, kwargs = convert.arguments(torch, sample, original, dtype)
            whole = {"args": tuple(args), "kwargs": kwargs}
            places = list(arrays(whole))
            if len(places) < 2:
                continue
            for place in places:
                changed = moved(whole, place, device)
                yield changed["args"], changed["kwargs"]
            return


@rows(lambda op: op.name not in EXEMPT)
def test_every_op_refuses(op: Any) -> None:
    try:
        call = resolve(torch, op)
    except Missing:
        pytest.skip("not in this build")
    count = 0
    for args, kwargs in mixed_calls(op, "meta"):
        with pytest.raises(torch.DeviceError, match=MESSAGE):
            call(*args, **kwargs)
        count += 1
    if not count:
        pytest.skip("takes one tensor")


def test_host_scalars_go_with_any_device() -> None:
    x, number = torch.ones(3, device="meta"), torch.tensor(2.0)
    assert (x * number).is_meta and (number - x).is_meta
    assert torch.where(x > 0, x, number).is_meta


def test_lists_may_mix_devices_but_not_their_pairs() -> None:
    mixed = [torch.ones(3), torch.ones(3, device="meta")]
    assert [x.device.type for x in torch._foreach_mul(mixed, mixed)] == ["cpu", "meta"]
    with pytest.raises(torch.DeviceError, match=MESSAGE):
        torch._foreach_mul(mixed, mixed[::-1])


def test_gradients_come_from_the_right_device() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(torch.DeviceError, match="backward"):
        (x * 2).backward(torch.ones(3, device="meta"))


def test_out_is_on_the_same_device() -> None:
    with pytest.raises(torch.DeviceError, match="out"):
        torch.add(torch.ones(3), 1, out=torch.empty(3, device="meta"))


@pytest.mark.cuda
def test_a_wrong_ordinal_says_how_many_there_are() -> None:
    count = torch.cuda.device_count()
    for make in (
        lambda: torch.ones(2, device=f"cuda:{count}"),
        lambda: torch.ones(2).cuda(count),
        lambda: torch.cuda.set_device(count),
        lambda: torch.cuda.get_device_properties(count),
        lambda: torch.Generator(device=f"cuda:{count}"),
    ):
        with pytest.raises(torch.DeviceError, match=f"{count} CUDA device"):
            make()


@pytest.mark.cuda
def test_cuda_and_host_are_refused_both_ways() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2, device="cuda")
    for call in (torch.add, torch.matmul, torch.nn.functional.mse_loss, torch.cat):
        for x, y in ((a, b), (b, a)):
            with pytest.raises(torch.DeviceError, match=MESSAGE) as error:
                call([x, y]) if call is torch.cat else call(x, y)
            assert "cuda:0" in str(error.value) and "cpu" in str(error.value)
    np.testing.assert_array_equal((b + torch.tensor(1.0)).cpu().numpy(), np.full((2, 2), 2, np.float32))
