"""Where layers meet in C++: what an upper layer supplies is an interface that it hands down once, most code
asks a device what it can do and not which it is, and threads have few variables of their own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SUFFIXES = (".h", ".cpp", ".cu", ".cuh")

# An interface or a function that one layer hands to another at run time. The list only shrinks.
SEAMS = {
    "install(DeferredCalls)",  # graph/ to tensor/
    "install(Frontend)",  # the bindings to core/, and by its tape() to autograd/
    "install(OpaqueTape)",  # transforms/ to autograd/
    "install(Services)",  # the bindings to the kernels, which know no layer
    "set_interceptor",  # a table by bits of the dispatch word
}
INSTALL = re.compile(r"\bvoid install\((?:const )?(\w+)&? \w+\);")
SETTER = re.compile(r"\bvoid (set_\w+)\([^)]*(?:\(\*|\bInterceptor\b)")
# A function pointer, or a pointer to an interface, that whoever sees the header may set.
SETTABLE = re.compile(
    r"^extern\b[^;(]*\(\*\w+\)\(|^extern\b(?! \"C\")[^;(]*\b[A-Z]\w+\* \w+;|^extern\b.*Hooks \w+;"
)
PYTHON_TYPES = re.compile(r"\bPyTypeObject\*")

MOST_DEVICE_TESTS = 40
DEVICE_TEST = re.compile(r"\bis_cuda\(\)|\bis_cpu\(\)")
# Where one kind of device is implemented, and where the questions are declared.
OF_ONE_DEVICE = ("csrc/core/cuda/", "csrc/core/device.h")

MOST_VIRTUALS = 14  # of a class in csrc/core/device and device_runtime.h
MOST_THREAD_LOCALS = 30
THREAD_LOCAL = re.compile(
    r"^\s*(?:static |constinit |inline )*(?:thread_local (?!static)[^(]*?|(?:\w+::)?PerThread<.*> )\*?"
    r"(?:\w+::)?(\w+)(?:\[\w+\])?(?:;| = |\{)"
)


# What regions keep on a storage: csrc/graph/ir/storage_state.h alone reads and changes it.
STORAGE_STATE = re.compile(r"(?:\.|->)(?:writer|readers|promise)\.(?:load|store|fetch|compare|exchange)")


def sources(root: Path, folders: tuple[str, ...] = ("csrc", "kernels")) -> dict[str, str]:
    return {
        path.relative_to(root).as_posix(): path.read_text()
        for folder in folders
        for path in sorted((root / folder).rglob("*"))
        if path.suffix in SUFFIXES
    }


def seams(files: dict[str, str]) -> set[str]:
    found = set()
    for relative, text in files.items():
        if relative.endswith((".h", ".cuh")):
            found |= {f"install({name})" for name in INSTALL.findall(text)} | set(SETTER.findall(text))
            for line in text.split("\n"):
                if SETTABLE.search(line) and not PYTHON_TYPES.search(line):
                    found.add(f"{relative}: {line}")
    return found


def device_tests(files: dict[str, str]) -> Counter[str]:
    return Counter(
        {
            relative: len(DEVICE_TEST.findall(text))
            for relative, text in files.items()
            if relative.startswith("csrc/") and not relative.startswith(OF_ONE_DEVICE)
        }
    )


def virtuals(files: dict[str, str]) -> dict[str, int]:
    found = {}
    for relative, text in files.items():
        if relative.startswith("csrc/core/device"):
            for name, body in re.findall(r"^class (?:WT_API )?(\w+)[^;{]*\{(.*?)^\};", text, re.M | re.S):
                found[name] = len(re.findall(r"^  virtual (?!~)", body, re.M))
    return found


def thread_locals(files: dict[str, str]) -> set[str]:
    found = set()
    for relative, text in files.items():
        for line in text.split("\n"):
            if (match := THREAD_LOCAL.match(line)) and not relative.endswith("per_thread.h"):
                found.add(f"{relative.rsplit('.', 1)[0]}: {match[1]}")
    return found


def test_what_layers_hand_down() -> None:
    assert seams(sources(ROOT)) == SEAMS, "a layer below declares an interface; add a function to it"


@pytest.mark.parametrize(
    "line",
    [
        "extern WT_API void (*force_storage)(Storage& s);",
        "extern WT_API const SparseTape* sparse_tape;",
        "extern WT_API GilHooks gil_hooks;",
        "WT_API void install(Telemetry& telemetry);",
        "WT_API void set_finder(std::string (*find)());",
    ],
)
def test_a_settable_global_is_found(line: str) -> None:
    assert len(seams({"csrc/core/bad.h": line})) == 1
    assert not seams({"csrc/core/good.h": "extern WT_API std::atomic<bool> traces_memory;"})


def test_few_ask_for_the_kind_of_a_device() -> None:
    found = device_tests(sources(ROOT))
    assert found.total() <= MOST_DEVICE_TESTS, found.most_common()
    assert device_tests({"csrc/ops/bad.cpp": "if (x.device().is_cuda() || x.device().is_cpu())"}).total() == 2


def test_a_device_is_split_by_subject() -> None:
    found = virtuals(sources(ROOT, ("csrc",)))
    assert len(found) >= 5 and max(found.values()) <= MOST_VIRTUALS, found
    planted = "class WT_API Bad {\n" + "  virtual void f() = 0;\n" * 15 + "};\n"
    assert virtuals({"csrc/core/device/bad.h": planted}) == {"Bad": 15}


def test_few_variables_of_threads() -> None:
    found = thread_locals(sources(ROOT))
    assert len(found) <= MOST_THREAD_LOCALS, sorted(found)


@pytest.mark.parametrize(
    "line",
    [
        "thread_local int current = 0;",
        "  static thread_local std::shared_ptr<X> entered;  // text",
        "PerThread<std::vector<int>> list;",
        "  static warptape::PerThread<std::string> of_thread;",
        "thread_local StreamHandle current_streams[kMaxDevices];",
        "thread_local DeviceAllocator::Captures DeviceAllocator::captures_;",
        "constinit thread_local ThreadLocals* pointer = &unbegun;",
    ],
)
def test_a_variable_of_threads_is_found(line: str) -> None:
    assert len(thread_locals({"csrc/core/bad.cpp": line})) == 1


def test_one_header_knows_what_regions_keep_on_a_storage() -> None:
    found = {relative for relative, text in sources(ROOT).items() if STORAGE_STATE.search(text)}
    assert found == {"csrc/graph/ir/storage_state.h"}
