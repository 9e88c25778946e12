"""Writes python/warptape/torch/names.txt, PyTorch's public names by namespace, from an installed PyTorch.

A name counts as public where its module's `__all__` has it (or, without one, where it was defined under the
same namespace) and as documented unless it is a function without a docstring.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

OUT = Path(__file__).resolve().parents[1] / "python" / "warptape" / "torch" / "names.txt"
MODULES = """
torch torch.nn torch.nn.functional torch.nn.init torch.nn.utils torch.nn.utils.rnn
torch.nn.utils.parametrize torch.nn.utils.parametrizations torch.nn.attention
torch.nn.attention.flex_attention torch.nn.attention.varlen torch.nn.parallel torch.optim
torch.optim.lr_scheduler
torch.optim.swa_utils torch.utils torch.utils.data torch.utils.checkpoint torch.utils._pytree
torch.utils.tensorboard torch.utils.dlpack torch.utils.cpp_extension torch.autograd
torch.autograd.functional torch.autograd.graph torch.autograd.profiler torch.amp torch.cuda torch.cuda.amp
torch.cuda.nvtx torch.cuda.memory torch.backends torch.backends.cpu torch.backends.cuda torch.backends.cudnn
torch.backends.mps torch.backends.mkl torch.backends.mkldnn torch.backends.openmp torch.linalg torch.fft
torch.special torch.distributions torch.distributed torch.distributed.optim torch.distributed.fsdp
torch.distributed.tensor torch.distributed.tensor.parallel torch.distributed.checkpoint
torch.distributed.checkpoint.state_dict torch.distributed.pipelining torch.distributed.device_mesh
torch.distributed.elastic torch.distributed.rpc torch.distributed.algorithms._checkpoint.checkpoint_wrapper
torch.jit torch.compiler torch.func torch.library torch.profiler torch.random torch.version
torch.multiprocessing torch.hub torch.fx torch.sparse torch.nested torch.export torch.ao.quantization
torch.onnx torch.overrides torch.testing torch.futures torch.storage torch.serialization torch.types
torch.cpu torch.mps torch.xpu torch.accelerator torch.masked torch.monitor torch.package torch.return_types
"""
CLASSES = """
torch.Tensor torch.nn.Module torch.optim.Optimizer torch.autograd.Function torch.utils.data.DataLoader
torch.Generator torch.device torch.dtype torch.Size torch.cuda.Event torch.cuda.Stream
torch.autograd.function.FunctionCtx
"""
CONTEXT = ["needs_input_grad", "saved_tensors"]


def documented(value: Any) -> bool:
    internal = type(value).__name__ == "pybind11_type"
    return not (internal or inspect.isroutine(value)) or bool(value.__doc__)


def beside_the_list(module: ModuleType) -> Iterator[str]:
    """What the documentation of torch has and its `__all__` forgets."""
    constants = {"dtype", "layout", "memory_format", "qscheme", "tensortype"}
    for name, value in vars(module).items():
        if type(value).__name__ in constants or (inspect.isroutine(value) and inspect.getdoc(value)):
            yield name


def names_of_module(module: ModuleType) -> Iterator[str]:
    listed = getattr(module, "__all__", None)
    if module.__name__ == "torch":
        listed = sorted({*module.__all__, *beside_the_list(module)})
    for name in listed if listed else [n for n in vars(module) if not n.startswith("_")]:
        value = getattr(module, name, None)
        home = getattr(value, "__module__", None) or module.__name__
        foreign = not listed and callable(value) and not home.startswith((module.__name__, "torch._C"))
        if not name.startswith("_") and not inspect.ismodule(value) and not foreign and documented(value):
            yield name


def names_of_class(cls: type) -> Iterator[str]:
    for name in dir(cls):
        if not name.startswith("_") and documented(getattr(cls, name, None)):
            yield name
    yield from getattr(cls, "__annotations__", {})


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for path in MODULES.split():
        try:
            module = importlib.import_module(path)
        except ImportError as error:
            print(f"{path}: {error}")
            continue
        found[path] = sorted(set(names_of_module(module)))
    for path in CLASSES.split():
        owner, _, name = path.rpartition(".")
        found[path] = sorted(set(names_of_class(getattr(importlib.import_module(owner), name))))
    found["torch.autograd.function.FunctionCtx"] += CONTEXT
    OUT.write_text("".join(f"{path}: {' '.join(names)}\n" for path, names in found.items() if names))
    print(f"{OUT}: {sum(map(len, found.values()))} names of {len(found)} namespaces")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
