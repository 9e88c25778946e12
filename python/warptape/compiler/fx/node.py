"""Node: one step of a graph, which knows what it takes and who takes it."""

from __future__ import annotations

import builtins
import operator
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar, cast

from warptape import core as wt
from warptape.nn import functional

from ... import _missing, nn
from ...core import offered, python_objects
from ...core.overrides import resolve_name
from .immutable_collections import immutable_dict, immutable_list

__all__ = ["Argument", "Node", "Target", "has_side_effect", "map_aggregate", "map_arg"]

Argument: TypeAlias = Any
Target: TypeAlias = Any
base_types = (str, int, float, bool, complex, wt.dtype, wt.Tensor, wt.device, type(None), type(...))
_OPS = (type(wt.add), type(wt.Tensor.__getitem__))
_LEGAL_OPS = ("placeholder", "call_method", "call_module", "call_function", "get_attr", "output", "root")
_side_effectful_functions: set[Any] = {
    python_objects._assert,
    operator.setitem,
    *(wt.rand, wt.randn, wt.randint, wt.randperm, wt.normal, wt.bernoulli),
    *(wt.rand_like, wt.randn_like, wt.randint_like, wt.multinomial, wt.poisson),
}
F = TypeVar("F", bound=Callable[..., Any])


def has_side_effect(fn: F) -> F:
    """Decorator: calls of this function are kept where nothing uses their results.

    Args:
        fn: a function.
    """
    _side_effectful_functions.add(fn)
    return fn


def map_aggregate(a: Argument, fn: Callable[[Argument], Argument]) -> Argument:
    """`a` with fn(x) in place of every x within its tuples, lists, dicts and slices.

    Args:
        a: nested containers.
        fn: of what is in them.

    >>> from warptape.fx.node import map_aggregate
    >>> map_aggregate((1, [2, {"a": 3}]), lambda x: x + 1)
    (2, [3, {'a': 4}])
    """
    if isinstance(a, tuple):
        items = [map_aggregate(x, fn) for x in a]
        return type(a)(*items) if hasattr(a, "_fields") else tuple(items)
    if isinstance(a, list):
        return immutable_list(map_aggregate(x, fn) for x in a)
    if isinstance(a, dict):
        return immutable_dict((key, map_aggregate(x, fn)) for key, x in a.items())
    if isinstance(a, slice):
        return slice(*(map_aggregate(x, fn) for x in (a.start, a.stop, a.step)))
    return fn(a)


def map_arg(a: Argument, fn: Callable[[Node], Argument]) -> Argument:
    """`a` with fn(node) in place of every node within it.

    Args:
        a: nested containers.
        fn: of a node.
    """
    if not callable(fn):
        raise AssertionError("torch.fx.map_arg(a, fn): fn must be a callable")
    return map_aggregate(a, lambda x: fn(x) if isinstance(x, Node) else x)


def _get_qualified_name(func: Callable[..., Any]) -> str:
    """The name that generated code calls a function or class by, as "torch.relu"."""
    name = getattr(func, "__name__", type(func).__name__)
    if getattr(builtins, name, None) is func:
        return name
    public = resolve_name(func) if isinstance(func, _OPS) else None
    if public:
        return public
    for place in (offered("root"), functional):
        if vars(place).get(name) is func:
            return f"torch{place.__name__.removeprefix('warptape')}.{name}"
    if isinstance(func, _OPS):  # one that has no public name, which another may have
        return f"torch._C.{name}"
    home = _missing.public_name(getattr(func, "__module__", None) or type(func).__module__)
    top, dot, rest = home.partition(".")
    return f"{'torch' if top == 'warptape' else top}{dot}{rest}.{name}"


def _type_repr(obj: object) -> str:
    """How a type annotation is printed."""
    if isinstance(obj, type) and not hasattr(obj, "__args__"):
        if obj.__module__ == "builtins":
            return obj.__qualname__
        return "torch.Tensor" if obj is wt.Tensor else _get_qualified_name(obj)
    return "..." if obj is ... else repr(obj)


def _format_arg(arg: Any) -> str:
    """An argument as graphs print it: nodes with a %, texts without quotes."""
    if hasattr(arg, "_custom_fx_repr_fn"):
        return arg._custom_fx_repr_fn()
    if isinstance(arg, list):
        return f"[{', '.join(map(_format_arg, arg))}]"
    if isinstance(arg, tuple):
        return f"({', '.join(map(_format_arg, arg))}{',' if len(arg) == 1 else ''})"
    if isinstance(arg, dict):
        return f"{{{', '.join(f'{key}: {_format_arg(x)}' for key, x in arg.items())}}}"
    return f"%{arg}" if isinstance(arg, Node) else str(arg)


class Node:
    """One step: a placeholder, a call, the read of an attribute, or the output.

    `op` says which; `target` what is called or read: the function itself, or the name of the method, module,
    attribute or argument. `args` and `kwargs` hold other nodes, base types, and tuples, lists, dicts and
    slices of them. `users` has the nodes that use this one, `meta` whatever passes record.
    """

    def __init__(
        self,
        graph: Any,  # the Graph, which is made of nodes
        name: str,
        op: str,
        target: Target,
        args: tuple[Argument, ...],
        kwargs: dict[str, Argument],
        return_type: object = None,
    ) -> None:
        if op not in _LEGAL_OPS:
            raise AssertionError(f"op '{op}' is not in _legal_ops")
        if op == "call_function" and not callable(target):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target)} "
                "but a Callable is expected"
            )
        if op not in ("call_function", "root") and not isinstance(target, str):
            raise ValueError(
                f"Node [graph = {graph}, name = '{name}'] target {target} has type {type(target)} "
                "but a str is expected"
            )
        self.graph, self.name, self.op, self.target, self.type = graph, name, op, target, return_type
        self.users: dict[Node, None] = {}
        self.meta: dict[str, Any] = {}
        self._input_nodes: dict[Node, None] = {}
        self._erased = False
        self._prev = self._next = self
        self._set_arguments(args, kwargs)

    # --- place in the graph ---

    @property
    def next(self) -> Node:
        """The node after this one."""
        return self._next

    @property
    def prev(self) -> Node:
        """The node before this one."""
        return self._prev

    def prepend(self, x: Node) -> None:
        """Moves `x` before this node.

        Args:
            x: of the same graph.
        """
        if x.graph is not self.graph:
            raise AssertionError("Attempting to move a Node into a different Graph")
        if x is self:
            return
        x._remove_from_list()
        x._prev, x._next = self._prev, self
        self._prev._next = self._prev = x

    def append(self, x: Node) -> None:
        """Moves `x` behind this node.

        Args:
            x: of the same graph.
        """
        self._next.prepend(x)

    def _remove_from_list(self) -> None:
        self._prev._next, self._next._prev = self._next, self._prev

    # --- arguments ---

    @property
    def args(self) -> tuple[Argument, ...]:
        """The positional arguments; assign to change them."""
        return self._args

    @args.setter
    def args(self, a: tuple[Argument, ...]) -> None:
        self._set_arguments(a, self._kwargs)

    @property
    def kwargs(self) -> dict[str, Argument]:
        """The keyword arguments; assign to change them."""
        return self._kwargs

    @kwargs.setter
    def kwargs(self, k: dict[str, Argument]) -> None:
        self._set_arguments(self._args, k)

    def _set_arguments(self, args: Iterable[Argument], kwargs: dict[str, Argument]) -> None:
        for old in self._input_nodes:
            old.users.pop(self, None)
        self._input_nodes = {}

        def note(node: Node) -> Node:
            self._input_nodes[node] = node.users[self] = None
            return node

        self._args, self._kwargs = map_arg(tuple(args), note), map_arg(dict(kwargs), note)

    @property
    def all_input_nodes(self) -> list[Node]:
        """The nodes among the arguments, each once."""
        return list(self._input_nodes)

    def update_arg(self, idx: int, arg: Argument) -> None:
        """Replaces one positional argument. IndexError where there is none.

        Args:
            idx: its place.
            arg: a node or a plain value.
        """
        args = list(self._args)
        args[idx] = arg
        self.args = tuple(args)

    def insert_arg(self, idx: int, arg: Argument) -> None:
        """Puts a positional argument before another one.

        Args:
            idx: before which.
            arg: a node or a plain value.
        """
        if not 0 <= idx <= len(self._args):
            raise AssertionError("insert_args index must be between 0 and len(self.args)")
        self.args = (*self._args[:idx], arg, *self._args[idx:])

    def update_kwarg(self, key: str, arg: Argument) -> None:
        """Sets one keyword argument.

        Args:
            key: its name.
            arg: a node or a plain value.
        """
        self.kwargs = {**self._kwargs, key: arg}

    def replace_input_with(self, old_input: Node, new_input: Node) -> None:
        """Takes another node wherever the arguments have `old_input`.

        Args:
            old_input, new_input: of the same graph.
        """
        swap = lambda node: new_input if node is old_input else node
        self._set_arguments(map_arg(self._args, swap), map_arg(self._kwargs, swap))

    def replace_all_uses_with(
        self,
        replace_with: Node,
        delete_user_cb: Callable[[Node], bool] = lambda user: True,
        *,
        propagate_meta: bool = False,
    ) -> list[Node]:
        """Gives the users another node in place of this one, all or those for which `delete_user_cb` holds.

        Returns:
            The users as they were.
        """
        if propagate_meta:
            if replace_with.meta:
                raise AssertionError(
                    "Called node.replace_all_uses_with(replace_with, propagate_meta=True), but replace_with "
                    "already has .meta keys"
                )
            replace_with.meta.update(self.meta)
        changed = [user for user in self.users if delete_user_cb(user)]
        for user in changed:
            user.replace_input_with(self, replace_with)
        return changed

    # --- what it is ---

    def normalized_arguments(
        self,
        root: nn.Module,
        arg_types: tuple[Any, ...] | None = None,
        kwarg_types: dict[str, Any] | None = None,
        normalize_to_only_use_kwargs: bool = False,
    ) -> Any:
        """`operator_schemas.normalize_function` of a call's arguments; of a call of `root`'s module, by that
        one's forward. None for other nodes."""
        from . import operator_schemas

        args, kwargs, target = self.args, dict(self.kwargs), cast(Any, self.target)
        if self.op == "call_function":
            return operator_schemas.normalize_function(
                target, args, kwargs, arg_types, kwarg_types, normalize_to_only_use_kwargs
            )
        if self.op == "call_module":
            return operator_schemas.normalize_module(root, target, args, kwargs, normalize_to_only_use_kwargs)
        return None

    def is_impure(self, impure_random: bool = True) -> bool:
        """Whether it matters to run this node when nothing uses its result.

        Args:
            impure_random: whether drawing numbers matters.
        """
        if self.op == "call_module" and self.graph.owning_module is not None:
            module = self.graph.owning_module.get_submodule(self.target)
            return getattr(module, "_is_impure", False)
        return self.op in ("placeholder", "output") or (
            self.op == "call_function" and self.target in _side_effectful_functions
        )

    @property
    def stack_trace(self) -> str | None:
        """Where the node was recorded, as a text.

        None unless the tracer's `record_stack_traces` is set.
        """
        return self.meta.get("stack_trace")

    @stack_trace.setter
    def stack_trace(self, trace: str | None) -> None:
        self.meta["stack_trace"] = trace

    def _pretty_print_target(self, target: Target) -> str:
        if isinstance(target, str):
            return target
        name = _get_qualified_name(target)
        return f"builtins.{name}" if "." not in name else name.replace("_operator.", "operator.", 1)

    def format_node(self) -> str:
        """The node as graphs print it.

        Returns:
            Name, operation, target and arguments in one line.
        """
        if self.op == "output":
            return f"return {self.args[0]}"
        kind = f"{_type_repr(self.type)} " if self.type is not None else ""
        text = f"%{self.name} : {kind}[num_users={len(self.users)}] = {self.op}"
        text += f"[target={self._pretty_print_target(self.target)}]"
        if self.op == "placeholder":
            return text + (f"(default={self.args[0]})" if self.args else "")
        if self.op == "get_attr":
            return text
        return f"{text}(args = {_format_arg(self.args)}, kwargs = {_format_arg(self.kwargs)})"

    def __repr__(self) -> str:
        return self.name
