"""Convolution on a device in either layout. Emulated, the library's part is done by the CPU's kernels: then
this checks which kernel is called with what."""

from __future__ import annotations

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape.profiler import ProfilerActivity, profile

pytestmark = pytest.mark.cuda
LAST = torch.channels_last
#: groups, in and out channels, kernel, stride, padding, dilation
CASES = {
    "plain": (1, 8, 16, 3, 1, 1, 1),
    "pointwise": (1, 16, 8, 1, 1, 0, 1),
    "strided": (1, 3, 8, 7, 2, 3, 1),
    "dilated": (1, 8, 8, 3, 1, 2, 2),
    "grouped": (4, 16, 32, 3, 1, 1, 1),
    "few_a_group": (4, 8, 8, 3, 1, 1, 1),
    "depthwise": (8, 8, 8, 3, 1, 1, 1),
}


def step(device: str, case: str, dtype: torch.dtype, formats: tuple[torch.memory_format, ...]) -> list:
    """Output, gradients of input, weight and bias."""
    groups, channels, outputs, kernel, stride, padding, dilation = CASES[case]
    g = torch.Generator().manual_seed(3)
    x = torch.randn(2, channels, 9, 11, generator=g).to(dtype).to(device)
    w = torch.randn(outputs, channels // groups, kernel, kernel, generator=g).to(dtype).to(device)
    b = torch.randn(outputs, generator=g).to(dtype).to(device)
    x, w = (t.contiguous(memory_format=f).requires_grad_() for t, f in zip((x, w), formats, strict=True))
    b.requires_grad_()
    out = F.conv2d(x, w, b, stride, padding, dilation, groups)
    up = torch.randn(out.shape, generator=g).to(dtype).to(device)
    out.backward(up)
    return [out, x.grad, w.grad, b.grad]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_channels_last_gives_the_numbers_of_rows(case: str, dtype: torch.dtype) -> None:
    expected = step("cpu", case, torch.float32, (torch.contiguous_format,) * 2)
    tolerance = {"atol": 1e-3, "rtol": 1e-3} if dtype == torch.float32 else {"atol": 0.5, "rtol": 0.05}
    for formats in ((torch.contiguous_format,) * 2, (LAST, LAST), (LAST, torch.contiguous_format)):
        found = step("cuda", case, dtype, formats)
        for mine, theirs in zip(found, expected, strict=True):
            torch.testing.assert_close(mine.cpu().float(), theirs, **tolerance)
        if formats[0] is LAST:
            assert found[0].is_contiguous(memory_format=LAST)


def copies(x: torch.Tensor, w: torch.Tensor) -> list[str]:
    """The kernels of ours that move elements when x is convolved. The first call, which finds a plan, is not
    looked at."""
    F.conv2d(x, w)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        F.conv2d(x, w)
        torch.cuda.synchronize()
    assert found.profiler is not None
    names = [activity.name for activity in found.profiler.device_activities]
    return [n for n in names if "copy" in n or "transpose_kernel" in n or "general_kernel" in n]


def test_channels_last_is_not_copied() -> None:
    x = torch.randn(2, 8, 9, 9, device="cuda").contiguous(memory_format=LAST)
    w = torch.randn(8, 8, 3, 3, device="cuda")
    assert copies(x, w)  # the weight lies otherwise
    assert not copies(x, w.contiguous(memory_format=LAST))
    assert not copies(x.contiguous(), w)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_tf32_is_as_near_as_its_mantissa(layout: torch.memory_format) -> None:
    """10 bits of mantissa where it is allowed, float32's 23 where it is not."""
    torch.manual_seed(0)
    x, w = torch.randn(2, 64, 28, 28), torch.randn(64, 64, 3, 3)
    want = F.conv2d(x.double(), w.double(), padding=1)
    for allowed, limit in ((True, 2**-10), (False, 2**-20)):
        torch.backends.cudnn.allow_tf32 = allowed  # a fixture takes it back
        got = F.conv2d(x.cuda().to(memory_format=layout), w.cuda(), padding=1).cpu().double()
        assert ((got - want).abs().max() / want.abs().max()).item() < limit
