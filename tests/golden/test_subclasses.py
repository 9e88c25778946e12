"""Classes with `__torch_dispatch__` get the ops that PyTorch gives them, forward and backward, in its order.
subclasses.json was recorded from PyTorch by record_subclasses.py."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from warptape.library import subclass_calls

from golden import subclasses

GOLDEN: dict[str, str] = json.loads((Path(__file__).parent / "subclasses.json").read_text())


@pytest.mark.parametrize("name", subclasses.NAMES)
def test_ops_and_results(name: str) -> None:
    ops, found, plain = subclasses.run(wt, name)
    assert " ".join(ops) == GOLDEN[name]
    assert len(found) == len(plain)
    for x, y in zip(found, plain):
        assert (x.dtype, tuple(x.shape)) == (y.dtype, tuple(y.shape))
        np.testing.assert_allclose(x.detach().double(), y.detach().double(), rtol=1e-5, atol=1e-6)


LOG: list[str] = []
Logged = subclasses.make_class(wt, LOG)
Logged.__qualname__, Logged.__module__ = "Logged", __name__  # for pickle


def model() -> tuple[wt.nn.Module, wt.nn.Module]:
    """A network with a wrapped weight, and the same with plain ones."""
    plain = wt.nn.Sequential(wt.nn.Linear(4, 8), wt.nn.GELU(), wt.nn.Linear(8, 2))
    wrapped = copy.deepcopy(plain)
    wrapped[0].weight = wt.nn.Parameter(Logged(plain[0].weight.detach().clone()))
    return wrapped, plain


def same_gradients(wrapped: wt.nn.Module, plain: wt.nn.Module) -> None:
    for p, q in zip(wrapped.parameters(), plain.parameters(), strict=True):
        grad = getattr(p.grad, "held", p.grad)
        np.testing.assert_allclose(grad.numpy(), q.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_a_compiled_module_calls_the_class() -> None:
    wrapped, plain = model()
    compiled = wt.compile(wrapped)
    for i in range(3):
        x = wt.randn(3, 4)
        LOG.clear()
        compiled(x).pow(2).sum().backward()
        plain(x).pow(2).sum().backward()
        assert "addmm.default" in LOG, i
        same_gradients(wrapped, plain)


def test_checkpoint_and_files() -> None:
    wrapped, plain = model()
    x = wt.randn(3, 4)
    wt.utils.checkpoint.checkpoint(wrapped, x, use_reentrant=False).sum().backward()
    plain(x).sum().backward()
    same_gradients(wrapped, plain)
    loaded = pickle.loads(pickle.dumps(wrapped.state_dict()))
    assert type(loaded["0.weight"]) is Logged and wt.equal(loaded["0.weight"].held, plain[0].weight)
    wide = wrapped.double()
    assert wide[0].weight.dtype == wt.float64 and type(wide[0].weight) is Logged
    assert wide(x.double()).dtype == wt.float64


def test_what_would_be_wrong_is_refused() -> None:
    leaf = wt.nn.Parameter(Logged(wt.ones(2, 2)))
    with pytest.raises(RuntimeError, match="leaf Variable that requires grad"):
        leaf.add_(1)
    view = (leaf * 2).view(4)
    with pytest.raises(RuntimeError, match="modified inplace"):
        view.add_(1)
    changed = leaf * 2
    square = changed * changed
    changed.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    with pytest.raises(RuntimeError, match="must define __torch_dispatch__"):
        wt.Tensor._make_wrapper_subclass(wt.Tensor, (2,))
    with pytest.raises(NotImplementedError, match="second derivative of aten::cumsum"):
        leaf.cumsum(0).pow(2).sum().backward(create_graph=True)


def test_slots_stay_with_the_tensor() -> None:
    class Slotted(wt.Tensor):
        __slots__ = ("held",)
        __torch_function__ = wt._C._disabled_torch_function_impl

        @staticmethod
        def __new__(cls, held: wt.Tensor) -> Slotted:
            made = wt.Tensor._make_wrapper_subclass(cls, held.shape)
            made.held = held
            return made

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return Slotted(func(*[a.held if isinstance(a, Slotted) else a for a in args], **kwargs))

    assert (Slotted(wt.ones(2)) + 1).held.tolist() == [2, 2]


def test_classes_that_leave_a_call_to_others() -> None:
    class Silent(wt.Tensor):
        __torch_function__ = wt._C._disabled_torch_function_impl

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
            return NotImplemented

    silent = wt.Tensor._make_wrapper_subclass(Silent, (2,))
    with pytest.raises(TypeError, match="Multiple dispatch failed"):
        silent + 1
    assert (silent.shape, silent.ndim, silent.is_contiguous()) == ((2,), 1, True)


F = wt.nn.functional
SAMPLES = {
    "cumsum": (lambda x: x.cumsum(1), (3, 4)),
    "cumprod": (lambda x: x.cumprod(1), (3, 4)),
    "einsum": (lambda x, y: wt.einsum("ij,kj->ik", x, y), (3, 4), (2, 4)),
    "logsumexp": (lambda x: x.logsumexp(1), (3, 4)),
    "sort": (lambda x: x.sort(1)[0], (3, 4)),
    "max": (lambda x: x.max(1)[0], (3, 4)),
    "std": (lambda x: x.std(1), (3, 4)),
    "norm": (lambda x: x.norm(dim=1), (3, 4)),
    "prod": (lambda x: x.prod(1), (3, 4)),
    "gather": (lambda x: x.gather(1, wt.tensor([[0, 2], [1, 1]])), (2, 4)),
    "scatter_add": (lambda x, y: x.scatter_add(1, wt.tensor([[0, 2], [1, 1]]), y), (2, 4), (2, 2)),
    "masked_select": (lambda x: x.masked_select(wt.tensor([True, False, True, True])), (3, 4)),
    "roll": (lambda x: x.roll(1, 0), (3, 4)),
    "repeat": (lambda x: x.repeat(2, 1), (3, 4)),
    "diagonal": (lambda x: x.diagonal(), (4, 4)),
    "lerp": (lambda x, y: x.lerp(y, 0.3), (3, 4), (3, 4)),
    "baddbmm": (lambda x, y, z: wt.baddbmm(x, y, z), (2, 3, 5), (2, 3, 4), (2, 4, 5)),
    "tensordot": (lambda x, y: wt.tensordot(x, y, ([1], [1])), (3, 4), (2, 4)),
    "softplus": (F.softplus, (3, 4)),
    "elu": (F.elu, (3, 4)),
    "logsigmoid": (F.logsigmoid, (3, 4)),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), (3, 4), (4,)),
    "group_norm": (lambda x: F.group_norm(x, 2), (2, 4, 3, 3)),
    "max_pool2d": (lambda x: F.max_pool2d(x, 2), (2, 3, 4, 4)),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (1, 2, 3, 3)),
    "pad": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), (1, 2, 3, 3)),
    "conv2d_same": (lambda x, w: F.conv2d(x, w, padding="same"), (1, 2, 5, 5), (3, 2, 4, 3)),
    "attention": (lambda q, k: F.scaled_dot_product_attention(q, k, k, is_causal=True), *[(1, 2, 5, 4)] * 2),
    "smoothed": (lambda x: F.cross_entropy(x, wt.tensor([0, 2]), label_smoothing=0.1), (2, 4)),
    "ctc_loss": (
        lambda x: F.ctc_loss(
            x.log_softmax(-1), wt.ones(1, 2, dtype=wt.int64), wt.tensor([5]), wt.tensor([2])
        ),
        (5, 1, 4),
    ),
    "solve": (lambda x, y: wt.linalg.solve(x + 4 * wt.eye(4), y), (4, 4), (4, 2)),
    "in_place": (lambda x: (x * 1).cumsum_(1), (3, 4)),
    "twice": (lambda x: wt.hypot(x, x), (3, 4)),
}


@pytest.mark.parametrize("name", SAMPLES)
def test_ops_without_a_formula_have_the_plain_gradients(name: str) -> None:
    op, *shapes = SAMPLES[name]
    wt.manual_seed(3)
    plain = [wt.randn(shape).requires_grad_() for shape in shapes]
    wrapped = [Logged(x.detach().clone()).requires_grad_() for x in plain]
    out, want = op(*wrapped), op(*plain)
    assert type(out) is Logged
    slope = wt.randn(want.shape)
    want.backward(slope)
    out.backward(Logged(slope))
    np.testing.assert_allclose(out.held.detach(), want.detach(), rtol=1e-5, atol=1e-6)
    for x, y in zip(wrapped, plain):
        assert type(x.grad) is Logged
        np.testing.assert_allclose(x.grad.held, y.grad, rtol=1e-5, atol=1e-5)


def test_what_a_backward_of_ops_did_not_save_may_change() -> None:
    x = Logged(wt.ones(3)).requires_grad_()
    y = x * 2
    turned = y.flip(0)
    y.add_(1)
    turned.backward(Logged(wt.tensor([1.0, 2.0, 3.0])))
    assert x.grad.held.tolist() == [6.0, 4.0, 2.0]
    z = x * 2
    product = z.cumprod(0)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        product.sum().backward()


def test_custom_ops_ask_the_class() -> None:
    """As PyTorch 2.13 does, below the op's own autograd; the ops were compared with it."""

    @wt.library.custom_op("golden::scaled", mutates_args=())
    def scaled(x: wt.Tensor, k: float = 2.0) -> wt.Tensor:
        assert type(x) is wt.Tensor
        return x * k

    def set_up(ctx, inputs, output):  # type: ignore[no-untyped-def]
        ctx.k = inputs[1]
        ctx.save_for_backward(inputs[0])

    def back(ctx, g):  # type: ignore[no-untyped-def]
        assert type(ctx.saved_tensors[0]) is Logged
        return g * ctx.k, None

    scaled.register_autograd(back, setup_context=set_up)

    @wt.library.custom_op("golden::grow", mutates_args=("x",))
    def grow(x: wt.Tensor) -> None:
        x.add_(1)

    @wt.library.custom_op("golden::pair", mutates_args=())
    def pair(xs: list[wt.Tensor]) -> tuple[wt.Tensor, wt.Tensor]:
        return xs[0] + xs[1], xs[0] * xs[1]

    for call in (scaled, wt.ops.golden.scaled, wt.ops.golden.scaled.default):
        x = Logged(wt.ones(3), requires_grad=True)
        LOG.clear()
        call(x, 3.0).sum().backward()
        assert LOG[:2] == ["golden.scaled.default", "sum.default"]
        assert type(x.grad) is Logged and x.grad.held.tolist() == [3.0] * 3
    x = Logged(wt.zeros(2))
    version = x._version
    grow(x)
    assert x.held.tolist() == [1.0, 1.0] and x._version > version
    first, second = pair([x, wt.full((2,), 3.0)])
    assert type(first) is Logged and (first.held.tolist(), second.held.tolist()) == ([4.0] * 2, [3.0] * 2)


def test_running_an_op_again_changes_nothing() -> None:
    x = Logged(wt.randn(8, 3)).requires_grad_()
    mean, spread = wt.zeros(3), wt.ones(3)
    out = F.batch_norm(x, mean, spread, training=True)
    after = mean.clone()
    out.sum().backward()
    assert wt.equal(mean, after) and not wt.equal(mean, wt.zeros(3))
    q = Logged(wt.randn(1, 2, 5, 4)).requires_grad_()
    dropped = F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)
    with pytest.raises(NotImplementedError, match="scaled_dot_product_attention"):
        dropped.sum().backward()


def first_overload(name: str) -> wt._ops.OpOverload:
    packet = getattr(wt.ops.aten, name)
    return getattr(packet, packet.overloads()[0])


# What PyTorch's derivatives list as views (gen_inplace_or_view_type.py), and some others.
VIEWS = """alias as_strided detach diagonal expand permute select slice split split_with_sizes squeeze t
transpose unbind unfold unsqueeze view view_as_complex view_as_real"""
NO_VIEWS = "add clone _unsafe_view _to_copy index cat relu contiguous zeros_like index_select"


@pytest.mark.parametrize("name", f"{VIEWS} {NO_VIEWS}".split())
def test_declarations_say_what_is_a_view(name: str) -> None:
    assert subclass_calls.is_view(first_overload(name)) == (name in VIEWS.split())


def test_images_unfolded_are_no_view() -> None:
    """nn.functional's unfold has the name of the method, which is one."""
    x = Logged(wt.rand(1, 2, 4, 4), True)
    wt.nn.functional.unfold(x, 2).sum().backward()
    np.testing.assert_array_equal(x.grad.held[0, 0], [[1, 2, 2, 1], [2, 4, 4, 2], [2, 4, 4, 2], [1, 2, 2, 1]])


def test_ops_that_have_no_gradient_at_times() -> None:
    x = Logged(wt.arange(1.0, 4.0), True)
    wt.vander(x, 3).sum().backward()
    np.testing.assert_array_equal(x.grad.held, [3, 5, 7])  # of x ** 2 + x + 1
    assert not wt.vander(x, 1).requires_grad and not wt.zeros_like(x).requires_grad
    assert wt.block_diag(x, x).requires_grad and not wt.histc(x).requires_grad
