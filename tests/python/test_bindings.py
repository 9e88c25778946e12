"""What the bindings make of arguments that they do not expect: an exception, never a signal."""

from __future__ import annotations

import pickle
import subprocess
import sys

import pytest
import warptape.distributed as dist

# Calls all functions and methods of a module of the bindings, each in a process of its own, with None,
# objects of other types, ones whose __init__ was not called, and ones that are closed, freed or destroyed.
ATTACK = """
import contextlib, os, random, signal, sys
from datetime import timedelta
import warptape as wt
import warptape.distributed as dist
from warptape import _C

module = {"_C": lambda: _C, "_distributed": lambda: _C._distributed, "_cuda": _C._cuda_module}[sys.argv[1]]()
short = timedelta(seconds=0.01)
SKIPPED = {"__class__", "__new__", "__init_subclass__", "__reduce__", "_set_package_folder"}

def made(cls):
    for make in (cls, lambda: cls.__new__(cls)):
        try:
            one = make()
            with contextlib.suppress(AttributeError, TypeError):
                one.set_timeout(short)
            yield one
        except BaseException:
            pass

def objects(classes):
    closed = _C._distributed.HashStore()
    closed._close("closed")
    gone = dist.TCPStore("127.0.0.1", 0, is_master=True)
    lost = dist.TCPStore("127.0.0.1", gone.port)
    lost.set_timeout(short)
    del gone
    dist.init_process_group("shm", store=dist.HashStore(), rank=0, world_size=1)
    group = dist.new_group([0])
    work = dist.all_reduce(wt.ones(3), group=group, async_op=True)
    dist.destroy_process_group()
    leaf = wt.ones(3, requires_grad=True)
    freed = (leaf.exp() * 2).sum()
    freed.backward()
    meta = wt.ones(2, device="meta")
    stores = [closed, lost, dist.PrefixStore("a", closed), dist.HashStore()]
    stores[-1].set_timeout(short)
    return [None, object(), 0, -1, 2**70, 1.5, float("nan"), "p", b"x", [], [None], {}, short, int, leaf,
            meta, freed.grad_fn, freed.grad_fn.next_functions[0][0], wt.Generator(), wt.float32,
            wt.device("meta"), *stores, group, work, *(o for cls in classes for o in made(cls))]

def attack(function, objects):
    draw = random.Random(0)
    calls = [(o,) * n for n in (1, 2, 3) for o in objects]
    calls += [(a, b) for a in objects for b in (None, 1, "p", leaf)]
    calls += [draw.choices(objects, k=draw.randint(0, 8)) for _ in range(80)]
    for arguments in calls:
        try:
            function(*arguments)
        except SystemError:
            raise
        except Exception:
            pass

classes = [o for o in vars(module).values() if isinstance(o, type)]
functions = {n: o for n, o in vars(module).items() if callable(o)}
for cls in classes:
    functions |= {f"{cls.__name__}.{n}": getattr(o, "fget", None) or o
                  for base in cls.__mro__[:-1] for n, o in vars(base).items()}
leaf = wt.ones(3, requires_grad=True)
for name, function in functions.items():
    if name.split(".")[-1] in SKIPPED or not callable(function):
        continue
    child = os.fork()
    if not child:
        signal.alarm(60)
        os.dup2(os.open(os.devnull, os.O_RDWR), 2)
        code = 1
        try:
            attack(function, [*objects(classes), leaf])
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status:
        print(name, "exit status", os.WEXITSTATUS(status), "signal", os.WTERMSIG(status))
print(len(functions), "called")
"""


@pytest.mark.parametrize("module", ["_C", "_distributed", "_cuda"])
def test_strange_arguments(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", ATTACK, module], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert len(lines) == 1 and int(lines[0].split()[0]) > 20, done.stdout


def test_objects_without_init() -> None:
    with pytest.raises(TypeError, match="expected a HashStore, got one whose __init__ was not called"):
        dist.HashStore.__new__(dist.HashStore).num_keys()


def test_no_store() -> None:
    with pytest.raises(TypeError):
        dist.PrefixStore("p", None)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickling_a_store(protocol: int) -> None:
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(dist.HashStore(), protocol)


def test_numbers_that_are_no_reduce_op() -> None:
    with pytest.raises(ValueError, match="99"):
        dist.ReduceOp(99)


SURROGATES = """
import sys
import warptape as wt
from warptape import _C

x, bad = wt.ones(2), "\\ud800"
calls = [
    lambda: wt.add(x, x, **{bad: 1}),
    lambda: x.add(x, **{bad: 1}),
    lambda: x.add_(1, **{bad: 1}),
    lambda: wt.sum(x, **{bad: 1}),
    lambda: wt.nn.functional.relu(x, **{bad: 1}),
    lambda: wt.zeros(2, **{bad: 1}),
    lambda: wt.zeros(2, device=bad),
    lambda: wt.device(bad),
    lambda: x.to(bad),
    lambda: wt.einsum(bad, x),
    lambda: wt.div(x, x, rounding_mode=bad),
    lambda: x.scatter(0, wt.tensor([0]), 1.0, reduce=bad),
    lambda: x.clone(memory_format=bad),
    lambda: wt.tensor(bad),
    lambda: wt.Generator(bad),
    lambda: getattr(wt.ops.aten, bad),
    lambda: getattr(x, bad),
    lambda: setattr(x, bad, 1) or getattr(x, bad + "!"),
    lambda: wt.nn.Module().register_buffer(bad, x) or wt.nn.Module().get_buffer(bad),
]
for call in calls:
    try:
        call()
    except Exception as error:
        assert str(error) is not None
    else:
        raise SystemExit(f"accepted: {call}")

# Names of files and functions that are no UTF-8 are shown, not fatal.
code = compile("def f(x):\\n  y = (x * x).sum()\\n  return y\\n", "dir/\\udcff.py", "exec")
space = {}
exec(code, space)
space["f"].__code__ = space["f"].__code__.replace(co_name="f\\udcfe")
with wt.autograd.detect_anomaly():
    space["f"](wt.ones(2, requires_grad=True)).backward()
with wt.profiler.profile(with_stack=True) as p:
    space["f"](x)
p.events()
print("done")
"""


def test_text_that_is_no_utf8() -> None:
    command = [sys.executable, "-W", "ignore", "-c", SURROGATES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.stdout == "done\n", done.stderr
