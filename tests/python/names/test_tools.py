"""_pytree, nn.attention, library, checkpoint_wrapper, and names of torch.distributed's parts."""

from __future__ import annotations

import importlib.util
import os
import pickle
from collections import OrderedDict, defaultdict, deque, namedtuple

import pytest
import warptape as torch
from warptape import nn
from warptape.distributed.algorithms._checkpoint import checkpoint_wrapper as wrappers
from warptape.utils import _pytree as pytree

Pair = namedtuple("Pair", "a b")


def tree():
    return {
        "z": [1, (2, None)],
        "a": Pair(3, OrderedDict(x=4)),
        "d": defaultdict(list, k=5),
        "q": deque([6, 7], maxlen=3),
        "e": [],
    }


def test_trees_come_apart_and_together():
    leaves, spec = pytree.tree_flatten(tree())
    assert leaves == [1, 2, None, 3, 4, 5, 6, 7] and spec.num_leaves == 8 and spec.num_children == 5
    again = pytree.tree_unflatten(leaves, spec)
    assert again == tree() and type(again["a"]) is Pair and again["q"].maxlen == 3
    assert again["d"].default_factory is list and type(again["a"].b) is OrderedDict
    assert pytree.tree_structure(tree()) == spec != pytree.tree_structure([1])
    assert pytree.tree_leaves([1, [2]], is_leaf=lambda x: x == [2]) == [1, [2]]
    assert (
        pytree.tree_flatten(3) == ([3], pytree.LeafSpec())
        and repr(pytree.tree_structure([1])) == "TreeSpec(list, None, [*])"
    )
    with pytest.raises(ValueError, match="`leaves` has length 1"):
        pytree.tree_unflatten([1], spec)


def test_tree_map():
    assert pytree.tree_map(lambda a, b: a + b, {"x": 1, "y": [2]}, {"y": [20], "x": 10}) == {
        "x": 11,
        "y": [22],
    }
    assert pytree.tree_map(lambda a, b: (a, b), [1], [[2, 3]]) == [(1, [2, 3])]
    assert pytree.tree_map_only(int, str, [1, 2.0, "c"]) == ["1", 2.0, "c"]
    assert pytree.tree_map_only(lambda x: x == 2, str, [1, 2]) == [1, "2"]
    found = torch.ones(2, 2).max(0)
    moved = pytree.tree_map_only(torch.Tensor, lambda t: t.double(), (found, 1))
    assert type(moved[0]) is torch.return_types.max and moved[0].values.dtype == torch.float64
    assert pytree.tree_all(bool, [1, [2]]) and not pytree.tree_any(bool, [0, [None]])
    for other in ([1, 2, 3], (1, 2), {"a": 1}):
        with pytest.raises(ValueError, match="mismatch"):
            pytree.tree_map(max, [1, 2], other)


def test_registered_containers():
    class Box:
        def __init__(self, *held):
            self.held = held

    pytree.register_pytree_node(Box, lambda b: (list(b.held), len(b.held)), lambda held, n: Box(*held))
    assert pytree.tree_map(lambda x: x * 2, Box(1, [2])).held == (2, [4])
    with pytest.raises(ValueError, match="already registered"):
        pytree.register_pytree_node(Box, None, None)


def test_attention_kernels():
    from warptape.backends import cuda
    from warptape.nn.attention import SDPBackend, sdpa_kernel

    q = torch.randn(1, 2, 3, 4)
    expected = nn.functional.scaled_dot_product_attention(q, q, q)
    with sdpa_kernel([SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]):
        assert cuda.math_sdp_enabled() and cuda.flash_sdp_enabled() and not cuda.mem_efficient_sdp_enabled()
        with sdpa_kernel(SDPBackend.MATH):
            assert not cuda.flash_sdp_enabled()
            assert torch.equal(nn.functional.scaled_dot_product_attention(q, q, q), expected)
        assert cuda.flash_sdp_enabled()
    assert cuda.cudnn_sdp_enabled() and str(SDPBackend.MATH) == "SDPBackend.MATH"
    with cuda.sdp_kernel(enable_flash=False) as switches:
        assert switches["math"] and not cuda.flash_sdp_enabled()
    cuda.enable_flash_sdp(False)
    assert not cuda.flash_sdp_enabled()
    cuda.enable_flash_sdp(True)
    with pytest.raises(TypeError, match="expected SDPBackends, got str"), sdpa_kernel(["math"]):
        pass


def test_custom_op():
    from warptape.library import custom_op, register_fake

    @custom_op("testlib::scaled", mutates_args=())
    def scaled(x: torch.Tensor, factor: float = 2.0) -> torch.Tensor:
        return x * factor

    @scaled.register_fake
    def _(x, factor=2.0):
        return torch.empty_like(x)

    scaled.register_autograd(
        lambda ctx, grad: (grad * ctx.factor, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "factor", inputs[1]),
    )
    x = torch.ones(3, requires_grad=True)
    y = scaled(x, factor=3.0)
    y.sum().backward()
    assert y.tolist() == [3.0] * 3 and x.grad.tolist() == [3.0] * 3
    assert torch.ops.testlib.scaled(torch.ones(1), 4.0).tolist() == [4.0]
    assert scaled(torch.ones(3, device="meta"), 2.0).shape == (3,)
    register_fake("testlib::scaled", lambda x, factor: x)
    with pytest.raises(AttributeError, match=r"warptape has no torch\.ops\.testlib\.nothing yet"):
        torch.ops.testlib.nothing
    with pytest.raises(ValueError, match="expected a name such as"):
        custom_op("nospace", len, mutates_args=())

    @custom_op("testlib::plain", mutates_args=(), device_types="cuda")
    def plain(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    with pytest.raises(NotImplementedError, match="testlib::plain: no function for cpu"):
        plain(x)
    plain.register_kernel("cpu", lambda x: x + 1)
    with pytest.raises(
        RuntimeError, match=r"no autograd formula was registered\. Please use register_autograd"
    ):
        plain(x).sum().backward()


def test_checkpoint_wrapper():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Sequential(nn.Linear(4, 2)))
    before, x = model.state_dict(), torch.randn(5, 3)
    expected = model(x)
    expected.sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    wrappers.apply_activation_checkpointing(model, check_fn=lambda m: isinstance(m, nn.Linear))
    assert isinstance(model[0], wrappers.CheckpointWrapper) and model[0].in_features == 3
    assert list(model.state_dict()) == list(before)
    assert [n for n, _ in model[0].named_parameters()] == ["weight", "bias"]
    found = model(x)
    found.sum().backward()
    assert torch.equal(found, expected)
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads))
    model.load_state_dict({k: torch.zeros_like(v) for k, v in before.items()})
    assert float(sum(p.abs().sum() for p in model.parameters())) == 0
    calls = []
    wrapped = wrappers.checkpoint_wrapper(
        nn.Linear(3, 1),
        wrappers.CheckpointImpl.REENTRANT,
        lambda f, *a, **k: (calls.append(k), f(*a))[1],
        keep=1,
    )
    assert wrapped(x).shape == (5, 1) and calls == [{"keep": 1}]


def test_names_of_distributed():
    from warptape import parallel
    from warptape.distributed import fsdp, pipelining, tensor
    from warptape.distributed.pipelining import schedules
    from warptape.distributed.tensor import parallel as styles

    assert fsdp.fully_shard is parallel.fully_shard and tensor.Shard is parallel.tensor.Shard
    assert styles.ColwiseParallel is parallel.tensor.ColwiseParallel
    assert pipelining.PipelineStage is parallel.pipeline.PipelineStage
    assert schedules._PipelineSchedule is parallel.pipeline.PipelineSchedule
    assert schedules.get_schedule_class("zbvzerobubble") is pipelining.ScheduleZBVZeroBubble
    with pytest.raises(AttributeError, match=r"warptape has no torch\.distributed\.tensor\.NoSuchSpec yet"):
        tensor.NoSuchSpec
    assert tensor.DTensor is parallel.dtensor.DTensor
    from warptape.distributed import ReduceOp, distributed_c10d, get_default_group, simulate

    assert distributed_c10d.ReduceOp is ReduceOp and distributed_c10d._get_default_group is get_default_group
    with pytest.raises(ValueError, match="has not been initialized"):
        distributed_c10d._get_default_store()
    assert simulate(2, lambda: distributed_c10d._get_default_store().add("n", 1)) in ([1, 2], [2, 1])
    assert distributed_c10d._rank_not_in_group(distributed_c10d.GroupMember.NON_GROUP_MEMBER)
    assert pickle.loads(pickle.dumps(tensor.Shard(0))) == tensor.Shard(0)


def test_load_library(tmp_path):
    with pytest.raises(OSError, match=r"Could not load this library: .*nothing\.so"):
        torch.ops.load_library(tmp_path / "nothing.so")
    path = importlib.util.find_spec("_ctypes").origin
    torch.ops.load_library(path)
    assert os.path.realpath(path) in torch.ops.loaded_libraries


def test_private_names_that_libraries_ask_for():
    assert torch._C._log_api_usage_once("library.part") is None and torch._C._get_tracing_state() is None
    assert torch._C._GLIBCXX_USE_CXX11_ABI
