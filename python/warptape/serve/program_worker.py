"""A worker of kind "program" or "module": tensors in, tensors out, in one call."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from warptape import core as wt

from ..compiler.export import load, passes
from ..compiler.graphs import GraphFunction
from ..core import DtypeError, ShapeError, Tensor
from ..core.pytree import TreeSpec, tree_flatten
from .frames import BF16, DTYPES, dtype_name
from .workers import WorkerSpec

OPTIONS = ("input", "output", "max_batch_size", "threads", "optimize", "heartbeat_s")
KSERVE = {
    wt.bool: "BOOL",
    wt.uint8: "UINT8",
    wt.int8: "INT8",
    wt.int16: "INT16",
    wt.int32: "INT32",
    wt.int64: "INT64",
    wt.float16: "FP16",
    wt.bfloat16: "BF16",
    wt.float32: "FP32",
    wt.float64: "FP64",
}


def to_tensor(array: np.ndarray) -> Tensor:
    """A tensor on an array's memory. Raises: ValueError for BYTES.

    Args:
        array: of numbers.
    """
    if array.dtype == BF16:
        return wt.from_numpy(array.view(np.int16)).view(wt.bfloat16)
    if array.dtype == object:
        raise ValueError("this model takes numbers, not BYTES")
    return wt.from_numpy(array if array.flags.writeable else array.copy())


def to_array(tensor: Tensor) -> np.ndarray:
    """The array of a tensor, on its memory.

    Args:
        tensor: on the CPU.
    """
    if tensor.dtype == wt.bfloat16:
        return tensor.contiguous().view(wt.int16).numpy().view(BF16)
    return tensor.numpy()


def _names(spec: TreeSpec, stem: str) -> list[str]:
    """A name for each leaf: the keys on the way to it where there are any, else its number."""
    names: list[str] = []

    def walk(node: TreeSpec, path: tuple[str, ...]) -> None:
        if node.is_leaf():
            names.append("_".join(path) or f"{stem}_{len(names)}")
            return
        keys = [str(k) for k in node.context] if node.type is dict else [""] * len(node.children_specs)
        for key, child in zip(keys, node.children_specs):
            walk(child, (*path, key) if key else path)

    walk(spec, ())
    twice = {n for n in names if names.count(n) > 1}
    return [f"{n}_{i}" if n in twice else n for i, n in enumerate(names)]


class _Program:
    """An exported program as a function of a list of tensors.

    Args:
        optimize: as torch.jit.optimize_for_inference: faster, and it rounds in another way.
    """

    def __init__(self, path: str, optimize: bool) -> None:
        program = passes.optimize_pass(
            load(path),
            freeze=True,
            fuse_frozen_conv_add_relu=True,
            fold_frozen_conv_bn=optimize,
            channels_last=optimize,
        )
        self.function: GraphFunction = program._graph_function()
        graph = self.function.graph
        taken, outputs = self.function.in_values, self.function.out_values
        names = _names(self.function.in_spec, "input")
        self.inputs = self._described(graph.inputs, [n for i, n in enumerate(names) if i not in taken])
        names = _names(self.function.out_spec, "output")
        self.outputs = self._described(graph.outputs, [n for i, n in enumerate(names) if i not in outputs])

    def _described(self, values: Sequence[int], names: list[str]) -> list[dict[str, Any]]:
        described = []
        for number, name in zip(values, names):
            _, dtype, shape = self.function.graph.values[number][:3]
            if dtype not in KSERVE:
                raise ValueError(f"the program's tensor {name} is {dtype}, which has no KServe datatype")
            sizes = [s if isinstance(s, int) else -1 for s in shape]
            described.append({"name": name, "datatype": KSERVE[dtype], "shape": sizes})
        return described

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        return self.function.graph.run(tensors)


def _truth(value: object) -> bool:
    """A parameter, which Triton writes as a string. Raises: ValueError."""
    known = {"true": True, "1": True, "false": False, "0": False}
    if str(value).lower() not in known:
        raise ValueError(f"optimize must be true or false, got {value!r:.50}")
    return known[str(value).lower()]


class _Module:
    """A module as a function of a list of tensors."""

    def __init__(self, module: Any) -> None:
        self.module = module.eval() if hasattr(module, "eval") else module
        self.inputs: list[dict[str, Any]] = []
        self.outputs: list[dict[str, Any]] = []

    def __call__(self, tensors: list[Tensor]) -> list[Tensor]:
        return [x for x in tree_flatten(self.module(*tensors))[0] if isinstance(x, Tensor)]


def _renamed(kind: str, described: list[dict[str, Any]], given: Any, batched: bool) -> list[dict[str, Any]]:
    """The tensors with the config's names. Raises: ValueError where the config does not fit the model."""
    if given is None:
        return described
    made = []
    for name, datatype, dims in given:
        made.append({"name": name, "datatype": datatype, "shape": [-1, *dims] if batched else list(dims)})
    if described and len(made) != len(described):
        raise ValueError(f"config.json: {kind} names {len(made)} tensors, the program has {len(described)}")
    for own, theirs in zip(described, made):
        fits = len(own["shape"]) == len(theirs["shape"]) and all(
            -1 in (a, b) or a == b for a, b in zip(own["shape"], theirs["shape"])
        )
        if own["datatype"] != theirs["datatype"] or not fits:
            raise ValueError(
                f"config.json: {kind} {theirs['name']} is {theirs['datatype']}{theirs['shape']}, the "
                f"program's is {own['datatype']}{own['shape']}"
            )
    return [{**own, "name": theirs["name"]} for own, theirs in zip(described, made)] or made


class ProgramWorker:
    """An exported program, or a module of the process that this one was forked from.

    Args:
        spec: its options may be `threads`, `optimize` (on by default: as
            torch.jit.optimize_for_inference, which rounds in another way), and the config's input and output.
        module: of kind "module".

    Raises: ValueError and NotImplementedError of a file that cannot be read; ValueError for a config that
        does not fit; TypeError for unknown options.
    """

    def __init__(self, spec: WorkerSpec, module: Any = None) -> None:
        unknown = sorted(set(spec.options) - set(OPTIONS))
        if unknown:
            raise TypeError(f"unknown parameters {', '.join(unknown)}; known are {', '.join(OPTIONS)}")
        options = spec.options
        if options.get("threads") is not None:
            wt.set_num_threads(int(options["threads"]))
        if spec.kind == "module":
            self._run: Any = _Module(module)
        else:
            try:
                self._run = _Program(spec.path, _truth(options.get("optimize", True)))
            except (ValueError, OSError, NotImplementedError) as error:
                raise ValueError(f"{spec.path}: {error}") from error
        self._most = int(options.get("max_batch_size", 0))
        self._batched = self._most > 0
        self._inputs = _renamed("input", self._run.inputs, options.get("input"), self._batched)
        self._outputs = _renamed("output", self._run.outputs, options.get("output"), self._batched)
        self._warm()

    def _warm(self) -> None:
        """Runs once, so that the first request finds all made that is made once; and, with batches, at the
        largest. Raises: ValueError for a program that is not for them."""
        if not self._inputs:
            return
        first = [t["name"] for t in self._inputs if self._batched and t["shape"][:1] != [-1]]
        if first:
            raise ValueError(
                f"max_batch_size needs inputs whose first dim varies; that of {first[0]} does not"
            )
        with contextlib.suppress(ValueError):  # ones may be no sizes that it is for
            self.infer(self._zeros(1), None)
            if self._batched:
                try:
                    self.infer(self._zeros(self._most), None)
                except ValueError as error:
                    raise RuntimeError(f"max_batch_size {self._most} does not fit: {error}") from None

    def _zeros(self, rows: int) -> dict[str, np.ndarray]:
        shapes = [[1 if s < 0 else s for s in t["shape"]] for t in self._inputs]
        return {
            t["name"]: np.zeros([rows, *s[1:]] if self._batched else s, DTYPES[t["datatype"]])
            for t, s in zip(self._inputs, shapes)
        }

    def metadata(self) -> dict[str, Any]:
        """Names, datatypes and shapes, -1 where a size varies; none of a module that no config describes."""
        return {"kind": "program", "inputs": self._inputs, "outputs": self._outputs}

    def infer(self, inputs: Mapping[str, np.ndarray], outputs: Sequence[str] | None) -> dict[str, np.ndarray]:
        """The outputs by name.

        Raises: ValueError for inputs that the model is not for; RuntimeError for what fails within it.
        """
        names = [t["name"] for t in self._inputs] or list(inputs)
        missing = [n for n in names if n not in inputs]
        if missing or len(inputs) != len(names):
            raise ValueError(f"expected inputs {names}, got {list(inputs)}")
        tensors = [to_tensor(inputs[n]) for n in names]
        with wt.inference_mode():
            try:
                results = self._run(tensors)
            except (ShapeError, DtypeError) as error:
                raise ValueError(str(error)) from error
            except Exception as error:
                raise RuntimeError(f"{type(error).__name__}: {error}") from error
        given = [t["name"] for t in self._outputs] or [f"output_{i}" for i in range(len(results))]
        if len(given) != len(results):
            raise RuntimeError(f"the model gave {len(results)} tensors, its config names {given}")
        arrays = {n: to_array(t) for n, t in zip(given, results) if outputs is None or n in outputs}
        for name in outputs or ():
            if name not in arrays:
                raise ValueError(f"there is no output {name!r:.100}; there are {given}")
        for array in arrays.values():
            dtype_name(array)  # a TypeError for what KServe has not, before anything is sent
        return arrays
