"""Calls of Python's functions and of modules in a profile, and the modules that an op lies in."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
from warptape import nn
from warptape.autograd.profiler_python import PythonEvent
from warptape.profiler import profile, record_function


def inner(x: torch.Tensor) -> torch.Tensor:
    return x.exp()


def outer(x: torch.Tensor) -> torch.Tensor:
    return inner(x) + 1


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])
        self.shared = [nn.ReLU()]  # no child

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.shared[0](self.layers[0](x))
        return self.layers[1](x).cos()


def calls(p: profile) -> list[PythonEvent]:
    assert p.profiler is not None
    return p.profiler.python_events


def called(p: profile, function: str) -> PythonEvent:
    (found,) = [e for e in calls(p) if e.name.endswith(f": {function}")]
    return found


def inside(e: Any, other: Any) -> bool:
    a, b = e.time_range, other.time_range
    return b.start <= a.start <= a.end <= b.end


def test_functions_nest_with_each_other_and_with_ops() -> None:
    x = torch.ones(20_000)  # of the size from which an op lets go of the GIL
    with profile(with_stack=True) as p:
        outer(x)
    there, within = called(p, "outer"), called(p, "inner")
    line = outer.__code__.co_firstlineno
    assert there.name.endswith(f"test_python_events.py({line}): outer")
    assert within.parent is there and within.code is inner.__code__ and inside(within, there)
    # Functions that ran already when the profile began are there, too, from its beginning.
    assert there.parent is not None and there.parent.name.endswith(
        "test_functions_nest_with_each_other_and_with_ops"
    )
    (exp,) = [e for e in p.events() if e.name == "aten::exp"]
    (add,) = [e for e in p.events() if e.name == "aten::add"]
    assert inside(exp, within) and inside(add, there) and not inside(add, within)
    assert exp.stack[0].endswith(f"({line - 3}): inner") and exp.stack[1].endswith(f"({line + 1}): outer")
    assert len({e.id for e in calls(p)}) == len(calls(p))
    assert exp.cpu_parent is None and all(e.name != within.name for e in p.events())  # events stay the ops


def test_the_trace_has_them(tmp_path: Path) -> None:
    net = Net()
    with profile(with_stack=True) as p:
        net(torch.ones(1, 4))
    path = tmp_path / "trace.json"
    p.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    found = {e["args"]["Python id"]: e for e in events if e.get("cat") == "python_function"}
    (linear,) = [e for e in found.values() if e["name"] == "nn.Module: Linear_1"]
    chain = []
    at: Any = linear
    while at is not None:
        chain.append(at["name"])
        parent = at["args"]["Python parent id"]
        assert parent is None or at["args"]["Python id"] > parent
        at = None if parent is None else found[parent]
    forward = f"test_python_events.py({Net.forward.__code__.co_firstlineno}): forward"
    assert chain[1].endswith(forward) and chain[2] == "nn.Module: Net_0"
    ids = {e["name"]: e["args"]["Python module id"] for e in found.values() if "nn.Module" in e["name"]}
    assert ids == {
        "nn.Module: Net_0": 0,
        "nn.Module: Linear_0": 1,
        "nn.Module: ReLU_0": 2,
        "nn.Module: Linear_1": 3,
    }
    assert all("Python module id" not in e["args"] for e in found.values() if "nn.Module" not in e["name"])
    assert not any("profiler.py" in e["name"] for e in found.values())  # the profile's own


def test_exceptions_generators_and_recursion() -> None:
    def numbers() -> Iterator[int]:
        yield 1
        yield 2

    def fails() -> None:
        raise KeyError

    def deep(n: int) -> None:
        if n:
            deep(n - 1)

    def after() -> None:
        pass

    with profile(with_stack=True) as p:
        list(numbers())
        with pytest.raises(KeyError):
            fails()
        deep(3)
        after()
    names = [e.name.rsplit(": ")[-1] for e in calls(p)]
    assert names.count("numbers") == 3 and names.count("deep") == 4 and names.count("fails") == 1
    depth = [e for e in calls(p) if e.name.endswith(": deep")]
    assert all(b.parent is a and inside(b, a) for a, b in pairwise(depth))
    this = called(p, "test_exceptions_generators_and_recursion")
    assert called(p, "after").parent is called(p, "fails").parent or called(p, "after").parent is this
    assert called(p, "after").parent is this


def test_threads_that_join() -> None:
    def work() -> None:
        inner(torch.ones(2))  # not seen
        with record_function("there"):
            outer(torch.ones(2))
        outer(torch.ones(2))

    with profile(with_stack=True) as p:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        inner(torch.ones(2))
    there = [e for e in calls(p) if e.name.endswith(": outer")]
    assert len(there) == 2 and len({e.thread for e in there}) == 1
    elsewhere = [e.thread != there[0].thread for e in calls(p) if e.name.endswith(": inner")]
    assert sorted(elsewhere) == [False, False, True]


def test_no_profiler_stays_behind() -> None:
    over, ended = threading.Event(), threading.Event()
    left = []

    def work() -> None:
        with record_function("there"):
            pass
        over.set()
        ended.wait()
        outer(torch.ones(2))
        left.append(sys.getprofile())

    with profile(with_stack=True):
        thread = threading.Thread(target=work)
        thread.start()
        over.wait()
    assert sys.getprofile() is None
    ended.set()
    thread.join()
    assert left == [None]
    with profile(with_stack=False):
        assert sys.getprofile() is None  # no call pays for a profile without stacks


def test_another_profiler_is_left_alone() -> None:
    seen = []

    def other(frame: Any, event: str, arg: Any) -> None:
        seen.append(event)

    sys.setprofile(other)
    try:
        with (
            pytest.warns(UserWarning, match="setprofile has a function already"),
            profile(with_stack=True) as p,
        ):
            outer(torch.ones(2))
        assert sys.getprofile() is other
    finally:
        sys.setprofile(None)
    assert seen and calls(p) == [] and any(e.stack for e in p.events())


def test_a_call_more_than_a_thread_keeps() -> None:
    def nothing() -> None:
        pass

    p = profile(with_stack=True)
    p.start()
    for _ in range((1 << 20) + 10):
        nothing()
    with pytest.warns(UserWarning, match="were not recorded"):
        p.stop()
    assert len(calls(p)) == 1 << 20 and p.profiler is not None
    assert p.profiler.metadata["dropped_python_calls"] >= 10
    assert all(e.time_range.end >= e.time_range.start for e in calls(p)[:10])


def test_modules_of_ops(tmp_path: Path) -> None:
    net = Net()
    with profile(with_modules=True) as p:
        torch.ones(2).sin()
        net(torch.ones(1, 4, requires_grad=True)).sum().backward()
    first = "TOP(Net)::forward.layers.0(Linear)::forward"
    found = {e.name: e.module_hierarchy for e in p.events() if e.kind == "op" and e.cpu_parent is None}
    assert found["aten::cos"] == "TOP(Net)::forward"
    assert found["aten::relu"] == "TOP(Net)::forward.UNKNOWN_INSTANCE(ReLU)::forward"
    assert found["aten::sin"] == found["aten::sum"] == ""
    linears = [e.module_hierarchy for e in p.events() if e.name == "aten::linear"]
    assert linears == [first, first.replace("0", "1")]
    # Nodes of the tape, and the ops that they call, are in the modules of their forward ops.
    nodes = {e.name: e for e in p.events() if e.kind == "backward"}
    assert nodes["CosBackward0"].module_hierarchy == "TOP(Net)::forward"
    assert all(c.module_hierarchy == "TOP(Net)::forward" for c in nodes["CosBackward0"].cpu_children)
    assert calls(p) == []  # functions are of with_stack
    path = tmp_path / "trace.json"
    p.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    (cos,) = [e for e in events if e["name"] == "aten::cos"]
    assert cos["args"]["Module Hierarchy"] == "TOP(Net)::forward"


def test_hooked_modules_and_results() -> None:
    net = Net()
    net.layers[0].register_forward_hook(lambda module, args, out: out * 2)
    x = torch.ones(1, 4)
    plain = net(x)
    with profile(with_modules=True, with_stack=True) as p:
        profiled = net(x)
    assert torch.equal(plain, profiled)
    (product,) = [e for e in p.events() if e.name == "aten::mul"]
    assert product.module_hierarchy == "TOP(Net)::forward.layers.0(Linear)::forward"


def test_ops_of_any_size_have_stacks() -> None:
    large = torch.ones(300, 300, requires_grad=True)
    with profile(with_stack=True) as p:
        inner(large).sum().backward()
    forward = [e for e in p.events() if e.kind == "op" and e.cpu_parent is None]
    assert all(e.stack for e in forward)
    (exp,) = [e for e in forward if e.name == "aten::exp"]
    (node,) = [e for e in p.events() if e.name == "ExpBackward0"]
    assert exp.stack[0].endswith(": inner") and node.stack == exp.stack
    assert node.cpu_children and all(c.stack == exp.stack for c in node.cpu_children)
