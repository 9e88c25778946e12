"""`python -m warptape.torch`: a program finds warptape under torch's names, and all else as python has it."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from warptape.torch import TORCH_VERSION
from warptape.torch_version import TorchVersion


def python(*arguments: str, cwd: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=cwd,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=60,
    )


def run(tmp_path: Path, text: str, *arguments: str) -> str:
    """What a program prints; it must end well."""
    (tmp_path / "program.py").write_text(textwrap.dedent(text))
    done = python("-m", "warptape.torch", "program.py", *arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    return done.stdout


NOSY = """
import sys
print(sys.argv, __name__, __file__, sys.path[0], getattr(__spec__, "name", 0), __package__)
print(__builtins__.__name__, sorted(n for n in globals()), type(__loader__).__name__)
sys.stdout.flush()
def fail():
    raise KeyError("x")
try:
    fail()
except KeyError as error:
    if "chain" in sys.argv:
        raise ValueError("y") from error
    if "exit" in sys.argv:
        sys.exit(7)
    if "text" in sys.argv:
        sys.exit("words")
    if "interrupt" in sys.argv:
        raise KeyboardInterrupt
    raise
"""


@pytest.mark.parametrize("how", ["plain", "chain", "exit", "text", "interrupt"])
@pytest.mark.parametrize("place", ["nosy.py", "sub/nosy.py", "link.py", "-m"])
def test_as_python_runs_it(tmp_path, how, place):
    (tmp_path / "sub").mkdir()
    for name in ("nosy.py", "sub/nosy.py"):
        (tmp_path / name).write_text(NOSY)
    (tmp_path / "link.py").symlink_to(tmp_path / "sub" / "nosy.py")
    what = ["-m", "nosy"] if place == "-m" else [place]
    expected = python(*what, how, cwd=tmp_path)
    got = python("-m", "warptape.torch", *what, how, cwd=tmp_path)
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, expected.stdout, expected.stderr)


@pytest.mark.parametrize(
    "what",
    [
        ["-c", "import sys; print(sys.argv, sys.path[0], __name__); 1 / 0", "a", "-b"],
        ["-cprint(1)"],
        ["broken.py"],
        ["folder", "a"],
        ["-m", "folder", "a"],
        ["missing.py"],
    ],
)
def test_other_forms(tmp_path, what):
    (tmp_path / "broken.py").write_text("def f(:\n  pass")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text("import sys; print(sys.argv, sys.path[0], __file__)")
    expected = python(*what, cwd=tmp_path)
    got = python("-m", "warptape.torch", *what, cwd=tmp_path)
    assert (got.returncode, got.stdout, got.stderr) == (expected.returncode, expected.stdout, expected.stderr)


def test_without_a_program(tmp_path):
    for arguments in ([], ["-m"], ["-x", "a.py"]):
        done = python("-m", "warptape.torch", *arguments, cwd=tmp_path)
        assert done.returncode == 2 and "usage: python -m warptape.torch" in done.stderr


def test_every_import_is_warptape(tmp_path):
    text = """
        import pickle, sys
        import torch, torch.nn as nn, torch.nn.functional as F, torch.backends.cudnn as cudnn
        import torch.optim.lr_scheduler, torch.distributed as dist, torch.multiprocessing as mp
        from torch import Tensor, nn as again
        from torch.cuda.amp import autocast
        from torch.utils.data import DataLoader, TensorDataset
        import warptape
        pairs = [(torch, warptape), (nn, again), (nn.Linear, warptape.nn.Linear), (Tensor, warptape.Tensor),
                 (F.relu, warptape.nn.functional.relu), (DataLoader, warptape.utils.data.DataLoader),
                 (dist, warptape.distributed), (torch.optim.lr_scheduler, warptape.optim.lr_scheduler),
                 (cudnn, warptape.backends.cudnn)]
        print(all(a is b for a, b in pairs), nn.__spec__.name, sys.modules["torch.nn"].__name__)
        layer = pickle.loads(pickle.dumps(nn.Linear(2, 3)))
        print(layer, torch.ones(2), torch.float32)
        files = [str(getattr(m, "__file__", "")) for m in sys.modules.values()]
        print([f for f in files if "site-packages/torch/" in f])
    """
    assert run(tmp_path, text).splitlines() == [
        "True warptape.nn warptape.nn",
        "Linear(in_features=2, out_features=3, bias=True) tensor([1., 1.]) torch.float32",
        "[]",
    ]


def test_an_import_leaves_the_function_of_its_name(tmp_path):
    program = """
import importlib, torch, types
for name in ("autograd.gradcheck", "multiprocessing.spawn", "nn.utils.weight_norm", "nn.utils.spectral_norm",
             "nn.parallel.data_parallel", "func.functional_call"):
    owner, _, last = ("torch." + name).rpartition(".")
    owner = importlib.import_module(owner)
    before = getattr(owner, last)
    module = importlib.import_module("torch." + name)
    assert type(module) is types.ModuleType, name
    assert getattr(owner, last) is before is getattr(module, last) and callable(before), name
import torch.autograd.gradcheck
print(torch.autograd.gradcheck.__name__)
"""
    assert run(tmp_path, program).strip() == "gradcheck"


def test_what_version_checks_read(tmp_path):
    text = """
        import importlib.metadata, importlib.util, torch, torch.version
        print(torch.__version__, importlib.metadata.version("torch"), torch.version.__version__)
        print(torch.__version__ >= "2.5", torch.__version__ >= (2, 1), int(torch.__version__.split(".")[0]))
        print(torch.version.cuda, torch.version.hip, torch.version.git_version == "")
        print(importlib.util.find_spec("torch") is not None, importlib.util.find_spec("torch.nonsense"))
        print(len(list(importlib.metadata.distributions())) > 0)
    """
    here = str(TORCH_VERSION)
    assert here.startswith("2.13.0+warptape")
    assert run(tmp_path, text).splitlines() == [
        f"{here} {here} {here}",
        "True True 2",
        "None None True",
        "True None",
        "True",
    ]


@pytest.mark.parametrize(
    "low, high",
    [
        ("2.5", "2.13.0"),
        ("2.13.0", "2.13.0+cpu"),
        ("2.0.0a0", "2.0.0"),
        ("1.9", "1.10"),
        ("2.0.0.dev1", "2.0rc1"),
    ],
)
def test_versions_compare_by_number(low, high):
    old, new = TorchVersion(low), TorchVersion(high)
    assert old < high and old <= high and new > low and new >= low and old != high
    assert not old.__eq__(new)
    assert TorchVersion("2.0") == "2.0.0" and TorchVersion("2.1.0") >= (2, 1)
    assert hash(old) == hash(low)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_of_multiprocessing(tmp_path, method):
    text = """
        import multiprocessing, sys
        import torch

        def child(queue):
            import torch.nn
            queue.put((torch.__spec__.name, str(torch.__version__), torch.ones(2).tolist(), __name__))

        if __name__ == "__main__":
            context = multiprocessing.get_context(sys.argv[1])
            queue = context.Queue()
            process = context.Process(target=child, args=(queue,))
            process.start()
            print(queue.get(timeout=30))
            process.join()
    """
    main = "__main__" if method == "fork" else "__mp_main__"
    assert run(tmp_path, text, method).strip() == str(("warptape", str(TORCH_VERSION), [1.0, 1.0], main))


@pytest.mark.parametrize(
    "launch",
    [
        ["-m", "warptape.distributed.run", "--nproc-per-node=2", "-m", "warptape.torch", "ranks.py"],
        ["-m", "warptape.torch", "-m", "torch.distributed.run", "--nproc-per-node=2", "ranks.py"],
    ],
)
def test_launched_on_two_ranks(tmp_path, launch):
    (tmp_path / "ranks.py").write_text(
        "import torch, torch.distributed as dist\n"
        "dist.init_process_group('gloo')\n"
        "x = torch.ones(2)\n"
        "dist.all_reduce(x)\n"
        "import sys; sys.stdout.write(f'{torch.__spec__.name} {x.tolist()}\\n')\n"
        "dist.destroy_process_group()\n"
    )
    done = python(*launch, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("warptape [2.0, 2.0]") == 2


OBJECTS = """
import fractions
import torch.distributed as dist

def ranks():
    config = [fractions.Fraction(1, 3), {1, 2}] if dist.get_rank() == 0 else [None, None]
    dist.broadcast_object_list(config, src=0)
    found = [None, None]
    dist.all_gather_object(found, fractions.Fraction(dist.get_rank()))
    try:
        dist.all_gather_object([None, None], {1}, pickle=False)
    except TypeError:
        return config, found

if __name__ == "__main__":
    print(*dist.simulate(2, ranks), sep="; ")
"""


def test_an_installed_functorch_is_not_used(tmp_path):
    """PyTorch's wheel brings it beside torch."""
    (tmp_path / "functorch").mkdir()
    (tmp_path / "functorch" / "__init__.py").write_text("from torch._functorch.deprecated import vmap\n")
    printed = run(tmp_path, "import functorch, torch; print(functorch.vmap is torch.func.vmap)")
    assert printed.strip() == "True"


def test_objects_of_ranks_are_pickled(tmp_path):
    """As PyTorch does unasked: programs send configurations and tokenizers so."""
    right = "([Fraction(1, 3), {1, 2}], [Fraction(0, 1), Fraction(1, 1)])"
    assert run(tmp_path, OBJECTS).strip() == f"{right}; {right}"


def test_objects_of_other_hosts_are_not(tmp_path):
    """A stranger may reach gloo's ports. The rank says that it is one of a job of gloo."""
    printed = run(
        tmp_path,
        """
        import torch.distributed as dist
        from torch.distributed import objects, state

        def rank():
            state.state().backends = ("gloo", "nccl")
            for step in (objects.to_tensor, objects.from_tensor):
                try:
                    step({1} if step is objects.to_tensor else objects.to_tensor({1}, pickle=True))
                except TypeError as error:
                    print(error)

        dist.simulate(1, rank)
        """,
    )
    written, read = printed.splitlines()
    assert "travels only with pickle=True" in written and "did not say pickle=True" in read


def test_install_refuses_after_torch(tmp_path):
    (tmp_path / "torch.py").write_text("")  # stands for an installed PyTorch
    code = "import sys; sys.path.insert(0, '.'); import torch, warptape.torch; warptape.torch.install()"
    done = python("-c", code, cwd=tmp_path)
    assert done.returncode == 1
    assert "RuntimeError: warptape.torch.install: torch was imported before, from" in done.stderr
    code = "import sys; sys.path.insert(0, '.'); import warptape.torch as w; w.install(); w.install()"
    done = python(
        "-c",
        code + "; import torch; print(torch.nn, w.installed(), sys.meta_path.count(sys.meta_path[0]))",
        cwd=tmp_path,
    )
    assert "warptape.nn" in done.stdout and "True 1" in done.stdout


def test_torchvision_is_not_there(tmp_path):
    text = """
        import sys
        sys.modules["torchvision"] = None  # where it is installed for PyTorch
        try:
            import torchvision
        except ImportError as error:
            print(type(error).__name__)
    """
    assert run(tmp_path, text).strip() == "ModuleNotFoundError"


def test_einops(tmp_path):
    pytest.importorskip("einops")
    text = """
        import torch
        from einops import einsum, rearrange, reduce, repeat
        from einops.layers.torch import Rearrange, Reduce
        x = torch.arange(24.0).reshape(2, 3, 4).requires_grad_()
        means = reduce(x, "b c w -> b c", "mean")
        print(rearrange(x, "b c (h w) -> b (c h) w", h=2).shape, means.sum().item())
        print(repeat(x, "b c w -> b (r c) w", r=2).shape, einsum(x, x, "b c w, b d w -> b c d").shape)
        linear = torch.nn.Linear(12, 4)
        layer = torch.nn.Sequential(Rearrange("b c w -> b (c w)"), linear, Reduce("b c -> b", "max"))
        layer(x).sum().backward()
        print(layer[0], x.grad.shape)
    """
    assert run(tmp_path, text).splitlines() == [
        "torch.Size([2, 6, 2]) 69.0",
        "torch.Size([2, 6, 4]) torch.Size([2, 3, 3])",
        "Rearrange('b c w -> b (c w)') torch.Size([2, 3, 4])",
    ]


def test_tqdm_and_numpy(tmp_path):
    text = """
        import numpy, torch
        from tqdm import tqdm
        rows = tqdm(torch.ones(3, 2), disable=True)
        print(sum(float(row.sum()) for row in rows), numpy.asarray(torch.ones(2)))
    """
    assert run(tmp_path, text).strip() == "6.0 [1. 1.]"


def test_safetensors(tmp_path):
    text = """
        import safetensors.torch as st, torch
        from safetensors.torch import load_model, save_model
        st.save_file({"a": torch.arange(3.0)}, "x.safetensors")
        print(st.load_file("x.safetensors")["a"].tolist(), end=" ")
        print(st.load(st.save({"b": torch.ones(1)}))["b"].tolist())
        tied = lambda: torch.nn.ModuleDict({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)})
        model, other = tied(), tied()
        model["b"].weight, other["b"].weight = model["a"].weight, other["a"].weight
        save_model(model, "m.safetensors")
        print(load_model(other, "m.safetensors"), torch.equal(model["b"].weight, other["b"].weight))
        try:
            load_model(torch.nn.Linear(2, 2), "m.safetensors")
        except RuntimeError as error:
            print(error)
    """
    names = "['a.bias', 'a.weight', 'b.bias']"
    words = f"Error(s) in loading state_dict for Linear: missing ['bias', 'weight'], unexpected {names}"
    assert run(tmp_path, text).splitlines() == ["[0.0, 1.0, 2.0] [1.0]", "(set(), []) True", words]


def test_classes_name_torch_as_their_home(tmp_path):
    text = """
        import inspect, io, pickle, pickletools, typing
        import torch
        from torch import nn
        print([k.__module__ for k in (torch.Tensor, nn.Parameter, nn.Linear)])
        model = nn.Sequential(nn.Linear(2, 3), nn.MultiheadAttention(4, 2))
        print([type(m) for m in pickle.loads(pickle.dumps(model))] == [nn.Linear, nn.MultiheadAttention])
        print(pickle.loads(pickle.dumps(torch.Tensor)) is torch.Tensor)
        print(inspect.getsource(nn.Linear).startswith("class Linear"))
        print(typing.get_type_hints(nn.Linear)["training"])
        file = io.BytesIO()
        torch.save(model, file)
        print(b"ctorch.nn\\nMultiheadAttention" in file.getvalue(), b"warptape" in file.getvalue())
        file.seek(0)
        print(type(torch.load(file, weights_only=False)[1]) is nn.MultiheadAttention)
        print([n.op for n in torch.fx.symbolic_trace(nn.Sequential(nn.Linear(2, 3))).graph.nodes])
    """
    assert run(tmp_path, text).splitlines() == [
        "['torch', 'torch.nn.parameter', 'torch.nn.modules.linear']",
        "True",
        "True",
        "True",
        "<class 'bool'>",
        "True False",
        "True",
        "['placeholder', 'call_module', 'output']",
    ]
