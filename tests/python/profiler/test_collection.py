"""What of a profile is kept: kinds and types of activities, times at which they were on, cycles, ids."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import warptape as torch
from trace_rules import faults
from warptape.autograd import profiler as autograd_profiler
from warptape.profiler import DeviceType, ProfilerActivity, profile, record_function, schedule

CPU, CUDA = ProfilerActivity.CPU, ProfilerActivity.CUDA


def names(p: profile) -> list[str]:
    return [e.name for e in p.events()]


def test_what_begins_while_the_cpu_is_off_is_left_out(tmp_path: Path) -> None:
    x = torch.ones(8, 8, requires_grad=True)
    with profile(profile_memory=True, with_stack=True, with_modules=True) as p:
        with record_function("outer"):
            y = x.exp()
            p.toggle_collection_dynamic(False, [CPU])
            with record_function("off"):
                y = y.cos()
                p.toggle_collection_dynamic(True, [CPU])
                y = y.sin()
        p.toggle_collection_dynamic(False, [CUDA])
        y.sum().backward()
    found = {e.name: e for e in p.events()}
    assert not {"off", "aten::cos"} & found.keys() and {"aten::exp", "CosBackward0"} <= found.keys()
    outer, sin = found["outer"], found["aten::sin"]
    assert sin.cpu_parent is outer and [e.name for e in outer.cpu_children] == ["aten::exp", "aten::sin"]
    assert found["CosBackward0"].forward is None and found["SinBackward0"].forward is sin
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    text = (tmp_path / "trace.json").read_text()
    assert faults(text) == [] and '"off"' not in text and "aten::cos" not in text
    off = p.profiler._selection._off["CPU"][0]  # type: ignore[union-attr]
    times = [e["ts"] for e in json.loads(text)["traceEvents"] if e["ph"] in "Xi"]
    assert times and not [t for t in times if off[0] <= t < off[1]]


def test_calls_of_python_that_begin_while_the_cpu_is_off(tmp_path: Path) -> None:
    def first(p: profile) -> None:
        p.toggle_collection_dynamic(False, [CPU])
        second(p)

    def second(p: profile) -> None:
        p.toggle_collection_dynamic(True, [CPU])
        third()

    def third() -> None:
        torch.ones(1).exp()

    with profile(with_stack=True) as p:
        first(p)
    assert p.profiler is not None
    calls = {c.name.split()[-1]: c for c in p.profiler.python_events}
    assert "second" not in calls and calls["third"].parent is calls["first"]
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    assert faults((tmp_path / "trace.json").read_text()) == []


def test_switched_off_to_the_end_and_twice() -> None:
    with profile() as p:
        p.toggle_collection_dynamic(True, [CPU])
        torch.ones(1).exp()
        p.toggle_collection_dynamic(False, [CPU])
        torch.ones(1).cos()
        p.toggle_collection_dynamic(False, [CPU, CUDA])
        torch.ones(1).sin()
    assert names(p) == ["aten::ones", "aten::exp"]
    p.toggle_collection_dynamic(False, [CPU])  # nothing is recorded, nothing happens
    with pytest.raises(ValueError, match=r"ProfilerActivity, got 'cpu'"):
        p.toggle_collection_dynamic(True, ["cpu"])  # type: ignore[list-item]


def test_types_of_activities() -> None:
    def run(p: profile) -> set[str]:
        with p, record_function("range"):
            torch.ones(1).exp()
        return set(names(p))

    assert run(profile(activities=[{CPU: ["USER_ANNOTATION"]}])) == {"range"}
    assert run(profile(activities=[{CPU: ["CPU_OP"]}])) == {"aten::ones", "aten::exp"}
    assert run(profile(activities=[{CPU: []}])) == set()
    assert run(profile(activities=[CPU])) == {"range", "aten::ones", "aten::exp"}
    with pytest.raises(ValueError, match=r"'OPS' is no type of activity of CPU; there are CPU_OP"):
        profile(activities=[{CPU: ["OPS"]}])
    with pytest.raises(ValueError, match="more than once"):
        profile(activities=[CPU, {CPU: ["CPU_OP"]}])
    with pytest.raises(ValueError, match="at least one activity"):
        profile(activities=[])


def test_events_of_all_cycles() -> None:
    def counts(**options: Any) -> list[int]:
        found = []
        with profile(
            schedule=schedule(wait=1, warmup=0, active=1, repeat=3),
            on_trace_ready=lambda p: found.append(names(p).count("aten::exp")),
            **options,
        ) as p:
            for _ in range(6):
                torch.ones(1).exp()
                p.step()
        (row,) = [r for r in p.key_averages() if r.key == "aten::exp"]
        return [*found, row.count]

    assert counts() == [1, 1, 1, 1]
    assert counts(acc_events=True) == [1, 2, 3, 3]


def test_an_accumulated_profile_writes_the_last_cycle(tmp_path: Path) -> None:
    with profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=2), acc_events=True) as p:
        torch.ones(1).exp()
        p.step()
        torch.ones(1).cos()
        p.step()
    p.events().export_chrome_trace(str(tmp_path / "trace.json"))
    text = (tmp_path / "trace.json").read_text()
    assert "aten::cos" in text and "aten::exp" not in text and faults(text) == []


def test_trace_ids(tmp_path: Path) -> None:
    ids = iter(["first", "second"])
    p = profile(custom_trace_id_callback=lambda: next(ids))
    assert p.get_trace_id() is None
    for expected in ("first", "second"):
        with p:
            assert p.get_trace_id() == expected
        p.export_chrome_trace(str(tmp_path / "trace.json"))
        assert json.loads((tmp_path / "trace.json").read_text())["trace_id"] == expected
    p.set_custom_trace_id_callback(None)
    made = set()
    for _ in range(2):
        with p:
            pass
        made.add(p.get_trace_id())
    assert len(made) == 2 and all(i is not None and len(i) == 32 for i in made)


class Observer:
    def __init__(self) -> None:
        self.calls: list[str] = []

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def cleanup(self) -> None:
        self.calls.append("cleanup")


def test_an_observer_of_traces() -> None:
    seen = Observer()
    plan = schedule(wait=1, warmup=0, active=1, repeat=2)
    with profile(schedule=plan, execution_trace_observer=seen) as p:
        for step in range(4):
            assert seen.calls == ["start", "stop"] * (step // 2) + ["start"] * (step % 2)
            p.step()
    assert seen.calls == ["start", "stop", "start", "stop", "cleanup"]
    with pytest.raises(TypeError, match=r"start\(\), stop\(\) and cleanup\(\), got str without start\(\)"):
        profile(execution_trace_observer="trace.json")
    with pytest.raises(NotImplementedError, match="execution traces"):
        torch.profiler.ExecutionTraceObserver()


def test_metadata_in_every_cycle(tmp_path: Path) -> None:
    found = []

    def ready(p: profile) -> None:
        p.export_chrome_trace(str(tmp_path / "trace.json"), use_python_export=False)
        found.append(json.loads((tmp_path / "trace.json").read_text()))

    p = profile(schedule=schedule(wait=0, warmup=0, active=1, repeat=2), on_trace_ready=ready)
    p.preset_metadata_json("job", '{"name": "a", "tries": [1, 2]}')
    with p:
        p.add_metadata("note", 'says "so"')
        p.add_metadata_json("seed", "7")
        p.step()
    assert [t["job"] for t in found] == [{"name": "a", "tries": [1, 2]}] * 2
    assert [(t["note"], t["seed"]) for t in found] == [('says "so"', 7)] * 2
    with pytest.raises(ValueError):
        p.add_metadata_json("broken", "{")


KEYS = """cpu_time cpu_time_total self_cpu_time_total cpu_memory_usage self_cpu_memory_usage
    cuda_time cuda_time_total self_cuda_time_total cuda_memory_usage self_cuda_memory_usage
    device_time device_time_total self_device_time_total device_memory_usage self_device_memory_usage
    xpu_time xpu_time_total self_xpu_time_total xpu_memory_usage self_xpu_memory_usage count key flops"""


@pytest.mark.parametrize("key", KEYS.split())
def test_every_sort_key(key: str) -> None:
    with profile(profile_memory=True, with_flops=True) as p:
        for n in (16, 64, 4):
            torch.ones(n, n) @ torch.ones(n, n)
            torch.ones(n).exp()
    rows = p.key_averages()
    table = rows.table(sort_by=key).splitlines()[3:-2]
    attribute = key.replace("cuda", "device").replace("xpu", "device")
    expected = sorted(rows, key=lambda r: getattr(r, attribute), reverse=True)
    assert [line.split()[0] for line in table] == [r.key for r in expected]


def test_what_a_device_did_has_rows_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stop = autograd_profiler._stop

    def stopped() -> tuple[list[Any], list[Any]]:
        threads, _ = stop()
        ((_, events, *_),) = threads
        start = events[1][3]
        # name, category, device, stream, start, end, bytes, number of the event that launched it
        return threads, [
            ("exp_kernel", "kernel", 0, 7, start + 1_000, start + 5_000, 0, 2),
            ("exp_kernel", "kernel", 0, 7, start + 5_000, start + 7_000, 0, 2),
            ("Memcpy DtoH", "gpu_memcpy", 0, 7, start + 8_000, start + 9_000, 64, 0),
        ]

    monkeypatch.setattr(autograd_profiler, "_stop", stopped)
    with autograd_profiler.profile() as p:
        p.use_device = "cuda"  # as if there were one
        torch.ones(4).exp()
    assert [e.name for e in p.events()] == ["aten::ones", "aten::exp", *["exp_kernel"] * 2, "Memcpy DtoH"]
    exp, kernel = (next(e for e in p.events() if e.name == n) for n in ("aten::exp", "exp_kernel"))
    assert exp.device_type is DeviceType.CPU and exp.self_device_time_total == exp.cuda_time_total
    assert exp.self_device_time_total == pytest.approx(6)
    assert kernel.device_type is DeviceType.CUDA and (kernel.device_index, kernel.thread) == (0, 7)
    assert kernel.self_device_time_total == pytest.approx(4) and kernel.cpu_time_total == 0
    rows = {r.key: r for r in p.key_averages()}
    assert rows["exp_kernel"].count == 2 and rows["exp_kernel"].device_time == pytest.approx(3)
    table = p.key_averages().table(sort_by="self_cuda_time_total").splitlines()
    assert table[3].split()[0] in ("exp_kernel", "aten::exp") and table[-1] == "Self CUDA time total: 7.000us"
    assert p.total_average().self_device_time_total == pytest.approx(6)  # each once
    p.export_chrome_trace(str(tmp_path / "trace.json"))
    text = (tmp_path / "trace.json").read_text()
    assert faults(text) == [] and text.count('"cat": "kernel"') == 2


def test_devices_are_switched_and_filtered(monkeypatch: pytest.MonkeyPatch) -> None:
    stop = autograd_profiler._stop
    now = 0

    def stopped() -> tuple[list[Any], list[Any]]:
        done = [
            ("k", "kernel", 0, 7, now + 10, now + 20, 0, 0),
            ("c", "gpu_memcpy", 0, 7, now + 20, now + 30, 8, 0),
        ]
        return stop()[0], [*done, ("early", "kernel", 0, 7, now - 90_000, now - 80_000, 0, 0)]

    monkeypatch.setattr(autograd_profiler, "_stop", stopped)

    def kept(filters: dict[Any, list[str]], switch: bool) -> list[str]:
        nonlocal now
        with autograd_profiler.profile(activity_filters=filters) as p:
            time.sleep(1e-4)  # what is "early" began after the profile did
            if switch:
                p.toggle_collection_dynamic(False, [CUDA])
            now = time.perf_counter_ns()
        return [a.name for a in p.device_activities]

    assert kept({}, False) == ["k", "c", "early"]
    assert kept({CUDA: ["GPU_MEMCPY"]}, False) == ["c"]
    assert kept({}, True) == ["early"]
