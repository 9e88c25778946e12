"""Passes over exported programs: each takes a program and returns another."""

from __future__ import annotations

from .exported import ExportedProgram

__all__ = ["optimize_pass"]


def optimize_pass(
    ep: ExportedProgram, *, freeze: bool = False, gradients: bool | None = None, **passes: bool
) -> ExportedProgram:
    """The program with fewer calls, which returns the same to the bit; `pass_counts` says what was done.

    Args:
        freeze: parameters and buffers are constants from now on. The program's module has none, and calls
            on them alone are done once, here.
        gradients: those of inputs and parameters stay the same to the bit too; by default where not frozen.
        passes: `constant_propagation`, `peephole`, `cse`, `dce` and `reuse_memory` are on unless they are
            False; `fold_frozen_conv_bn` and `channels_last`, which round in another way, and
            `fuse_frozen_conv_add_relu` are off unless they are True; `plan_memory`
            is on where frozen.

    Raises:
        TypeError: a pass that there is not.
    """
    gradients = not freeze if gradients is None else gradients
    passes = {"plan_memory": freeze, **passes}
    function, counts = ep._function.optimised(freeze=freeze, gradients=gradients, **passes)
    graph = function.graph
    names = {graph.values[i][3] for i in graph.constants}
    left = frozenset[str]() if freeze else ep._parameters & names
    program = ExportedProgram(function, left, ep.example_inputs, freeze or ep.is_frozen)
    program.pass_counts = {name: count + ep.pass_counts.get(name, 0) for name, count in counts.items()}
    return program
