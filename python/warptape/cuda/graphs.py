"""CUDA graphs: what a stream is given is recorded once and replayed as one launch.

Random draws of the devices' default generators go on from replay to replay, as if the recorded code ran anew.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import Any

from warptape import autograd
from warptape import core as wt

from ..core import offered
from ..core.pytree import tree_leaves, tree_map_only
from .devices import _cuda, synchronize
from .memory import empty_cache
from .streams import Stream, StreamContext

__all__ = ["CUDAGraph", "graph", "graph_pool_handle", "is_current_stream_capturing", "make_graphed_callables"]


def is_current_stream_capturing() -> bool:
    """Whether work on the current stream is recorded instead of run.

    Returns:
        False where there is no device.
    """
    return _cuda.is_capturing()


def graph_pool_handle() -> tuple[int, int]:
    """A token for graphs that may share memory: pass it as `pool`.

    Graphs of one pool must not run at the same time.
    """
    return 0, _cuda.new_pool()


class CUDAGraph:
    """A recorded sequence of kernels and copies.

    Capture must be on a stream that is not the default one; `warptape.cuda.graph` sees to it. Memory that
    tensors got during the capture stays the graph's: replays write into those very tensors.
    """

    def __init__(self, keep_graph: bool = False) -> None:
        _cuda.current_device()  # without a device, say so here
        self._graph = _cuda.Graph()

    def register_generator_state(self, generator: wt.Generator) -> None:
        """Accepted: every CUDA generator that the recorded code draws from takes part.

        Args:
            generator: of a CUDA device.

        Raises: ValueError for another one.
        """
        if generator.device.type != "cuda":
            raise ValueError(
                f"register_generator_state: expected a CUDA generator, got one of {generator.device}"
            )

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        """Starts to record the current stream.

        Args:
            pool: from graph_pool_handle() or another graph's pool(), to share memory with.
            capture_error_mode: "global", "thread_local" or "relaxed": whose unsafe calls end the capture.
        """
        modes = ("global", "thread_local", "relaxed")
        if capture_error_mode not in modes:
            raise ValueError(
                f"capture_begin: expected a capture_error_mode of {modes}, got {capture_error_mode!r}"
            )
        self._graph.begin(0 if pool is None else pool[1], capture_error_mode)

    def capture_end(self) -> None:
        """Ends the recording; the graph can then be replayed.

        Raises:
            RuntimeError: something in between cannot be recorded: it waited for the device, for example.
        """
        self._graph.end()

    def replay(self) -> None:
        """Runs the recorded work on the current stream.

        It reads and writes the tensors of the capture: copy new inputs into them before.
        """
        self._graph.replay()

    def reset(self) -> None:
        """Frees the graph.

        Its memory goes once no tensor holds it.
        """
        self._graph.reset()

    def pool(self) -> tuple[int, int]:
        """The token of the graph's memory.

        Another graph that is given it as `pool` shares the memory.
        """
        return 0, self._graph.pool()


class graph:
    """The context in which work is recorded into a CUDAGraph.

    Args:
        cuda_graph: where to.
        pool: as in CUDAGraph.capture_begin().
        stream: the stream to record; one that all captures share by default.
        capture_error_mode: as in CUDAGraph.capture_begin().
    """

    default_capture_stream: Stream | None = None

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: tuple[int, int] | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        if stream is None:
            if graph.default_capture_stream is None:
                graph.default_capture_stream = Stream()
            stream = graph.default_capture_stream
        self.cuda_graph, self.pool, self.capture_stream = cuda_graph, pool, stream
        self.capture_error_mode = capture_error_mode
        self._context = StreamContext(stream)

    def __enter__(self) -> None:
        synchronize()
        gc.collect()
        empty_cache()
        self._context.__enter__()
        try:
            self.cuda_graph.capture_begin(self.pool, self.capture_error_mode)
        except BaseException:
            self._context.__exit__()
            raise

    def __exit__(self, *error: Any) -> None:
        try:
            self.cuda_graph.capture_end()
        finally:
            self._context.__exit__(*error)


def _tensors(value: Any) -> list[Any]:
    return [t for t in tree_leaves(value) if isinstance(t, wt.Tensor)]


class _Captured:
    """One callable's forward and backward graphs, and the tensors that they read and write."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], pool: Any) -> None:
        self.args = tuple(args)
        self.inputs = _tensors(self.args)
        parameters = list(function.parameters()) if isinstance(function, offered("Module")) else []
        self.parameters = [p for p in parameters if p.requires_grad]
        self.forward, self.backward = CUDAGraph(), CUDAGraph()
        self.function, self.pool = function, pool
        self.outputs: Any = None
        self.grad_outputs: list[Any] = []
        self.grad_inputs: list[Any] = []

    @property
    def leaves(self) -> list[Any]:
        return [t for t in self.inputs if t.requires_grad] + self.parameters

    def warm_up(self, times: int) -> None:
        """Runs both ways, so that what happens only once is not recorded.

        Args:
            times: how often.
        """
        for _ in range(times):
            outputs = [t for t in _tensors(self.function(*self.args)) if t.requires_grad]
            if outputs:
                autograd.grad(outputs, self.leaves, [wt.empty_like(t) for t in outputs], allow_unused=True)

    def capture_forward(self) -> None:
        with graph(self.forward, self.pool):
            self.outputs = self.function(*self.args)

    def capture_backward(self) -> None:
        outputs = _tensors(self.outputs)
        self.grad_outputs = [wt.zeros_like(t) if t.requires_grad else None for t in outputs]
        wanted = [t for t in outputs if t.requires_grad]
        grads: Sequence[Any] = ()
        if wanted:
            with graph(self.backward, self.pool):
                grads = autograd.grad(
                    wanted, self.leaves, [g for g in self.grad_outputs if g is not None], allow_unused=True
                )
        left = iter(grads)
        needy = [t.requires_grad for t in self.inputs] + [True] * len(self.parameters)
        self.grad_inputs = [next(left, None) if needs else None for needs in needy]

    def replayed(self) -> Callable[..., Any]:
        """The callable that replays both graphs, with gradients."""
        captured = self

        class Graphed(autograd.Function):
            @staticmethod
            def forward(ctx: Any, *inputs: Any) -> Any:
                for held, value in zip(captured.inputs, inputs):
                    if held.data_ptr() != value.data_ptr():
                        held.copy_(value)
                captured.forward.replay()
                return tuple(t.detach() for t in _tensors(captured.outputs))

            @staticmethod
            def backward(ctx: Any, *grads: Any) -> Any:
                for held, value in zip(captured.grad_outputs, grads):
                    if held is not None and held.data_ptr() != value.data_ptr():
                        held.copy_(value)
                captured.backward.replay()
                return tuple(None if g is None else g.detach() for g in captured.grad_inputs)

        def call(*args: Any) -> Any:
            inputs = _tensors(args)
            if len(inputs) != len(captured.inputs):
                raise ValueError(
                    f"this callable was captured with {len(captured.inputs)} tensors, got {len(inputs)}"
                )
            outputs = iter(Graphed.apply(*inputs, *captured.parameters))
            return tree_map_only(wt.Tensor, lambda _: next(outputs), captured.outputs)

        return call


def make_graphed_callables(
    callables: Any,
    sample_args: Any,
    num_warmup_iters: int = 3,
    allow_unused_input: bool = False,
    pool: tuple[int, int] | None = None,
) -> Any:
    """Replaces modules or functions by replays of graphs of their forward and backward.

    Args:
        callables: a module, a function, or a tuple of them that run one after the other.
        sample_args: a tuple of arguments of the shapes that come later, or one tuple per callable.
        num_warmup_iters: runs before the capture.
        allow_unused_input: accepted: inputs without a gradient get None.
        pool: memory to share, from graph_pool_handle().

    Returns a callable (or a tuple). A module's `forward` is replaced in the mode, training or evaluation,
    that it was captured in; in the other mode it runs as before.
    """
    single = not isinstance(callables, tuple)
    if single:
        callables, sample_args = (callables,), (sample_args,)
    pool = graph_pool_handle() if pool is None else pool
    captured = [_Captured(f, args, pool) for f, args in zip(callables, sample_args)]
    synchronize()
    with StreamContext(Stream()):
        for c in captured:
            c.warm_up(num_warmup_iters)
    synchronize()
    for c in captured:
        c.capture_forward()
    for c in reversed(captured):
        c.capture_backward()
    replaced = tuple(_install(f, c.replayed()) for f, c in zip(callables, captured))
    return replaced[0] if single else replaced


def _install(function: Callable[..., Any], replayed: Callable[..., Any]) -> Any:
    if not isinstance(function, offered("Module")):
        return replayed
    eager, training = function.forward, function.training

    def forward(*args: Any) -> Any:
        return replayed(*args) if function.training == training else eager(*args)

    function.forward = forward  # type: ignore[method-assign]
    return function
