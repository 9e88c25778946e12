"""Names that libraries import: what answers, and what says that it is not supported."""

from __future__ import annotations

from collections import namedtuple

import pytest
import warptape as torch
from warptape.utils import _pytree
from warptape.utils.flop_counter import FlopCounterMode


def test_config_tells_how_it_was_built():
    assert "USE_MKL=OFF" in torch.__config__.show()
    assert f"get_num_threads() : {torch.get_num_threads()}" in torch.__config__.parallel_info()


def test_names_that_are_asked_for():
    from warptape.distributed import Backend, ReduceOp
    from warptape.distributed.constants import default_pg_timeout
    from warptape.nn.modules.module import _IncompatibleKeys

    assert isinstance(ReduceOp.SUM, ReduceOp.RedOpType) and ReduceOp.RedOpType.SUM is ReduceOp.SUM
    assert Backend.default_device_backend_map["cpu"] == "gloo"
    assert default_pg_timeout.total_seconds() == 1800
    assert isinstance(torch.nn.Linear(1, 1).load_state_dict({}, strict=False), _IncompatibleKeys)
    assert isinstance(torch.Tensor, torch._C._TensorMeta)
    assert torch.ScriptModule is torch.jit.ScriptModule
    assert torch.profiler.kineto_available()
    assert torch.is_deterministic_algorithms_warn_only_enabled() is False
    parsed = torch._C._nn._parse_to("cpu", torch.float64)
    assert parsed == (torch.device("cpu"), torch.float64, False, None)


def test_the_loaders_iterator_has_its_name():
    loader = torch.utils.data.DataLoader([1, 2, 3], num_workers=1)
    iterator = iter(loader)
    assert isinstance(iterator, torch.utils.data.dataloader._MultiProcessingDataLoaderIter)
    assert [int(x) for x in iterator] == [1, 2, 3]


def test_what_is_only_there_to_be_imported_says_so():
    with pytest.raises(NotImplementedError, match="PyTorchFileReader"):
        torch.PyTorchFileReader("file")
    with pytest.raises(NotImplementedError, match="emit_itt"):
        torch.autograd.profiler.emit_itt()


def test_nodes_of_trees_by_type():
    point = namedtuple("point", "x y")
    for tree, children in (([1, 2], [1, 2]), ({"a": 1}, [1]), (point(3, 4), [3, 4])):
        kind = _pytree._get_node_type(tree)
        found, context = _pytree.SUPPORTED_NODES[kind].flatten_fn(tree)
        spec = _pytree.TreeSpec(kind, context, [_pytree.LeafSpec() for _ in found])
        assert found == children and _pytree.tree_unflatten(found, spec) == tree
    assert _pytree._get_node_type(1) not in _pytree.SUPPORTED_NODES


def test_flops_by_module():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.fc = torch.nn.Conv2d(2, 4, 3, groups=2), torch.nn.Linear(4, 5)

        def forward(self, x):
            return self.fc(self.conv(x).mean((2, 3)))

    with FlopCounterMode(display=False) as counter:
        Net()(torch.ones(3, 2, 6, 6))
        torch.ones(2, 3) @ torch.ones(3, 4)
    conv, fc = 2 * 3 * 4 * 16 * 9, 2 * 3 * 4 * 5
    counts = {place: sum(c.values()) for place, c in counter.get_flop_counts().items()}
    assert counts == {"Global": conv + fc + 48, "Net": conv + fc, "Net.conv": conv, "Net.fc": fc}
    assert counter.get_total_flops() == conv + fc + 48 and "3.456K" in counter.get_table()
    q = torch.ones(1, 2, 5, 8)
    with FlopCounterMode(display=False) as counter:
        torch.nn.functional.scaled_dot_product_attention(q, q, q)
        torch.nn.functional.conv_transpose1d(torch.ones(1, 2, 3), torch.ones(2, 4, 3))
    assert counter.get_total_flops() == 2 * 2 * 5 * 5 * 16 + 2 * 6 * 12


def test_wrappers_of_tensors_are_told_by_their_methods():
    from warptape.utils import _python_dispatch as dispatch

    class Pair(torch.Tensor):
        def __tensor_flatten__(self):
            return ["a", "b"], 3

        @staticmethod
        def __tensor_unflatten__(inner, context, size, stride):
            made = inner["a"].as_subclass(Pair)
            made.a, made.b, made.context = inner["a"], inner["b"], context
            return made

    pair = Pair.__tensor_unflatten__({"a": torch.ones(2), "b": torch.zeros(2)}, 3, None, None)
    assert dispatch.is_traceable_wrapper_subclass(pair) and dispatch.is_traceable_wrapper_subclass_type(Pair)
    assert not dispatch.is_traceable_wrapper_subclass(
        torch.ones(2)
    ) and not dispatch.is_traceable_wrapper_subclass(3)
    moved = dispatch.transform_subclass(pair, lambda name, t: t + (name == "b"))
    assert moved.b.tolist() == [1.0, 1.0] and moved.context == 3
