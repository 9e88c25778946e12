"""The tape's rules as short programs: what each leaves in `out`, or how its error begins to read.

Each program runs with `torch` bound to warptape; with `-m parity` it runs with PyTorch itself, so that the
expectations are PyTorch's.
"""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
import warptape

# name: (program, the value of `out` or the error's text as a pattern)
PROGRAMS: dict[str, tuple[str, Any]] = {
    # ---- backward ----
    "non-scalar backward": (
        "torch.ones(2, requires_grad=True).mul(2).backward()",
        RuntimeError("grad can be implicitly created only for scalar outputs"),
    ),
    "backward without history": ("torch.ones(1).backward()", RuntimeError("does not require grad")),
    "second backward through a freed graph": (
        "x = torch.ones(2, requires_grad=True); y = (x * x).sum(); y.backward(); y.backward()",
        RuntimeError("backward through the graph a second time"),
    ),
    "retain_graph": (
        "x = torch.tensor([3.], requires_grad=True); y = (x * x).sum()\n"
        "y.backward(retain_graph=True); y.backward(); out = x.grad",
        [12.0],
    ),
    "a graph without saved tensors may be used again": (
        "x = torch.tensor([3.], requires_grad=True); y = (x + 1).sum(); y.backward(); y.backward(); "
        "out = x.grad",
        [2.0],
    ),
    "gradient of another shape": (
        "torch.ones(2, requires_grad=True).mul(2).backward(torch.ones(3))",
        RuntimeError("Mismatch in shape"),
    ),
    "backward with inputs": (
        "a = torch.ones(1, requires_grad=True); b = torch.ones(1, requires_grad=True)\n"
        "(a * b * 3).sum().backward(inputs=[a]); out = [a.grad, b.grad]",
        [[3.0], None],
    ),
    "backward with an inner input": (
        "a = torch.ones(1, requires_grad=True); m = a * 2\n(m * m).sum().backward(inputs=m); "
        "out = [m.grad, a.grad]",
        [[4.0], None],
    ),
    "empty inputs": (
        "torch.ones(1, requires_grad=True).sum().backward(inputs=[])",
        RuntimeError("(?i)inputs.? argument to .?backward.*cannot be empty"),
    ),
    "modified saved tensor": (
        "x = torch.ones(2, requires_grad=True); y = x.exp(); y.mul_(2); y.sum().backward()",
        RuntimeError("modified by an inplace operation(.|\n)*is at version 1; expected version 0"),
    ),
    "modified saved input": (
        "x = torch.ones(2, requires_grad=True); w = torch.ones(2); y = (x * w).sum(); w.add_(1); "
        "y.backward()",
        RuntimeError("modified by an inplace operation(.|\n)*is at version 1; expected version 0"),
    ),
    "create_graph": (
        "x = torch.tensor([2.], requires_grad=True); "
        "(g,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)\n"
        "(h,) = torch.autograd.grad(g.sum(), x, create_graph=True); (k,) = torch.autograd.grad(h.sum(), x)\n"
        "out = [g, h, k]",
        [[12.0], [12.0], [6.0]],
    ),
    "unused input": (
        "a = torch.ones(1, requires_grad=True); b = torch.ones(1, requires_grad=True)\n"
        "torch.autograd.grad((a * 2).sum(), [a, b])",
        RuntimeError("appears to not have been used in the graph"),
    ),
    "allow_unused": (
        "a = torch.ones(1, requires_grad=True); b = torch.ones(1, requires_grad=True)\n"
        "out = torch.autograd.grad((a * 2).sum(), [a, b], allow_unused=True)",
        [[2.0], None],
    ),
    "materialize_grads": (
        "a = torch.ones(1, requires_grad=True); b = torch.ones(2, requires_grad=True)\n"
        "out = torch.autograd.grad((a * 2).sum(), [a, b], materialize_grads=True)",
        [[2.0], [0.0, 0.0]],
    ),
    "input without gradient": (
        "a = torch.ones(1, requires_grad=True); torch.autograd.grad((a * 2).sum(), torch.ones(1))",
        RuntimeError("does not require grad"),
    ),
    "gradient with respect to the output": (
        "a = torch.ones(1, requires_grad=True); y = a * 2; out = torch.autograd.grad(y, [y, a])",
        [[1.0], [2.0]],
    ),
    "gradients accumulate": (
        "a = torch.ones(1, requires_grad=True); (a * 2).sum().backward(); (a * 3).sum().backward(); "
        "out = a.grad",
        [5.0],
    ),
    "a leaf used twice": (
        "a = torch.tensor(3., requires_grad=True); (a * a + a).backward(); out = a.grad",
        7.0,
    ),
    "broadcast gradients are reduced": (
        "a = torch.ones(2, 1, requires_grad=True); b = torch.ones(3, requires_grad=True)\n"
        "(a * b * 2).sum().backward(); out = [a.grad, b.grad]",
        [[[6.0], [6.0]], [4.0, 4.0, 4.0]],
    ),
    "gradient in the input's dtype": (
        "a = torch.ones(1, dtype=torch.float64, requires_grad=True); (a.float() * 2).sum().backward()\n"
        "out = [str(a.grad.dtype), a.grad]",
        ["torch.float64", [2.0]],
    ),
    "two roots": (
        "a = torch.ones(1, requires_grad=True); "
        "torch.autograd.backward([a * 2, a * 3], [torch.ones(1)] * 2)\n"
        "out = a.grad",
        [5.0],
    ),
    # ---- leaves and modes ----
    "integers cannot require gradients": (
        "torch.ones(2, dtype=torch.int64, requires_grad=True)",
        RuntimeError("(?i)only tensors of floating point"),
    ),
    "requires_grad of a result": (
        "x = torch.ones(1, requires_grad=True) * 2; x.requires_grad = False",
        RuntimeError("you can only change requires_grad flags of leaf variables"),
    ),
    "no_grad": (
        "x = torch.ones(1, requires_grad=True)\nwith torch.no_grad():\n    y = x * 2\n"
        "out = [y.requires_grad, y.is_leaf]",
        [False, True],
    ),
    "enable_grad inside no_grad": (
        "x = torch.ones(1, requires_grad=True)\nwith torch.no_grad():\n    with torch.enable_grad():\n"
        "        y = x * 2\n"
        "    out = [y.requires_grad, (x * 2).requires_grad]",
        [True, False],
    ),
    "set_grad_enabled": (
        "x = torch.ones(1, requires_grad=True)\nwith torch.set_grad_enabled(False):\n"
        "    a = (x * 2).requires_grad\n"
        "out = [a, (x * 2).requires_grad]",
        [False, True],
    ),
    "no_grad as a decorator": (
        "x = torch.ones(1, requires_grad=True)\n@torch.no_grad()\ndef f():\n"
        "    return (x * 2).requires_grad\n"
        "out = [f(), (x * 2).requires_grad]",
        [False, True],
    ),
    "no_grad of a generator": (
        "x = torch.ones(1, requires_grad=True)\n@torch.no_grad()\ndef f():\n    yield (x * 2).requires_grad\n"
        "    yield (x * 2).requires_grad\nout = []\nfor a in f():\n    out += [a, (x * 2).requires_grad]",
        [False, True, False, True],
    ),
    "inference tensors": (
        "with torch.inference_mode():\n    y = torch.ones(1) * 2\n"
        "out = [y.is_inference(), y.requires_grad, (y * 2).is_inference(), "
        "torch.is_inference_mode_enabled()]",
        [True, False, False, False],
    ),
    "inference tensor saved for backward": (
        "with torch.inference_mode():\n    y = torch.ones(1)\n"
        "x = torch.ones(1, requires_grad=True); (x * y).sum().backward()",
        RuntimeError("Inference tensors cannot be saved for backward"),
    ),
    "inference tensor changed in place outside": (
        "with torch.inference_mode():\n    y = torch.ones(1)\ny.add_(1)",
        RuntimeError("Inplace update to inference tensor outside InferenceMode"),
    ),
    "inference tensor requires a gradient": (
        "with torch.inference_mode():\n    y = torch.ones(1)\ny.requires_grad_()",
        RuntimeError("(?i)inference tensor"),
    ),
    "detach": (
        "x = torch.ones(1, requires_grad=True); y = (x * 2).detach(); out = [y.requires_grad, y.is_leaf]",
        [False, True],
    ),
    "detach shares memory and version": (
        "x = torch.ones(1); y = x.detach(); y.add_(1); out = [x, x._version]",
        [[2.0], 1],
    ),
    "data does not count": ("x = torch.ones(1); x.data.add_(1); out = [x, x._version]", [[2.0], 0]),
    # ---- in place ----
    "in place on a leaf": (
        "x = torch.ones(1, requires_grad=True); x.add_(1)",
        RuntimeError("a leaf Variable that requires grad is being used in an in-place operation"),
    ),
    "in place on a view of a leaf": (
        "x = torch.ones(2, requires_grad=True); x[0].add_(1)",
        RuntimeError("a view of a leaf Variable that requires grad is being used in an in-place operation"),
    ),
    "in place on a leaf under no_grad": (
        "x = torch.ones(1, requires_grad=True)\nwith torch.no_grad():\n    x.add_(1)\n"
        "out = [x, x._version, x.is_leaf]",
        [[2.0], 1, True],
    ),
    "in place on a result": (
        "x = torch.tensor([3.], requires_grad=True); y = x * 2; y.add_(1).mul_(5); y.sum().backward(); "
        "out = [y, x.grad]",
        [[35.0], [10.0]],
    ),
    "in place on a leaf by one that requires": (
        "x = torch.zeros(2); w = torch.tensor([3.], requires_grad=True); x[0] = w[0] * 2; "
        "x.sum().backward()\n"
        "out = [x, w.grad]",
        [[6.0, 0.0], [2.0]],
    ),
    "in place on a view": (
        "x = torch.tensor([1., 2., 3., 4.], requires_grad=True); y = x * 1; y[1:3].mul_(10)\n"
        "(y * y).sum().backward(); out = [y, x.grad]",
        [[1.0, 20.0, 30.0, 4.0], [2.0, 400.0, 600.0, 8.0]],
    ),
    "in place on a view of a view": (
        "x = torch.arange(6.).reshape(2, 3).requires_grad_(); y = x * 1; v = y.t(); u = v[1:]; u.mul_(3)\n"
        "(y ** 2).sum().backward(); out = [y, x.grad, v]",
        [
            [[0.0, 3.0, 6.0], [3.0, 12.0, 15.0]],
            [[0.0, 18.0, 36.0], [6.0, 72.0, 90.0]],
            [[0.0, 3.0], [3.0, 12.0], [6.0, 15.0]],
        ],
    ),
    "in place on the base is seen by the view": (
        "x = torch.tensor([1., 2.], requires_grad=True); y = x * 1; v = y[1:]; y.mul_(5); "
        "v.sum().backward()\n"
        "out = [v, x.grad, v.grad_fn is not None]",
        [[10.0], [0.0, 5.0], True],
    ),
    "in place on one view is seen by another": (
        "x = torch.tensor([1., 2.], requires_grad=True); y = x * 1; a = y[1:]; b = y[:]; a.mul_(5)\n"
        "(b * torch.tensor([1., 10.])).sum().backward(); out = [b, x.grad]",
        [[1.0, 10.0], [1.0, 50.0]],
    ),
    "setitem": (
        "x = torch.ones(3, requires_grad=True); y = x * 2; y[1] = 7.; (y * y).sum().backward(); "
        "out = [y, x.grad]",
        [[2.0, 7.0, 2.0], [8.0, 0.0, 8.0]],
    ),
    "setitem of a recorded value": (
        "x = torch.ones(3, requires_grad=True); w = torch.tensor(5., requires_grad=True); y = x * 2; "
        "y[1:] = w * 3\n"
        "y.sum().backward(); out = [x.grad, w.grad]",
        [[2.0, 0.0, 0.0], 6.0],
    ),
    "in place on an expanded tensor": (
        "torch.ones(1).expand(3).add_(1)",
        RuntimeError("more than one element of the written-to tensor refers to a single memory location"),
    ),
    "in place on an output of unbind": (
        "x = torch.ones(2, requires_grad=True) * 2; a, b = x.unbind(); a.add_(1)",
        RuntimeError("function that returns multiple views"),
    ),
    "in place on a split": (
        "x = torch.ones(4, requires_grad=True) * 2; a, b = x.split(2); a.add_(1)",
        RuntimeError("function that returns multiple views"),
    ),
    "view made under no_grad": (
        "x = torch.ones(2, requires_grad=True) * 2\nwith torch.no_grad():\n    v = x[0]\nv.add_(1)",
        RuntimeError(
            "A view was created in no_grad mode and is being modified inplace with grad mode enabled"
        ),
    ),
    "in place through a detached view is noticed": (
        "x = torch.ones(2, requires_grad=True); y = x.exp(); y.detach()[0] = 3.; y.sum().backward()",
        RuntimeError("modified by an inplace operation"),
    ),
    "zero_ forgets": (
        "x = torch.ones(2, requires_grad=True); y = x * 3; y.zero_(); y.sum().backward(); out = x.grad",
        [0.0, 0.0],
    ),
    "copy_ moves the gradient": (
        "x = torch.ones(2, requires_grad=True); w = torch.ones(2, requires_grad=True); y = x * 3; "
        "y.copy_(w * 4)\n"
        "y.sum().backward(); out = [x.grad, w.grad]",
        [[0.0, 0.0], [4.0, 4.0]],
    ),
    "masked fill in place": (
        "x = torch.ones(3, requires_grad=True); y = x * 2; y[torch.tensor([True, False, True])] = 0.\n"
        "y.sum().backward(); out = [y, x.grad]",
        [[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]],
    ),
    "grad of a view taken before": (
        "x = torch.ones(2, 2, requires_grad=True); y = x * 1; r = y[0]; r.mul_(2); r.sum().backward(); "
        "out = x.grad",
        [[2.0, 2.0], [0.0, 0.0]],
    ),
    "second gradients through in place": (
        "x = torch.tensor([2.], requires_grad=True); y = x * x; y.mul_(x)\n"
        "(g,) = torch.autograd.grad(y.sum(), x, create_graph=True); g.sum().backward(); out = [g, x.grad]",
        [[12.0], [12.0]],
    ),
    "second gradients through a view in place": (
        "x = torch.tensor([2., 3.], requires_grad=True); y = x * x; y[0].mul_(x[1])\n"
        "(g,) = torch.autograd.grad(y.sum(), x, create_graph=True); g.sum().backward(); out = [g, x.grad]",
        [[12.0, 10.0], [10.0, 6.0]],
    ),
    # ---- properties ----
    "is_leaf and grad_fn": (
        "x = torch.ones(1, requires_grad=True); y = x * 2\n"
        "out = [x.is_leaf, y.is_leaf, x.grad_fn is None, y.grad_fn.name()]",
        [True, False, True, "MulBackward0"],
    ),
    "next_functions": (
        "x = torch.ones(1, requires_grad=True); y = (x * 2).exp()\n"
        "n = y.grad_fn.next_functions[0][0]; a = n.next_functions[0][0]\n"
        "out = [n.name(), a.name().split('::')[-1], a.variable is x, len(y.grad_fn.next_functions)]",
        ["MulBackward0", "AccumulateGrad", True, 1],
    ),
    "grad may be set": (
        "x = torch.ones(2, requires_grad=True); g = torch.ones(2); x.grad = g; out = [x.grad is g]; "
        "x.grad = None\n"
        "out.append(x.grad is None)",
        [True, True],
    ),
    "grad of another shape": (
        "x = torch.ones(2, requires_grad=True); x.grad = torch.ones(3)",
        RuntimeError("(assigned grad has data|attempting to assign a gradient) of (a different )?size"),
    ),
    "grad of another dtype": (
        "x = torch.ones(2, requires_grad=True); x.grad = torch.ones(2, dtype=torch.float64)",
        RuntimeError("assigned grad has data of a different type|attempting to assign a gradient with dtype"),
    ),
    "grad must be a tensor": ("torch.ones(2).grad = 3", TypeError("assigned grad expected to be a Tensor")),
    "grad of an inner tensor is kept on request": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; y.retain_grad(); y.retain_grad(); "
        "(y * 3).sum().backward()\n"
        "out = [y.grad, y.retains_grad, x.retains_grad]",
        [[3.0], True, False],
    ),
    "retain_grad after in place": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; y.retain_grad(); y.mul_(4); "
        "(y * 3).sum().backward()\n"
        "out = [y.grad, x.grad]",
        [[3.0], [24.0]],
    ),
    "retain_grad without history": (
        "torch.ones(1).retain_grad()",
        RuntimeError("can't retain_grad on Tensor that has requires_grad=False"),
    ),
    # ---- hooks ----
    "hook order and replacement": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; out = []\n"
        "y.register_hook(lambda g: out.append(g.item())); y.register_hook(lambda g: g * 10)\n"
        "y.register_hook(lambda g: out.append(g.item())); y.sum().backward(); out.append(x.grad)",
        [1.0, 10.0, [20.0]],
    ),
    "hook of a leaf sees each gradient once summed": (
        "x = torch.ones(1, requires_grad=True); out = []; x.register_hook(lambda g: out.append(g.item()))\n"
        "(x * 2 + x * 3).sum().backward()",
        [5.0],
    ),
    "hook removed": (
        "x = torch.ones(1, requires_grad=True); h = x.register_hook(lambda g: g * 100); h.remove()\n"
        "(x * 2).sum().backward(); out = x.grad",
        [2.0],
    ),
    "retain_grad sees what hooks made": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; y.retain_grad(); "
        "y.register_hook(lambda g: g * 10)\n"
        "y.sum().backward(); out = y.grad",
        [10.0],
    ),
    "hook of another shape": (
        "x = torch.ones(1, requires_grad=True); x.register_hook(lambda g: torch.ones(3)); x.sum().backward()",
        RuntimeError("has changed the size of value"),
    ),
    "hook without gradient": (
        "torch.ones(1).register_hook(print)",
        RuntimeError("cannot register a hook on a tensor that doesn't require gradient"),
    ),
    "hook that raises": (
        "x = torch.ones(1, requires_grad=True)\ndef bad(g):\n    raise KeyError('mine')\n"
        "x.register_hook(bad); x.sum().backward()",
        KeyError("mine"),
    ),
    "post accumulate": (
        "x = torch.ones(1, requires_grad=True); out = []\n"
        "x.register_post_accumulate_grad_hook(lambda p: out.append([p is x, p.grad.item()]))\n"
        "(x * 2).sum().backward(); (x * 2).sum().backward()",
        [[True, 2.0], [True, 4.0]],
    ),
    "post accumulate of an inner tensor": (
        "(torch.ones(1, requires_grad=True) * 2).register_post_accumulate_grad_hook(print)",
        RuntimeError("post accumulate grad hooks cannot be registered on non-leaf tensors"),
    ),
    "node hook": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; out = []\n"
        "y.grad_fn.register_hook(lambda gi, go: out.append([gi[0].item(), go[0].item()]))\n"
        "y.sum().backward()",
        [[2.0, 1.0]],
    ),
    "node hook replaces": (
        "x = torch.ones(1, requires_grad=True); y = x * 2\n"
        "y.grad_fn.register_hook(lambda gi, go: tuple(None if g is None else g * 7 for g in gi))\n"
        "y.sum().backward(); out = x.grad",
        [14.0],
    ),
    "node prehook replaces": (
        "x = torch.ones(1, requires_grad=True); y = x * 2\n"
        "y.grad_fn.register_prehook(lambda go: (go[0] * 5,)); y.sum().backward(); out = x.grad",
        [10.0],
    ),
    "hook stays with the value before in place": (
        "x = torch.ones(1, requires_grad=True); y = x * 2; out = []; "
        "y.register_hook(lambda g: out.append(g.item()))\n"
        "y.mul_(4); y.sum().backward()",
        [4.0],
    ),
}


def plain(value: Any) -> Any:
    """Tensors as nested lists."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def run(torch: Any, program: str) -> Any:
    scope: dict[str, Any] = {"torch": torch}
    exec(textwrap.dedent(program), scope)
    return plain(scope.get("out"))


def check(torch: Any, name: str) -> None:
    program, expected = PROGRAMS[name]
    if isinstance(expected, Exception):
        with pytest.raises(type(expected), match=expected.args[0]):
            run(torch, program)
    else:
        assert run(torch, program) == expected


@pytest.mark.parametrize("name", PROGRAMS)
def test_rule(name: str) -> None:
    check(warptape, name)


@pytest.mark.parity
@pytest.mark.parametrize("name", PROGRAMS)
def test_rule_is_pytorch_s(name: str) -> None:
    check(pytest.importorskip("torch"), name)
