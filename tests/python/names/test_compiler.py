"""What torch.compiler and torch.jit answer; tests/graph tests what torch.compile does."""

from __future__ import annotations

import pytest
import warptape as torch
from warptape import _missing, nn


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    monkeypatch.setattr(_missing, "_said", set())


def test_compiler_answers():
    assert not torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling()
    f = lambda: 1
    assert torch.compiler.allow_in_graph(f) is f and torch._dynamo.disable(f)() == 1
    assert torch.compiler.list_backends() == ["inductor"]
    assert torch.compiler.list_backends(()) == ["aot_eager", "eager", "inductor"]
    torch.compiler.cudagraph_mark_step_begin()
    assert torch._dynamo.assume_constant_result(f) is f
    torch._dynamo.mark_static_address(torch.ones(1))
    assert issubclass(torch._dynamo.exc.Unsupported, torch._dynamo.exc.TorchDynamoException)
    torch.compiler.reset()
    torch._dynamo.config.cache_size_limit = 64
    torch._inductor.config.triton.unique_kernel_names = True
    torch._inductor.config.coordinate_descent_tuning = True
    assert torch._dynamo.config.cache_size_limit == 64
    with pytest.raises(AttributeError, match=r"warptape has no torch\._dynamo\.symbolic_convert yet"):
        torch._dynamo.symbolic_convert


def test_jit():
    class Model(nn.Module):
        @torch.jit.ignore
        def a(self):
            return 1

        @torch.jit.unused
        def b(self):
            return 2

        @torch.jit.export
        def c(self):
            return 3

        @torch.jit.ignore(drop=True)
        def d(self):
            return 4

        def forward(self, x):
            return x if torch.jit.is_scripting() else x + self.a() + self.b() + self.c() + self.d()

    model = Model().eval()
    scripted = torch.jit.script(model)
    assert scripted(0) == 10 and scripted.a() == 1 and torch.jit.script(scripted) is scripted
    assert isinstance(scripted, torch.jit.ScriptModule)
    assert torch.jit.freeze(scripted)(0) == 10
    assert torch.jit.wait(torch.jit.fork(lambda a, b: a - b, 5, b=2)) == 3
    assert torch.jit.isinstance([1], list[int]) and torch.jit.annotate(int, 3) == 3
    with pytest.raises(RuntimeError, match="only implemented for modules in eval mode"):
        torch.jit.freeze(scripted.train())
    with pytest.raises(RuntimeError, match="expects a ScriptModule as input"):
        torch.jit.freeze(model)


def test_accelerator_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    acc = torch.accelerator
    assert not acc.is_available() and acc.device_count() == 0 and acc.current_accelerator(True) is None
    for call in (acc.current_device_index, acc.synchronize, lambda: acc.set_device_index(0)):
        with pytest.raises(RuntimeError):
            call()
    assert not torch.mps.is_available() and torch.xpu.device_count() == 0
    model = nn.Linear(3, 2)
    wrapped = nn.DataParallel(model)
    x = torch.ones(4, 3)
    assert torch.equal(wrapped(x), model(x)) and wrapped.device_ids == []
    assert list(wrapped.state_dict()) == ["module.weight", "module.bias"]
    assert nn.parallel.DataParallel is nn.DataParallel


def test_masks_by_vmap_in_the_mode_of_transformers():
    from warptape._dynamo._trace_wrapped_higher_order_op import TransformGetItemToIndex

    table = torch.arange(12).reshape(3, 4)
    with TransformGetItemToIndex():
        assert torch.vmap(lambda i: table[i, 1])(torch.tensor([2, 0])).tolist() == [9, 1]
