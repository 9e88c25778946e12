"""The containers that trees are made of: how each is taken apart, put together, and reached into by keys."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

PyTree: TypeAlias = Any
Context: TypeAlias = Any
DumpableContext: TypeAlias = Any
FlattenFunc = Callable[[PyTree], tuple[list[Any], Context]]
UnflattenFunc = Callable[[Iterable[Any], Context], PyTree]
IsLeaf = Callable[[PyTree], bool] | None


class KeyEntry(Protocol):
    """One step of a path to a leaf.

    A container registered with keys makes them.
    """

    def __hash__(self) -> int: ...

    def __eq__(self, other: object) -> bool: ...

    def __str__(self) -> str: ...

    def get(self, parent: object) -> Any:
        """What lies there in a container.

        Args:
            parent: the container.
        """
        ...


KeyPath = tuple[KeyEntry, ...]


class Compared:
    """Equal to another of its class whose one attribute is equal. dataclasses takes long to import."""

    __slots__: tuple[str, ...] = ()

    def _value(self) -> Any:
        return getattr(self, self.__slots__[0])

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self._value() == other._value()

    def __hash__(self) -> int:
        return hash((self._value(),))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.__slots__[0]}={self._value()!r})"


class MappingKey(Compared):
    """MappingKey(key): a key of a mapping.

    Args:
        key: of any class.
    """

    __slots__ = ("key",)

    def __init__(self, key: object) -> None:
        self.key = key

    def __str__(self) -> str:
        return f"[{self.key!r}]"

    def get(self, mapping: Mapping[Any, Any]) -> Any:
        """The value of the key.

        Args:
            mapping: that has it.
        """
        return mapping[self.key]


class SequenceKey(Compared):
    """SequenceKey(idx): a place in a sequence.

    Args:
        idx: from 0.
    """

    __slots__ = ("idx",)

    def __init__(self, idx: int) -> None:
        self.idx = idx

    def __str__(self) -> str:
        return f"[{self.idx!r}]"

    def get(self, sequence: Sequence[Any]) -> Any:
        """The item there.

        Args:
            sequence: that is long enough.
        """
        return sequence[self.idx]


class GetAttrKey(Compared):
    """GetAttrKey(name): the name of an attribute.

    Args:
        name: of the attribute.
    """

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return f".{self.name}"

    def get(self, obj: object) -> Any:
        """The attribute.

        Args:
            obj: that has it.
        """
        return getattr(obj, self.name)


def keystr(kp: KeyPath) -> str:
    """A path as text: "['a'][0].b".

    Args:
        kp: of a leaf.
    """
    return "".join(map(str, kp))


def key_get(obj: object, kp: KeyPath) -> Any:
    """What lies at the end of a path.

    Args:
        obj: the tree.
        kp: of a leaf.
    """
    for key in kp:
        obj = key.get(obj)
    return obj


FlattenWithKeysFn = Callable[[PyTree], tuple[list[tuple[KeyEntry, Any]], Context]]
ToDumpableContextFn = FromDumpableContextFn = Callable[[Any], Any]


class NodeDef(NamedTuple):
    """How containers of a type are taken apart and put together.

    Args:
        type: the class.
        flatten_fn: returns children and a context.
        unflatten_fn: of children and the context.
        flatten_with_keys_fn: returns (key, child) pairs and a context.
    """

    type: Any
    flatten_fn: Callable[[Any], tuple[list[Any], Any]]
    unflatten_fn: Callable[[Any, Any], Any]
    flatten_with_keys_fn: Callable[[Any], tuple[list[tuple[KeyEntry, Any]], Any]] | None = None


def _dict_flatten(d: dict[Any, Any]) -> tuple[list[Any], list[Any]]:
    return list(d.values()), list(d)


def _dict_unflatten(values: Iterable[Any], context: list[Any]) -> dict[Any, Any]:
    return dict(zip(context, values, strict=True))


def _ordereddict_unflatten(values: Iterable[Any], context: list[Any]) -> Any:
    return OrderedDict(zip(context, values, strict=True))


def _defaultdict_flatten(d: defaultdict[Any, Any]) -> tuple[list[Any], Any]:
    return list(d.values()), [d.default_factory, list(d)]


def _defaultdict_unflatten(values: Iterable[Any], context: Context) -> Any:
    return defaultdict(context[0], zip(context[1], values, strict=True))


def _list_flatten(x: Sequence[Any]) -> tuple[list[Any], None]:
    return list(x), None


def _list_unflatten(values: Iterable[Any], context: Context) -> list[Any]:
    return list(values)


def _tuple_unflatten(values: Iterable[Any], context: Context) -> tuple[Any, ...]:
    return tuple(values)


def _namedtuple_flatten(x: Any) -> tuple[list[Any], Any]:
    return list(x), type(x)


def _namedtuple_unflatten(values: Iterable[Any], context: Context) -> Any:
    return context(*values)


def _deque_flatten(x: deque[Any]) -> tuple[list[Any], Any]:
    return list(x), x.maxlen


def _deque_unflatten(values: Iterable[Any], context: Context) -> Any:
    return deque(values, maxlen=context)


def _with_keys(flatten: Callable[[Any], Any], keys: Callable[[Any], Iterable[Any]]) -> Callable[[Any], Any]:
    def with_keys(x: Any) -> Any:
        values, context = flatten(x)
        return list(zip(keys(x), values)), context

    return with_keys


def _places(x: Sequence[Any]) -> list[SequenceKey]:
    return [SequenceKey(i) for i in range(len(x))]


def _keys(x: Mapping[Any, Any]) -> list[MappingKey]:
    return [MappingKey(key) for key in x]


def _fields(x: Any) -> list[GetAttrKey]:
    return [GetAttrKey(name) for name in x._fields]


_tuple_flatten, _ordereddict_flatten = _list_flatten, _dict_flatten
_dict_flatten_with_keys = _ordereddict_flatten_with_keys = _with_keys(_dict_flatten, _keys)
_defaultdict_flatten_with_keys = _with_keys(_defaultdict_flatten, _keys)
_list_flatten_with_keys = _tuple_flatten_with_keys = _with_keys(_list_flatten, _places)
_deque_flatten_with_keys = _with_keys(_deque_flatten, _places)
_namedtuple_flatten_with_keys = _with_keys(_namedtuple_flatten, _fields)

NODES: dict[Any, NodeDef] = {
    node.type: node
    for node in (
        NodeDef(dict, _dict_flatten, _dict_unflatten, _dict_flatten_with_keys),
        NodeDef(OrderedDict, _dict_flatten, _ordereddict_unflatten, _dict_flatten_with_keys),
        NodeDef(defaultdict, _defaultdict_flatten, _defaultdict_unflatten, _defaultdict_flatten_with_keys),
        NodeDef(list, _list_flatten, _list_unflatten, _list_flatten_with_keys),
        NodeDef(tuple, _list_flatten, _tuple_unflatten, _list_flatten_with_keys),
        NodeDef(deque, _deque_flatten, _deque_unflatten, _deque_flatten_with_keys),
        NodeDef(namedtuple, _namedtuple_flatten, _namedtuple_unflatten, _namedtuple_flatten_with_keys),
    )
}
