"""What to say of PyTorch's names that are not here: which it is, and the nearest one that is."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import opcode
import os
import sys
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FrameType, ModuleType
from typing import Any, Protocol

_Future = type(annotations)
_IMPORT_FROM = opcode.opmap["IMPORT_FROM"]
_OWN = "warptape.torch"  # the wing that has the tables: it has no names of torch itself
# Modules of torch whose contents lie elsewhere here: programs import from them, pickles name them.
MOVED = {
    "_custom_ops": "library",
    "_C._distributed_c10d": "distributed._c10d",
    "_C._functorch": "_functorch_c",
    "_tensor_str": "_printing",
    "ao.quantization.qconfig_mapping": "ao.quantization.qconfig",
    "autograd.variable": "autograd",
    "cpu.amp": "amp.cpu",
    "distributed._composable.fsdp": "distributed.fsdp",
    "distributed._composable.replicate_with_fsdp": "parallel.shard",
    "distributed._mesh_layout": "distributed.mesh_layout",
    "distributed._shard": "distributed",
    "distributed._tensor": "distributed.tensor",
    "distributed.checkpoint.metadata": "distributed.checkpoint._metadata",
    "distributed.checkpoint.state_dict_loader": "distributed.checkpoint.load",
    "distributed.checkpoint.state_dict_saver": "distributed.checkpoint.save",
    "distributed.fsdp._fully_shard": "parallel.shard",
    "distributed.fsdp.fully_sharded_data_parallel": "distributed.fsdp",
    "distributed.tensor.device_mesh": "distributed.device_mesh",
    "distributed.tensor.placement_types": "distributed.tensor",
    "nn.modules.channelshuffle": "nn.modules.shape",
    "nn.modules.flatten": "nn.modules.shape",
    "nn.modules.instancenorm": "nn.modules.batchnorm",
    "nn.modules.pixelshuffle": "nn.modules.shape",
    "nn.parallel.data_parallel": "nn.modules.data_parallel",
    "parallel.shard.config": "distributed.fsdp.api",
    "parallel.shard.wrap": "distributed.fsdp.wrap",
    "parallel.shard.wrapper": "distributed.fsdp.wrapper",
    "quantization": "ao.quantization",
    "testing._internal.optests": "library.opcheck",
    "utils._cxx_pytree": "utils._pytree",
    "utils.model_zoo": "hub",
}
# Public modules whose files lie elsewhere in this package: by either name they are one module, so that old
# pickles are read; errors and saved files use the public name.
ROOMS = {
    "_aten": "library.aten",
    "_builtin_ops": "library.builtin_ops",
    "_conditions": "torch.conditions",
    "_control_flow": "compiler.control_flow",
    "_dispatch": "torch.dispatch_keys",
    "_dynamo.eval_frame": "compiler.eval_frame",
    "_functions": "core.functions",
    "_graph_layout": "tools.graph_layout",
    "_graphs": "compiler.graphs",
    "_higher_order_ops": "compiler.higher_order_ops",
    "_interchange": "core.interchange",
    "_legacy": "core.legacy",
    "_lobpcg": "extras.lobpcg",
    "_logging": "core.logs",
    "_op_docs": "core.op_docs",
    "_op_schema": "library.op_schema",
    "_opcheck": "library.opcheck",
    "_ops": "library.ops",
    "_printing": "core.printing",
    "_python_objects": "core.python_objects",
    "_streams": "core.streams",
    "_tensor": "core.tensor_class",
    "_unsupported_dtypes": "core.unsupported_dtypes",
    "ao.quantization._tensor": "core.coded",
    "autograd.grad_mode": "core.grad_mode",
    "distributed.elastic.multiprocessing.errors": "distributed.launcher.errors",
    "distributions._gamma": "extras.distributions.standard_gamma",  # before its package
    "distributions": "extras.distributions",
    "doctor": "tools.doctor",
    "export": "compiler.export",
    "fft": "core.namespaces.fft",
    "futures": "core.futures",
    "fx": "compiler.fx",
    "graph_drawing": "tools.graph_drawing",
    "jit": "compiler.jit",
    "linalg": "core.namespaces.linalg",
    "masked": "core.namespaces.masked",
    "nested": "extras.nested",
    "nn.utils.rnn": "nn.packed_sequence",
    "onnx": "compiler.onnx",
    "overrides": "core.overrides",
    "profiler": "tools.profiler",
    "quasirandom": "extras.quasirandom",
    "random": "core.random",
    "return_types": "core.namespaces.return_types",
    "sparse": "extras.sparse",
    "special": "core.namespaces.special",
    "storage": "core.storage",
    "types": "core.types",
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
_WING = "torch.names"
_ELSEWHERE = ("", ".nn.functional", ".nn", ".linalg", ".Tensor", ".utils", ".nn.utils")


def torch_names() -> dict[str, list[str]]:
    """PyTorch's public names by namespace: `{"torch.nn": ["AdaptiveAvgPool1d", ..], "torch.Tensor": ..}`."""
    with open(os.path.join(os.path.dirname(__file__), "torch", "names.txt")) as file:
        return {space: names.split() for space, _, names in (line.partition(": ") for line in file)}


def _exists(name: str) -> bool:
    place = os.path.join(os.path.dirname(__file__), *name.split("."))
    return os.path.exists(f"{place}.py") or os.path.exists(os.path.join(place, "__init__.py"))


@functools.cache
def wing() -> dict[str, str]:
    """Modules that are there for PyTorch's names alone, by public name: they lie in torch/names."""
    top = os.path.join(os.path.dirname(__file__), *_WING.split("."))
    found = {}
    for folder, _, files in os.walk(top):
        for file in files:
            if file.endswith(".py"):
                name = os.path.relpath(os.path.join(folder, file[:-3]), top).replace(os.sep, ".")
                name = name.removesuffix("__init__").removesuffix(".")
                if name and name not in MOVED and not _exists(name):
                    found[name] = f"{_WING}.{name}"
    return found


def _wing_part(name: str) -> str:
    """The longest module of the wing that a dotted name starts with."""
    while name and name not in wing():
        name = name.rpartition(".")[0]
    return name


def module_name(name: str) -> str:
    """The module of warptape that `name`, a module of torch, stands for."""
    name = "" if name == "torch" else name.removeprefix("torch.")
    for old, new in MOVED.items():
        if (name == old or name.startswith(old + ".")) and len(_wing_part(name)) < len(old):
            name = new + name.removeprefix(old)
    part = _wing_part(name)
    return f"warptape.{wing().get(part, '')}{name.removeprefix(part)}".rstrip(".")


@functools.cache
def public_name(module: str) -> str:
    """The public name of a module that lies in a room; of any other the name that it has."""
    if module.startswith(f"warptape.{_WING}."):
        return f"warptape{module.removeprefix(f'warptape.{_WING}')}"
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
        # Else the import system would load them here, and put them in place of functions of their names.
        for name, below in list(sys.modules.items()):
            if name.startswith(f"{self.home}."):
                sys.modules.setdefault(f"{spec.name}{name.removeprefix(self.home)}", below)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Nothing: it ran under its own name."""
        module.__spec__ = self._spec  # the import system has just put another there

    def get_code(self, fullname: str) -> Any:
        """For `python -m` with the second name."""
        spec: Any = importlib.util.find_spec(self.home)
        return spec.loader.get_code(spec.name)


class _AliasSpec(ModuleSpec):
    """The spec of a second name; a program that `python -m` runs by it imports relative to its home."""

    @property
    def parent(self) -> str:
        """The package that the module lies in."""
        home = self.loader.home  # type: ignore[union-attr]
        return home if self.submodule_search_locations is not None else home.rpartition(".")[0]


def _has_file(spec: ModuleSpec | None) -> bool:
    return spec is not None and spec.origin is not None  # not a folder of stubs alone


class _Moved:
    """Finds torch's modules whose contents lie elsewhere, and what is below them, under warptape's names."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module in MOVED that has no file of its own, or of a submodule of one."""
        parent, _, child = fullname.rpartition(".")
        if not parent.startswith("warptape"):
            return None
        above: str = getattr(getattr(sys.modules.get(parent), "__spec__", None), "name", parent)
        below_alias = above != parent
        public = fullname.removeprefix("warptape.")
        if (public in MOVED or public in wing()) and (
            below_alias or not _has_file(PathFinder.find_spec(fullname, path))
        ):
            home = module_name(public)
        elif below_alias:
            same = f"{public_name(above)}.{child}"
            home = f"{above}.{child}" if same == fullname else same
        else:
            return None
        own = importlib.util.find_spec(home)
        if own is None:
            return None
        loader: Any = Alias(home)
        return _AliasSpec(
            fullname, loader, origin=own.origin, is_package=own.submodule_search_locations is not None
        )


def _stands_for_torch(name: str) -> bool:
    """Whether programs import a module as one of torch: of the wing those that are there for names alone."""
    if not f"{name}.".startswith(f"{_OWN}."):
        return True
    return name.removeprefix(f"warptape.{_WING}.") in wing()


class _Loader(SourceFileLoader):
    """Loads a module of the package, which then says what it does not have."""

    def exec_module(self, module: ModuleType) -> None:
        """Runs the file; a module that has a `__getattr__` keeps its own."""
        super().exec_module(module)
        if "__getattr__" not in vars(module) and _stands_for_torch(module.__name__):
            install_getattr(module.__name__)


class _Sources:
    """Finds the package's files as the import system does, and has them loaded so."""

    @staticmethod
    def find_spec(fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the package."""
        if not fullname.startswith("warptape."):
            return None
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(spec.loader.name, spec.loader.path)
        return spec


# _Moved before the one that would load a file a second time.
sys.meta_path[:0] = [_Moved, _Sources]


def find(path: str) -> Any:
    """What a dotted name of torch stands for here. AttributeError or ImportError where there is nothing."""
    place: Any = sys.modules[__name__.partition(".")[0]]  # the root serves torch's own names
    for part in path.split(".")[1:]:
        place = getattr(place, part)
    return place


def _is_public(name: str, value: object, known: Collection[str]) -> bool:
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

    def fits(space: str, candidate: str, value: object) -> bool:
        known = names.get(space, ())
        if isinstance(value, ModuleType) != is_module and (is_module or name in known):
            return False
        return candidate[0].isupper() == name[0].isupper() and _is_public(candidate, value, known)

    for space in (f"torch{place}" for place in _ELSEWHERE if f"torch{place}" != owner):
        try:
            nearest = find(f"{space}.{name}")
        except (AttributeError, ImportError):
            continue
        if fits(space, name, nearest):
            return f"{space}.{name}"
    if name in names.get(owner, ()):
        return ""  # PyTorch's own name, not a slip
    there = find(owner)
    here = {*dir(there), *vars(type(there))}
    near = [n for n in here if hasattr(there, n) and fits(owner, n, getattr(there, n))]
    modules = [m.name for m in pkgutil.iter_modules(getattr(there, "__path__", ()))]
    package = owner.partition(".")[2]
    modules += [
        child for parent, _, child in (m.rpartition(".") for m in {*MOVED, *wing()}) if parent == package
    ]
    near += [module for module in modules if module[0] != "_"]
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


class Listed(Protocol):
    """Names of PyTorch that tables have, and no module of the house: `warptape.torch.listed`."""

    def value(self, key: str) -> Any:
        """What a name of a module stands for. KeyError where no table has it."""
        ...

    @property
    def Finder(self) -> type[MetaPathFinder]:
        """What finds the modules."""
        ...


# Modules here that are packages in PyTorch, by the tables: `from module import name` asks each module for its
# `__path__`, which must not load the tables.
_PACKAGES = {
    "warptape.core.logs",
    "warptape.torch.names.accelerator",
    "warptape.torch.names.distributed.rpc",
    "warptape.torch.names.distributed.tensor.parallel",
    "warptape.torch.names.mps",
    "warptape.utils.benchmark",
}
_ABSENT = object()
_load_listed: list[Callable[[], Listed]] = []


def offer_listed(load: Callable[[], Listed]) -> None:
    """Registers where names are looked for that no module has; `load` is called at the first of them."""
    _load_listed[:] = [functools.cache(load)]


def _listed() -> Listed:
    return _load_listed[0]()


def listed_value(key: str, default: object = None) -> Any:
    """What a name of a module of the package stands for by the tables, else `default`."""
    try:
        return _listed().value(key)
    except KeyError:
        return default


class _ListedModules(MetaPathFinder):
    """Finds modules that only tables have, after all others have looked."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("warptape.") or not _load_listed or fullname.startswith(f"{_OWN}.listed"):
            return None
        return _listed().Finder().find_spec(fullname, path, target)


class _Package(ModuleType):
    """A package with late names, of which some are names of its modules, too: a function in its file."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and vars(self)["_late"].get(name) == name:
            value = getattr(value, name)  # an import has just put the module there
        super().__setattr__(name, value)


def install_getattr(
    owner: str, late: Mapping[str, str] | None = None, /, **computed: Callable[[], Any]
) -> None:
    """Gives a module the `__getattr__` that imports its submodules on first use and says what is missing.
    Each module of the package gets it when it is loaded; those with names to answer for call this.

    `late` has names of a package by the module of it that has them, which is imported when one is first asked
    for: `{"adam": "Adam adam"}`. `computed` has what else to answer, by name: the value is what the function
    returns.

    A module that assigns its `__getattr__` has every name, as type checkers see it; hence this function.
    """
    home = sys.modules[owner]
    homes = {name: module for module, names in (late or {}).items() for name in names.split()}

    def __getattr__(name: str) -> Any:
        if name in computed:
            return computed[name]()
        if name in homes:
            value = getattr(importlib.import_module(f"{owner}.{homes[name]}"), name)
            return vars(home).setdefault(name, value)
        public = f"{public_name(owner)}.{name}"
        module = module_name(public.removeprefix("warptape."))
        if not name.startswith("__") and (
            module not in (f"{owner}.{name}", public) or "__path__" in vars(home)
        ):
            if importlib.util.find_spec(module) is not None:
                value = importlib.import_module(module)
                return vars(home).setdefault(name, value)  # one that lies elsewhere, too
        if name == "__path__" and owner in _PACKAGES:
            return []
        if not name.endswith("__") and (value := listed_value(f"{owner}.{name}", _ABSENT)) is not _ABSENT:
            return vars(home).setdefault(name, value)
        if not name.startswith("__") and _imports_from(sys._getframe(1)):
            raise ImportError(message(owner, name), name=owner)
        raise _Missing(owner, name)

    home.__getattr__ = __getattr__  # type: ignore[method-assign]
    if homes:
        vars(home)["_late"] = homes
        home.__class__ = _Package
        home.__dir__ = lambda: sorted({*vars(home), *homes})  # type: ignore[method-assign]


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

    def __get__(self, instance: object, owner: type) -> Any:
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


sys.meta_path += [_Functorch(), _ListedModules()]
