"""torch.utils._pytree's names: nested containers taken apart into leaves, and put together again.

Containers are dict, OrderedDict, defaultdict, list, tuple, named tuples, deque, and what is registered; all
else, None too, is a leaf.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from .._missing import lookup as _lookup

PyTree = Context = Any


class _Node(NamedTuple):
    flatten_fn: Callable[[Any], tuple[list[Any], Any]]
    unflatten_fn: Callable[[Any, Any], Any]


def _dict_node(make: Callable[[Any, dict], Any], extra: Callable[[Any], Any] = lambda d: None) -> _Node:
    return _Node(
        lambda d: (list(d.values()), (extra(d), list(d))),
        lambda children, context: make(context[0], dict(zip(context[1], children, strict=True))),
    )


_nodes: dict[type, _Node] = {
    dict: _dict_node(lambda _, d: d),
    OrderedDict: _dict_node(lambda _, d: OrderedDict(d)),
    defaultdict: _dict_node(defaultdict, lambda d: d.default_factory),
    list: _Node(lambda x: (list(x), None), lambda children, _: list(children)),
    tuple: _Node(lambda x: (list(x), None), lambda children, _: tuple(children)),
    deque: _Node(lambda x: (list(x), x.maxlen), lambda children, size: deque(children, maxlen=size)),
}
_named = _Node(lambda x: (list(x), type(x)), lambda children, cls: cls(*children))
_struct = _Node(lambda x: (list(x), type(x)), lambda children, cls: cls(children))
_nodes[namedtuple] = _named  # type: ignore[index]  # how PyTorch's table names all named tuples
SUPPORTED_NODES = _nodes


def register_pytree_node(cls: type, flatten_fn: Any, unflatten_fn: Any, **names: Any) -> None:
    """Makes `cls` a container: flatten(x) gives (children, context), unflatten(children, context) x again.

    Raises:
        ValueError: it is one.
    """
    if cls in _nodes:
        raise ValueError(f"{cls} is already registered as pytree node.")
    _nodes[cls] = _Node(flatten_fn, unflatten_fn)


_register_pytree_node = register_pytree_node


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    """Values and keys: what libraries register their own dicts with."""
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: list[Any]) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def is_namedtuple_instance(obj: Any) -> bool:
    """Whether `obj` is a named tuple."""
    return isinstance(obj, tuple) and hasattr(obj, "_fields")


def _is_struct(obj: Any) -> bool:
    return isinstance(obj, tuple) and hasattr(type(obj), "n_sequence_fields")


def _node_of(tree: Any) -> _Node | None:
    node = _nodes.get(type(tree))
    if node is None and isinstance(tree, tuple):
        node = _named if is_namedtuple_instance(tree) else _struct if _is_struct(tree) else None
    return node


def _get_node_type(tree: Any) -> Any:
    return namedtuple if is_namedtuple_instance(tree) and type(tree) not in _nodes else type(tree)


class TreeSpec:
    """How a tree is made of its leaves; equal for trees of one structure. A leaf's has type None."""

    def __init__(self, type: Any, context: Any, children_specs: list[TreeSpec] | None = None) -> None:
        self.type, self.context, self.children_specs = type, context, children_specs or []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and vars(self) == vars(other)

    @property
    def num_leaves(self) -> int:
        """How many leaves there are."""
        return 1 if self.is_leaf() else sum(child.num_leaves for child in self.children_specs)

    @property
    def num_children(self) -> int:
        """How many children the root has."""
        return len(self.children_specs)

    def is_leaf(self) -> bool:
        """Whether the tree is a leaf."""
        return self.type is None

    def __repr__(self) -> str:
        if self.is_leaf():
            return "*"
        name = getattr(self.type, "__name__", self.type)
        return f"TreeSpec({name}, {self.context}, [{', '.join(map(repr, self.children_specs))}])"


def LeafSpec() -> TreeSpec:
    """The structure of a leaf."""
    return TreeSpec(None, None)


def _flatten(tree: Any, is_leaf: Callable[[Any], bool] | None, leaves: list[Any]) -> TreeSpec:
    node = None if is_leaf is not None and is_leaf(tree) else _node_of(tree)
    if node is None:
        leaves.append(tree)
        return TreeSpec(None, None)
    children, context = node.flatten_fn(tree)
    return TreeSpec(type(tree), context, [_flatten(child, is_leaf, leaves) for child in children])


def tree_flatten(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, in order, and how to put them together."""
    leaves: list[Any] = []
    return leaves, _flatten(tree, is_leaf, leaves)


def tree_leaves(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> list[Any]:
    """The leaves of a tree, in order."""
    return tree_flatten(tree, is_leaf)[0]


def tree_iter(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> Iterator[Any]:
    """Goes over the leaves of a tree."""
    return iter(tree_leaves(tree, is_leaf))


def tree_structure(tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> TreeSpec:
    """How a tree is made of its leaves."""
    return tree_flatten(tree, is_leaf)[1]


def _unflatten(spec: TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    children = [_unflatten(child, leaves) for child in spec.children_specs]
    node = _nodes.get(spec.type) or (_named if hasattr(spec.type, "_fields") else _struct)
    return node.unflatten_fn(children, spec.context)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of the given structure and leaves.

    Raises:
        ValueError: another number of leaves.
    """
    leaves = list(leaves)
    if len(leaves) != treespec.num_leaves:
        raise ValueError(
            f"tree_unflatten(leaves, treespec): `leaves` has length {len(leaves)} but the spec refers to a "
            f"pytree that holds {treespec.num_leaves} items ({treespec})."
        )
    return _unflatten(treespec, iter(leaves))


def _leaves_like(spec: TreeSpec, tree: Any) -> list[Any]:
    """The subtrees of `tree` at the places of the leaves of `spec`. ValueError where it is built unlike."""
    if spec.is_leaf():
        return [tree]
    node = _node_of(tree)
    children = node.flatten_fn(tree)[0] if node else []
    if type(tree) is not spec.type or len(children) != len(spec.children_specs):
        raise ValueError(f"Node type or arity mismatch; expected {spec}, but got {type(tree).__name__}.")
    if isinstance(tree, dict):  # in the order of the first tree's keys
        if set(tree) != set(spec.context[1]):
            raise ValueError(f"Node keys mismatch; expected {spec.context[1]}, but got {list(tree)}.")
        children = [tree[key] for key in spec.context[1]]
    return [leaf for child, part in zip(spec.children_specs, children) for leaf in _leaves_like(child, part)]


def tree_map(func: Any, tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """The tree of func(leaf, ..) of each leaf, with what is at its place in each of `rests`."""
    leaves, spec = tree_flatten(tree, is_leaf)
    return _unflatten(spec, map(func, leaves, *(_leaves_like(spec, rest) for rest in rests)))


def tree_map_(func: Any, tree: Any, *rests: Any, is_leaf: Callable[[Any], bool] | None = None) -> Any:
    """Calls func(leaf, ..) for each leaf; returns the tree as it is."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def map_only(type_or_types_or_pred: Any, /) -> Callable[[Any], Any]:
    """Makes of a function one that leaves all values but those of some types, or with a property, alone."""
    if isinstance(type_or_types_or_pred, type | tuple) or hasattr(type_or_types_or_pred, "__args__"):
        fits = lambda x: isinstance(x, type_or_types_or_pred)
    elif callable(type_or_types_or_pred):
        fits = type_or_types_or_pred
    else:
        raise TypeError("Argument must be a type, a tuple of types, or a callable.")
    return lambda func: lambda x: func(x) if fits(x) else x


def tree_map_only(
    type_or_types_or_pred: Any, /, func: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """tree_map of the leaves of some types, or for which a predicate holds; the others stay."""
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, /, func: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None
) -> Any:
    """tree_map_ of the leaves of some types, or for which a predicate holds."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether pred holds for every leaf."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Any, tree: Any, is_leaf: Callable[[Any], bool] | None = None) -> bool:
    """Whether pred holds for a leaf."""
    return any(map(pred, tree_iter(tree, is_leaf)))


__getattr__ = _lookup(__name__)
