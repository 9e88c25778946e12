"""Tensors on a device: making, moving, reading, saving; modules, optimizers, indexing, autocast."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda
FIRST = torch.device("cuda:0")


def test_makers() -> None:
    for t in (
        torch.empty(2, device="cuda"),
        torch.zeros(2, device="cuda:0"),
        torch.ones(2, device=0),
        torch.full((2,), 3.0, device=torch.device("cuda")),
        torch.tensor([1, 2], device="cuda"),
        torch.as_tensor(np.ones(2), device="cuda"),
        torch.rand(2, device="cuda"),
        torch.ones(2).cuda(),
        torch.ones(2).to("cuda"),
        torch.ones(2).cuda().new_zeros(2),
        torch.ones(2).new_ones(2, device="cuda"),
        torch.zeros_like(torch.ones(2), device="cuda"),
        torch.eye(2, device="cuda"),
    ):
        assert t.device == FIRST and t.is_cuda and t.get_device() == 0


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.int32, torch.uint8, torch.float32, torch.float16, torch.float64]
)
def test_sequences_equal_the_hosts(dtype: torch.dtype) -> None:
    for args in ((0,), (7,), (3, 40), (2, 100, 7), (5000,)):
        if dtype is torch.uint8 and args[-1] > 250:
            continue
        got, want = torch.arange(*args, dtype=dtype, device="cuda"), torch.arange(*args, dtype=dtype)
        assert got.dtype == dtype and torch.equal(got.cpu(), want)
    if dtype.is_floating_point:
        for steps in (0, 1, 2, 7, 1000):
            got = torch.linspace(-1.3, 2.7, steps, dtype=dtype, device="cuda")
            assert torch.equal(got.cpu(), torch.linspace(-1.3, 2.7, steps, dtype=dtype))
        assert torch.equal(
            torch.arange(0.1, 3, 0.01, dtype=dtype, device="cuda").cpu(),
            torch.arange(0.1, 3, 0.01, dtype=dtype),
        )


def test_default_device() -> None:
    with torch.device("cuda"):
        assert torch.ones(2).device == FIRST and torch.tensor([1.0]).device == FIRST
        assert torch.get_default_device() == FIRST
        assert torch.nn.Linear(2, 3)(torch.ones(1, 2)).device == FIRST
        assert torch.ones(2, device="cpu").is_cpu


def test_reading() -> None:
    x = torch.tensor([[1.5, 2.5], [3.5, 4.5]], device="cuda")
    assert x.tolist() == [[1.5, 2.5], [3.5, 4.5]] and x[1, 0].item() == 3.5 and float(x.sum()) == 12
    assert bool((x > 1).all()) and [float(v) for v in x[0]] == [1.5, 2.5]
    assert "device='cuda:0'" in repr(x) and "1.5" in repr(x)
    with pytest.raises(
        TypeError, match=r"can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu\(\)"
    ):
        x.numpy()
    with pytest.raises(TypeError, match="numpy"):
        np.asarray(x)
    assert x.numpy(force=True).sum() == 12


def test_saving_and_loading() -> None:
    x = torch.arange(6.0, device="cuda").reshape(2, 3).requires_grad_()
    again = pickle.loads(pickle.dumps(x))
    assert again.device == FIRST and again.requires_grad and torch.equal(again.cpu(), x.cpu())
    file = io.BytesIO()
    torch.save({"x": x.detach()}, file)
    for where, device in ((None, "cuda:0"), ("cpu", "cpu"), ("cuda", "cuda:0")):
        file.seek(0)
        assert torch.load(file, map_location=where)["x"].device == torch.device(device)
    assert torch.equal(copy.deepcopy(x).cpu(), x.detach().cpu())


def test_module_moves_and_trains_as_on_the_host() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
    twin = copy.deepcopy(model).to("cuda")
    assert all(p.device == FIRST for p in twin.parameters())
    data = torch.randn(5, 8)
    for make in (torch.optim.AdamW, lambda p, lr: torch.optim.SGD(p, lr=lr, momentum=0.9)):
        a, b = make(model.parameters(), lr=1e-2), make(twin.parameters(), lr=1e-2)
        for _ in range(3):
            for net, optimizer, x in ((model, a, data), (twin, b, data.cuda())):
                optimizer.zero_grad()
                net(x).square().mean().backward()
                torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimizer.step()
    for p, q in zip(model.parameters(), twin.parameters()):
        np.testing.assert_allclose(q.detach().cpu().numpy(), p.detach().numpy(), rtol=2e-5, atol=2e-6)


def test_learning_rate_on_the_device() -> None:
    results = []
    for rate in (0.1, torch.tensor(0.1, device="cuda")):
        p = torch.nn.Parameter(torch.ones(3, device="cuda"))
        p.grad = torch.full((3,), 0.5, device="cuda")
        torch.optim.SGD([p], lr=rate).step()
        torch.optim.AdamW([p], lr=rate).step()
        results.append(p.detach().cpu())
    np.testing.assert_allclose(results[0].numpy(), results[1].numpy(), rtol=1e-6)


def test_indexing_takes_host_indices() -> None:
    x, host = torch.arange(12.0, device="cuda").reshape(3, 4), torch.arange(12.0).reshape(3, 4)
    index, mask = torch.tensor([2, 0]), host > 5
    assert torch.equal(x[index].cpu(), host[index]) and torch.equal(x[mask].cpu(), host[mask])
    x[index] = torch.tensor(0.0)
    x[:, 1] = 7
    host[index], host[:, 1] = 0.0, 7
    assert torch.equal(x.cpu(), host)
    counts = torch.tensor([1, 0, 2], device="cuda")
    assert torch.equal(x.repeat_interleave(counts, 0).cpu(), host.repeat_interleave(counts.cpu(), 0))


def test_bad_index_is_reported_at_the_next_synchronisation() -> None:
    x = torch.arange(4.0, device="cuda")
    bad = x.index_select(0, torch.tensor([1, 9], device="cuda"))
    with pytest.raises(IndexError, match=r"index 9 is out of bounds"):
        torch.cuda.synchronize()
    del bad
    assert x.sum().item() == 6


def test_anomaly_mode_sees_device_gradients() -> None:
    x = torch.zeros(2, device="cuda", requires_grad=True)
    with torch.autograd.detect_anomaly(), pytest.raises(RuntimeError, match="nan values"):
        (x.sqrt() * 0).sum().backward()


def test_a_tensor_as_number_is_not_waited_for_where_it_need_not_be() -> None:
    """A captured stream refuses whatever waits."""
    x, factor = torch.ones(4, device="cuda"), torch.tensor(3.0, device="cuda")
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        y = torch.clamp(x * factor + factor, max=factor)
        z = torch.where(x > factor, x, factor)
        torch._foreach_mul_([z], factor)
        w = x.masked_fill(x > 0, factor)
    g.replay()
    assert (y.tolist(), z.tolist(), w.tolist()) == ([3.0] * 4, [9.0] * 4, [3.0] * 4)
    assert torch.add(x, x, alpha=factor).tolist() == [4.0] * 4


def test_strided_gradient() -> None:
    for device in ("cpu", "cuda"):
        x = torch.arange(6.0, device=device).requires_grad_()
        (x.as_strided((2,), (2,), 3) * 2).sum().backward()
        assert x.grad.tolist() == [0, 0, 0, 2, 0, 2]


def test_autocast_is_per_device() -> None:
    a, b = torch.ones(2, 2), torch.ones(2, 2, device="cuda")
    assert torch.amp.is_autocast_available("cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (b @ b).dtype == torch.bfloat16 and (a @ a).dtype == torch.float32
        with torch.autocast("cpu", dtype=torch.float16):
            assert (b @ b).dtype == torch.bfloat16 and (a @ a).dtype == torch.float16
        assert torch.is_autocast_enabled("cuda") and not torch.is_autocast_enabled("cpu")
    with torch.autocast("cuda"):
        assert (b @ b).dtype == torch.float16
    with torch.autocast("cpu"):
        assert (b @ b).dtype == torch.float32 and (a @ a).dtype == torch.bfloat16
    with pytest.warns(FutureWarning, match="deprecated"), torch.cuda.amp.autocast(dtype=torch.bfloat16):
        assert (b @ b).dtype == torch.bfloat16


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_gives_narrow_logits_a_wide_loss_without_a_copy(dtype: torch.dtype, reduction: str) -> None:
    """The numbers of float32 logits, to the bit, and none of their memory."""
    entropy = torch.nn.functional.cross_entropy
    torch.manual_seed(2)
    narrow = torch.randn(256, 1024, device="cuda").to(dtype).requires_grad_()
    wide = narrow.detach().float().requires_grad_()
    target = torch.randint(1024, (256,), device="cuda")
    target[3] = -100
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    with torch.autocast("cuda", dtype=dtype):
        found = entropy(narrow, target, reduction=reduction, label_smoothing=0.1)
    assert torch.cuda.max_memory_allocated() - before < narrow.nbytes // 4
    expected = entropy(wide, target, reduction=reduction, label_smoothing=0.1)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-4)
    up = torch.rand(found.shape, device="cuda") + 0.5
    found.backward(up), expected.backward(up)
    assert narrow.grad is not None and wide.grad is not None and narrow.grad.dtype == dtype
    torch.testing.assert_close(narrow.grad.float(), wide.grad, atol=1e-6, rtol=1e-2)


def test_autocast_widens_what_the_loss_cannot_take_narrow() -> None:
    entropy = torch.nn.functional.cross_entropy
    logits = torch.randn(8, 5, device="cuda", dtype=torch.bfloat16)
    target, weight = torch.arange(8, device="cuda") % 5, torch.rand(5, device="cuda")
    shares = torch.softmax(torch.randn(8, 5, device="cuda"), 1)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        found = entropy(logits, target, weight), entropy(logits, shares), entropy(logits.double(), target)
    expected = (
        entropy(logits.float(), target, weight),
        entropy(logits.float(), shares),
        entropy(logits.double(), target),
    )
    assert [f.dtype for f in found] == [torch.float32, torch.float32, torch.float64]
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int16, torch.float32, torch.uint8], ids=str)
@pytest.mark.parametrize("sizes", [(64, 128), (3, 70, 66), (2, 65, 131), (8, 8), (2, 3, 40, 96)])
def test_transposed_copies(sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """Elements of two bytes move in pairs where sizes and addresses are even; the others one by one."""
    x = (torch.arange(torch.Size(sizes).numel()) % 251).reshape(sizes).to(dtype)
    there = x.cuda()
    assert torch.equal(there.transpose(-1, -2).contiguous().cpu(), x.transpose(-1, -2).contiguous())
    part = (..., slice(1, None))  # begins at an odd element
    assert torch.equal(there[part].transpose(-1, -2).contiguous().cpu(), x[part].transpose(-1, -2))
    swapped = there.transpose(0, -1).contiguous()
    assert torch.equal(swapped.cpu(), x.transpose(0, -1))
