"""torch.utils._pytree: paths by keys, registered containers, structures and their files."""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Iterator

import pytest
import warptape as torch
import warptape.utils._pytree as pytree
from warptape.utils._pytree import GetAttrKey, MappingKey, SequenceKey
from warptape.utils._pytree_files import treespec_dumps, treespec_loads

Pair = namedtuple("Pair", "a b")


class Box:
    def __init__(self, a, b) -> None:
        self.a, self.b = a, b


@dataclasses.dataclass
class Fields:
    p: int
    q: int | None = 2


@dataclasses.dataclass(frozen=True)
class Constant:
    k: int


@pytest.fixture(autouse=True)
def leave_no_types() -> Iterator[None]:
    before = {*pytree.SUPPORTED_NODES}
    yield
    for kind in {*pytree.SUPPORTED_NODES} - before:
        pytree._deregister_pytree_node(kind)


TREE = {
    "x": [1, (2, 3)],
    "y": Pair(4, OrderedDict(z=5)),
    "d": deque([6], maxlen=3),
    "dd": defaultdict(list, {"q": 7}),
    1: None,
}


def test_paths() -> None:
    found, spec = pytree.tree_flatten_with_path(TREE)
    paths = [pytree.keystr(path) for path, _ in found]
    assert paths[:5] == ["['x'][0]", "['x'][1][0]", "['x'][1][1]", "['y'].a", "['y'].b['z']"]
    assert paths[5:] == ["['d'][0]", "['dd']['q']", "[1]"]
    assert [leaf for _, leaf in found] == pytree.tree_leaves(TREE) == [1, 2, 3, 4, 5, 6, 7, None]
    assert found[1][0] == (MappingKey("x"), SequenceKey(1), SequenceKey(0))
    assert found[3][0] == (MappingKey("y"), GetAttrKey("a"))
    assert all(pytree.key_get(TREE, path) == leaf for path, leaf in found)
    assert pytree.tree_unflatten([leaf for _, leaf in found], spec) == TREE
    assert repr(found[0][0][0]) == "MappingKey(key='x')" and hash(SequenceKey(1)) == hash(SequenceKey(1))


def test_map_with_path_takes_several_trees_and_stops_at_is_leaf() -> None:
    made = pytree.tree_map_with_path(lambda path, *x: (pytree.keystr(path), *x), [1, 2], [3, [4]])
    assert made == [("[0]", 1, 3), ("[1]", 2, [4])]
    assert pytree.tree_leaves_with_path([1, [2]], is_leaf=lambda x: x == [2])[1] == ((SequenceKey(1),), [2])
    assert pytree.tree_map_with_path(lambda path, x: x, []) == []


def test_registered_containers_have_keys_where_they_are_given() -> None:
    flatten = lambda box: ([box.a, box.b], None)
    pytree.register_pytree_node(Box, flatten, lambda values, _: Box(*values))
    assert pytree.tree_leaves(Box(1, [2])) == [1, 2]
    with pytest.raises(ValueError, match="Did not find a flatten_with_keys_fn"):
        pytree.tree_leaves_with_path(Box(1, 2))
    with pytest.raises(ValueError, match="already registered"):
        pytree.register_pytree_node(Box, flatten, Box)
    with pytest.raises(NotImplementedError, match="No registered serialization name"):
        treespec_dumps(pytree.tree_structure(Box(1, 2)))
    pytree._deregister_pytree_node(Box)
    keys = lambda box: ([(GetAttrKey("a"), box.a), (GetAttrKey("b"), box.b)], None)
    pytree.register_pytree_node(
        Box, flatten, lambda v, _: Box(*v), serialized_type_name="test.Box", flatten_with_keys_fn=keys
    )
    assert [pytree.keystr(p) for p, _ in pytree.tree_leaves_with_path(Box(1, [2]))] == [".a", ".b[0]"]
    assert treespec_loads(treespec_dumps(pytree.tree_structure(Box(1, 2)))).type is Box


def test_dataclasses_and_constants() -> None:
    pytree.register_dataclass(Fields)
    assert pytree.tree_map(lambda x: x + 1, Fields(1, 2)) == Fields(2, 3)
    assert pytree.tree_map(lambda x: x + 1, Fields(1, None)) == Fields(2, None)
    assert pytree.tree_leaves_with_path(Fields(1)) == [((GetAttrKey("p"),), 1), ((GetAttrKey("q"),), 2)]
    with pytest.raises(ValueError, match="field_names must be specified"):
        pytree.register_dataclass(Box)
    pytree.register_constant(Constant)
    assert pytree.tree_map(lambda x: x + 1, [Constant(3), 1]) == [Constant(3), 2]
    assert pytree.tree_structure(Constant(3)) != pytree.tree_structure(Constant(4))
    with pytest.raises(TypeError, match="non-default `__eq__`"):
        pytree.register_constant(Box)


def test_structures() -> None:
    spec = pytree.tree_structure(TREE)
    assert (spec.num_nodes, spec.num_leaves, spec.num_children) == (15, 8, 5)
    assert spec.type is dict and spec.context == ["x", "y", "d", "dd", 1] and spec.child(1).type is namedtuple
    assert hash(spec) == hash(pytree.tree_structure(TREE)) and not spec.is_leaf()
    assert spec.children() == spec.children_specs and pytree.treespec_leaf().is_leaf()
    spec = pytree.tree_structure([1, {"a": 2}])
    assert repr(spec) == "TreeSpec(list, None, [*,\n  TreeSpec(dict, ['a'], [*])])"
    assert spec == pytree.TreeSpec(list, None, [pytree.LeafSpec(), pytree.treespec_dict(a=pytree.LeafSpec())])
    assert spec.flatten_up_to([[1, 2], {"a": (3,)}]) == [[1, 2], (3,)]
    for wrong, text in (
        ([1], "arity mismatch; expected 2, but got 1"),
        (3, "type mismatch; expected <class 'list'>, but got <class 'int'>"),
        ([1, {"b": 2}], r"missing key\(s\): {'a'}; extra key\(s\): {'b'}"),
    ):
        with pytest.raises(ValueError, match=text):
            spec.flatten_up_to(wrong)
    with pytest.raises(ValueError, match="`leaves` has length 1"):
        spec.unflatten([1])
    assert pytree._broadcast_to_and_flatten([1, 2], pytree.tree_structure([[1, 1], 2])) == [1, 1, 2]
    assert pytree._broadcast_to_and_flatten([1], pytree.tree_structure([1, 2])) is None


def test_files_have_pytorchs_form() -> None:
    spec = pytree.tree_structure([1, {"a": 2}])
    leaf = '{"type": null, "context": null, "children_spec": []}'
    inside = f'{{"type": "builtins.dict", "context": "[\\"a\\"]", "children_spec": [{leaf}]}}'
    assert treespec_dumps(spec) == (
        f'[1, {{"type": "builtins.list", "context": "null", "children_spec": [{leaf}, {inside}]}}]'
    )
    for tree in (TREE["x"], TREE["d"], TREE["dd"], OrderedDict(a=1), 3, {}):
        spec = pytree.tree_structure(tree)
        assert treespec_loads(treespec_dumps(spec)) == spec
    with pytest.raises(NotImplementedError, match="_register_namedtuple"):
        treespec_dumps(pytree.tree_structure(TREE))
    with pytest.raises(ValueError, match="Unknown protocol 9"):
        treespec_loads("[9, {}]")
    with pytest.raises(NotImplementedError, match=r"nobody\.knows"):
        treespec_loads('[1, {"type": "nobody.knows", "context": "null", "children_spec": []}]')


def test_named_results_are_containers() -> None:
    found = torch.ones(2).max(0)
    assert type(pytree.tree_map(lambda x: x, found)) is type(found)
    assert [pytree.keystr(path) for path, _ in pytree.tree_leaves_with_path(found)] == ["[0]", "[1]"]
