"""torch.utils._pytree's names: nested containers taken apart into leaves, and put together again.

Containers are dict, OrderedDict, defaultdict, list, tuple, named tuples, deque, and what is registered; all
else, None too, is a leaf. A path leads to a leaf by keys: of mappings, places in sequences, attributes.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from .._missing import install_getattr as _install_getattr
from .pytree_nodes import (  # noqa: F401, the names that PyTorch has here
    NODES,
    Compared,
    Context,
    DumpableContext,
    FlattenFunc,
    FlattenWithKeysFn,
    FromDumpableContextFn,
    GetAttrKey,
    IsLeaf,
    KeyEntry,
    KeyPath,
    MappingKey,
    NodeDef,
    PyTree,
    SequenceKey,
    ToDumpableContextFn,
    UnflattenFunc,
    _defaultdict_flatten,
    _defaultdict_flatten_with_keys,
    _defaultdict_unflatten,
    _deque_flatten,
    _deque_flatten_with_keys,
    _deque_unflatten,
    _dict_flatten,
    _dict_flatten_with_keys,
    _dict_unflatten,
    _list_flatten,
    _list_flatten_with_keys,
    _list_unflatten,
    _namedtuple_flatten,
    _namedtuple_flatten_with_keys,
    _namedtuple_unflatten,
    _ordereddict_flatten,
    _ordereddict_flatten_with_keys,
    _ordereddict_unflatten,
    _places,
    _tuple_flatten,
    _tuple_flatten_with_keys,
    _tuple_unflatten,
    _with_keys,
    key_get,
    keystr,
)
from .registry import offered

SUPPORTED_NODES = NODES
BUILTIN_TYPES = frozenset(NODES)
STANDARD_DICT_TYPES = frozenset({dict, OrderedDict, defaultdict})
_named = NODES[namedtuple]
_struct = NodeDef(
    None,
    _namedtuple_flatten,
    lambda values, cls: cls(values),
    _with_keys(_namedtuple_flatten, _places),
)


class _Dumped(NamedTuple):
    """How a container type is named in files, and what stands for a context there."""

    typ: Any
    serialized_type_name: str
    to_dumpable_context: Callable[[Any], Any] | None
    from_dumpable_context: Callable[[Any], Any] | None


_SerializeNodeDef = _Dumped
SUPPORTED_SERIALIZED_TYPES: dict[Any, _Dumped] = {}
SERIALIZED_TYPE_TO_PYTHON_TYPE: dict[str, Any] = {}


def register_pytree_node(
    cls: type,
    flatten_fn: FlattenFunc,
    unflatten_fn: UnflattenFunc,
    *,
    serialized_type_name: str | None = None,
    to_dumpable_context: Callable[[Any], Any] | None = None,
    from_dumpable_context: Callable[[Any], Any] | None = None,
    flatten_with_keys_fn: Callable[[Any], tuple[list[tuple[KeyEntry, Any]], Any]] | None = None,
) -> None:
    """Makes `cls` a container: flatten(x) gives (children, context), unflatten(children, context) x again.

    Args:
        serialized_type_name: what `treespec_dumps` calls it.
        to_dumpable_context, from_dumpable_context: what JSON can hold for a context, and back.
        flatten_with_keys_fn: as `flatten_fn`, with (key, child) for each child.

    Raises:
        ValueError: it is one, or one of the two functions for contexts is missing.
    """
    if cls in NODES:
        raise ValueError(f"{cls} is already registered as pytree node.")
    if (to_dumpable_context is None) != (from_dumpable_context is None):
        raise ValueError(
            f"Both to_dumpable_context and from_dumpable_context for {cls} must be None or registered."
        )
    NODES[cls] = NodeDef(cls, flatten_fn, unflatten_fn, flatten_with_keys_fn)
    if serialized_type_name is not None:
        _name_in_files(cls, serialized_type_name, to_dumpable_context, from_dumpable_context)


def _name_in_files(
    cls: Any, name: str, dump: Callable[[Any], Any] | None, load: Callable[[Any], Any] | None
) -> None:
    SUPPORTED_SERIALIZED_TYPES[cls] = _Dumped(cls, name, dump, load)
    SERIALIZED_TYPE_TO_PYTHON_TYPE[name] = cls


def _register_namedtuple(cls: type, *, serialized_type_name: str) -> None:
    """Gives a class of named tuples, which are containers anyway, a name in files."""
    _name_in_files(cls, serialized_type_name, None, None)


_register_pytree_node = _private_register_pytree_node = register_pytree_node


def _deregister_pytree_node(cls: type) -> None:
    """Makes `cls` a leaf again."""
    del NODES[cls]
    dumped = SUPPORTED_SERIALIZED_TYPES.pop(cls, None)
    if dumped is not None:
        del SERIALIZED_TYPE_TO_PYTHON_TYPE[dumped.serialized_type_name]


def register_dataclass(
    cls: type,
    *,
    field_names: list[str] | None = None,
    drop_field_names: list[str] | None = None,
    serialized_type_name: str | None = None,
) -> None:
    """Makes a dataclass, or a class with named fields that its constructor takes, a container of them.

    Fields that are None belong to the structure.

    Raises:
        ValueError: no dataclass and no names, or names that are not its fields.
    """
    import dataclasses

    if field_names is None and not dataclasses.is_dataclass(cls):
        raise ValueError(
            "field_names must be specified with a list of all fields used to "
            f"initialize {cls}, as it is not a dataclass."
        )
    if dataclasses.is_dataclass(cls):
        own = [f.name for f in dataclasses.fields(cls) if f.init]
        dropped = drop_field_names or []
        if field_names is not None and {*own} - {*dropped} != {*field_names}:
            raise ValueError(
                f"register_dataclass: expected the names of all fields of {cls}, {own}, got {field_names}"
            )
        field_names = field_names or [name for name in own if name not in dropped]
    names = field_names or []

    def flatten_with_keys(obj: Any) -> tuple[list[Any], Any]:
        values = {name: getattr(obj, name) for name in names}
        there = [name for name in names if values[name] is not None]
        return [(GetAttrKey(name), values[name]) for name in there], [
            there,
            [name for name in names if values[name] is None],
        ]

    def flatten(obj: Any) -> tuple[list[Any], Any]:
        pairs, context = flatten_with_keys(obj)
        return [value for _, value in pairs], context

    def unflatten(values: Iterable[Any], context: Any) -> Any:
        return cls(**dict(zip(context[0], values, strict=True)), **dict.fromkeys(context[1]))

    register_pytree_node(
        cls,
        flatten,
        unflatten,
        serialized_type_name=serialized_type_name,
        flatten_with_keys_fn=flatten_with_keys,
    )


class ConstantNode(Compared):
    """ConstantNode(value): the context of a constant."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value


def register_constant(cls: type) -> None:
    """Makes objects of `cls` part of the structure: containers without leaves, compared by `==`.

    Raises:
        TypeError: a class that compares, or hashes, by identity.
    """
    for name in ("__eq__", "__hash__"):
        if getattr(cls, name) is getattr(object, name) or getattr(cls, name) is None:
            raise TypeError(
                f"register_constant(cls) expects `cls` to have a non-default `{name}` implementation."
            )
    register_pytree_node(
        cls,
        lambda x: ([], ConstantNode(x)),
        lambda _, context: context.value,
        flatten_with_keys_fn=lambda x: ([], ConstantNode(x)),
    )


def is_namedtuple_instance(obj: object) -> bool:
    """Whether `obj` is a named tuple."""
    return isinstance(obj, tuple) and hasattr(obj, "_fields")


def is_namedtuple_class(cls: type) -> bool:
    """Whether `cls` is a class of named tuples."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def is_namedtuple(obj: object) -> bool:
    """Whether `obj` is a named tuple, or a class of such."""
    return is_namedtuple_class(obj if isinstance(obj, type) else type(obj))


def is_structseq_instance(obj: object) -> bool:
    """Whether `obj` is a tuple with names made in C, as the results of torch.max."""
    return isinstance(obj, tuple) and hasattr(type(obj), "n_sequence_fields")


def is_structseq(obj: object) -> bool:
    """Whether `obj` is such a tuple, or a class of them."""
    cls = obj if isinstance(obj, type) else type(obj)
    return issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields")


def _node_of(tree: PyTree) -> NodeDef | None:
    node = NODES.get(type(tree))
    if node is None and isinstance(tree, tuple):
        node = _named if is_namedtuple_instance(tree) else _struct if is_structseq_instance(tree) else None
    return node


def _get_node_type(tree: PyTree) -> Any:
    return namedtuple if is_namedtuple_instance(tree) and type(tree) not in NODES else type(tree)


class TreeSpec:
    """How a tree is made of its leaves; equal for trees of one structure. A leaf's has type None.

    Args:
        type: of the root.
        context: as keys of a dict.
        children_specs: one for each child.
    """

    def __init__(self, type: type | None, context: Any, children_specs: list[TreeSpec] | None = None) -> None:
        self.type, self.context, self.children_specs = type, context, children_specs or []

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TreeSpec) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash((self.type, *self.children_specs))  # a context may have no hash

    @property
    def num_nodes(self) -> int:
        """How many containers and leaves there are."""
        return 1 + sum(child.num_nodes for child in self.children_specs)

    @property
    def num_leaves(self) -> int:
        """How many leaves there are."""
        return 1 if self.is_leaf() else sum(child.num_leaves for child in self.children_specs)

    @property
    def num_children(self) -> int:
        """How many children the root has."""
        return len(self.children_specs)

    def children(self) -> list[TreeSpec]:
        """The structures of the root's children."""
        return [*self.children_specs]

    def child(self, index: int) -> TreeSpec:
        """The structure of one of the root's children, counted from 0."""
        return self.children_specs[index]

    def is_leaf(self) -> bool:
        """Whether the tree is a leaf."""
        return self.type is None

    def flatten_up_to(self, tree: PyTree) -> list[Any]:
        """The parts of `tree`, which may go deeper, where this structure has leaves. ValueError where it is
        built unlike."""
        return _leaves_like(self, tree)

    def unflatten(self, leaves: Iterable[Any]) -> Any:
        """The tree with these leaves. ValueError for another number of them.

        Args:
            leaves: in order.
        """
        leaves = list(leaves)
        if len(leaves) != self.num_leaves:
            raise ValueError(
                f"treespec.unflatten(leaves): `leaves` has length {len(leaves)} but the spec refers to a "
                f"pytree that holds {self.num_leaves} items ({self})."
            )
        return _unflatten(self, iter(leaves))

    def _text(self, indent: int) -> str:
        if self.is_leaf():
            return "*"
        inside = f",\n{' ' * (indent + 2)}".join(child._text(indent + 2) for child in self.children_specs)
        return f"TreeSpec({getattr(self.type, '__name__', self.type)}, {self.context}, [{inside}])"

    def __repr__(self) -> str:
        return self._text(0)


def LeafSpec() -> TreeSpec:
    """The structure of a leaf."""
    return TreeSpec(None, None)


treespec_leaf = LeafSpec


def treespec_tuple(iterable: Iterable[TreeSpec] = (), /) -> TreeSpec:
    """The structure of a tuple of such parts."""
    return TreeSpec(tuple, None, list(iterable))


def treespec_dict(
    mapping: Mapping[Any, TreeSpec] | Iterable[tuple[Any, TreeSpec]] = (), /, **kwargs: TreeSpec
) -> TreeSpec:
    """The structure of a dict of such parts."""
    parts = dict(mapping, **kwargs)
    return TreeSpec(dict, list(parts), list(parts.values()))


def _flatten(tree: PyTree, is_leaf: IsLeaf, leaves: list[Any]) -> TreeSpec:
    node = None if is_leaf is not None and is_leaf(tree) else _node_of(tree)
    if node is None:
        leaves.append(tree)
        return TreeSpec(None, None)
    children, context = node.flatten_fn(tree)
    return TreeSpec(
        node.type or type(tree), context, [_flatten(child, is_leaf, leaves) for child in children]
    )


def tree_flatten(tree: PyTree, is_leaf: IsLeaf = None) -> tuple[list[Any], TreeSpec]:
    """The leaves of a tree, in order, and how to put them together.

    >>> from warptape.utils._pytree import tree_flatten
    >>> tree_flatten({"a": [1, 2], "b": 3})[0]
    [1, 2, 3]
    """
    leaves: list[Any] = []
    return leaves, _flatten(tree, is_leaf, leaves)


def tree_leaves(tree: PyTree, is_leaf: IsLeaf = None) -> list[Any]:
    """The leaves of a tree, in order.

    Args:
        tree: nested containers.
        is_leaf: says what is a leaf although it is a container.

    >>> torch.utils._pytree.tree_leaves({"a": 1, "b": [2, (3,)]})
    [1, 2, 3]
    """
    return tree_flatten(tree, is_leaf)[0]


def tree_iter(tree: PyTree, is_leaf: IsLeaf = None) -> Iterator[Any]:
    """Goes over the leaves of a tree.
    `is_leaf` says what is a leaf although it is a container."""
    return iter(tree_leaves(tree, is_leaf))


def tree_structure(tree: PyTree, is_leaf: IsLeaf = None) -> TreeSpec:
    """How a tree is made of its leaves.
    `is_leaf` says what is a leaf although it is a container."""
    return tree_flatten(tree, is_leaf)[1]


def _unflatten(spec: TreeSpec, leaves: Iterator[Any]) -> Any:
    if spec.is_leaf():
        return next(leaves)
    children = [_unflatten(child, leaves) for child in spec.children_specs]
    node = NODES.get(spec.type, _struct)
    return node.unflatten_fn(children, spec.context)


def tree_unflatten(leaves: Iterable[Any], treespec: TreeSpec) -> Any:
    """The tree of the given structure and leaves.

    Raises:
        TypeError: no TreeSpec.
        ValueError: another number of leaves.
    """
    if not isinstance(treespec, TreeSpec):
        raise TypeError(
            "tree_unflatten(leaves, treespec): Expected `treespec` to be instance of TreeSpec but got item "
            f"of type {type(treespec)}."
        )
    return treespec.unflatten(leaves)


def _leaves_like(spec: TreeSpec, tree: PyTree) -> list[Any]:
    """The subtrees of `tree` at the places of the leaves of `spec`. ValueError where it is built unlike."""
    if spec.is_leaf():
        return [tree]
    node = _node_of(tree)
    kind = node.type or type(tree) if node else type(tree)
    dicts = spec.type in STANDARD_DICT_TYPES and kind in STANDARD_DICT_TYPES
    if kind is not spec.type and not dicts:
        raise ValueError(f"Node type mismatch; expected {spec.type!r}, but got {kind!r}.")
    children, context = node.flatten_fn(tree) if node else ([], None)
    if len(children) != spec.num_children:
        raise ValueError(f"Node arity mismatch; expected {spec.num_children}, but got {len(children)}.")
    if dicts:  # in the order of the first tree's keys
        keys = spec.context[1] if spec.type is defaultdict else spec.context
        if set(tree) != set(keys):
            missing, extra = {*keys} - {*tree}, {*tree} - {*keys}
            raise ValueError(
                "Node keys mismatch"
                + (f"; missing key(s): {missing}" if missing else "")
                + (f"; extra key(s): {extra}" if extra else "")
                + "."
            )
        children = [tree[key] for key in keys]
    elif context != spec.context:
        raise ValueError(f"Node context mismatch for {kind!r}; expected {spec.context}, but got {context}.")
    return [leaf for child, part in zip(spec.children_specs, children) for leaf in _leaves_like(child, part)]


def _broadcast_to_and_flatten(tree: PyTree, treespec: TreeSpec, is_leaf: IsLeaf = None) -> list[Any] | None:
    """The leaves of `tree`, each as often as `treespec` has leaves in its place; None if it is unlike."""
    if treespec.is_leaf() or (is_leaf is not None and is_leaf(tree)) or _node_of(tree) is None:
        return [tree] * treespec.num_leaves if _is_leaf(tree, is_leaf) else None
    try:
        parts = _leaves_like(
            TreeSpec(treespec.type, treespec.context, [LeafSpec()] * treespec.num_children), tree
        )
    except ValueError:
        return None
    flat_leaves: list[Any] = []
    for part, child in zip(parts, treespec.children_specs):
        leaves = _broadcast_to_and_flatten(part, child, is_leaf)
        if leaves is None:
            return None
        flat_leaves += leaves
    return flat_leaves


def tree_is_leaf(tree: object, is_leaf: IsLeaf = None) -> bool:
    """Whether a tree is a leaf.
    `is_leaf` says what is a leaf although it is a container."""
    return (is_leaf is not None and is_leaf(tree)) or _node_of(tree) is None


_is_leaf = tree_is_leaf


def arg_tree_leaves(*args: Any, **kwargs: Any) -> list[Any]:
    """The leaves of the arguments, in order."""
    return [leaf for arg in (*args, *kwargs.values()) for leaf in tree_leaves(arg)]


def _with_paths(tree: PyTree, is_leaf: IsLeaf, path: KeyPath, found: list[tuple[KeyPath, Any]]) -> None:
    node = None if is_leaf is not None and is_leaf(tree) else _node_of(tree)
    if node is None:
        found.append((path, tree))
        return
    if node.flatten_with_keys_fn is None:
        raise ValueError(
            f"Did not find a flatten_with_keys_fn for type: {node.type}. "
            "Please pass a flatten_with_keys_fn argument to register_pytree_node."
        )
    for key, child in node.flatten_with_keys_fn(tree)[0]:
        _with_paths(child, is_leaf, (*path, key), found)


def tree_leaves_with_path(tree: PyTree, is_leaf: IsLeaf = None) -> list[tuple[KeyPath, Any]]:
    """(path, leaf) of each leaf, in order. ValueError for containers registered without keys.
    `is_leaf` says what is a leaf although it is a container."""
    leaves: list[tuple[KeyPath, Any]] = []
    _with_paths(tree, is_leaf, (), leaves)
    return leaves


def tree_flatten_with_path(
    tree: PyTree, is_leaf: IsLeaf = None
) -> tuple[list[tuple[KeyPath, Any]], TreeSpec]:
    """(path, leaf) of each leaf, and the structure.
    `is_leaf` says what is a leaf although it is a container."""
    return tree_leaves_with_path(tree, is_leaf), tree_structure(tree, is_leaf)


def tree_map_with_path(func: Callable[..., Any], tree: PyTree, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of func(path, leaf, ..) of each leaf, with what is at its place in each of `rests`.
    `is_leaf` says what is a leaf although it is a container."""
    leaves, spec = tree_flatten_with_path(tree, is_leaf)
    others = (_leaves_like(spec, rest) for rest in rests)
    return _unflatten(spec, map(func, *zip(*leaves), *others) if leaves else iter(()))


def tree_map(func: Callable[..., Any], tree: PyTree, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """The tree of func(leaf, ..) of each leaf, with what is at its place in each of `rests`.

    >>> from warptape.utils._pytree import tree_map
    >>> tree_map(lambda x: x + 1, {"a": [1, 2], "b": 3})
    {'a': [2, 3], 'b': 4}
    """
    leaves, spec = tree_flatten(tree, is_leaf)
    return _unflatten(spec, map(func, leaves, *(_leaves_like(spec, rest) for rest in rests)))


def tree_map_(func: Callable[..., Any], tree: PyTree, *rests: Any, is_leaf: IsLeaf = None) -> Any:
    """Calls func(leaf, ..) for each leaf, and ignores its results; returns the tree as it is.
    `is_leaf` says what is a leaf although it is a container."""
    tree_map(func, tree, *rests, is_leaf=is_leaf)
    return tree


def map_only(type_or_types_or_pred: Any, /) -> Callable[[Any], Any]:
    """Makes of a function one that leaves all values but those of some types, or with a property, alone.
    `type_or_types_or_pred` is a class, a tuple of them, or a function."""
    if isinstance(type_or_types_or_pred, type | tuple) or hasattr(type_or_types_or_pred, "__args__"):
        fits = lambda x: isinstance(x, type_or_types_or_pred)
    elif callable(type_or_types_or_pred):
        fits = type_or_types_or_pred
    else:
        raise TypeError("Argument must be a type, a tuple of types, or a callable.")
    return lambda func: lambda x: func(x) if fits(x) else x


def tree_map_only(
    type_or_types_or_pred: Any, /, func: Callable[..., Any], tree: PyTree, is_leaf: IsLeaf = None
) -> Any:
    """tree_map of the leaves of some types, or for which a predicate holds; the others stay.

    >>> torch.utils._pytree.tree_map_only(int, lambda x: x + 1, [1, "a"])
    [2, 'a']
    """
    return tree_map(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_map_only_(
    type_or_types_or_pred: Any, /, func: Callable[..., Any], tree: PyTree, is_leaf: IsLeaf = None
) -> Any:
    """tree_map_ of the leaves of some types, or for which a predicate holds.
    `is_leaf` says what is a leaf although it is a container."""
    return tree_map_(map_only(type_or_types_or_pred)(func), tree, is_leaf=is_leaf)


def tree_all(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for every leaf.
    `is_leaf` says what is a leaf although it is a container."""
    return all(map(pred, tree_iter(tree, is_leaf)))


def tree_any(pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for a leaf.
    `is_leaf` says what is a leaf although it is a container."""
    return any(map(pred, tree_iter(tree, is_leaf)))


def tree_all_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for every leaf of some types, a class or a tuple of them."""
    return all(map(pred, (x for x in tree_iter(tree, is_leaf) if isinstance(x, kinds))))


def tree_any_only(kinds: Any, /, pred: Callable[[Any], bool], tree: PyTree, is_leaf: IsLeaf = None) -> bool:
    """Whether pred holds for a leaf of some types, a class or a tuple of them."""
    return any(map(pred, (x for x in tree_iter(tree, is_leaf) if isinstance(x, kinds))))


_install_getattr(
    __name__,
    treespec_dumps=lambda: offered("tree files").treespec_dumps,
    treespec_loads=lambda: offered("tree files").treespec_loads,
)
