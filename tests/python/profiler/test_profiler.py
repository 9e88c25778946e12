"""Profiles: what is recorded, how it nests, sums, tables, traces and schedules."""

from __future__ import annotations

import gzip
import json
import threading
import time

import pytest
import warptape as torch
from warptape import distributed as dist
from warptape import nn
from warptape.autograd import profiler as autograd_profiler
from warptape.profiler import ProfilerAction, ProfilerActivity, profile, record_function, schedule


def named(events, name):
    return [e for e in events if e.name == name]


def one(events, name):
    (found,) = named(events, name)
    return found


def test_ops_nest_as_they_were_called():
    x = torch.ones(3, 4)
    with profile() as p:
        with record_function("outer"):
            torch.stack([x, x])
        x.exp()
    outer, stack = one(p.events(), "outer"), one(p.events(), "aten::stack")
    assert stack.cpu_parent is outer and outer.cpu_parent is None and outer.is_user_annotation
    assert one(p.events(), "aten::exp").cpu_parent is None
    assert [e.name for e in stack.cpu_children] == ["aten::unsqueeze", "aten::unsqueeze", "aten::cat"]
    assert all(e.cpu_parent is stack for e in stack.cpu_children)
    assert outer.time_range.start <= stack.time_range.start <= stack.time_range.end <= outer.time_range.end
    assert stack.cpu_time_total - stack.self_cpu_time_total == pytest.approx(
        sum(e.cpu_time_total for e in stack.cpu_children)
    )


def test_results_do_not_change():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 2))
    x = torch.randn(4, 8)

    def step():
        torch.manual_seed(1)
        model.zero_grad()
        with torch.autocast("cpu"):
            loss = model(x).float().square().sum()
        loss.backward()
        return [loss.detach(), *(p.grad.clone() for p in model.parameters())]

    plain = step()
    with profile(record_shapes=True, profile_memory=True, with_stack=True):
        profiled = step()
    assert all(torch.equal(a, b) for a, b in zip(plain, profiled, strict=True))


def test_backward_nodes_know_their_forward_op():
    w = torch.ones(3, 4, requires_grad=True)
    with profile(with_stack=True) as p:
        hidden = torch.ones(2, 3) @ w
        (hidden.exp() * 2).sum().backward()
    events = [e for e in p.events() if e.kind == "backward" or e.cpu_parent is None]
    for node, op in (
        ("ExpBackward0", "aten::exp"),
        ("MulBackward0", "aten::mul"),
        ("SumBackward0", "aten::sum"),
    ):
        backward = one(events, node)
        assert backward.kind == "backward" and backward.forward.name == op
        assert backward.stack == backward.forward.stack and "test_profiler.py" in backward.stack[0]
    assert one(events, "MmBackward0").forward.name in ("aten::mm", "aten::matmul", "aten::__matmul__")
    assert len(named(events, "torch::autograd::AccumulateGrad") or named(events, "AccumulateGrad")) == 1


def test_shapes_dtypes_and_numbers():
    with profile(record_shapes=True) as p:
        torch.cat([torch.ones(2, 3), torch.ones(4, 3)], 0)
        torch.ones(2, 3, dtype=torch.float64).sum(1, keepdim=True)
        torch.ones(5).t() * 2
    cat, total = one(p.events(), "aten::cat"), one(p.events(), "aten::sum")
    assert cat.input_shapes[0] == [[2, 3], [4, 3]] and cat.output_shapes == [[6, 3]]
    assert total.input_shapes[0] == [2, 3] and total.input_dtypes[0] == "torch.float64"
    assert total.output_shapes == [[2, 1]] and True in total.concrete_inputs
    rows = p.key_averages(group_by_input_shape=True)
    assert "[2, 3]" in rows.table()
    with profile(record_shapes=True) as p:
        for n in (2, 2, 3):
            torch.empty(n, 4).exp()
    rows = [r for r in p.key_averages(group_by_input_shape=True) if r.key == "aten::exp"]
    assert sorted((r.count, r.input_shapes[0]) for r in rows) == [(1, [3, 4]), (2, [2, 4])]


def test_flops_of_the_outermost_op():
    w = torch.ones(4, 5, requires_grad=True)
    with profile(with_flops=True) as p:
        torch.linalg.multi_dot([torch.ones(2, 3), torch.ones(3, 4), w]).sum().backward()
        torch.nn.functional.conv2d(torch.ones(1, 2, 6, 6), torch.ones(3, 2, 3, 3))
    forward = [
        e for e in p.events() if e.kind == "op" and not (e.cpu_parent and e.cpu_parent.kind == "backward")
    ]
    assert one(forward, "aten::conv2d").flops == 2 * 3 * 16 * 18
    assert sum(e.flops for e in forward) == 1728 + 2 * 2 * 4 * (3 + 5)
    assert all(not child.flops for e in forward if e.flops for child in e.cpu_children)
    backward = sum(e.flops for e in p.events() if e not in forward)
    assert backward == 2 * 2 * 4 * 5  # of the weight alone
    table = p.key_averages().table()
    assert "Total FLOPs" in table and "1,728" in table


def test_memory_by_event():
    with profile(profile_memory=True) as p:
        kept = torch.empty(256, 4)
        with record_function("both"):
            a = kept + 1
            del a
        with record_function("frees"):
            del kept
    assert one(p.events(), "aten::empty").self_cpu_memory_usage == 4096
    both = one(p.events(), "both")
    assert one(p.events(), "aten::add").cpu_memory_usage == 4096
    assert both.self_cpu_memory_usage == -4096 and both.cpu_memory_usage == 0
    assert one(p.events(), "frees").cpu_memory_usage == -4096
    total = sum(e.self_cpu_memory_usage for e in p.events())
    assert total == 0 and "4.00 KB" in p.key_averages().table()


def test_same_name_inside_counts_once():
    with profile() as p, record_function("f"), record_function("f"):
        time.sleep(0.002)
    (row,) = p.key_averages()
    outer = named(p.events(), "f")[0]
    assert row.count == 2 and row.cpu_time_total == pytest.approx(outer.cpu_time_total)
    assert row.self_cpu_time_total == pytest.approx(outer.cpu_time_total)


def test_table(capsys):
    with profile() as p:
        for _ in range(3):
            torch.ones(4).exp()
        torch.ones(200, 200) @ torch.ones(200, 200)
    rows = p.key_averages()
    table = rows.table(sort_by="count", row_limit=2)
    lines = table.splitlines()
    assert lines[1].split("  ")[0] == "Name" and "Self CPU %" in lines[1] and "# of Calls" in lines[1]
    assert lines[3].startswith("aten::ones") and len(lines) == 7 and "Self CPU time total" in lines[-1]
    assert "ms" not in rows.table(time_unit="us")
    top = rows.table(sort_by="self_cuda_time_total")  # PyTorch's older name
    assert "aten::exp" in top
    with pytest.raises(ValueError, match="sort_by to be one of count"):
        rows.table(sort_by="speed")
    with pytest.raises(ValueError, match="time_unit"):
        rows.table(time_unit="h")
    assert rows.total_average().count == sum(r.count for r in rows)
    print(p.key_averages())
    assert "aten::exp" in capsys.readouterr().out


def test_trace(tmp_path):
    w = torch.ones(3, requires_grad=True)
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as p:
        w.exp().sum().backward()
    p.add_metadata_json("run", '{"seed": 1}')
    for path, opened in ((tmp_path / "a.json", open), (tmp_path / "a.json.gz", gzip.open)):
        p.export_chrome_trace(str(path))
        with opened(path, "rt") as file:
            trace = json.load(file)
    assert trace["run"] == {"seed": 1} and trace["baseTimeNanoseconds"] > 10**18
    events = trace["traceEvents"]
    (exp,) = [e for e in events if e["name"] == "aten::exp" and e["ph"] == "X"]
    assert exp["cat"] == "cpu_op" and exp["args"]["Input Dims"] == [[3]] and exp["dur"] > 0
    assert "test_profiler.py" in exp["args"]["Call stack"]
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert starts.keys() == ends.keys() and len(starts) >= 2
    assert any(s["ts"] == exp["ts"] for s in starts.values())
    memory = [e for e in events if e["name"] == "[memory]"]
    assert memory and all(e["ph"] == "i" for e in memory)
    counted = [(e["ts"], e["args"]) for e in events if e["ph"] == "C" and e["name"] == "memory cpu"]
    assert counted == [(e["ts"], {"bytes": e["args"]["Total Allocated"]}) for e in memory]


def test_stacks(tmp_path):
    def caller():
        return torch.ones(300, 300).exp()

    with profile(with_stack=True) as p:
        for _ in range(20):
            caller()
    path = tmp_path / "stacks.txt"
    p.export_stacks(str(path), "self_cpu_time_total")
    lines = path.read_text().splitlines()
    assert any(":_caller " in line and int(line.rsplit(" ", 1)[1]) > 0 for line in lines)
    assert "Source Location" in p.key_averages(group_by_stack_n=2).table()
    with pytest.raises(ValueError, match="metric"):
        p.export_stacks(str(path), "bytes")
    with profile() as p:
        pass
    with pytest.raises(RuntimeError, match="with_stack=True"):
        p.export_stacks(str(path))


def test_threads_join_by_a_range():
    def work():
        torch.ones(2).exp()  # not seen
        with record_function("there"):
            torch.ones(2).cos()

    with profile() as p:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        torch.ones(2).sin()
    there, cos, sin = (one(p.events(), n) for n in ("there", "aten::cos", "aten::sin"))
    assert cos.cpu_parent is there and there.thread != sin.thread and not named(p.events(), "aten::exp")


def test_a_range_that_outlives_its_profile():
    with profile():
        old = record_function("old").__enter__()
    with profile() as p:
        old.__exit__()
        with record_function("new"):
            pass
    assert [e.name for e in p.events()] == ["new"]


def test_a_thread_that_goes_on_after_the_profile():
    entered, over = threading.Event(), threading.Event()

    def work():
        with record_function("there"):
            entered.set()
            over.wait()
            torch.ones(2).exp()

    with profile() as p:
        thread = threading.Thread(target=work)
        thread.start()
        entered.wait()
    with profile() as other:
        over.set()
        thread.join()
    assert [e.name for e in p.events()] == ["there"] and len(other.events()) == 0


def test_loading_and_optimizers_have_ranges():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = torch.utils.data.DataLoader(torch.arange(8.0).reshape(4, 2), batch_size=2)
    with profile() as p:
        for batch in loader:
            model(batch).sum().backward()
            optimizer.step()
    assert len(named(p.events(), "Optimizer.step#SGD.step")) == 2
    name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert len(named(p.events(), name)) == 3  # the last finds the end


def test_collectives_of_every_rank():
    def rank():
        with record_function(f"rank {dist.get_rank()}"):
            x = torch.ones(4)
            work = dist.all_reduce(x, async_op=True)
            torch.ones(2).exp()
            work.wait()
            dist.broadcast(x, 0)

    with profile() as p:
        dist.simulate(2, rank)
    assert len(named(p.events(), "c10d::broadcast")) == len(named(p.events(), "c10d::all_reduce")) == 2
    assert len({e.thread for e in p.events() if e.name.startswith("rank")}) == 2
    waits = named(p.events(), "c10d::wait")
    assert {e.cpu_parent.name for e in waits} == {"rank 0", "rank 1"}
    assert all(e.kind == "collective" for e in waits)


def test_compiled_regions_and_their_steps():
    @torch.compile
    def f(x):
        return (x.exp() + 1).sum()

    x = torch.ones(64, 64)
    for _ in range(3):
        f(x)
    with profile() as p:
        f(x)
    region = one(p.events(), "Torch-Compiled Region")
    steps = [e for e in p.events() if e.kind == "kernel"]
    assert steps and all(e.cpu_parent is region for e in steps)
    assert "exp" in "+".join(e.name for e in steps)


def test_schedule_of_cycles():
    counts = []
    plan = schedule(wait=1, warmup=1, active=2, repeat=2)
    with profile(
        schedule=plan, on_trace_ready=lambda p: counts.append(len(named(p.events(), "aten::exp")))
    ) as p:
        for _ in range(10):
            torch.ones(1).exp()
            p.step()
    assert counts == [2, 2]
    assert [e.trace_name for e in p.events() if e.is_user_annotation] == ["ProfilerStep#6", "ProfilerStep#7"]


def test_steps_are_one_row_and_handlers_see_the_next_step(tmp_path):
    # PyTorch 2.13 gives the same numbers, actions, keys and names in the trace.
    seen = []

    def ready(p):
        seen.append((p.step_num, p.current_action.name))
        p.export_chrome_trace(str(tmp_path / f"{p.step_num}.json"))

    with profile(schedule=schedule(wait=1, warmup=1, active=2), on_trace_ready=ready) as p:
        for i in range(8):
            with record_function("range", f"step {i}"):
                torch.ones(1).exp()
            p.step()
    assert seen == [(4, "NONE"), (8, "NONE")]
    assert {e.key: e.count for e in p.key_averages() if e.is_user_annotation} == {
        "ProfilerStep*": 2,
        "range": 2,
    }
    trace = json.loads((tmp_path / "8.json").read_text())["traceEvents"]
    names = [e["name"] for e in trace if e.get("cat") == "user_annotation"]
    assert names == ["ProfilerStep#6", "range", "ProfilerStep#7", "range"]
    seen.clear()
    with profile(on_trace_ready=lambda p: seen.append((p.step_num, p.current_action.name))) as p:
        p.step()
        p.step()
    assert seen == [(2, "RECORD")]
    with profile(schedule=schedule(wait=0, warmup=0, active=1), on_trace_ready=ready) as p:
        p.step()  # each step is a recording of its own
        p.step()
    assert seen[1:] == [(1, "RECORD_AND_SAVE"), (2, "RECORD_AND_SAVE"), (2, "RECORD_AND_SAVE")]


def test_record_function_takes_texts():
    for given in ((3,), ("range", 3)):
        with profile(), pytest.raises(RuntimeError, match="type str, got int"), record_function(*given):
            pass


def test_schedule():
    # 1 step skipped, then twice: 1 idle, 1 warm-up, 2 recorded
    names = [schedule(skip_first=1, wait=1, warmup=1, active=2, repeat=2)(i).name for i in range(10)]
    cycle = ["NONE", "WARMUP", "RECORD", "RECORD_AND_SAVE"]
    assert names == ["NONE", *cycle, *cycle, "NONE"]
    assert schedule(wait=0, warmup=0, active=1)(100) is ProfilerAction.RECORD_AND_SAVE
    assert schedule(wait=3, warmup=1, active=1, skip_first_wait=1)(0) is ProfilerAction.WARMUP
    with pytest.raises(ValueError, match="active=0"):
        schedule(wait=1, warmup=1, active=0)


def test_wrong_use():
    with profile(), pytest.raises(RuntimeError, match="another profile is running"):
        profile().start()
    with pytest.raises(RuntimeError, match="nothing was recorded"):
        profile().events()
    with pytest.raises(ValueError, match="ProfilerActivity"):
        profile(activities=["cpu"])
    with pytest.raises(ValueError, match="use_device"):
        autograd_profiler.profile(use_device="tpu")
    with pytest.raises(RuntimeError, match="after the end"):
        autograd_profiler.profile().key_averages()
    with profile() as p:  # after all that one still works
        torch.ones(1)
    assert len(p.events()) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_without_a_device():
    assert ProfilerActivity.CUDA not in torch.profiler.supported_activities()
    with (
        pytest.warns(UserWarning, match="no CUDA device"),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as p,
    ):
        torch.ones(1)
    assert len(p.events()) == 1
    with pytest.raises(RuntimeError, match="CUDA"), autograd_profiler.emit_nvtx():
        pass
    with profile() as p:
        torch.ones(1)
    assert len(p.events()) == 1


def test_autograd_profiler():
    with autograd_profiler.profile(record_shapes=True) as p:
        torch.ones(2, 3).exp()
    assert one(p.function_events, "aten::exp").input_shapes == [[2, 3]] and len(p) == len(list(p))
    assert "aten::exp" in p.table() and p.total_average().count == len(p) and p.self_cpu_time_total > 0
    with autograd_profiler.profile(enabled=False) as p:
        torch.ones(2)
    with pytest.raises(RuntimeError):
        p.events()


@pytest.mark.parametrize("layers", [2, 200])
def test_cost_per_op(layers):
    """A profile of a long program ends: links and sums are no quadratic walks."""
    x = torch.ones(2, requires_grad=True)
    with profile() as p:
        y = x
        for _ in range(layers * 10):
            y = y * 1.5
        y.sum().backward()
    assert len(named(p.events(), "MulBackward0")) == layers * 10
    assert {e.forward.id for e in named(p.events(), "MulBackward0")} == {
        e.id for e in named(p.events(), "aten::mul") if e.cpu_parent is None
    }
