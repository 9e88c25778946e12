"""torch.compile and torch.compiler: regions of a program whose calls run together, optimised.

Inside of a compiled function Python runs as ever and so does what an op does on the host: it checks its
arguments, infers shapes and records its node. Kernels wait until a value is read (`item()`, `print`,
`bool()`, NumPy ..) or the function returns, and then run as one program: without dead code, with elementwise
ops in one pass over memory. The program is made once for all calls of the same signature: the same ops on the
same shapes. Numbers (a learning rate, a step) are no part of it. There are no guards, no graph
breaks and no analysis of Python code, and results are those of the function without `torch.compile`, to the
bit. See docs/guides/compile.md.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .. import _C

if TYPE_CHECKING:
    from ..tools.graph_drawing import ProgramText

logger = logging.getLogger("warptape.compiler")

__all__ = [
    "ReplayError",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "cudagraph_mark_step_begin",
    "disable",
    "is_compiling",
    "is_dynamo_compiling",
    "is_exporting",
    "list_backends",
    "reset",
    "set_stance",
]

_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
_LEAST = ("least_recomputed_bytes", "least_epilogue_bytes", "least_row_bytes", "least_prologue_bytes")
_STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile", "eager_then_compile")
_stance = "default"
atexit.register(_C._wait_for_kernels, True)  # the thread that compiles them does not survive the process


class ReplayError(RuntimeError):
    """A function compiled with `mode="reduce-overhead"` does not do what its replayed calls did.

    Its arguments are alike, but it calls other ops, with other numbers, or on other tensors: something else
    that it reads has changed. Results of calls since the last one that was compared may be those of the
    function as it was. The call that raised did what the function does now.
    """


class Explanation(NamedTuple):
    """What a compiled function did so far.

    `explain()` of a compiled function returns it; printing it gives a summary.
    """

    calls: int  # of the compiled function; one inside of another's counts there
    graph_count: int  # programs made: one per signature of calls
    graph_break_count: int  # reads of values before the function's end
    not_deferred: int  # calls of ops that ran at once, because their code needs data
    runs: int  # of programs
    op_count: int  # instructions of all programs
    fused: int  # of these, which joined another's pass over memory
    removed: int  # of these, dead code
    moved: int  # of these, which run earlier so that less memory is in use
    recomputed: int  # of these, added to compute again what would be in memory for long
    compile_seconds: float  # that making the programs took
    programs: list[ProgramText]  # their texts, with `draw(stage=..)` and `after(stage)`
    problems: list[str]  # why programs or calls are not captured or replayed, or kernels run one by one
    replays: int  # runs of programs as captured graphs, and calls without their Python
    eager_calls: int  # of the calls, which ran as without torch.compile: as that is faster, or to be timed
    trials: int  # how often both ways were measured
    recorded_seconds: float  # a call as a program with its backward, in the last trial: the mean without
    # the longest, with grad mode on if that was measured
    eager_seconds: float  # the same as without torch.compile
    epilogues: int  # products and convolutions whose kernel runs the elementwise steps behind them
    row_kernels: int  # of the fused instructions: norm, softmax and their like, run on some rows at a time
    tuned: list[str]  # with mode="max-autotune": what was measured for each epilogue, and chosen
    prologues: int  # products of matrices whose kernel makes their operand, rows by rows
    copies: int  # that changed the layout alone and were dropped: their readers read through strides
    rematerialized: int  # values that are not kept for a backward pass after the call, which computes them

    def __str__(self) -> str:
        return (
            f"{self.calls} calls, {self.graph_count} programs made in {1e3 * self.compile_seconds:.1f} ms "
            f"and run {self.runs} times; {self.graph_break_count} reads before the end\n"
            f"{self.op_count} instructions, {self.fused} fused into another's pass, {self.removed} removed, "
            f"{self.moved} moved, {self.recomputed} recomputed, {self.rematerialized} rematerialized in "
            f"backward; {self.epilogues} epilogues of products, "
            f"{self.prologues} prologues, {self.copies} copies dropped; "
            f"{self.not_deferred} calls of ops ran at once"
            + self.choice()
            + "".join(f"\ntuned: {line}" for line in self.tuned)
            + (f"\n{self.replays} replays" if self.replays else "")
            + "".join(f"\n{problem}" for problem in self.problems)
        )

    def choice(self) -> str:
        """Which way is faster, the program or eager calls, as a line of text.

        Returns:
            The measured times; an empty text before they were measured.
        """
        if not self.trials:
            return ""
        program, eager = 1e3 * self.recorded_seconds, 1e3 * self.eager_seconds
        return (
            f"\na call took {program:.3f} ms as a program and {eager:.3f} ms without torch.compile, "
            f"measured {self.trials} times; {self.eager_calls} calls ran so"
        )


_BROKEN = (
    '{name}: with mode="reduce-overhead" a compiled function may read no Python state that changes. Its '
    "arguments are like those of the calls that were recorded, but {changed}. Results since the last "
    "comparison may be those of the function as it was. Pass what changes as an argument, or leave the mode "
    "out."
)


def _explanation(region: Any, replays: Any) -> Explanation:
    from ..tools.graph_drawing import ProgramText  # imported for who looks at pictures alone

    counts, programs = region.counts(), region.programs()
    least = {name: getattr(region, name) for name in _LEAST}
    problems = {p["problem"] for p in programs if p["problem"]}
    return Explanation(
        counts["calls"],
        len(programs),
        counts["reads"],
        counts["not_deferred"],
        counts["runs"],
        sum(p["instructions"] for p in programs),
        sum(p["fused"] for p in programs),
        sum(p["removed"] for p in programs),
        sum(p["moved"] for p in programs),
        sum(p["recomputed"] for p in programs),
        sum(p["seconds"] for p in programs),
        [ProgramText.of(p["text"], p["recorded"], **least) for p in programs],
        sorted(problems.union(replays.problems if replays else ())),
        sum(p["replays"] for p in programs) + (replays.replays if replays else 0),
        counts["eager_calls"],
        counts["trials"],
        counts["recorded_seconds"],
        counts["eager_seconds"],
        sum(p["epilogues"] for p in programs),
        sum(p["row_kernels"] for p in programs),
        [line for p in programs for line in p["tuned"]],
        sum(p["prologues"] for p in programs),
        sum(p["copies"] for p in programs),
        sum(p["rematerialized"] for p in programs),
    )


def _compiled(
    fn: Callable[..., Any],
    fullgraph: bool,
    eager: bool,
    captures: bool = False,
    tunes: bool = False,
    skips_python: bool = False,
) -> Callable[..., Any]:
    region = _C._Compiled()
    region.fullgraph = fullgraph
    region.captures, region.tunes = captures, tunes
    region.adaptive = not captures
    region.fuses = region.schedules = region.recomputes = region.drops_copies = not eager
    replays = _C._replays_of(region) if skips_python else None

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _stance == "force_eager":
            return fn(*args, **kwargs)
        if replays is not None:
            out = replays.replay(args, kwargs)
            if out is not _C._MISSED:
                return out
        entered = region.enter()
        if replays is not None:
            replays.record()
        if not entered:
            return fn(*args, **kwargs)
        try:
            out = fn(*args, **kwargs)
        except BaseException:
            region.abandon()
            raise
        if replays is None:
            region.leave()
        elif changed := replays.finish(out, args, kwargs):
            raise ReplayError(_BROKEN.format(name=getattr(fn, "__qualname__", fn), changed=changed))
        if logs:
            log_new_programs()
        return out

    logs, logged = logger.isEnabledFor(logging.INFO), 0

    def log_new_programs() -> None:
        nonlocal logged
        programs = region.programs()
        for p in programs[logged:]:
            logger.info(
                "%s: program %d of %d instructions made in %.2f ms, %d fused, %d removed, %d recomputed",
                getattr(fn, "__qualname__", fn),
                logged,
                p["instructions"],
                1e3 * p["seconds"],
                p["fused"],
                p["removed"],
                p["recomputed"],
            )
            logger.debug("%s", p["text"])
            logged += 1

    def explain() -> Explanation:
        """What the compiled function did so far."""
        return _explanation(region, replays)

    call.explain = explain  # type: ignore[attr-defined]
    call.region = region  # type: ignore[attr-defined]
    call.replays = replays  # type: ignore[attr-defined]
    call._torchdynamo_orig_callable = fn  # type: ignore[attr-defined]
    return call


def compile(
    model: Any = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: Any = "inductor",
    mode: str | None = None,
    options: dict[str, Any] | None = None,
    name: str | None = None,
    disable: bool = False,
) -> Any:
    """A function or module that does what `model` does, its kernels run together; see this module's text.

    Without `model`, the decorator that makes one. Of a module the result is an
    `torch._dynamo.OptimizedModule`, whose `_orig_mod` the module is. The result's `explain()` tells what was
    compiled.

    Args:
        fullgraph: reading a value before the function's end raises a RuntimeError at the line that does.
        dynamic: accepted: each signature of calls gets a program of its own, in milliseconds.
        backend: "inductor" for all passes, "eager" and "aot_eager" for none but dead code elimination.
        mode: "reduce-overhead" and "max-autotune" capture programs on CUDA as graphs where calls are alike.
            On the CPU "reduce-overhead" lets calls that are alike and record no tape skip Python, under a
            contract: the function reads no Python state that changes, and has no effect but its results and
            values that ops write.
            Arguments, parameters and modules may change. What cannot be replayed runs as
            ever, and `explain().problems` says why. Every 1,000th call is compared, and raises a ReplayError
            where the contract was broken.
            "max-autotune" and "max-autotune-no-cudagraphs" measure on the CPU, in a program's first 8 runs,
            whether a product of matrices is faster with the elementwise steps behind it in its kernel.
        options: "triton.cudagraphs" does so too; others have no effect.
        disable: gives `model` back as it is.

    Raises:
        RuntimeError: both `mode` and `options`, as in PyTorch; a `mode` or `backend` that there is not.
        TypeError: `model` cannot be called.

    >>> f = torch.compile(lambda x: (x * 2 + 1).relu(), backend="eager")
    >>> f(torch.tensor([-1.0, 1.0]))
    tensor([0., 3.])
    """
    if mode is not None and options is not None:
        raise RuntimeError(
            "Either mode or options can be specified, but both can't be specified at the same time."
        )
    if mode is not None and mode not in _MODES:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(_MODES)}")
    if isinstance(backend, str) and backend not in ("inductor", "eager", "aot_eager", "cudagraphs"):
        raise RuntimeError(f"Invalid backend: {backend!r}, should be one of: {', '.join(list_backends(()))}")
    if model is None:
        return lambda later: compile(
            later, fullgraph=fullgraph, backend=backend, mode=mode, options=options, disable=disable
        )
    if not callable(model):
        raise TypeError(f"compile: expected a module or a function, got {type(model).__name__}")
    if disable:
        return model
    eager = backend in ("eager", "aot_eager")
    captures = mode in ("reduce-overhead", "max-autotune") or backend == "cudagraphs"
    tunes = mode in ("max-autotune", "max-autotune-no-cudagraphs")
    captures |= bool((options or {}).get("triton.cudagraphs"))
    how = (fullgraph, eager, captures, tunes, mode == "reduce-overhead")
    if hasattr(type(model), "_compiled_call_impl"):
        from .eval_frame import OptimizedModule  # a module is made of modules, which are above

        return OptimizedModule(model, _compiled(model.__call__, *how))
    return _compiled(model, *how)


def disable(
    fn: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None
) -> Any:
    """`fn` whose ops run at once, also inside of a compiled function; without it, the decorator for that.

    Args:
        fn: any function.
        recursive: without effect.
        reason: without effect.
    """
    if fn is None:
        return lambda later: disable(later, recursive)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        paused = _C._set_capture(False)
        try:
            return fn(*args, **kwargs)
        finally:
            _C._set_capture(paused)

    call._torchdynamo_disable = True  # type: ignore[attr-defined]
    return call


def allow_in_graph(fn: Callable[..., Any]) -> Any:
    """`fn` as it is: every function may be called inside of a compiled one.

    Args:
        fn: any function.
    """
    return fn


assume_constant_result = allow_in_graph


def is_compiling() -> bool:
    """Whether the caller runs inside of a compiled function."""
    return _C._is_compiling()


is_dynamo_compiling = is_compiling


def is_exporting() -> bool:
    """Whether an export traces symbols, which PyTorch's does.

    Returns:
        False: here export runs the function and records its ops.
    """
    return False


def cudagraph_mark_step_begin() -> None:
    """Marks the beginning of a step, for PyTorch's pool of memory of captured graphs.

    It does nothing: no captured graph here owns memory that a new step may take.
    """


def reset() -> None:
    """Would forget all compiled programs.

    It does nothing: programs belong to the compiled functions and go with them.
    """


def list_backends(exclude_tags: Any = ("debug", "experimental")) -> list[str]:
    """The backends that `compile` takes; with those for debugging if `exclude_tags` is empty.

    Args:
        exclude_tags: empty for all.
    """
    return ["inductor"] if exclude_tags else ["aot_eager", "eager", "inductor"]


@contextlib.contextmanager
def _restore_stance(before: str) -> Iterator[None]:
    global _stance
    try:
        yield
    finally:
        _stance = before


def set_stance(stance: str = "default", *, skip_guard_eval_unsafe: bool = False, **options: Any) -> Any:
    """Sets what compiled functions do: "force_eager" runs them as they were. Also a context manager.

    PyTorch's other stances speak of compiling anew, which costs milliseconds here: they are as "default".

    Raises:
        RuntimeError: a stance that there is not.
    """
    global _stance
    if stance not in _STANCES:
        raise RuntimeError(f"invalid torch.compile stance: {stance!r}; expected one of {', '.join(_STANCES)}")
    before, _stance = _stance, stance
    return _restore_stance(before)
