"""The import hook behind `warptape.torch`: torch.x.y is warptape.x.y, the same object."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import multiprocessing.spawn
import sys
from collections.abc import Iterable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from warptape import core as wt
from warptape import nn, version
from warptape.core.namespaces import return_types

from .._missing import MOVED, Alias, message, module_name
from ..core import offer, offered
from .names.torch_version import TorchVersion

# What version checks read: the PyTorch whose names, defaults and errors these are.
TORCH_VERSION = TorchVersion(f"2.13.0+warptape{version.__version__}")


_SAFETENSORS = "safetensors.torch"  # is written for PyTorch's storages; the same functions are here


def _own(name: str) -> str:
    return "warptape.utils.safetensors" if name == _SAFETENSORS else module_name(name)


class _Alias(Alias, Loader):
    """Hands out the module of warptape in place of a new one."""

    def get_code(self, fullname: str) -> Any:
        """For `python -m torch.distributed.run`."""
        spec: Any = importlib.util.find_spec(_own(fullname))
        return spec.loader.get_code(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        name = module.__spec__.name if module.__spec__ else ""
        super().exec_module(module)
        _keep_names(name, module)


def _keep_names(name: str, module: ModuleType) -> None:
    """Lets the names that torch.x has stay what they are when a submodule of that name is imported:
    torch.autograd.gradcheck is a function, and an import would bind the module in its place.
    """
    home = module.__spec__.name if module.__spec__ else module.__name__
    children = {n.rpartition(".")[2] for n in [*sys.modules] if n.rpartition(".")[0] == home}
    moved = (f"torch.{n}" for n in MOVED)
    children.update(n.rpartition(".")[2] for n in moved if n.rpartition(".")[0] == name)
    for child in children:
        loaded = sys.modules.get(module_name(f"{name}.{child}"))
        if loaded is not None and not isinstance(vars(module).get(child, loaded), ModuleType):
            sys.modules.setdefault(f"{name}.{child}", loaded)


class _Distribution(importlib.metadata.Distribution):
    """What importlib.metadata says of torch: libraries look for its version there."""

    def read_text(self, filename: str) -> str | None:
        return f"Name: torch\nVersion: {TORCH_VERSION}\n" if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return importlib.metadata.distribution("warptape").locate_file(path)


class _Finder(MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        # functorch is a package of PyTorch's wheel: an installed one would import torch's insides.
        if fullname not in ("torch", "functorch", _SAFETENSORS) and not fullname.startswith("torch."):
            return None
        own = importlib.util.find_spec(_own(fullname))
        if own is not None:
            return ModuleSpec(
                fullname,
                _Alias(_own(fullname)),
                origin=own.origin,
                is_package=own.submodule_search_locations is not None,
            )
        # An import fails with more words; who only asks (importlib.util.find_spec) gets None.
        if sys._getframe(2).f_code.co_name == "_find_and_load_unlocked":
            parent, _, name = _own(fullname).rpartition(".")
            raise ModuleNotFoundError(message(parent, name, True), name=fullname)
        return None

    def find_distributions(self, context: Any = None) -> Iterable[importlib.metadata.Distribution]:
        return [_Distribution()] if context is not None and context.name == "torch" else []


def installed() -> bool:
    """Whether `import torch` gives warptape in this process."""
    return any(isinstance(finder, _Finder) for finder in sys.meta_path)


def install() -> None:
    """From here on `import torch` gives warptape, in this process and in those that multiprocessing starts.

    `torch.__version__` (and with it `warptape.__version__`) then names the PyTorch that is stood in for, and
    the module's `__name__` is "torch": libraries compare it with how they import it. Tensors, parameters and
    modules of nn and named results say that torch's modules define them, by which libraries tell them from
    other objects. Among ranks of one host collectives pickle objects that are not plain, as PyTorch does.

    Raises:
        RuntimeError: PyTorch itself was imported before.
    """
    if installed():
        return
    root = offered("root")
    if sys.modules.get("torch", root) is not root:
        raise RuntimeError(
            "warptape.torch.install: torch was imported before, from "
            f"{getattr(sys.modules['torch'], '__file__', 'an unknown place')}; call install() first, or in a "
            "new process"
        )
    sys.meta_path.insert(0, _Finder())
    root.__version__ = version.__version__ = TORCH_VERSION
    root.__name__ = "torch"
    offer("unmodified program", lambda: True)
    multiprocessing.spawn.get_preparation_data = _prepare_with_install
    wt.Tensor.__module__ = "torch"
    for value in [*vars(nn).values()]:
        if isinstance(value, type) and value.__module__.startswith("warptape.nn."):
            name = f"torch{value.__module__.removeprefix('warptape')}"
            sys.modules.setdefault(name, sys.modules[value.__module__])  # annotations are read there
            value.__module__ = name
    for value in vars(return_types).values():
        if isinstance(value, type):
            value.__module__ = "torch.return_types"


class _Install:
    """An object that installs the finder where it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return install, ()


_prepare = multiprocessing.spawn.get_preparation_data


def _prepare_with_install(name: str) -> dict[str, Any]:
    # The first that a child of "spawn" or "forkserver" unpickles, before it imports the program.
    return {"warptape": _Install(), **_prepare(name)}
