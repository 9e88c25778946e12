"""The lists and dicts within a node's arguments. They cannot be changed: `users` would not follow."""

from __future__ import annotations

from typing import Any, NoReturn

from ...core.pytree import (
    _dict_flatten,
    _dict_flatten_with_keys,
    _list_flatten,
    _list_flatten_with_keys,
    register_pytree_node,
)

__all__ = ["immutable_dict", "immutable_list"]

_CHANGES = {
    list: "__delitem__ __iadd__ __imul__ __setitem__ append clear extend insert pop remove reverse sort",
    dict: "__delitem__ __ior__ __setitem__ clear pop popitem setdefault update",
}


def _refuse(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TypeError(
        f"'{type(self).__name__}' object does not support mutation. If you are attempting to modify the "
        "kwargs or args of a torch.fx.Node object,\ninstead create a new copy of it and assign the copy to "
        "the node:\n\n    new_args = ...  # copy and mutate args\n    node.args = new_args"
    )


class immutable_list(list):
    """A list that refuses to change.

    Arguments of nodes are such: nodes count their users, which a change in place would miss.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return immutable_list, (tuple(self),)


class immutable_dict(dict):
    """A dict that refuses to change.

    Arguments of nodes are such: nodes count their users, which a change in place would miss.
    """

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return immutable_dict, (tuple(self.items()),)


for _base, _cls in ((list, immutable_list), (dict, immutable_dict)):
    for _name in _CHANGES[_base].split():
        setattr(_cls, _name, _refuse)
register_pytree_node(
    immutable_list,
    _list_flatten,
    lambda values, _: immutable_list(values),
    serialized_type_name="torch.fx.immutable_collections.immutable_list",
    flatten_with_keys_fn=_list_flatten_with_keys,
)
register_pytree_node(
    immutable_dict,
    _dict_flatten,
    lambda values, context: immutable_dict(zip(context, values, strict=True)),
    serialized_type_name="torch.fx.immutable_collections.immutable_dict",
    flatten_with_keys_fn=_dict_flatten_with_keys,
)
