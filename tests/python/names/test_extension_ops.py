"""Ops of warptape that libraries know as those of an extension module: torchvision's and torchaudio's."""

from __future__ import annotations

import os

import numpy as np
import pytest
import warptape as torch
from warptape.library import Library, register_autograd, register_fake, register_kernel

vision, audio = torch.ops.torchvision, torch.ops.torchaudio
ROIS = torch.tensor([[0, 1.0, 1.0, 6.0, 5.0]])


def test_libraries_whose_ops_are_here_are_not_opened(tmp_path):
    for name in (
        "torchvision/_C.so",
        "torchaudio/lib/_torchaudio.abi3.so",
        "torchaudio/lib/libtorchaudio.abi3.so",
    ):
        path = tmp_path / name  # not even there
        torch.ops.load_library(path)
        assert os.path.realpath(path) in torch.ops.loaded_libraries
    with pytest.raises(OSError, match="Could not load"):
        torch.ops.load_library(tmp_path / "other" / "_C.so")
    assert vision._cuda_version() == -1 and not torch.ops._torchaudio.is_align_available()


def test_registrations_leave_builtin_ops_as_they_are():
    assert vision.roi_align.default.overloadpacket is vision.roi_align
    assert repr(vision.nms) == "<OpOverloadPacket(op='torchvision.nms')>"
    library = Library("torchvision", "IMPL", "Meta")
    library.impl(vision.roi_align.default, None)
    register_autograd("torchvision::roi_align", None, setup_context=None)
    assert register_fake("torchvision::nms", len) is len and register_fake("torchvision::nms")(len) is len
    x = torch.randn(1, 2, 8, 8, requires_grad=True)
    vision.roi_align(x, ROIS, 1.0, 2, 2, 2, False).sum().backward()
    assert float(x.grad.sum()) == pytest.approx(8)
    made = vision.roi_align(x.to("meta"), ROIS.to("meta"), 1.0, 3, 2, 2, False)
    assert made.shape == (1, 2, 3, 2) and made.device.type == "meta"
    with pytest.raises(NotImplementedError, match="has kernels, and takes no others"):
        register_kernel("torchvision::nms", "cpu", len)
    with pytest.raises(RuntimeError, match="no op 'torchvision::nothing'"):
        register_fake("torchvision::nothing", len)


def test_what_is_not_supported_says_so_when_it_is_called():
    with pytest.raises(NotImplementedError, match=r"torch\.ops\.torchvision\.qnms: quantized tensors"):
        vision.qnms.default(1)
    with pytest.raises(ValueError, match="Unsupported library kind: OTHER"):
        Library("mine", "OTHER")
    with pytest.raises(ValueError, match="of kind IMPL defines no ops"):
        Library("mine", "IMPL").define("op(Tensor x) -> Tensor")
    x = torch.ones(2)
    assert torch.ao.quantization.QuantStub()(x) is x


def test_functions_for_autocast():
    calls = []

    def lower(dets, scores, threshold):
        calls.append(torch.is_autocast_enabled("cpu"))
        with torch._C._ExcludeDispatchKeyGuard(keys):
            calls.append(torch.is_autocast_enabled("cpu"))
            return vision.nms(dets.float(), scores.float(), threshold)

    key = torch._C.DispatchKey
    keys = torch._C.DispatchKeySet(key.AutocastCPU) | torch._C.DispatchKeySet(key.AutocastCUDA)
    assert keys.has(key.AutocastCUDA) and not keys.has(key.AutocastXPU)
    boxes, scores = torch.tensor([[0.0, 0, 4, 4], [0, 0, 4, 3]]), torch.tensor([0.1, 0.2])
    Library("torchvision", "IMPL").impl("nms", lower, "AutocastCPU")
    try:
        assert vision.nms(boxes, scores, 0.5).tolist() == [1] and calls == []
        with torch.autocast("cpu"):
            assert vision.nms(boxes.bfloat16(), scores.bfloat16(), 0.5).tolist() == [1]
            assert torch.is_autocast_enabled("cpu")
        assert calls == [True, False]
    finally:
        vision.nms._autocast.clear()
    with pytest.raises(NotImplementedError, match="expected keys of autocast, got CPU"):
        torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key.CPU))


def test_library_gives_functions_to_custom_ops():
    op = torch.library.custom_op(
        "extensionops::twice", len, mutates_args=(), device_types="cuda", schema="(Tensor x) -> Tensor"
    )
    library = Library("extensionops", "IMPL")
    library.impl("twice", lambda x: x + x, "CPU")
    library.impl(op, lambda x: torch.empty_like(x), "Meta")
    assert op(torch.ones(2)).tolist() == [2, 2] and op(torch.ones(3, device="meta")).shape == (3,)
    with pytest.raises(NotImplementedError, match="takes no function for 'SparseCPU'"):
        library.impl("twice", len, "SparseCPU")


def test_ops_that_are_defined_before_their_functions():
    library = Library("definedops", "DEF")
    assert library.define("plus(Tensor x, Tensor y, *, float by=1) -> Tensor") == "plus"
    op = torch.ops.definedops.plus
    x = torch.ones(2, requires_grad=True)
    with pytest.raises(NotImplementedError, match="no function for cpu"):
        op(x, x)
    library.impl("plus", lambda x, y, *, by=1: x + by * y, "CompositeImplicitAutograd")
    op(x, x, by=3).sum().backward()
    assert x.grad.tolist() == [4.0, 4.0]

    torch.library.define("definedops::sine", "(Tensor x) -> Tensor")
    torch.library.impl("definedops::sine", "default", lambda x: torch.from_numpy(np.sin(x.numpy())))

    @torch.library.impl("definedops::sine", "Meta")
    def empty(x):
        return torch.empty_like(x)

    torch.library.register_autograd("definedops::sine", lambda ctx, g: g * ctx.x.cos(), setup_context=_keep_x)
    y = torch.tensor([0.5, 1.0], requires_grad=True)
    torch.ops.definedops.sine(y).sum().backward()
    np.testing.assert_allclose(y.grad.numpy(), np.cos([0.5, 1.0]), rtol=1e-6)
    assert torch.ops.definedops.sine(torch.empty(3, device="meta")).shape == (3,)
    for name, schema in (("nospace", "(Tensor x) -> Tensor"), ("definedops::op", "Tensor x")):
        with pytest.raises(ValueError, match=r"torch\.library\.define: expected a"):
            torch.library.define(name, schema)


def _keep_x(ctx, inputs, output):
    ctx.x = inputs[0]


def test_regions_far_larger_than_their_map_and_boxes_that_are_no_numbers():
    x = torch.ones(1, 1, 4, 4)
    rois = torch.tensor([[0, -1e9, -1e9, 1e9, 1e9], [0, float("nan"), 0, 2, 2], [0, 3, 3, 1, 1]])
    out = vision.roi_align(x, rois, 1.0, 1, 1, 0, True)
    assert 0 <= float(out[0]) < 1e-6 and out[1:].flatten().tolist() == [0, 0]
    assert vision.roi_pool(x, rois, 1.0, 1, 1)[0].isfinite().all()
    kept = vision.nms(torch.tensor([[0.0, 0, 0, 0], [0, 0, 0, 0], [float("nan")] * 4]), torch.ones(3), 0.0)
    assert kept.tolist() == [0, 1, 2]  # an overlap that is no number suppresses nothing


def test_gradients_of_the_backward_ops():
    x = torch.randn(2, 4, 5, 6, dtype=torch.float64, requires_grad=True)
    rois = torch.tensor([[1, 0.7, 1.3, 4.1, 3.8], [0, -2.2, -1.7, 3.3, 2.6]], dtype=torch.float64)
    tail = (2, 4, 5, 6)
    for forward, backward in (
        (lambda: vision.roi_align(x, rois, 1.0, 2, 2, 2, True),
         lambda g, _: vision._roi_align_backward(g, rois, 1.0, 2, 2, *tail, 2, True)),
        (lambda: vision.roi_pool(x, rois, 1.0, 2, 2),
         lambda g, s: vision._roi_pool_backward(g, rois, s, 1.0, 2, 2, *tail)),
        (lambda: vision.ps_roi_align(x, rois, 1.0, 2, 2, 2),
         lambda g, s: vision._ps_roi_align_backward(g, rois, s, 1.0, 2, 2, 2, *tail)),
        (lambda: vision.ps_roi_pool(x, rois, 1.0, 2, 2),
         lambda g, s: vision._ps_roi_pool_backward(g, rois, s, 1.0, 2, 2, *tail)),
    ):  # fmt: skip
        out = forward()
        out, second = out if isinstance(out, tuple) else (out, None)
        g = torch.randn_like(out)
        assert torch.allclose(torch.autograd.grad(out, x, g)[0], backward(g, second))


def test_audio_loops():
    x, a = torch.randn(2, 3, 20, dtype=torch.float64), torch.randn(3, 4, dtype=torch.float64) / 4
    out = torch.zeros(2, 3, 23, dtype=torch.float64)
    out[:, :, :3] = 0.5
    want = out.numpy().copy()
    version = out._version
    audio._lfilter_core_loop(x, a, out)
    for t in range(20):
        want[:, :, t + 3] = x.numpy()[:, :, t] - (want[:, :, t : t + 3] * a.numpy()[:, :3]).sum(-1)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-12)
    assert out._version > version
    with pytest.raises(RuntimeError, match="_lfilter_core_loop: expected a waveform"):
        audio._lfilter_core_loop(x, a, out[:, :, 1:].contiguous())
    with pytest.raises(ValueError, match="contiguous"):
        audio._lfilter_core_loop(x, a, torch.zeros(2, 23, 3, dtype=torch.float64).transpose(1, 2))

    sound, driven = torch.randn(2, 9), torch.randn(2, 9)
    back, last, out = torch.zeros(2), torch.zeros(2), torch.empty(2, 9)
    audio._overdrive_core_loop(sound, driven, last, back, out)
    found, state, before = [], np.zeros(2), np.zeros(2)
    for t in range(9):
        state = driven.numpy()[:, t] - before + 0.995 * state
        before = driven.numpy()[:, t]
        found.append(sound.numpy()[:, t] * 0.5 + state * 0.75)
    np.testing.assert_allclose(out.numpy(), np.stack(found, 1), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(last.numpy(), before)


def test_names_that_vision_libraries_import(tmp_path):
    import warptape.fx.graph_module as graphs
    from warptape import hub, onnx
    from warptape._dynamo.utils import is_compile_supported
    from warptape.jit.annotations import BroadcastingList2, Optional
    from warptape.onnx import symbolic_helper, symbolic_opset11
    from warptape.utils import _pytree

    assert BroadcastingList2[int] == int | list[int] and Optional[int]
    assert symbolic_helper.parse_args("v", "f")(len) is len
    assert onnx.register_custom_op_symbolic("torchvision::nms", len, 11) is None
    with pytest.raises(AttributeError, match=r"warptape has no torch\.onnx\.symbolic_opset11\.gather yet"):
        symbolic_opset11.gather
    assert is_compile_supported("cpu") and hub.HASH_REGEX.search("net-0aff.pth")[1] == "0aff"
    assert torch.jit._script_if_tracing(len) is len is torch.jit._overload_method(len)
    assert torch.get_device_module() is torch.cpu and torch.get_device_module("cuda:0") is torch.cuda
    with pytest.raises(RuntimeError, match="no module of the device 'meta'"):
        torch.get_device_module("meta")
    values, keys = _pytree._dict_flatten({"a": 1, "b": 2})
    assert _pytree._dict_unflatten(values, keys) == {"a": 1, "b": 2}
    copied = graphs._CodeOnlyModule({**torch.nn.Linear(2, 3).__dict__, "kept": 5})
    assert copied.weight.shape == (3, 2) and copied.kept == 5
    assert torch._sample_dirichlet(torch.ones(4, 3)).sum(1).tolist() == pytest.approx([1] * 4)


def test_linspace_is_rounded_as_in_pytorch():
    # PyTorch 2.13: torch.linspace(0.0, 0.9, 10) and torch.linspace(-1.0, 1.0, 7)
    assert torch.linspace(0.0, 0.9, 10)[8].item() == 0.7999999523162842
    assert torch.linspace(-1.0, 1.0, 7)[3].item() == -2.9802322387695312e-08


def test_a_custom_op_under_vmap():
    @torch.library.custom_op("small::scaled_rows", mutates_args=())
    def scaled(x: torch.Tensor, by: float) -> torch.Tensor:
        return x * by + x.sum()

    def over_batch(info, in_dims, x, by):
        x = x.movedim(in_dims[0], 0)
        return x * by + x.flatten(1).sum(1).view(-1, *[1] * (x.ndim - 1)), 0

    scaled.register_autograd(lambda ctx, g: (g * ctx.by + g.sum(), None), setup_context=_keep_by)
    x = torch.arange(6.0).view(2, 3)
    torch.library.register_vmap("small::scaled_rows", over_batch)
    found = torch.vmap(lambda row: torch.ops.small.scaled_rows(row, 2.0), in_dims=1)(x)
    assert found.tolist() == [(2 * c + c.sum()).tolist() for c in x.T]
    x.requires_grad_()
    scaled(x, 2.0).sum().backward()
    assert x.grad.tolist() == [[8.0] * 3] * 2
    with pytest.raises(RuntimeError, match="there is no op"):
        torch.library.register_vmap("small::unknown", over_batch)


def _keep_by(ctx, inputs, output):
    ctx.by = inputs[1]
