"""GraphModule: a module whose forward is generated from a graph."""

from __future__ import annotations

import copy
import itertools
import linecache
import types
import weakref
from typing import Any

from warptape import _C, nn
from warptape.core import Tensor

from .graph import Graph, PythonCode, _fetch, _has_attr

__all__ = ["GraphModule"]

_numbers = itertools.count()


def _compile(code: PythonCode) -> types.FunctionType:
    """The function `forward` of generated source; tracebacks and inspect find its lines."""
    file = f"<eval_with_key>.{next(_numbers)}"
    namespace = dict(code.globals)
    exec(compile(code.src, file, "exec", dont_inherit=True), namespace)
    # Without a time: checkcache() keeps such entries.
    linecache.cache[file] = (len(code.src), None, code.src.splitlines(True), file)
    forward = namespace.pop("forward")
    weakref.finalize(forward, linecache.cache.pop, file, None)
    return forward


def _assign(to: nn.Module, name: str, value: object, persistent: bool = True) -> None:
    """Sets an attribute; tensors become buffers."""
    if isinstance(value, Tensor) and not isinstance(value, nn.Parameter):
        to.register_buffer(name, value, persistent)
    else:
        setattr(to, name, value)


def _enter(to: nn.Module, name: str) -> nn.Module:
    """The submodule of this name, an empty one where there is none."""
    if not hasattr(to, name):
        to.add_module(name, nn.Module())
    return getattr(to, name)


def _copy_attr(root: nn.Module, to: nn.Module, target: str) -> None:
    """Gives `to` what `root` has by a dotted name, unless a module that they share has it."""
    *path, name = target.split(".")
    for part in path:
        root, to = getattr(root, part), _enter(to, part)
        if root is to:
            return
    _assign(to, name, getattr(root, name), name not in getattr(root, "_non_persistent_buffers_set", ()))


_USER_PRESERVED_ATTRIBUTES_KEY = "_user_preserved_attributes"  # of a module's `meta`


class _CodeOnlyModule(nn.Module):
    """A module with the attributes given: what subclasses of GraphModule copy themselves from."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__()
        self.__dict__ = body


def _rebuild(cls: type[GraphModule], state: dict[str, Any], graph: Graph) -> GraphModule:
    module = cls.__new__(cls)
    module.__setstate__(state)
    module.graph = graph
    return module


class GraphModule(nn.Module):
    """A module that runs a graph. After a change of `graph` call `recompile()`.

    Args:
        root: what the parameters, buffers and submodules that the graph names are taken from: a module, or
            a dict by their dotted names.
        graph: the steps.
        class_name: what printing calls the module.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> GraphModule:  # noqa: D102
        # forward belongs to a class, and each module has its own: so each has a class of its own.
        base = next(c for c in cls.__mro__ if "_is_made" not in vars(c))
        made_class = type(base.__name__, (base,), {"__module__": base.__module__, "_is_made": True})
        module: Any = super().__new__(made_class)
        if args and "_is_made" in vars(cls):  # type(module)(..): Python initializes only what is of `cls`
            module.__init__(*args, **kwargs)
        return module

    def __init__(
        self, root: nn.Module | dict[str, Any], graph: Graph, class_name: str = "GraphModule"
    ) -> None:
        super().__init__()
        type(self).__name__ = class_name
        targets = list(dict.fromkeys(n.target for n in graph.nodes if n.op in ("get_attr", "call_module")))
        if isinstance(root, nn.Module):
            self.training = getattr(root, "training", True)
            for target in targets:
                _copy_attr(root, self, target)
        elif isinstance(root, dict):
            for node in graph.nodes:
                if node.op in ("get_attr", "call_module") and node.target not in root:
                    raise RuntimeError(
                        f"Node {node} referenced target {node.target} but that target was not provided in "
                        "``root``!"
                    )
            for target in sorted(targets, key=lambda target: target.count(".")):
                *path, name = target.split(".")
                owner: nn.Module = self
                for part in path:
                    owner = _enter(owner, part)
                _assign(owner, name, root[target])
        else:
            raise RuntimeError(f"Unsupported type {root} passed for root!")
        self.meta: dict[str, Any] = {}
        self.graph = graph

    @property
    def graph(self) -> Graph:
        """The Graph that forward runs; assigning one makes the code anew."""
        return self._graph

    @graph.setter
    def graph(self, g: Graph) -> None:
        if not isinstance(g, Graph):
            raise AssertionError(f"Expected a Graph instance, but got {type(g)}")
        self._graph = g
        g.owning_module = self
        self.recompile()

    @property
    def code(self) -> str:
        """The source of forward."""
        return self._code

    def recompile(self) -> PythonCode:
        """Makes forward follow the graph.

        Call it after the graph was changed.
        """
        if (info := self._graph._pytree_info) is not None:
            self._in_spec, self._out_spec = info.in_spec, info.out_spec
        code = self._graph.python_code("self")
        self._code = code.src
        type(self).forward = _compile(code)  # type: ignore[method-assign]
        _C._module_changed()
        return code

    # --- submodules ---

    def add_submodule(self, target: str, m: nn.Module) -> bool:
        """Adds a module by its dotted name; False where something else is on the way.

        Args:
            target: as "block.norm".
            m: what is added.
        """
        to: Any = self
        *path, name = target.split(".")
        for part in path:
            to = _enter(to, part)
            if not isinstance(to, nn.Module):
                return False
        to.add_module(name, m)
        return True

    def delete_submodule(self, target: str) -> bool:
        """Takes out a module by its dotted name; False where there is none.

        Args:
            target: as "block.norm".
        """
        path, _, name = target.rpartition(".")
        if not _has_attr(self, target):
            return False
        owner = _fetch(self, path) if path else self
        if not isinstance(owner, nn.Module) or not isinstance(getattr(owner, name), nn.Module):
            return False
        delattr(owner, name)
        return True

    def delete_all_unused_submodules(self) -> None:
        """Takes out the modules that the graph neither calls nor reads from."""
        used: set[str] = set()
        for node in self.graph.nodes:
            if node.op in ("call_module", "get_attr"):
                parts = node.target.split(".")
                used.update(".".join(parts[:end]) for end in range(1, len(parts) + 1))
            if node.op == "call_module" and _has_attr(self, node.target):
                inner = _fetch(self, node.target).named_modules(remove_duplicate=False)
                used.update(f"{node.target}.{name}" for name, _ in inner)
        for name in [name for name, _ in self.named_modules(remove_duplicate=False)]:
            if name and name not in used:
                self.delete_submodule(name)

    # --- text, copies ---

    def print_readable(self, print_output: bool = True) -> str:
        """The module as a class, with notes where its steps were recorded; printed unless told not to.

        Args:
            print_output: whether it is printed.
        """
        source = self._graph.python_code("self", verbose=True).src.strip("\n").rstrip()
        text = f"class {self._get_name()}(torch.nn.Module):\n{_indent(source)}\n"
        for name, child in self.named_children():
            if isinstance(child, GraphModule):
                inner = child.print_readable(print_output=False)
                text += "\n" + _indent(inner.replace(f"class {child._get_name()}(", f"class {name}(", 1))
        if print_output:
            print(text)
        return text

    def __str__(self) -> str:
        hint = "# To see more debug info, please use `graph_module.print_readable()`"
        return "\n".join([super().__repr__(), self._code, hint])

    def __copy__(self) -> GraphModule:
        copied = GraphModule(self, self.graph)
        copied.meta = copy.copy(self.meta)
        return copied

    def __reduce__(self) -> tuple[Any, ...]:
        state = dict(self.__dict__)
        graph = state.pop("_graph")
        return _rebuild, (type(self).__mro__[1], state, graph)


def _indent(text: str) -> str:
    return "".join(f"    {line}" if line.strip() else line for line in text.splitlines(True))
