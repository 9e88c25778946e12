"""Runs PyTorch's own test files here and under PyTorch: which of the tests that pass there pass here.

    python tools/pytorch_tests.py TESTS --helpers SITE                # TESTS: the folder test/ of a checkout
    python tools/pytorch_tests.py TESTS --helpers SITE test_torch.py  # these files only
    python tools/pytorch_tests.py TESTS --helpers SITE test_nn.py -k Linear -v

The files run unchanged under `warptape.torch`, with PyTorch's test helpers (torch/testing/_internal below
SITE, a site-packages folder with PyTorch 2.13) read with torch bound to warptape. A name of torch that is
missing ends the test that uses it; while files are imported it is an object that ends who calls it
later. Files run in worker processes; a test that takes too long or ends its process counts as failed, and the
others of its file go on. A test is counted when it passes under PyTorch on a CPU (--python names that
interpreter). It needs expecttest, and SciPy for the references.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import contextlib
import dis
import functools
import importlib.machinery
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import types
import unittest
import warnings
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import Loader, MetaPathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "pytorch_tests.json"
INTERNAL = "torch.testing._internal"
# What belongs to the helpers: assertEqual adds to the comparisons; they read versions by the packaging that
# lies there.
BESIDE = ("torch.testing._comparison", "torch.testing._utils", "torch._vendor")
FILES = [
    "test_torch",
    "test_nn",
    "test_modules",
    "test_optim",
    "test_indexing",
    "test_view_ops",
    "test_type_promotion",
    "test_serialization",
    "test_dataloader",
    "test_autograd",
    "test_linalg",
    "test_reductions",
    "test_binary_ufuncs",
    "test_unary_ufuncs",
    "test_shape_ops",
    "test_tensor_creation_ops",
    "test_sort_and_select",
    "test_foreach",
    "test_segment_reductions",
    "test_scatter_gather_ops",
]
FOLDERS = ("distributions", "nn", "functorch")

# What is left out on purpose, by a part of the test's name or of its error.
LEFT_OUT = {
    "complex32": ("complex32", "chalf"),
    "PyTorch's references in Python": ("_refs", "_prims"),
    "named tensors": ("named_tensor", "refine_names", "align_to", "Tensor.names"),
    "quantised engines": (
        "qint",
        "quint",
        "qscheme",
        "quantize_per_",
        "_affine_quantized",
        "test_dtype_is_signed",
        "backends.quantized",
    ),
    "layouts of mkldnn": ("mkldnn",),
    "orthogonal polynomials": ("chebyshev", "hermite_poly", "laguerre", "legendre"),
    "TorchScript's compiler": ("torchscript", "jit.CompilationUnit"),
    "lazy copies (copy on write)": ("_lazy_clone", "_data_address"),
    "graph capture": ("FakeTensor", "_dynamo", "make_fx"),
    "tensors that wrap others": ("_make_wrapper_subclass", "TorchDispatchMode", "__torch_dispatch__"),
    "sparse tensors of blocks": ("sparse_bsr", "sparse_bsc"),
    "nested tensors": ("torch.nested", "nested_tensor"),
    "subclasses of StorageBase": ("StorageBase",),
    "internals of functorch": ("_C._functorch", "_vmap_fallback", "torch._functorch", "test_vmap_fallback"),
    "pending conjugates": ("math_view", "conj_imag_view", "conj_neg_view", "_efficientzerotensor"),
    "MaxUnpool, which is deterministic here": ("nondeterministic_alert_MaxUnpool",),
    "writes to expanded tensors, deprecated there": ("fill_mem_overlap", "index_put_mem_overlap"),
    "functions that only PyTorch's tests call": ("_test_check_tensor", "'_warn'", "vitals", "AbortHandler"),
}

# What later releases of PyTorch took away, and helpers of earlier ones import.
PREPARE_PYTORCH = """
import torch.export
torch.export.export_for_training = torch.export.export
import torch.onnx
torch.onnx._CAFFE2_ATEN_FALLBACK = False
import torch._utils_internal
torch._utils_internal.USE_MACA = False  # a fork's device
engines = [*torch.backends.quantized.supported_engines, "none"]
type(torch.backends.quantized).supported_engines = property(lambda self: [*engines])
"""


def assert_metadata_eq(assert_eq: Any, a: Any, b: Any, **options: Any) -> None:
    """PyTorch's helper of this name, for the attributes of strided tensors."""
    for name in ("dtype", "shape", "requires_grad", "is_leaf", "is_sparse"):
        assert_eq(getattr(a, name), getattr(b, name))
    assert_eq(a.is_inference(), b.is_inference())
    assert_eq(a.stride(), b.stride())
    assert_eq(a.storage_offset(), b.storage_offset())
    assert_eq(a.grad is None, b.grad is None)


def writable_path(path: str) -> str:
    """PyTorch's helper of this name: the path, or one for a copy of the file where it cannot be written."""
    return path if os.access(path, os.W_OK) else shutil.copy(path, tempfile.mkdtemp())


# What the helpers ask of a build while they are imported, and what PyTorch's CPU build answers.
FACTS = {
    "torch._C._get_privateuse1_backend_name()": "privateuseone",
    "torch._utils._is_privateuse1_backend_available()": False,
    "torch._C._len_torch_function_stack()": 0,
    "torch._C._get_torch_function_state()": None,
    "torch._C._set_torch_function_state()": None,
    "torch._C._TorchFunctionState": types.SimpleNamespace(ENABLED=None),
    "torch._C._DisableFuncTorch": contextlib.nullcontext,
    "torch._C._has_mkldnn": False,
    "torch.storage._get_always_warn_typed_storage_removal()": False,
    "torch.storage._set_always_warn_typed_storage_removal()": None,
    "torch._C.has_lapack": True,
    "torch._dynamo.config.compiled_autograd": False,
    "torch._logging.scribe.open_source_signpost()": None,
    **{f"torch.{name}": name for name in ("jagged", "sparse_csc", "sparse_bsr", "sparse_bsc", "_mkldnn")},
    "torch._utils_internal.USE_MACA": False,  # a fork's device
    "torch._utils_internal.get_file_path_2": os.path.join,
    "torch._utils_internal.get_writable_path": writable_path,
    "torch._subclasses.meta_utils.assert_metadata_eq": assert_metadata_eq,
    "torch.distributed.tensor.DTensor": type("DTensor", (), {}),  # assertEqual asks whether it got one
}


# ---- torch with PyTorch's helpers ----------------------------------------------------------------------


class Absent:
    """Stands for a name that is missing while a file or a helper is imported: whoever uses it later fails."""

    def __init__(self, name: str) -> None:
        self._absent_name = name

    def __getattr__(self, name: str) -> Any:
        if name == "__name__":  # of which tests make their names
            return self._absent_name.rpartition(".")[2]
        if name == "__all__":
            return ()
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self._absent_name}.{name}")

    def _fail(self, *args: Any, **kwargs: Any) -> Any:
        if Names.lenient:
            return Absent(f"{self._absent_name}()")
        raise AttributeError(f"warptape has no {self._absent_name}")

    __call__ = __enter__ = __exit__ = __getitem__ = _fail

    def __instancecheck__(self, other: Any) -> bool:
        return False  # nothing is one

    __subclasscheck__ = __instancecheck__

    def __iter__(self) -> Any:
        self._fail()
        return iter(())

    def __or__(self, other: Any) -> Any:
        return other

    __ror__ = __or__

    def __bool__(self) -> bool:
        return False

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        return (type("AbsentBase", (), {"__init__": self._fail}),)


class AbsentDtype(Absent):
    """A dtype that is missing: the helpers make tests of it, which fail where they use it."""

    __class__ = property(lambda self: sys.modules["warptape"].dtype)  # type: ignore[assignment]

    def __repr__(self) -> str:
        return self._absent_name

    def __bool__(self) -> bool:
        return True  # as dtypes are

    is_floating_point = False
    is_complex = property(lambda self: self._absent_name == "torch.complex32")


DTYPES = {  # of classes of these names, which errors show
    name: type(name, (AbsentDtype,), {})(f"torch.{name}")
    for name in ("complex32", "quint8", "qint8", "qint32", "quint4x2", "quint2x4")
}
DTYPES["chalf"] = DTYPES["complex32"]


class AbsentModule(ModuleType):
    """A module of torch that is missing."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")


class AbsentFinder(MetaPathFinder, Loader):
    """Finds an AbsentModule for each module of torch."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        known = name.partition(".")[0] in ("torch", "functorch")
        return importlib.machinery.ModuleSpec(name, self, is_package=True) if known else None

    def create_module(self, spec: Any) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        pass


class HelperFinder(AbsentFinder):
    """Finds PyTorch's helpers where PyTorch lies, and an AbsentModule for a module that is missing."""

    def __init__(self, site: Path) -> None:
        self.site = site

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name == "torchgen":  # what PyTorch's op tables are made with
            return importlib.machinery.PathFinder.find_spec(name, [str(self.site)])
        if not name.startswith("torch."):
            return super().find_spec(name, path) if name != "torch" else None
        if name in (INTERNAL, *BESIDE) or name.startswith((f"{INTERNAL}.", f"{BESIDE[2]}.")):
            return importlib.machinery.PathFinder.find_spec(
                name, [str(self.site.joinpath(*name.split(".")[:-1]))]
            )
        from warptape._missing import module_name

        with contextlib.suppress(ModuleNotFoundError):  # a parent is missing
            if importlib.util.find_spec(module_name(name)) is not None:
                return None  # the finder of warptape.torch has it
        return super().find_spec(name, path)


class Names(ModuleType):
    """The class of torch's modules while a file is imported: a missing name is Absent."""

    def __getattribute__(self, name: str) -> Any:
        try:
            return super().__getattribute__(name)
        except AttributeError:
            frame = sys._getframe(1)
            # getattr() and hasattr() are told the truth, and so are warptape and the import system.
            by_name = dis.opname[frame.f_code.co_code[frame.f_lasti]] in (
                "LOAD_ATTR",
                "LOAD_METHOD",
                "IMPORT_FROM",
            )
            by_name |= (
                frame.f_code.co_name == "_getattr_qual"
            )  # of the op tables: one op is not the whole table
            own = frame.f_globals.get("__name__", "").partition(".")[0] in Names.strict
            if name.startswith("__") or not Names.lenient or own or not by_name:
                raise
            if name in DTYPES:
                return DTYPES[name]
            return Absent(f"{super().__getattribute__('__name__').replace('warptape', 'torch')}.{name}")

    lenient = False
    strict = ("warptape", "importlib", "_frozen_importlib")


def prepare(site: Path) -> None:
    """`torch` is warptape from here on, with PyTorch's helpers."""
    import warptape
    from warptape import _missing
    from warptape.torch import install

    install()
    sys.meta_path.insert(0, HelperFinder(site))
    import torch.testing

    torch.testing.__path__ = []  # a module here, which has PyTorch's helpers below it now
    warptape._C.__path__ = []  # type: ignore[attr-defined]  # of modules that are missing
    _missing._imports_from = lambda frame: False  # what `from` does not find is an AttributeError as well
    load = builtins.__import__
    seen = 0

    def load_and_mark(*args: Any, **kwargs: Any) -> Any:
        nonlocal seen
        module = load(*args, **kwargs)
        if len(sys.modules) != seen:
            seen = len(sys.modules)
            for name, other in list(sys.modules.items()):
                if name.partition(".")[0] == "warptape" and type(other) is ModuleType:
                    other.__class__ = Names
                    vars(other).setdefault("__path__", [])  # missing modules lie below it
        return module

    builtins.__import__ = load_and_mark
    Names.lenient = True
    for path, answer in FACTS.items():
        parent, _, name = path.rpartition(".")
        try:
            owner = importlib.import_module(parent)
        except ImportError:  # a namespace, such as torch._C
            owner = functools.reduce(getattr, parent.split(".")[1:], warptape)
        plain = name.removesuffix("()")
        if plain not in vars(owner):
            setattr(owner, plain, answer if plain == name else lambda *args, answer=answer, **kwargs: answer)
    for name in DTYPES:
        if name.startswith("q"):  # assertEqual has a list of them
            setattr(warptape, name, DTYPES[name])
    functorch = importlib.import_module("functorch")  # the names that torch.func has, too
    vars(functorch).update({name: f for name, f in vars(warptape.func).items() if callable(f)})
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(BESIDE[1])
    for space in (warptape.ops, warptape.ops.aten):  # not among sys.modules
        space.__class__ = type("Names", (Names, type(space)), {})
    warptape.nn.modules.__name__ = "torch.nn.modules"  # of which tests make their names


# ---- a file in a process of its own --------------------------------------------------------------------


class Outcome(unittest.TestResult):
    """What became of the one test that is run: passed, failed or skipped, and why."""

    def __init__(self) -> None:
        super().__init__()
        self.found = ["passed", ""]

    def addFailure(self, test: Any, error: Any) -> None:
        self.found = ["failed", f"{error[0].__name__}: {error[1]}"[:600]]

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        self.found = ["skipped", reason]

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        self.found = ["failed", "expected to fail"]

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self.addFailure(test, error)


def cases_of(suite: Any) -> Any:
    """The single tests of a suite of suites."""
    for item in suite:
        if isinstance(item, unittest.TestSuite):
            yield from cases_of(item)
        else:
            yield item


def work(options: argparse.Namespace) -> None:
    """Runs the tests of the file of which --out has no outcome yet; each is written down before and after."""
    warnings.simplefilter("ignore")
    path = options.tests / options.files[0]
    sys.path[:0] = [str(options.tests), str(path.parent)]
    sys.argv = [str(path)]
    if options.worker == "warptape":
        prepare(options.helpers)
        # Processes that tests start have the same torch.
        Path("sitecustomize.py").write_text("from warptape.torch import install\n\ninstall()\n")
        os.environ["PYTHONPATH"] = os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")])
    else:  # helpers of the tests' own version
        testing = importlib.import_module("torch.testing")
        testing.__path__ = [str(options.helpers / "torch" / "testing"), *testing.__path__]
        for name in [name for name in sys.modules if name.startswith(INTERNAL)]:
            del sys.modules[name]
        exec(PREPARE_PYTORCH, {})
        sys.meta_path.append(AbsentFinder())
        Names.lenient = True
    spec = importlib.util.spec_from_file_location("pytorch_cases", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["pytorch_cases"] = module
    spec.loader.exec_module(module)
    Names.lenient = False
    known = {}
    if options.out.exists():
        known = {line[0]: line for line in map(json.loads, options.out.read_text().splitlines())}
    cases = list(cases_of(unittest.defaultTestLoader.loadTestsFromModule(module)))
    with options.out.open("a", buffering=1) as out:
        for case in cases:
            name = case.id().removeprefix("pytorch_cases.")
            if (
                name in known
                or options.k not in name
                or any(part in name for part in options.skip)
                or zlib.crc32(name.encode()) % 1000 >= options.part * 1000
            ):
                continue
            out.write(json.dumps([name, "failed", "the process ended or took too long"]) + "\n")
            result = Outcome()
            try:
                case.run(result)
            except Exception as error:  # of the helpers, outside of the test
                result.found = ["failed", f"{type(error).__name__}: {error}"[:600]]
            out.write(json.dumps([name, *result.found]) + "\n")


def outcomes(file: str, library: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """The outcome of each test of a file. A worker that ends, or is at one test for too long, is replaced."""
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "outcomes", Path(folder) / "log"
        python = options.python if library == "torch" else sys.executable
        command = [str(python), __file__, str(options.tests.resolve()), file, "--worker", library]
        command += ["--out", str(out), "-k", options.k, "--helpers", str(options.helpers.resolve())]
        command += ["--part", str(options.part), *(f"--skip={part}" for part in options.skip)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
        while True:
            before = out.stat().st_size if out.exists() else 0
            with log.open("w") as text:
                process = subprocess.Popen(command, env=environment, stdout=text, stderr=text, cwd=folder)
            waited, size, now = 0.0, -1, time.monotonic()
            while process.poll() is None:
                time.sleep(0.2)
                before_sleep, now = now, time.monotonic()
                waited += min(now - before_sleep, 1.0)  # what is longer, this process was stopped for
                if out.exists() and out.stat().st_size != size:
                    waited, size = 0.0, out.stat().st_size
                elif waited > options.timeout:
                    process.kill()
                    process.wait()
            if process.returncode == 0:
                break
            if (out.stat().st_size if out.exists() else 0) == before:  # not even one more test
                end = log.read_text().strip().splitlines() or ["no output"]
                if options.v:
                    print(log.read_text(), file=sys.stderr)
                return {"": ["failed", f"the file is not imported: {end[-1][:300]}"]}
        lines = [json.loads(line) for line in out.read_text().splitlines()]
        return {name: [outcome, why] for name, outcome, why in lines}


def known(file: str, library: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """`outcomes`, kept below --cache for the next run: what PyTorch's tests do there does not change."""
    if options.cache is None or options.k:
        return outcomes(file, library, options)
    kept = options.cache / f"{file.replace('/', '.')}-{options.part}.json"
    if not kept.exists():
        options.cache.mkdir(parents=True, exist_ok=True)
        kept.write_text(json.dumps(outcomes(file, library, options), indent=0))
    found: dict[str, list[str]] = json.loads(kept.read_text())
    return found


# ---- the counts ----------------------------------------------------------------------------------------


def reason_left_out(name: str, why: str) -> str:
    """On purpose, and which purpose; else empty."""
    text = f"{name} {why}"
    return next((reason for reason, parts in LEFT_OUT.items() if any(p in text for p in parts)), "")


def compared(theirs: dict[str, list[str]], ours: dict[str, list[str]], part: float = 1) -> dict[str, Any]:
    """The row of a file: tests that pass in PyTorch, those of them that pass here, the others by cause."""
    counted = [name for name, (outcome, _) in theirs.items() if outcome == "passed" and name]
    stopped = ours.get("", ["", ""])[1]
    causes: collections.Counter[str] = collections.Counter()
    left_out: collections.Counter[str] = collections.Counter()
    passed = 0
    for name in counted:
        outcome, why = ours.get(name, ["failed", stopped or "not generated here"])
        if outcome == "passed":
            passed += 1
        elif reason := reason_left_out(name, why):
            left_out[reason] += 1
        else:
            words = why.strip().splitlines() or ["no text"]
            cause = words[0].replace(f"{ROOT}/", "")
            causes[re.sub(r"0x[0-9a-f]+|-?\d+(\.\d+)?(e[-+]?\d+)?", "N", cause)[:160]] += 1
    row: dict[str, Any] = {"part": part, "counted": len(counted), "passed": passed}
    row |= {"left out": dict(left_out.most_common()), "causes": dict(causes.most_common())}
    if "" in theirs:
        row["PyTorch"] = theirs[""][1]
    return row


def table(rows: dict[str, dict[str, Any]]) -> str:
    """Rows for docs/measurements/compatibility.md."""
    lines = ["| file | pass in PyTorch | left out | of the others pass here | share | first causes |"]
    lines.append("| --- | --- | --- | --- | --- | --- |")
    total: collections.Counter[str] = collections.Counter()
    for file, row in sorted(rows.items()):
        if not row["counted"]:
            continue
        first = sorted(row["causes"].items(), key=lambda item: -item[1])[:3]
        causes = "; ".join(f"{n} x {cause[:60]}" for cause, n in first)
        numbers = {k: row[k] for k in ("counted", "passed")} | {"left": sum(row["left out"].values())}
        total.update(numbers)
        part = f" (part {row['part']:g})" if row.get("part", 1) < 1 else ""
        lines.append(_line(file + part, numbers, causes))
    return "\n".join([*lines, _line("all", total, "")])


def left_out_table(rows: dict[str, dict[str, Any]]) -> str:
    """For docs/measurements/compatibility.md: what is left out on purpose, and of how many tests."""
    count: collections.Counter[str] = collections.Counter()
    for row in rows.values():
        count.update(row["left out"])
    lines = ["| left out on purpose | tests |", "| --- | --- |"]
    return "\n".join([*lines, *(f"| {reason} | {n} |" for reason, n in count.most_common())])


def _line(file: str, n: dict[str, int], causes: str) -> str:
    share = f"{n['passed'] / max(n['counted'] - n['left'], 1):.1%}"
    cells = [file, n["counted"], n["left"], n["passed"], share, causes.replace("|", "/")]
    return "| " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tests", type=Path)
    parser.add_argument("files", nargs="*")
    parser.add_argument(
        "--helpers", type=Path, required=True, help="a folder with torch/testing of the same version"
    )
    parser.add_argument("--python", default=sys.executable, help="an interpreter that has PyTorch")
    parser.add_argument("--timeout", type=float, default=60, help="seconds for a test, or an import")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--part", type=float, default=1, help="of the tests, chosen by a hash of their names")
    parser.add_argument("--skip", action="append", default=[], help="part of names of tests that are not run")
    parser.add_argument("--cache", type=Path, help="a folder that keeps what the tests do under PyTorch")
    parser.add_argument("--keep", type=Path, help="a folder for the outcome of each test here")
    parser.add_argument("-k", default="", help="only tests with this in their names; nothing is written")
    parser.add_argument("-v", action="store_true", help="show why a file is not imported, and each failure")
    parser.add_argument("--worker", choices=["torch", "warptape"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options)
        return 0
    files = options.files or [
        *(f"{name}.py" for name in FILES if (options.tests / f"{name}.py").exists()),
        *(
            str(p.relative_to(options.tests))
            for d in FOLDERS
            for p in sorted(options.tests.glob(f"{d}/test_*.py"))
        ),
    ]

    def both(file: str) -> dict[str, Any]:
        theirs, ours = known(file, "torch", options), outcomes(file, "warptape", options)
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            options.keep.joinpath(f"{file.replace('/', '.')}.json").write_text(json.dumps(ours, indent=0))
        if options.v:
            for name, (outcome, why) in ours.items():
                if outcome != "passed" and theirs.get(name, [""])[0] == "passed":
                    print(f"{name}: {why}", file=sys.stderr)
        return compared(theirs, ours, options.part)

    with ThreadPoolExecutor(options.jobs) as pool:
        rows = dict(zip(files, pool.map(both, files), strict=True))
    print(table(rows))
    if not options.k:
        record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps(record | rows, indent=1, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
