"""autocast: the dtypes of results, gradients in the parameters' own dtypes, nesting and the cache."""

from __future__ import annotations

import importlib
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
from warptape.nn import functional as F

BF16, F16, F32 = wt.bfloat16, wt.float16, wt.float32


def cases(wt: Any, F: Any) -> dict[str, Callable[[], Any]]:
    """Calls to make under autocast to bfloat16, for one package."""
    f, v = wt.ones(4, 4), wt.ones(4)
    b, h, d = f.to(wt.bfloat16), f.to(wt.float16), f.to(wt.float64)
    classes = wt.tensor([0, 1, 2, 3])
    return {
        "mm": lambda: wt.mm(f, f),
        "matmul": lambda: f @ f,
        "matmul of vectors": lambda: wt.matmul(f, v),
        "bmm": lambda: wt.bmm(f[None], f[None]),
        "addmm": lambda: wt.addmm(f, f, f),
        "baddbmm": lambda: wt.baddbmm(f[None], f[None], f[None]),
        "linear": lambda: F.linear(f, f, v),
        "mm of float16": lambda: wt.mm(h, h),
        "mm of float64": lambda: wt.mm(d, d),
        "mm with out": lambda: wt.mm(f, f, out=wt.empty(4, 4)),
        "mv": lambda: wt.mv(f, v),
        "dot": lambda: wt.dot(v, v),
        "einsum of matrices": lambda: wt.einsum("ij,jk->ik", f, f),
        "conv1d": lambda: F.conv1d(f[None], f[:, :, None]),
        "conv2d": lambda: F.conv2d(f[None, :, None], f[:, :, None, None]),
        "attention": lambda: F.scaled_dot_product_attention(f[None, None], f[None, None], f[None, None]),
        "prelu": lambda: F.prelu(f, v),
        "cat": lambda: wt.cat([b, f]),
        "cat of narrow": lambda: wt.cat([b, b]),
        "stack": lambda: wt.stack([b, f]),
        "index_copy": lambda: wt.index_copy(f, 0, wt.tensor([0]), b[:1]),
        "softmax": lambda: F.softmax(b, -1),
        "softmax of wide": lambda: F.softmax(f, -1),
        "layer_norm": lambda: F.layer_norm(b, (4,)),
        "sum": lambda: b.sum(),
        "add": lambda: f + b,
        "prod": lambda: b.prod(),
        "trace": lambda: b.trace(),
        "cross_entropy": lambda: F.cross_entropy(b, classes),
        "nll_loss": lambda: F.nll_loss(b, classes),
        "mse_loss": lambda: F.mse_loss(b, b),
        "l1_loss": lambda: F.l1_loss(b, b),
        "smooth_l1_loss": lambda: F.smooth_l1_loss(b, b),
        "huber_loss": lambda: F.huber_loss(b, b),
        "binary_cross_entropy": lambda: F.binary_cross_entropy(b, b),
        "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(b, b),
        "kl_div": lambda: F.kl_div(b, b),
        "poisson_nll_loss": lambda: F.poisson_nll_loss(b, b),
        "soft_margin_loss": lambda: F.soft_margin_loss(b, b),
        "hinge_embedding_loss": lambda: F.hinge_embedding_loss(b, b),
        "margin_ranking_loss": lambda: F.margin_ranking_loss(b, b, b),
        "triplet_margin_loss": lambda: F.triplet_margin_loss(b, b, b),
        "multi_margin_loss": lambda: F.multi_margin_loss(b, classes),
        "cosine_embedding_loss": lambda: F.cosine_embedding_loss(b, b, v),
        "multilabel_soft_margin_loss": lambda: F.multilabel_soft_margin_loss(b, b),
        "reflection pad": lambda: F.pad(b, (1, 1), mode="reflect"),
        "replication pad": lambda: F.pad(b, (1, 1), mode="replicate"),
        "circular pad": lambda: F.pad(b, (1, 1), mode="circular"),
    }


# What PyTorch 2.13 gives for each case (test_as_pytorch compares).
EXPECTED = {
    **dict.fromkeys(cases(wt, F), "float32"),
    **dict.fromkeys(
        [
            *("mm", "matmul", "matmul of vectors", "bmm", "addmm", "baddbmm", "linear", "mm of float16"),
            *("einsum of matrices", "conv1d", "conv2d", "attention", "prelu", "cat of narrow", "softmax"),
            *("layer_norm", "sum", "circular pad", "multilabel_soft_margin_loss"),
        ],
        "bfloat16",
    ),
    "mm of float64": "float64",
}


def dtype_of(call: Callable[[], Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return str(call().dtype).removeprefix("torch.")


@pytest.mark.parametrize("name", EXPECTED)
def test_dtype_of_result(name: str) -> None:
    with wt.autocast("cpu"):
        assert dtype_of(cases(wt, F)[name]) == EXPECTED[name]


@pytest.mark.parity
@pytest.mark.parametrize("name", EXPECTED)
def test_as_pytorch(name: str) -> None:
    torch = pytest.importorskip("torch")
    with torch.autocast("cpu"):
        found = dtype_of(cases(torch, importlib.import_module("torch.nn.functional"))[name])
    assert EXPECTED[name] == found


def test_gradients_reach_float32_parameters() -> None:
    w = wt.tensor([[0.5, -1.0], [2.0, 0.25]], requires_grad=True)
    x = wt.tensor([[1.0, 2.0]])
    with wt.autocast("cpu"):
        y = x @ w
        assert y.dtype == BF16
        loss = F.mse_loss(y, wt.zeros(1, 2))
        assert loss.dtype == F32
    loss.backward()
    assert w.grad.dtype == F32
    # loss = mean(y^2), y = (4.5, -0.5): exact in bfloat16
    assert w.grad.tolist() == [[4.5, -0.5], [9.0, -1.0]]


def test_backward_inside_the_context() -> None:
    w = wt.tensor([[2.0]], requires_grad=True)
    with wt.autocast("cpu"):
        (wt.tensor([[3.0]]) @ w).sum().backward()
    assert w.grad.dtype == F32 and w.grad.tolist() == [[3.0]]


def test_nesting_and_disabled_regions() -> None:
    f = wt.ones(2, 2)
    assert (f @ f).dtype == F32
    with wt.autocast("cpu"):
        assert (f @ f).dtype == BF16
        with wt.autocast("cpu", enabled=False):
            assert not wt.is_autocast_enabled("cpu")
            assert (f @ f).dtype == F32
        with wt.autocast("cpu", dtype=F16):
            assert wt.get_autocast_dtype("cpu") == F16
            assert (f @ f).dtype == F16
        assert (f @ f).dtype == BF16
    assert (f @ f).dtype == F32 and not wt.is_autocast_enabled("cpu")


def test_an_error_inside_restores() -> None:
    with pytest.raises(RuntimeError), wt.autocast("cpu"):
        wt.ones(2, 3) @ wt.ones(2, 3)
    assert not wt.is_autocast_enabled("cpu")


def test_decorator() -> None:
    @wt.autocast("cpu", dtype=F16)
    def product(x: wt.Tensor) -> wt.Tensor:
        """Doc."""
        return x @ x

    assert product(wt.ones(2, 2)).dtype == F16 and product.__doc__ == "Doc."
    assert not wt.is_autocast_enabled("cpu")


def test_composed_op_is_cast_as_a_whole() -> None:
    # The loss runs in float32 inside and out: bfloat16 would round 299 to 300.
    b = wt.tensor([[300.0, 1.0]], dtype=BF16)
    with wt.autocast("cpu"):
        assert F.cross_entropy(b, wt.tensor([1])).item() == 299.0


def test_parameters_are_cast_once() -> None:
    w = wt.ones(2, 2, requires_grad=True)
    x = wt.ones(2, 2)
    with wt.autocast("cpu"):
        casts = {(x @ w).grad_fn.next_functions[1][0] for _ in range(3)}
        assert len(casts) == 1 and next(iter(casts)).name() == "ToCopyBackward0"
        wt.clear_autocast_cache()
        assert (x @ w).grad_fn.next_functions[1][0] not in casts
        with wt.autocast("cpu"):
            again = (x @ w).grad_fn.next_functions[1][0]
        assert (x @ w).grad_fn.next_functions[1][0] is again, "kept until the outermost ends"
    with wt.autocast("cpu", cache_enabled=False):
        kept = [x @ w, x @ w]
        assert kept[0].grad_fn.next_functions[1][0] is not kept[1].grad_fn.next_functions[1][0]


def test_a_changed_parameter_is_cast_anew() -> None:
    w = wt.ones(1, 1, requires_grad=True)
    with wt.autocast("cpu"):
        assert (w @ w).item() == 1.0
        with wt.no_grad():
            w.fill_(3.0)
        assert (w @ w).item() == 9.0


def test_cast_without_recording_is_not_kept() -> None:
    w = wt.ones(1, 1, requires_grad=True)
    with wt.autocast("cpu"):
        with wt.no_grad():
            assert not (w @ w).requires_grad
        y = w @ w
    y.backward()
    assert w.grad.tolist() == [[2.0]]


def test_in_place_keeps_its_dtype() -> None:
    f = wt.ones(2, 2)
    with wt.autocast("cpu"):
        f += wt.ones(2, 2)
    assert f.dtype == F32 and f.tolist() == [[2.0, 2.0], [2.0, 2.0]]


def test_other_threads_are_not_affected() -> None:
    found = []
    with wt.autocast("cpu"):
        thread = threading.Thread(target=lambda: found.append((wt.ones(2, 2) @ wt.ones(2, 2)).dtype))
        thread.start()
        thread.join()
    assert found == [F32]


def test_custom_function() -> None:
    seen = []

    class Product(wt.autograd.Function):
        @staticmethod
        @wt.amp.custom_fwd(device_type="cpu", cast_inputs=F32)
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            seen.append((x.dtype, (x @ x).dtype))
            return x @ x

        @staticmethod
        @wt.amp.custom_bwd(device_type="cpu")
        def backward(ctx: Any, g: Any) -> Any:
            (x,) = ctx.saved_tensors
            seen.append((x @ x).dtype)
            return g @ x.t() + x.t() @ g

    x = wt.ones(2, 2, dtype=BF16, requires_grad=True)
    with wt.autocast("cpu"):
        y = Product.apply(x)
        y.sum().backward()
    assert seen == [(F32, F32), F32]
    assert x.grad.dtype == BF16 and x.grad.tolist() == [[4.0, 4.0], [4.0, 4.0]]


def test_settings() -> None:
    assert wt.get_autocast_dtype("cpu") == BF16
    assert wt.is_autocast_cache_enabled()
    wt.set_autocast_dtype("cpu", F16)
    wt.set_autocast_enabled("cpu", True)
    try:
        assert (wt.ones(1, 1) @ wt.ones(1, 1)).dtype == F16
    finally:
        wt.set_autocast_enabled("cpu", False)
        wt.set_autocast_dtype("cpu", BF16)
    assert wt.amp.is_autocast_available("cpu")


def test_refusals() -> None:
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'tpu'"):
        wt.autocast("tpu")
    with pytest.raises(ValueError, match="of type `str`"):
        wt.autocast(wt.bfloat16)
    with pytest.warns(UserWarning, match="not supported. Disabling"):
        context = wt.autocast("cpu", dtype=wt.int32)
    with context:
        assert (wt.ones(1, 1) @ wt.ones(1, 1)).dtype == F32


@pytest.mark.skipif(wt.amp.is_autocast_available("cuda"), reason="there is a CUDA device")
def test_missing_device_warns_and_does_nothing() -> None:
    with pytest.warns(UserWarning, match="'cuda', but it is not available"):
        context = wt.autocast("cuda")
    with context:
        assert (wt.ones(1, 1) @ wt.ones(1, 1)).dtype == F32


# PyTorch's documented op lists for CUDA ("Automatic Mixed Precision package", CUDA op-specific behavior).
CUDA_LISTS = {
    "float16": {
        "mm": lambda f, h: f @ f,
        "mv": lambda f, h: wt.mv(f, f[0]),
        "linear": lambda f, h: F.linear(f, f),
        "conv1d": lambda f, h: F.conv1d(f[None], f[:, :, None]),
        "relu of narrow": lambda f, h: F.relu(h),
        "add of narrow": lambda f, h: h + h,
        "addcmul of narrow": lambda f, h: wt.addcmul(h, h, h),
        "gelu of narrow": lambda f, h: F.gelu(h),
        "huber_loss": lambda f, h: F.huber_loss(h, h),
        "mean": lambda f, h: h.mean(),
    },
    "float32": {
        **{
            name: lambda f, h, name=name: getattr(wt, name)(h)
            for name in ("exp", "log", "rsqrt", "tan", "prod")
        },
        "sum": lambda f, h: h.sum(),
        "cumsum": lambda f, h: h.cumsum(0),
        "pow": lambda f, h: h**2.5,
        "softmax": lambda f, h: F.softmax(h, -1),
        "log_softmax": lambda f, h: h.log_softmax(-1),
        "layer_norm": lambda f, h: F.layer_norm(h, (4,)),
        "cross_entropy": lambda f, h: F.cross_entropy(h, wt.tensor([0, 1, 2, 3], device=h.device)),
        "mse_loss": lambda f, h: F.mse_loss(h, h),
        "norm": lambda f, h: h.norm(),
        "addcmul": lambda f, h: wt.addcmul(f, h, h),
        "cat": lambda f, h: wt.cat([f, h]),
    },
}


@pytest.mark.cuda
@pytest.mark.parametrize("dtype, name", [(d, n) for d, calls in CUDA_LISTS.items() for n in calls])
def test_cuda_lists(dtype: str, name: str) -> None:
    f = wt.ones(4, 4, device="cuda")
    with wt.autocast("cuda", dtype=F16):
        assert str(CUDA_LISTS[dtype][name](f, f.half()).dtype) == f"torch.{dtype}"


@pytest.mark.cuda
def test_cuda_refuses_unsafe_loss() -> None:
    p = wt.full((3,), 0.5, device="cuda")
    with wt.autocast("cuda"), pytest.raises(RuntimeError, match="unsafe to autocast"):
        F.binary_cross_entropy(p, p)


def test_the_older_name_of_the_gpus_dtype():
    with pytest.warns(DeprecationWarning, match=r"use torch\.get_autocast_dtype\('cuda'\)"):
        assert wt.get_autocast_gpu_dtype() == wt.get_autocast_dtype("cuda") == wt.float16
    assert wt.Future is wt.futures.Future
