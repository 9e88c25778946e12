"""Hooks on forward and backward: when they run, in what order, what they may replace."""

import copy

import pytest
import warptape as wt
from warptape import nn
from warptape.nn.modules import module as hooks_of_all


class Scale(nn.Module):
    def forward(self, x, factor=2.0):
        return x * factor


def test_forward_hooks_order_and_replacement():
    module, seen = Scale(), []
    module.register_forward_pre_hook(lambda m, args: seen.append("pre"))
    module.register_forward_pre_hook(lambda m, args: args[0] + 1)
    module.register_forward_pre_hook(lambda m, args: seen.append("first"), prepend=True)
    module.register_forward_hook(lambda m, args, out: seen.append(("post", args[0].item())))
    module.register_forward_hook(lambda m, args, out: out + 0.5)
    module.register_forward_hook(lambda m, args, out: seen.append("before"), prepend=True)
    assert module(wt.tensor(1.0)).item() == 4.5
    assert seen == ["first", "pre", "before", ("post", 2.0)]


def test_keyword_arguments():
    module = Scale()
    module.register_forward_pre_hook(
        lambda m, args, kw: (args, {"factor": kw["factor"] + 1}), with_kwargs=True
    )
    module.register_forward_hook(lambda m, args, kw, out: out + kw["factor"], with_kwargs=True)
    assert module(wt.tensor(1.0), factor=2.0).item() == 6.0
    module.register_forward_pre_hook(lambda m, args, kw: 3, with_kwargs=True)
    with pytest.raises(RuntimeError, match="must return None or a tuple of"):
        module(wt.tensor(1.0), factor=2.0)


def test_handles_remove_and_work_as_contexts():
    module, seen = Scale(), []
    handle = module.register_forward_hook(lambda *args: seen.append(1))
    with module.register_forward_pre_hook(lambda *args: seen.append(2)):
        module(wt.tensor(1.0))
    handle.remove()
    handle.remove()
    module(wt.tensor(1.0))
    assert seen == [2, 1]
    assert not module._forward_hooks and not module._forward_pre_hooks


def test_a_module_whose_hooks_are_gone_takes_new_ones():
    module, seen = Scale(), []
    module.register_forward_hook(lambda *args: None).remove()
    module(wt.tensor(1.0))  # this call finds nothing left to run
    assert not module._hooked
    module.register_forward_hook(lambda *args: seen.append(1))
    module(wt.tensor(1.0))
    assert seen == [1]


def test_always_call_runs_after_an_error():
    class Broken(nn.Module):
        def forward(self, x):
            raise ValueError("broken")

    module, seen = Broken(), []
    module.register_forward_hook(lambda m, args, out: seen.append("skipped"))
    module.register_forward_hook(lambda m, args, out: seen.append(out), always_call=True)
    with pytest.raises(ValueError, match="broken"):
        module(1)
    assert seen == [None]

    def fails(m, args, out):
        raise KeyError("hook")

    module.register_forward_hook(fails, always_call=True)
    with (
        pytest.warns(UserWarning, match="was silenced as another error was raised in forward"),
        pytest.raises(ValueError, match="broken"),
    ):
        module(1)


def test_always_call_runs_once_when_a_later_hook_fails():
    module, seen = Scale(), []
    module.register_forward_hook(lambda *args: seen.append("always"), always_call=True)
    module.register_forward_hook(lambda *args: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        module(wt.tensor(1.0))
    assert seen == ["always"]


def test_copies_have_hooks_of_their_own():
    module, seen = Scale(), []
    module.register_forward_hook(lambda *args: seen.append(1))
    twin = copy.deepcopy(module)
    twin(wt.tensor(1.0))
    module._forward_hooks.clear()
    twin(wt.tensor(1.0))
    module(wt.tensor(1.0))
    assert len(seen) == 2


class Mix(nn.Module):
    """Three inputs, the second without gradient, and two outputs."""

    def forward(self, a, b, c):
        return a * b, (a * c).sum()


def test_full_backward_hook_sees_inputs_and_outputs():
    module, seen = Mix(), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append((m, gi, go)))
    a, b, c = wt.tensor([1.0, 2.0], requires_grad=True), wt.tensor([3.0, 4.0]), wt.ones(2, requires_grad=True)
    product, total = module(a, b, c)
    (product.sum() + 10 * total).backward()
    ((owner, grad_input, grad_output),) = seen
    assert owner is module
    assert grad_input[0].tolist() == [13, 14]
    assert grad_input[1] is None
    assert grad_input[2].tolist() == [10, 20]
    assert grad_output[0].tolist() == [1, 1] and grad_output[1].item() == 10
    assert a.grad.tolist() == [13, 14]


def test_an_unused_output_has_no_gradient():
    module, seen = Mix(), []
    module.register_full_backward_hook(lambda m, gi, go: seen.append(go))
    a, c = wt.ones(2, requires_grad=True), wt.ones(2)
    module(a, wt.ones(2), c)[0].sum().backward()
    assert seen[0][0].tolist() == [1, 1] and seen[0][1] is None


def test_backward_hooks_replace_gradients():
    module = Scale()
    module.register_full_backward_pre_hook(lambda m, go: (go[0] * 10,))
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] + go[0],))
    x = wt.tensor(1.0, requires_grad=True)
    module(x).backward()
    assert x.grad.item() == 2 * 10 + 10


def test_order_of_backward_hooks():
    module, seen = Scale(), []
    module.register_full_backward_hook(lambda *args: seen.append("b"))
    module.register_full_backward_hook(lambda *args: seen.append("a"), prepend=True)
    module.register_full_backward_pre_hook(lambda *args: seen.append("pre"))
    module(wt.tensor(1.0, requires_grad=True)).backward()
    assert seen == ["pre", "a", "b"]


def test_hooks_run_for_every_call_and_not_without_grad():
    module, seen = nn.Linear(1, 1), []
    module.register_full_backward_hook(lambda *args: seen.append(1))
    x = wt.ones(1, 1, requires_grad=True)
    module(module(x)).sum().backward()
    assert len(seen) == 2
    with wt.no_grad():
        assert not module(x).requires_grad


def test_without_input_gradients_the_hook_still_runs():
    module, seen = nn.Linear(1, 1), []
    handle = module.register_full_backward_hook(lambda m, gi, go: seen.append((gi, go[0].item())))
    with pytest.warns(UserWarning, match="no inputs require gradients"):
        module(wt.ones(1, 1)).sum().backward()
    assert seen == [((None,), 1.0)]
    handle.remove()
    module.register_full_backward_hook(lambda m, gi, go: (wt.ones(1),))
    with (
        pytest.warns(UserWarning, match="no inputs"),
        pytest.raises(RuntimeError, match="always return None"),
    ):
        module(wt.ones(1, 1)).sum().backward()


def test_wrong_number_of_gradients():
    module = Scale()
    handle = module.register_full_backward_hook(lambda m, gi, go: (None, None))
    with pytest.raises(RuntimeError, match="invalid number of grad_input, got 2, but expected 1"):
        module(wt.tensor(1.0, requires_grad=True)).backward()
    handle.remove()
    module.register_full_backward_pre_hook(lambda m, go: ())
    with pytest.raises(RuntimeError, match="invalid number of grad_output, got 0, but expected 1"):
        module(wt.tensor(1.0, requires_grad=True)).backward()


def test_the_gradient_of_a_gradient_flows_through_the_hooks():
    module = Scale()
    module.register_full_backward_hook(lambda m, gi, go: (gi[0] * 3,))
    x = wt.tensor(3.0, requires_grad=True)
    (grad,) = wt.autograd.grad(module(x) ** 2, x, create_graph=True)
    assert grad.item() == 3 * 8 * 3.0
    (second,) = wt.autograd.grad(grad, x)
    assert second.item() == 3 * 3 * 8  # the second pass meets the hook again


def test_full_and_last_op_hooks_do_not_mix():
    module = Scale()
    module.register_full_backward_hook(lambda *args: None)
    with pytest.raises(RuntimeError, match="Cannot use both"):
        module.register_backward_hook(lambda *args: None)


def test_last_op_hook():
    module, seen = Scale(), []
    module.register_backward_hook(lambda m, gi, go: seen.append(go[0].item()))
    module(wt.tensor(1.0, requires_grad=True)).backward()
    assert seen == [1.0]


def test_hooks_of_all_modules_run_first_and_can_be_removed():
    seen = []
    inner = Scale()
    outer = nn.Sequential(inner)
    inner.register_forward_pre_hook(lambda m, args: seen.append("own pre"))
    inner.register_forward_hook(lambda m, args, out: seen.append("own"))
    handles = [
        hooks_of_all.register_module_forward_pre_hook(lambda m, args: seen.append(type(m).__name__ + " pre")),
        hooks_of_all.register_module_forward_hook(lambda m, args, out: seen.append(type(m).__name__)),
        hooks_of_all.register_module_full_backward_hook(
            lambda m, gi, go: seen.append("grad " + type(m).__name__)
        ),
        hooks_of_all.register_module_full_backward_pre_hook(
            lambda m, go: seen.append("go " + type(m).__name__)
        ),
    ]
    try:
        outer(wt.tensor(1.0, requires_grad=True)).backward()
    finally:
        for handle in handles:
            handle.remove()
    assert seen == [
        "Sequential pre",
        "Scale pre",
        "own pre",
        "Scale",
        "own",
        "Sequential",
        "go Sequential",
        "go Scale",
        "grad Scale",
        "grad Sequential",
    ]
    seen.clear()
    outer(wt.tensor(1.0))
    assert seen == ["own pre", "own"]
