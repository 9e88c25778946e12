"""Options and summary of the whole suite.

--mutations N        mutated calls per op (default 20; 1000 by command)
--kills N            how often a rank of a training is killed at random (default 5; 50 by command)
--flips N            how many single bits of a checkpoint are flipped (default 500; 20,000 by command)
--samples N          calls of each row of the op table that are made in compiled functions (default 2; 0: all)
--programs N         random programs that are compiled (default 200; 10,000 by command)
--runtime NAME       prove the op table itself against another runtime (`torch`) instead of warptape
--device NAME        run the op table on another device (`cuda`)
--results FILE       append a line of JSON for each test as it ends
--test-limit N       seconds after which a test's process ends, also within a call that nothing interrupts
                     (default: 100 more than its timeout has, which needs the interpreter; 0: never)
"""

from __future__ import annotations

import faulthandler
import importlib.util
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator
from types import ModuleType

import pytest
from tiers import Tiers


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("warptape")
    group.addoption("--mutations", type=int, default=20, help="mutated calls per op")
    group.addoption("--kills", type=int, default=5, help="kills of a rank of a training")
    group.addoption("--flips", type=int, default=500, help="flipped bits of a checkpoint")
    group.addoption("--samples", type=int, default=2, help="calls of each row in compiled functions (0: all)")
    group.addoption("--programs", type=int, default=200, help="random programs that are compiled")
    group.addoption(
        "--runtime", default="warptape", help="the package that the op table runs on (warptape, torch)"
    )
    group.addoption("--device", default="cpu", help="the device that the op table runs on (cpu, cuda)")
    group.addoption("--results", help="file that gets a line of JSON for each test as it ends")
    group.addoption("--test-limit", type=float, help="seconds after which a test's process is ended")


def pytest_configure(config: pytest.Config) -> None:
    for marker in (
        "parity: compares with PyTorch; skipped where torch is missing",
        "cuda: needs a CUDA device",
        "slow: takes long, and runs by `-m slow` (slow_tier.txt)",
        "quick: a sample of each area, in three minutes (quick_tier.txt)",
    ):
        config.addinivalue_line("markers", marker)
    config.pluginmanager.register(Tiers(config), "tiers")
    if (path := config.getoption("--results")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Results(path), "results")
    if sys.version_info >= (3, 14):  # a fork server's workers would need data sets that can be pickled
        multiprocessing.set_start_method("fork", force=True)
    # A shell that runs the suite in the background has these ignored, in the processes that tests start too.
    for number, handler in {
        "INT": signal.default_int_handler,
        "QUIT": signal.SIG_DFL,
        "HUP": signal.SIG_DFL,
    }.items():
        if signal.getsignal(getattr(signal, f"SIG{number}")) == signal.SIG_IGN:
            signal.signal(getattr(signal, f"SIG{number}"), handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Ends the process of a test that hangs, by a thread of C that needs no GIL: pytest-xdist names the test
    and goes on with a new worker."""
    limit = item.config.getoption("--test-limit")
    if limit is None:
        limit = limit_of(item)
    if limit:
        faulthandler.dump_traceback_later(limit, exit=True)
    try:
        return (yield)
    finally:
        if limit:
            faulthandler.cancel_dump_traceback_later()


def limit_of(item: pytest.Item) -> float:
    """Seconds that a test's process may take: more than pytest-timeout lets it, whose handler never runs
    where threads wait for each other and for the interpreter. 0: any, as without that plugin."""
    if not item.config.pluginmanager.hasplugin("timeout"):
        return 0.0
    marker = item.get_closest_marker("timeout")
    seconds = marker.args[0] if marker and marker.args else item.config.getoption("timeout", None)
    seconds = float(item.config.getini("timeout") or 0) if seconds is None else float(seconds)
    return seconds + 100 if seconds else 0.0


class Results:
    """Outcomes in a file, each written as it is known: a run that is cut short has told what it knew."""

    def __init__(self, path: str) -> None:
        self.file = open(path, "a")  # noqa: SIM115

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when != "call" and report.outcome == "passed":
            return
        line = {
            "test": report.nodeid,
            "outcome": report.outcome,
            "when": report.when,
            "seconds": round(report.duration, 3),
        }
        if report.outcome == "failed":
            line["said"] = str(report.longrepr)[-600:]
        self.file.write(json.dumps(line) + "\n")
        self.file.flush()


@pytest.fixture(autouse=True)
def exact_float32(request: pytest.FixtureRequest) -> Iterator[None]:
    """cuDNN may round float32 to TF32 by default, as in PyTorch: tests on a device compare with float32."""
    on_device = request.node.get_closest_marker("cuda") or request.config.getoption("--device") == "cuda"
    if not on_device or not cuda_present():
        yield
        return
    cudnn = importlib.import_module("warptape").backends.cudnn
    before, cudnn.allow_tf32 = cudnn.allow_tf32, False
    yield
    cudnn.allow_tf32 = before


@pytest.fixture(scope="session")
def rt(request: pytest.FixtureRequest) -> ModuleType:
    """The runtime under test."""
    return importlib.import_module(request.config.getoption("--runtime"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Parity tests run when asked for by `-m parity`, and where torch is; cuda tests where a device is."""
    if not config.option.markexpr and not config.option.keyword:
        parity = [item for item in items if item.get_closest_marker("parity")]
        config.hook.pytest_deselected(items=parity)
        items[:] = [item for item in items if not item.get_closest_marker("parity")]
    missing = {"parity": importlib.util.find_spec("torch") is None, "cuda": not cuda_present()}
    for item in items:
        for name, skip in missing.items():
            if skip and item.get_closest_marker(name):
                item.add_marker(pytest.mark.skip(reason=f"{name}: not on this machine"))


def pytest_exception_interact(call: pytest.CallInfo[object]) -> None:
    """Ends a worker whose device is lost: pytest-xdist names the test and goes on with a new one."""
    text = str(call.excinfo.value) if call.excinfo else ""
    if "only a new process helps" in text and "PYTEST_XDIST_WORKER" in os.environ:
        print(text, file=sys.stderr, flush=True)
        os._exit(1)


def cuda_present() -> bool:
    """True if the runtime sees a CUDA device."""
    try:
        return bool(importlib.import_module("warptape").cuda.is_available())
    except (ImportError, AttributeError):
        return False


COUNTED = {
    "gradients": "samples: gradient against finite differences",
    "second_gradients": "samples: second gradient against finite differences",
    "fused": "samples: fused against composed backward",
    "compiled": "calls: compiled against eager, to the bit",
    "values": "calls: values, dtype and shape against the reference",
    "mutated": "mutated calls",
    "refused": "refusals",
}


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How much was checked. Counts travel as user properties, so that they also arrive from the workers of
    a parallel run."""
    totals: dict[str, int] = {}
    ops: dict[str, set[str]] = {}
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) != "call":
                continue
            properties = dict(report.user_properties)
            for name in COUNTED.keys() & properties.keys():
                totals[name] = totals.get(name, 0) + properties[name]
                ops.setdefault(name, set()).add(properties.get("op", ""))
    if totals:
        terminalreporter.section("op table")
    for name, text in COUNTED.items():
        if name in totals:
            terminalreporter.line(f"{totals[name]:7d} {text}, {len(ops[name])} rows")
