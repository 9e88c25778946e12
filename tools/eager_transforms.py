"""Runs PyTorch's own tests of function transforms (a copy of its test_eager_transforms.py or test_vmap.py)
under PyTorch and here, and counts which of those that pass there pass here.

    python tools/eager_transforms.py FILE               # the counts, the failures by error text, written down
    python tools/eager_transforms.py FILE -k jacrev -v  # only cases with this in their names, and tracebacks

The file runs unchanged, with `torch` bound to warptape. PyTorch's test machinery (torch.testing._internal)
stays PyTorch's own: what is compared is converted first. `functorch`'s functions that torch.func replaced are
made of those. A case that uses what has no counterpart here (graph capture, compilation, dispatch keys ..) is
not counted.
It needs PyTorch 2.13 and expecttest.
"""

from __future__ import annotations

import argparse
import builtins
import collections
import copy
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import traceback
import unittest
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

RESULTS = ROOT / "benchmarks" / "results" / "eager_transforms.json"
INTERNAL = "torch.testing._internal"
# Modules of PyTorch that have no counterpart, and what they are for.
ABSENT = {
    "torch._dynamo": "compilation",
    "torch._functorch.autograd_function": "internals of functorch",
    "torch._functorch.utils": "internals of functorch",
    "torch._functorch.vmap": "internals of functorch",
    "torch._C._functorch": "internals of functorch",
    "torch._C": "dispatch keys",
    "torch._ops": "higher-order operators",
    "torch._subclasses.fake_tensor": "fake tensors",
    "torchvision": "torchvision",
}


# By a part of the case's name or of its error.
BY_NAME = {
    "test_deprecation_": "warnings of functorch's own names",
    "has no torch.sparse_coo": "sparse tensors",
    "test requires torchvision": "torchvision",
}


class NotCounted(unittest.SkipTest):
    """A case that uses what is not here."""


class Absent:
    """Stands for a feature that is not here: calling it ends the case."""

    def __init__(self, feature: str) -> None:
        self.feature = feature

    def __getattr__(self, name: str) -> Absent:
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(self.feature)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotCounted(self.feature)

    __enter__ = __or__ = __call__

    def __exit__(self, *args: Any) -> None:
        pass

    def __mro_entries__(self, bases: Any) -> tuple[type, ...]:
        feature = self.feature

        class Base:
            def __init__(self, *args: Any) -> None:
                pass

            def __call__(self, *args: Any, **kwargs: Any) -> Any:
                raise NotCounted(feature)

            def py_impl(self, key: Any) -> Callable[..., Any]:
                return lambda rule: rule

        return (Base,)


# ---- functorch's own names, by those of torch.func -----------------------------------------------------


class _Functional:
    """A module as a function of its parameters (and buffers)."""

    def __init__(self, model: Any, parameters: list[str], buffers: list[str]) -> None:
        self.stateless_model, self.names = model, (parameters, buffers)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from warptape.func import functional_call

        given = [dict(zip(names, values, strict=True)) for names, values in zip(self.names, args) if names]
        state = 2 if self.with_buffers else 1
        return functional_call(self.stateless_model, given[:state], args[state:], kwargs)

    with_buffers = True


def make_functional_with_buffers(model: Any, disable_autograd_tracking: bool = False) -> Any:
    """(function of (parameters, buffers, *args), parameters, buffers)."""
    source = copy.deepcopy(model)
    parameters, buffers = dict(source.named_parameters()), dict(source.named_buffers())
    function = _Functional(copy.deepcopy(model), list(parameters), list(buffers))
    values = tuple(p.detach() if disable_autograd_tracking else p for p in parameters.values())
    return function, values, tuple(buffers.values())


def make_functional(model: Any, disable_autograd_tracking: bool = False) -> Any:
    """(function of (parameters, *args), parameters) of a module without buffers."""
    function, parameters, _ = make_functional_with_buffers(model, disable_autograd_tracking)
    if function.names[1]:
        raise RuntimeError("make_functional(model): `model` has buffers")
    function.with_buffers = False
    return function, parameters


def combine_state_for_ensemble(models: Any) -> Any:
    """(function, parameters, buffers) of modules of one architecture, stacked."""
    from warptape.func import stack_module_state

    parameters, buffers = stack_module_state(models)
    function = _Functional(copy.deepcopy(models[0]), list(parameters), list(buffers))
    return function, tuple(parameters.values()), tuple(buffers.values())


def _slice_argnums(args: Any, argnums: Any, as_tuple: bool = True) -> Any:
    from warptape.func.transforms import _chosen

    chosen = tuple(_chosen(args, argnums)[0])
    return chosen if as_tuple or not isinstance(argnums, int) else chosen[0]


# ---- the file in each library --------------------------------------------------------------------------


def expected_failure_if(condition: bool) -> Callable[[Any], Any]:
    return unittest.expectedFailure if condition else lambda test: test


HELPERS = SimpleNamespace(expectedFailureIf=expected_failure_if)  # of test/functorch/common_utils.py


def shims() -> dict[str, Any]:
    """The modules that the file imports and warptape has not, by name."""
    import warptape
    from warptape import func

    names = ["grad", "grad_and_value", "hessian", "jacfwd", "jacrev", "jvp", "linearize", "vjp", "vmap"]
    own = [combine_state_for_ensemble, make_functional, make_functional_with_buffers]
    functorch = SimpleNamespace(
        **{name: getattr(func, name) for name in names},
        **{function.__name__: function for function in own},
        make_fx=Absent("graph capture"),
        functionalize=Absent("functionalization"),
        experimental=SimpleNamespace(
            functionalize=Absent("functionalization"),
            chunk_vmap=Absent("internals of functorch"),
            replace_all_batch_norm_modules_=func.replace_all_batch_norm_modules_,
        ),
    )
    internals = Absent("internals of functorch")
    compiling = Absent("compilation")
    warptape._dynamo = SimpleNamespace(
        allow_in_graph=lambda f: f,
        config=SimpleNamespace(patch=lambda **options: lambda test: lambda *args: compiling()),
        wrap_inline=compiling,
    )
    warptape.compile = lambda *args, **options: compiling()
    warptape._C._functorch = internals
    warptape._C.DispatchKey = Absent("dispatch keys")
    warptape._functorch = internals
    return {
        "common_utils": HELPERS,
        "functorch": functorch,
        "functorch.experimental": functorch.experimental,
        "torch._functorch.eager_transforms": SimpleNamespace(_slice_argnums=_slice_argnums),
        "torch._functorch.make_functional": internals,
        "torch._dynamo": warptape._dynamo,
        **{name: Absent(feature) for name, feature in ABSENT.items() if name != "torch._dynamo"},
    }


def converted(value: Any) -> Any:
    """What PyTorch's comparison is given for it."""
    import warptape
    from parity.convert import their_dtype, their_tensor

    if isinstance(value, warptape.Tensor):
        return their_tensor(value)
    if isinstance(value, type(warptape.float32)):
        return their_dtype(SimpleNamespace(dtype=value))
    if isinstance(value, warptape.Size):
        return tuple(value)
    if isinstance(value, dict):
        return {key: converted(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [converted(item) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return value


def importer(modules: dict[str, Any]) -> Callable[..., Any]:
    """`__import__` for the file: torch is warptape, but torch.testing._internal PyTorch's."""
    import warptape
    from parity.convert import our_value
    from torch.testing._internal import common_device_type, common_dtype, common_utils

    theirs = common_utils.TestCase.assertEqual

    def assert_equal(self: Any, x: Any, y: Any, *args: Any, **kwargs: Any) -> None:
        theirs(self, converted(x), converted(y), *args, **kwargs)

    common_utils.TestCase.assertEqual = assert_equal
    seed = common_utils.set_rng_seed

    def set_rng_seed(value: int | None = None) -> None:
        seed(value)
        warptape.manual_seed(common_utils.SEED if value is None else value)

    common_utils.set_rng_seed = set_rng_seed

    def dtypes(*args: Any) -> Callable[[Any], Any]:
        def mark(test: Any) -> Any:
            common_device_type.dtypes(*converted(args))(test)
            test.dtypes = {device: our_value(values) for device, values in test.dtypes.items()}
            return test

        return mark

    def our_dtypes(get: Callable[..., Any], *args: Any) -> list[Any]:
        return [our_value(dtype) for dtype in get(*args)]

    changed = {
        f"{INTERNAL}.common_device_type": {"dtypes": dtypes},
        f"{INTERNAL}.common_dtype": {
            name: partial(our_dtypes, get)
            for name, get in vars(common_dtype).items()
            if name.startswith("get_all_")
        },
        f"{INTERNAL}.common_utils": {"freeze_rng_state": warptape.random.fork_rng},
    }

    def load(name: str, names: Any = None, local: Any = None, fromlist: Any = (), level: int = 0) -> Any:
        if name in modules:
            module = modules[name]
            if isinstance(module, Absent) and module.feature == "torchvision":
                raise ImportError("torchvision")
        elif name.startswith(INTERNAL):
            module = SimpleNamespace(**(vars(importlib.import_module(name)) | changed.get(name, {})))
        elif name == "torch" or name.startswith("torch."):
            from warptape._missing import module_name

            module = importlib.import_module(module_name(name))
        else:
            return builtins.__import__(name, names, local, fromlist, level)
        return module if fromlist or "." not in name else modules.get(name.partition(".")[0], warptape)

    return load


def loaded(path: Path, here: bool) -> ModuleType:
    module = ModuleType("eager_cases")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module
    if here:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": importer(shims())}
    else:
        sys.modules["common_utils"] = HELPERS  # type: ignore[assignment]
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), vars(module))
    return module


class Outcomes(unittest.TestResult):
    """The outcome of each case: passed, failed, skipped, and the text of the error or the reason."""

    def __init__(self, show: bool) -> None:
        super().__init__()
        self.found: dict[str, tuple[str, str]] = {}
        self.show = show

    def note(self, test: Any, outcome: str, text: str = "") -> None:
        name = test.id().removeprefix("eager_cases.")
        if self.found.get(name, ("passed",))[0] == "passed":
            self.found[name] = outcome, text

    def addSuccess(self, test: Any) -> None:
        self.note(test, "passed")

    def addFailure(self, test: Any, error: Any) -> None:
        if self.show:
            print(test.id(), *traceback.format_exception(*error), sep="\n", file=sys.stderr)
        self.note(test, "failed", f"{error[0].__name__}: {error[1]}")

    addError = addFailure

    def addSkip(self, test: Any, reason: str) -> None:
        self.note(test, "skipped", reason)

    def addExpectedFailure(self, test: Any, error: Any) -> None:
        self.note(test, "failed", "expected to fail")

    def addUnexpectedSuccess(self, test: Any) -> None:
        self.note(test, "passed")

    def addSubTest(self, test: Any, subtest: Any, error: Any) -> None:
        if error is not None:
            self.addFailure(test, error)


def run(path: Path, here: bool, pattern: str, show: bool, out: Path) -> None:
    """Runs the cases in this process, without those of which `out` has an outcome, and adds theirs."""
    warnings.simplefilter("ignore")
    suite = unittest.defaultTestLoader.loadTestsFromModule(loaded(path, here))
    cases = [case for group in suite for case in group if pattern in case.id()]
    result = Outcomes(show)
    known = json.loads(out.read_text()) if out.exists() else {}
    for case in cases:
        name = case.id().removeprefix("eager_cases.")
        if name in known:
            continue
        out.write_text(json.dumps(known | result.found | {name: ("failed", "the process crashed")}))
        case.run(result)
        if here:
            leave_levels()
    out.write_text(json.dumps(known | result.found))


def leave_levels() -> None:
    """A level that a failed case left open would be the next one's."""
    from warptape.autograd import forward_ad

    while forward_ad._levels:
        forward_ad.exit_dual_level()


def outcomes(path: Path, library: str, known: Any, options: argparse.Namespace) -> dict[str, list[str]]:
    """The same in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "outcomes.json"
        out.write_text(json.dumps(known))
        command = [sys.executable, __file__, str(path), "--library", library, "--out", str(out)]
        command += ["-k", options.k] + (["-v"] if options.v and library == "warptape" else [])
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}
        while subprocess.run(command, env=environment).returncode < 0:  # a case crashed: the others after it
            pass
        return json.loads(out.read_text())


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("-k", default="", help="only cases with this in their names; nothing is written")
    parser.add_argument("-v", action="store_true", help="show tracebacks")
    parser.add_argument("--library", choices=["torch", "warptape"], help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.library:
        run(options.file.resolve(), options.library == "warptape", options.k, options.v, options.out)
        return 0
    ours = outcomes(options.file, "warptape", {}, options)
    for name, found in ours.items():
        if reason := next((why for text, why in BY_NAME.items() if text in f"{name} {found[1]}"), ""):
            ours[name] = ["skipped", reason]
    skipped = {name: found for name, found in ours.items() if found[0] == "skipped"}
    theirs = outcomes(options.file, "torch", skipped, options)
    counted: list[str] = []
    left_out: collections.Counter[str] = collections.Counter()
    causes: dict[str, list[str]] = collections.defaultdict(list)
    for name, (outcome, reason) in theirs.items():
        if outcome != "passed":
            left_out[reason if name in skipped else "does not pass in PyTorch"] += 1
            continue
        counted.append(name)
        own, words = ours.get(name, ("failed", "did not run"))
        if own == "failed":
            causes[re.sub(r"0x[0-9a-f]+|\s+", " ", words)[:160]].append(name)
    failed = sum(map(len, causes.values()))
    for cause, names in sorted(causes.items(), key=lambda item: -len(item[1])):
        print(f"{len(names)} x {cause}", *names, sep="\n      ")
    for reason, count in left_out.most_common():
        print(f"not counted: {count} x {reason}")
    right = len(counted) - failed
    share = right / max(len(counted), 1)
    print(
        f"{options.file.name}: {len(theirs)} cases, {len(counted)} counted, {right} pass ({share:.1%}), "
        f"{failed} fail"
    )
    if not options.k:
        record = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        record[options.file.name] = {
            "cases": len(theirs),
            "counted": len(counted),
            "passed": right,
            "not counted": dict(left_out.most_common()),
        }
        RESULTS.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
