"""What to say of PyTorch's names that are not here: which it is, and the nearest one that is."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import opcode
import os
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FrameType, ModuleType
from typing import Any

_Future = type(annotations)
_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]
# Modules of torch whose contents lie elsewhere here: programs import from them, pickles name them.
MOVED = {
    "_custom_ops": "library",
    "_C._distributed_c10d": "distributed._c10d",
    "_C._functorch": "_functorch_c",
    "_tensor_str": "_printing",
    "ao.quantization.qconfig_mapping": "ao.quantization.qconfig",
    "autograd.variable": "autograd",
    "cpu.amp": "amp.cpu",
    "distributed._composable": "distributed",
    "distributed._shard": "distributed",
    "distributed._tensor": "distributed.tensor",
    "distributed.checkpoint.metadata": "distributed.checkpoint._metadata",
    "distributed.checkpoint.state_dict_loader": "distributed.checkpoint.load",
    "distributed.checkpoint.state_dict_saver": "distributed.checkpoint.save",
    "distributed.fsdp._fully_shard": "parallel.shard",
    "distributed.fsdp.api": "parallel.shard.config",
    "distributed.fsdp.fully_sharded_data_parallel": "distributed.fsdp",
    "distributed.fsdp.wrap": "parallel.shard.wrap",
    "distributed.tensor.device_mesh": "distributed.device_mesh",
    "distributed.tensor.placement_types": "distributed.tensor",
    "nn.modules.channelshuffle": "nn.modules.shape",
    "nn.modules.flatten": "nn.modules.shape",
    "nn.modules.instancenorm": "nn.modules.batchnorm",
    "nn.modules.pixelshuffle": "nn.modules.shape",
    "nn.parallel.data_parallel": "nn.modules.data_parallel",
    "quantization": "ao.quantization",
    "testing._internal.optests": "_opcheck",
    "utils._cxx_pytree": "utils._pytree",
    "utils.model_zoo": "hub",
}
# Public modules whose files lie elsewhere in this package: by either name they are one module, so that old
# pickles are read; errors and saved files use the public name.
ROOMS = {
    "_printing": "core.printing",
    "_python_objects": "core.python_objects",
    "_unsupported_dtypes": "core.unsupported_dtypes",
    "distributions": "extras.distributions",
    "nested": "extras.nested",
    "quasirandom": "extras.quasirandom",
    "sparse": "extras.sparse",
    "utils._pytree": "core.pytree",
    "utils._pytree_files": "core.pytree_files",
    "utils._pytree_nodes": "core.pytree_nodes",
    "utils.hooks": "core.hooks",
}
MOVED |= ROOMS
# What PyTorch has and this runtime has nothing of.
_UNSUPPORTED = {
    "torch.masked": "masked tensors are",
    "torch.package": "packages of code and weights are",
    "torch.utils.data.datapipes": "data pipes are",
    "torch.utils.data.graph": "data pipes are",
    "torch.utils.data.graph_settings": "data pipes are",
}
_ELSEWHERE = ("", ".nn.functional", ".nn", ".linalg", ".Tensor", ".utils", ".nn.utils")


def torch_names() -> dict[str, list[str]]:
    """PyTorch's public names by namespace: `{"torch.nn": ["AdaptiveAvgPool1d", ..], "torch.Tensor": ..}`."""
    with open(os.path.join(os.path.dirname(__file__), "torch", "names.txt")) as file:
        return {space: names.split() for space, _, names in (line.partition(": ") for line in file)}


def module_name(name: str) -> str:
    """The module of warptape that `name`, a module of torch, stands for."""
    name = name.removeprefix("torch").removeprefix(".")
    for old, new in MOVED.items():
        if name == old or name.startswith(old + "."):
            name = new + name.removeprefix(old)
    return f"warptape.{name}".rstrip(".")


def public_name(module: str) -> str:
    """The public name of a module that lies in a room; of any other the name that it has."""
    for public, room in ROOMS.items():
        if f"{module}.".startswith(f"warptape.{room}."):
            return f"warptape.{public}{module.removeprefix(f'warptape.{room}')}"
    return module


class Alias:
    """Loads a module under a second name: it stays the one that it is."""

    def __init__(self, home: str) -> None:
        self.home = home

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """The module itself."""
        module = importlib.import_module(self.home)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it ran under its own name."""
        module.__spec__ = self._spec  # the import system has just put another there


class _Moved:
    """Finds torch's modules whose contents lie elsewhere, and what is below them, under warptape's names."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module in MOVED that has no file of its own, or of a submodule of one."""
        parent, _, child = fullname.rpartition(".")
        if not parent.startswith("warptape"):
            return None
        above = getattr(sys.modules.get(parent), "__spec__", None)
        if above is not None and above.name != parent:
            home = f"{above.name}.{child}"
        elif fullname.removeprefix("warptape.") in MOVED and PathFinder.find_spec(fullname, path) is None:
            home = module_name(fullname.removeprefix("warptape."))
        else:
            return None
        own = importlib.util.find_spec(home)
        if own is None:
            return None
        loader: Any = Alias(home)
        return ModuleSpec(
            fullname, loader, origin=own.origin, is_package=own.submodule_search_locations is not None
        )


sys.meta_path.insert(0, _Moved)  # before the one that would load a file a second time


def find(path: str) -> Any:
    """What a dotted name of torch stands for here. AttributeError or ImportError where there is nothing."""
    found: Any = sys.modules["warptape"]
    for part in path.split(".")[1:]:
        found = getattr(found, part)
    return found


def _is_public(name: str, value: Any, known: Collection[str]) -> bool:
    """Whether a name of a module or class is one to use, not one that the file itself imported."""
    if name[0] == "_" or isinstance(value, _Future):
        return False
    home = (
        value.__name__ if isinstance(value, ModuleType) else getattr(value, "__module__", None) or "warptape"
    )
    return name in known or home.startswith("warptape")


def _nearest(owner: str, name: str, is_module: bool) -> str:
    """A public name of the same kind with this spelling elsewhere, or with nearly this spelling here."""
    import difflib  # not where every program waits for them
    import pkgutil

    names = torch_names()

    def fits(space: str, candidate: str, value: Any) -> bool:
        known = names.get(space, ())
        if isinstance(value, ModuleType) != is_module and (is_module or name in known):
            return False
        return candidate[0].isupper() == name[0].isupper() and _is_public(candidate, value, known)

    for space in (f"torch{place}" for place in _ELSEWHERE if f"torch{place}" != owner):
        try:
            found = find(f"{space}.{name}")
        except (AttributeError, ImportError):
            continue
        if fits(space, name, found):
            return f"{space}.{name}"
    if name in names.get(owner, ()):
        return ""  # PyTorch's own name, not a slip
    there = find(owner)
    here = {*dir(there), *vars(type(there))}
    near = [n for n in here if hasattr(there, n) and fits(owner, n, getattr(there, n))]
    near += [m.name for m in pkgutil.iter_modules(getattr(there, "__path__", ())) if m.name[0] != "_"]
    close = difflib.get_close_matches(name, near, 1, 0.81)
    return f"{owner}.{close[0]}" if close else ""


@functools.cache
def message(owner: str, name: str, is_module: bool = False) -> str:
    """That `owner`, a module or class of warptape, has no `name`; with the nearest that there is."""
    space = "torch" + public_name(owner).removeprefix("warptape")
    text = f"warptape has no {space}.{name} yet"
    if reason := _UNSUPPORTED.get(f"{space}.{name}"):
        return f"{text}: {reason} not supported"
    near = _nearest(space, name, is_module) if name else ""
    return text + (f"; nearest: {near}" if near else "")


class _Missing(AttributeError):
    """An AttributeError that is worded when it is read: hasattr() must stay cheap."""

    def __init__(self, owner: str, name: str) -> None:
        super().__init__(obj=None)  # else Python appends a guess of its own
        self._owner, self._name = owner, name

    def __str__(self) -> str:
        return message(self._owner, self._name)

    def __reduce__(self) -> tuple[Any, ...]:
        return AttributeError, (str(self),)


_Missing.__module__, _Missing.__qualname__ = "builtins", "AttributeError"  # as tracebacks show it


def _imports_from(frame: FrameType) -> bool:
    return frame.f_lasti >= 0 and frame.f_code.co_code[frame.f_lasti] == _IMPORT_FROM


def install_getattr(owner: str, **computed: Callable[[], Any]) -> None:
    """Gives a module the `__getattr__` that imports its submodules on first use and says what is missing.

    `computed` has what else to answer, by name: the value is what the function returns. A module that assigns
    its `__getattr__` has every name, as type checkers see it; hence this function.
    """

    def __getattr__(name: str) -> Any:
        if name in computed:
            return computed[name]()
        module = module_name(f"{owner.removeprefix('warptape')}.{name}".lstrip("."))
        if not name.startswith("__") and (
            module != f"{owner}.{name}" or hasattr(sys.modules[owner], "__path__")
        ):
            if importlib.util.find_spec(module) is not None:
                found = importlib.import_module(module)
                return vars(sys.modules[owner]).setdefault(name, found)  # one that lies elsewhere, too
        if not name.startswith("__") and _imports_from(sys._getframe(1)):
            raise ImportError(message(owner, name), name=owner)
        raise _Missing(owner, name)

    sys.modules[owner].__getattr__ = __getattr__  # type: ignore[method-assign]


def unusable(path: str, reason: str) -> Any:
    """A class that stands for `path` of torch where libraries import it or test for it.

    To make one, or to call the function that it stands for, raises NotImplementedError with the reason.
    """

    def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError(f"{path}: {reason}")

    home, _, name = path.rpartition(".")
    parts = {"__new__": refuse, "__module__": home, "__doc__": f"Not supported: {reason}."}
    return type(name, (), {**parts, "__class_getitem__": classmethod(lambda cls, item: cls)})


_said: set[str] = set()
_always = False


def set_warn_always(b: bool, /) -> None:
    """Whether warnings that come once in a process come each time; False by default."""
    global _always
    _always = bool(b)


def is_warn_always_enabled() -> bool:
    """What set_warn_always() was given."""
    return _always


def say_once(text: str, stacklevel: int = 3) -> None:
    """Warns of something that has no effect here, or is no good, once in a process."""
    if _always or text not in _said:
        _said.add(text)
        warnings.warn(text, stacklevel=stacklevel)


class _Absent:
    """Stands in a class for an attribute that PyTorch's has: a `__getattr__` would slow down all others."""

    def __init__(self, owner: str, name: str) -> None:
        self._owner, self._name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        raise _Missing(self._owner, self._name)


def mark_absent(cls: type, path: str) -> None:
    """Gives `cls`, which torch has as `path`, words for the attributes that it lacks."""
    for name in torch_names()[path]:
        if not hasattr(cls, name):
            setattr(cls, name, _Absent("warptape" + path.removeprefix("torch"), name))


class _Functorch(MetaPathFinder):
    """Finds `functorch`, a package of PyTorch's wheel, where no other finder does."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname != "functorch":
            return None
        loader: Any = Alias(module_name(fullname))
        return ModuleSpec(fullname, loader)


sys.meta_path.append(_Functorch())
