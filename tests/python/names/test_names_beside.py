"""Names of devices, compilers, loaders and processes that libraries ask for: what PyTorch 2.13 answers."""

from __future__ import annotations

import copy
import gc
import os
import queue
import threading

import pytest
import warptape as torch
from warptape import nn

# ---- devices -----------------------------------------------------------------------------------------------


def test_devices_that_are_not_here():
    assert torch.xpu.memory_allocated() == 0 and torch.xpu.empty_cache() is None
    assert torch.xpu.get_rng_state_all() == [] and torch.xpu.is_bf16_supported() is False
    assert torch.xpu.manual_seed_all(1) is None and torch.mps.manual_seed(1) is None
    for call in (torch.xpu.current_device, torch.xpu.synchronize, lambda: torch.xpu.get_device_name(0)):
        with pytest.raises(AssertionError, match="Torch not compiled with XPU enabled"):
            call()
    with torch.xpu.stream(None), torch.xpu.device(None):
        pass
    with pytest.raises(AssertionError, match="XPU"), torch.xpu.device(0):
        pass
    with pytest.raises(NotImplementedError, match="Intel's GPUs"):
        torch.xpu.Event()
    with pytest.raises(RuntimeError, match=r"Cannot execute emptyCache\(\) without MPS backend"):
        torch.mps.empty_cache()
    with pytest.raises(RuntimeError, match=r"Cannot execute isOnMacOSorNewer\(\) without MPS backend"):
        torch.backends.mps.is_macos_or_newer(13, 0)
    assert torch.mtia.is_available() is False and torch.mtia.device_count() == 0
    with pytest.raises(RuntimeError, match=r"getCurrentDevice\(\) without MTIA"):
        torch.mtia.current_device()
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="accelerator device when none"):
            torch.accelerator.memory.get_memory_info()
        for call in (torch.cuda.cudart, torch.cuda.get_sync_debug_mode):
            with pytest.raises(AssertionError, match="not compiled with CUDA"):
                call()
    told = torch.cpu.get_capabilities()
    assert told["num_logical_cores"] == os.cpu_count() and isinstance(told["avx2"], bool)


def test_precision_of_products_is_a_switch():
    for owner in (torch.backends.cuda.matmul, torch.backends.cudnn):
        assert owner.fp32_precision == "none"
        with pytest.raises(RuntimeError, match="expected precision ieee, tf32 or none"):
            owner.fp32_precision = "fp8"


def test_dtypes_of_few_bits_are_names():
    assert torch.int4 != torch.int8 and str(torch.uint3) == "torch.uint3" and torch.uint7.itemsize == 1
    assert torch.int1.is_signed and not torch.uint1.is_signed and not torch.int4.is_floating_point
    assert torch.float4_e2m1fn_x2.is_floating_point and torch.float4_e2m1fn_x2.itemsize == 1
    assert torch.qint32.itemsize == torch.complex32.itemsize == 4 and torch.quint4x2.itemsize == 1
    with pytest.raises(TypeError):
        torch.zeros(2, dtype=torch.int4)
    assert torch.per_channel_affine_float_qparams != torch.per_channel_affine


# ---- the backward pass that runs ---------------------------------------------------------------------------


def test_the_node_and_the_pass_that_run():
    seen = []

    class Look(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            seen.append((torch._C._current_graph_task_id(), torch._C._current_autograd_node().name()))
            return g * 2

    assert torch._C._current_graph_task_id() == -1 and torch._C._current_autograd_node() is None
    x = torch.ones(1, requires_grad=True)
    y = Look.apply(x)
    y.register_hook(lambda g: seen.append((torch._C._current_graph_task_id(), "hook")))
    y.backward(retain_graph=True)
    y.backward()
    numbers = [number for number, _ in seen]
    assert numbers[0] == numbers[1] >= 0 and numbers[2] == numbers[3] > numbers[0]
    assert seen[1][1] == type(y.grad_fn).__name__ or "Look" in seen[1][1]
    assert torch._C._current_graph_task_id() == -1 and torch._C._current_autograd_node() is None


def test_parts_of_the_interpreter():
    from warptape._C import parse_schema

    schema = parse_schema("my::op.over(Tensor(a!) x, int n=1) -> (Tensor, Tensor)")
    assert (schema.name, schema.overload_name, len(schema.returns)) == ("my::op", "over", 2)
    assert torch._C._dispatch_has_kernel_for_dispatch_key("aten::add.Tensor", "CPU")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("aten::no_such_op", "CPU")
    torch.library.define("listed::f", "(Tensor x) -> Tensor")
    assert not torch._C._dispatch_has_kernel_for_dispatch_key("listed::f", "CPU")
    torch.library.impl("listed::f", "cpu", lambda x: x + 1)
    assert torch._C._dispatch_has_kernel_for_dispatch_key("listed::f", "CPU")
    active = []
    torch.vmap(lambda x: (active.append(torch._C._are_functorch_transforms_active()), x)[1])(torch.ones(2))
    assert active == [True] and not torch._C._are_functorch_transforms_active()
    x = torch.ones(4)
    assert torch._C._is_alias_of(x, x[1:]) and not torch._C._is_alias_of(x, x.clone())
    seen = []

    def name():
        torch.multiprocessing._set_thread_name("a_long_name_of_a_thread")
        with open(f"/proc/self/task/{threading.get_native_id()}/comm") as file:
            seen.append(file.read().strip())

    thread = threading.Thread(target=name)
    thread.start()
    thread.join()
    assert seen == ["a_long_name_of_"]
    with pytest.raises(RuntimeError, match=r"class 'ns\.Kind', but it does not exist"):
        _ = torch.classes.ns.Kind


# ---- settings of compilers ---------------------------------------------------------------------------------


def test_settings_are_patched():
    config = torch._inductor.config
    assert config.triton.multi_kernel == 0 and config.allow_buffer_reuse is True
    with config.patch({"triton.multi_kernel": 1, "max_autotune": True}):
        assert config.triton.multi_kernel == 1 and config.max_autotune is True
    assert config.triton.multi_kernel == 0 and config.max_autotune is False
    dynamo = torch._dynamo.config

    @dynamo.patch(suppress_errors=True)
    def look():
        return dynamo.suppress_errors

    assert look() is True and dynamo.suppress_errors is False
    with dynamo.patch("verbose", True):
        assert dynamo.verbose is True
    assert dynamo.verbose is False
    modes = torch._inductor.list_mode_options()
    assert modes["reduce-overhead"] == {"triton.cudagraphs": True}
    with pytest.raises(RuntimeError, match="Unrecognized mode=nonsense"):
        torch._inductor.list_mode_options("nonsense")
    result, seconds = torch._dynamo.utils.timed(lambda x: x + 1, (torch.ones(1),), 3)
    assert result.item() == 2 and seconds >= 0


def test_questions_of_tracers():
    from warptape._guards import detect_fake_mode
    from warptape._subclasses.fake_tensor import FakeTensor, is_fake
    from warptape.fx.experimental.symbolic_shapes import free_symbols, guard_or_false, statically_known_true

    assert detect_fake_mode([torch.ones(1)]) is None and not is_fake(torch.ones(1))
    assert not isinstance(torch.ones(1), FakeTensor)
    assert (
        guard_or_false(2 > 1) is True and statically_known_true(False) is False and free_symbols(3) == set()
    )
    from warptape.fx.passes.infra.pass_base import PassBase, PassResult
    from warptape.fx.passes.infra.pass_manager import PassManager

    class Drop(PassBase):
        def call(self, module):
            nodes = [n for n in module.graph.nodes if n.target is torch.relu]
            for node in nodes:
                node.replace_all_uses_with(node.args[0])
                module.graph.erase_node(node)
            module.recompile()
            return PassResult(module, bool(nodes))

    module = torch.fx.symbolic_trace(lambda x: torch.relu(x) + 1)
    result = PassManager([Drop()], steps=3)(module)
    assert result.modified and result.graph_module(torch.tensor(-2.0)).item() == -1
    from warptape.fx.graph_module import _assign_attr, _get_attr

    root = nn.Module()
    _assign_attr(torch.ones(2), root, "a.b.scale")
    assert _get_attr(root, "a.b.scale").tolist() == [1, 1] and "a.b.scale" in dict(root.named_buffers())


# ---- loaders -----------------------------------------------------------------------------------------------


def test_parts_of_loaders():
    utils = torch.utils.data._utils
    assert utils.HAS_NUMPY is True and utils.MP_STATUS_CHECK_INTERVAL == 5.0
    assert utils.worker._IterableDatasetStopIteration(3).worker_id == 3
    assert utils.worker._ResumeIteration().seed is None and utils.worker.ManagerWatchdog().is_alive()
    assert utils.collate.np_str_obj_array_pattern.search("<U3") is not None
    assert utils.collate.collate_tensor_fn([torch.ones(2), torch.zeros(2)]).tolist() == [[1, 1], [0, 0]]
    inside, out, done = queue.Queue(), queue.Queue(), threading.Event()
    thread = threading.Thread(target=utils.pin_memory._pin_memory_loop, args=(inside, out, 0, done, None))
    thread.start()
    inside.put((7, {"a": "text"}))
    assert out.get(timeout=20) == (7, {"a": "text"})
    inside.put(None)
    thread.join(20)
    assert not thread.is_alive()


def test_a_program_adds_a_rule_of_collating():
    class Mark:
        pass

    rules = torch.utils.data._utils.collate.default_collate_fn_map
    rules.update({Mark: lambda batch, **_: len(batch)})
    try:
        assert torch.utils.data.default_collate([Mark(), Mark()]) == 2
        assert torch.utils.data.default_collate([{"a": Mark()}])["a"] == 1
    finally:
        del rules[Mark]


def test_an_iterator_of_a_loader_begins_anew():
    loader = torch.utils.data.DataLoader(range(4), batch_size=2)
    batches = iter(loader)
    next(batches)
    batches._reset(loader)
    assert [b.tolist() for b in batches] == [[0, 1], [2, 3]]


# ---- optimizers and modules --------------------------------------------------------------------------------


def test_parameters_and_state_are_swapped_in():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    before, state = [p.detach().clone() for p in model.parameters()], copy.deepcopy(optimizer.state_dict())
    others = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
    for t in others.values():
        t.grad = torch.ones_like(t)
    state["param_groups"][0]["lr"] = 0.1
    momenta = [s["momentum_buffer"].clone() for s in state["state"].values()]
    with torch.optim.swap_in_optimizer_params_and_state(optimizer, others, state):
        optimizer.step()
    for t, m in zip(others.values(), momenta, strict=True):
        torch.testing.assert_close(t, -0.1 * (0.9 * m + 1))
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert all(p is q for p, q in zip(optimizer.param_groups[0]["params"], model.parameters(), strict=True))
    assert all(p.equal(b) for p, b in zip(model.parameters(), before, strict=True))
    fewer = torch.optim.swap_in_optimizer_params_and_state(optimizer, {"a": torch.ones(1)}, state)
    with pytest.raises(ValueError, match="expected 1 groups with 2 parameters, got 1 with 1"), fewer:
        pass


def test_modules_with_other_tensors():
    from warptape.nn.utils._named_member_accessor import swap_tensor
    from warptape.nn.utils.stateless import _reparametrize_module

    layer = nn.Linear(2, 1)
    own = layer.weight
    with _reparametrize_module(layer, {"weight": torch.full((1, 2), 3.0)}):
        assert (layer(torch.ones(2)) - layer.bias).item() == 6
    assert layer.weight is own
    old = swap_tensor(layer, "weight", torch.zeros(1, 2))
    assert old is own and layer(torch.ones(2)).equal(layer.bias)
    with pytest.raises(KeyError, match="tensor name can"):
        swap_tensor(layer, "a.b", own)
    with pytest.raises(AttributeError, match="no attribute `other`"):
        swap_tensor(layer, "other", own)
    mask = nn.functional._canonical_mask(torch.tensor([True, False]), "m", None, "", torch.float32)
    assert mask.tolist() == [float("-inf"), 0.0]
    assert nn.factory_kwargs({"device": "cpu", "dtype": None}) == {"device": "cpu", "dtype": None}
    with pytest.raises(TypeError, match="unexpected kwargs"):
        nn.factory_kwargs({"size": 1})


def test_a_block_mask_as_a_node_of_a_tree():
    from warptape.nn.attention.flex_attention import BlockMask, create_block_mask

    mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 256, 256, device="cpu")
    leaves, context = mask._flatten()
    assert len(leaves) == 8 and next(key.name for key, _ in mask._flatten_with_keys()[0]) == "kv_num_blocks"
    again = BlockMask._unflatten(leaves, context)
    assert again.seq_lengths == (256, 256) and again.to_dense().equal(mask.to_dense())


# ---- collections, processes, files -------------------------------------------------------------------------


def test_collections():
    from warptape.utils._ordered_set import OrderedSet
    from warptape.utils.weak import WeakIdKeyDictionary

    one = OrderedSet([3, 1, 2])
    assert [*(one | {9})] == [3, 1, 2, 9] and [*(one - {1})] == [3, 2] and one == OrderedSet([1, 2, 3])
    assert repr(one) == "OrderedSet([3, 1, 2])" and one.pop() == 2 and [*one.union([5])] == [3, 1, 5]
    held = WeakIdKeyDictionary()
    a, b = torch.ones(1), torch.ones(1)
    held[a], held[b] = "a", "b"
    assert held[a] == "a" and len(held) == 2 and torch.ones(1) not in held
    del a
    gc.collect()
    assert [*held.values()] == ["b"]
    from warptape.utils._contextlib import _DecoratorContextManager

    entered = []

    class Mark(_DecoratorContextManager):
        def __enter__(self):
            entered.append("in")

        def __exit__(self, *error):
            entered.append("out")

    @Mark()
    def steps():
        yield len(entered)
        yield len(entered)

    assert [*steps()] == [1, 3] and entered == ["in", "out"] * 3
    assert torch._prims_common.make_contiguous_strides_for((2, 3, 4)) == (12, 4, 1)
    assert torch._prims_common.make_contiguous_strides_for((2, 3, 4), row_major=False) == (12, 1, 3)
    with pytest.raises(IndexError, match="Dimension out of range"):
        torch._prims_common.canonicalize_dims(2, 2)


def test_processes_without_a_job():
    import warptape.distributed as dist
    from warptape.distributed import distributed_c10d as c10d

    assert dist.get_pg_count() == 0 and len(c10d._pg_map) == 0 and c10d._world.default_pg is None
    assert dist.is_xccl_available() is False and dist.default_pg_timeout.total_seconds() == 1800
    with pytest.raises(NotImplementedError, match="'mine' cannot be added"):
        dist.Backend.register_backend("mine", None)
    shards = [dist.tensor.Shard(0)._local_shard_size_and_offset(10, 4, rank) for rank in range(4)]
    assert shards == [(3, 0), (3, 3), (3, 6), (1, 9)]
    with pytest.raises(ValueError, match="rank missing"):
        next(c10d.rendezvous("tcp://localhost:1"))
    with pytest.raises(RuntimeError, match="No rendezvous handler for mine://"):
        next(c10d.rendezvous("mine://x?rank=0&world_size=1"))


def test_pickled_state_of_subclasses():
    from warptape._tensor import _convert, _rebuild_from_type_v2

    class Mine(torch.Tensor):
        pass

    made = _rebuild_from_type_v2(lambda: torch.ones(2), Mine, (), {"mark": 3})
    assert type(made) is Mine and made.mark == 3
    pair = _convert((torch.ones(1), [torch.ones(1), 2]), Mine)
    assert type(pair[0]) is Mine and type(pair[1][0]) is Mine and pair[1][1] == 2
    assert torch.ByteStorage._from_buffer(bytearray(b"abcd")).tolist() == [97, 98, 99, 100]
    shared = torch.UntypedStorage._new_shared(8)
    assert shared.is_shared() and shared.nbytes() == 8
    with torch._tensor_str.printoptions(precision=2):
        assert str(torch.tensor([1 / 3])) == "tensor([0.33])"
    assert str(torch.tensor([1 / 3])) == "tensor([0.3333])"
