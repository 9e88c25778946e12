"""Activation checkpointing: keep a region's inputs instead of its activations, and run it again in backward.

The region's saved tensors are replaced by empty holders. When backward first asks for one, the region runs
once more and the tensors that it saves fill the holders in the same order (Chen, Xu, Zhang and Guestrin,
"Training deep nets with sublinear memory cost", section 4). No second backward pass is started, so hooks,
``autograd.grad`` and ``create_graph`` work as without it.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from warptape import _C, autograd, nn
from warptape import core as wt
from warptape.core import Tensor, offered, random

from ._checkpoint_policy import CheckpointPolicy, SelectiveCheckpointContext, entered

if TYPE_CHECKING:
    from warptape.nn import Module

__all__ = [
    "CheckpointError",
    "CheckpointPolicy",
    "SelectiveCheckpointContext",
    "checkpoint",
    "checkpoint_sequential",
    "create_selective_checkpoint_contexts",
    "get_device_states",
    "noop_context_fn",
    "set_checkpoint_early_stop",
    "set_device_states",
]


class CheckpointError(RuntimeError):
    """The region's second run did not save the same tensors as its first.

    The region depends on something that changed in between, as a global or a random number.
    """


def create_selective_checkpoint_contexts(
    policy_fn_or_list: Callable[..., Any] | Sequence[Any], allow_cache_entry_mutation: bool = False
) -> tuple[AbstractContextManager, AbstractContextManager]:
    """The two contexts for `context_fn` that keep the results of some ops, and run the others again.

    Args:
        policy_fn_or_list: the ops whose results are kept, of torch.ops.aten; or
            policy(context, op, *args, **kwargs) -> CheckpointPolicy, where MUST_SAVE and PREFER_SAVE keep. It
            must answer the same in both runs. `linear` and `matmul` are one op here (aten.linear.default);
            for them the policy is also asked for what they are in PyTorch (aten.addmm.default and
            aten.mm.default or aten.bmm.default).
        allow_cache_entry_mutation: whether a kept result may be changed in place before backward.

    Raises:
        TypeError: neither a function nor a list; an entry of the list that is no op, such as
            torch.ops.aten.mm without its overload.
        RuntimeError: in backward, for a second backward pass, for a kept result that was changed in place,
            and for a policy that keeps more in the second run than in the first.

    >>> from warptape.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    >>> keep = [torch.ops.aten.mm.default]
    >>> x = torch.ones(2, 2, requires_grad=True)
    >>> out = checkpoint(
    ...     lambda x: (x @ x).sin(), x, use_reentrant=False,
    ...     context_fn=lambda: create_selective_checkpoint_contexts(keep),
    ... )
    >>> out.sum().backward()
    >>> x.grad
    tensor([[-1.6646, -1.6646],
            [-1.6646, -1.6646]])
    """
    from ..library import OpOverload
    from ._selective_checkpoint import contexts

    if not callable(policy_fn_or_list) and not isinstance(policy_fn_or_list, Sequence):
        raise TypeError("policy_fn_or_list must be either a function or a list of ops.")
    for op in () if callable(policy_fn_or_list) else policy_fn_or_list:
        if not isinstance(op, OpOverload):
            raise TypeError(
                f"Expected op in `op_list` to be an OpOverload but got: {op} of type {type(op)}; an op has "
                "its overload's name behind it, such as torch.ops.aten.mm.default"
            )
    return contexts(policy_fn_or_list, allow_cache_entry_mutation)


def get_device_states(*args: Any) -> tuple[list[int], list[Tensor]]:
    """The numbers of the GPUs on which tensors among `args` lie, and their generators' states.

    Args:
        *args: the region's arguments.
    """
    tensors = [t for t in args if isinstance(t, wt.Tensor) and t.is_cuda]
    devices = sorted({t.get_device() for t in tensors})
    return devices, [offered("cuda").get_rng_state(device) for device in devices]


def set_device_states(devices: Sequence[int], states: Sequence[Tensor], **options: Any) -> None:
    """Takes back what `get_device_states` gave.

    Args:
        devices: numbers of GPUs.
        states: of their generators.
        **options: accepted, without effect.
    """
    for device, state in zip(devices, states):
        offered("cuda").set_rng_state(state, device)


class _Done(Exception):
    """Ends the second run once everything that backward needs is there."""


_early_stop_override: bool | None = None


@contextmanager
def set_checkpoint_early_stop(enable: bool) -> Iterator[None]:
    """Within this context, second runs stop as soon as they can (True) or go to the end (False).

    A second run is over once the last tensor that backward needs is there.

    Args:
        enable: holds against what a checkpoint was told itself.
    """
    global _early_stop_override
    before, _early_stop_override = _early_stop_override, enable
    try:
        yield
    finally:
        _early_stop_override = before


def noop_context_fn() -> tuple[AbstractContextManager, AbstractContextManager]:
    """The default ``context_fn``: no context around either run.

    Returns: a context for the first run and one for the second.
    """
    return nullcontext(), nullcontext()


def _describe(t: Tensor) -> tuple:
    return tuple(t.shape), t.dtype, t.device


class _Holder:
    """Stands in the graph for one saved tensor; filled by the second run, emptied when backward takes it."""

    __slots__ = ("__weakref__", "value")

    def __init__(self) -> None:
        self.value: Tensor | None = None


class _Inputs:
    """A region's arguments. Tensors are kept as a node's saved tensors, not in a closure: so an enclosing
    region (or any other saved-tensor hook) gets them too, and a change in place before the second run is an
    error.
    """

    def __init__(self, args: tuple, kwargs: dict[str, Any]) -> None:
        flat = [*args, *kwargs.values()]
        self._names = list(kwargs)
        self._places = [i for i, value in enumerate(flat) if isinstance(value, wt.Tensor)]
        tensors = [flat[i] for i in self._places]
        for i in self._places:
            flat[i] = None
        self._flat = flat
        if tensors:
            self._node: Any = None
            anchor = wt.empty(0, requires_grad=True)
            self._owner = _save_function().apply(anchor, self, *tensors)  # the output keeps the node alive

    def restore(self) -> tuple[list[Any], dict[str, Any]]:
        """The arguments as they were given: positional and by name."""
        flat = list(self._flat)
        if self._places:
            for i, t in zip(self._places, self._node.saved_tensors):
                flat[i] = t
        split = len(flat) - len(self._names)
        return flat[:split], dict(zip(self._names, flat[split:]))


_save_function_class: Any = None


def _save_function() -> Any:
    """The autograd Function that saves a region's inputs; made late: this module loads before the tape."""
    global _save_function_class
    if _save_function_class is None:

        class SaveInputs(autograd.Function):
            @staticmethod
            def forward(ctx: Any, anchor: Tensor, inputs: _Inputs, *tensors: Tensor) -> Tensor:
                ctx.save_for_backward(*tensors)
                inputs._node = ctx
                return anchor.new_empty(0)

            @staticmethod
            def backward(ctx: Any, *grads: Tensor) -> Any:
                raise AssertionError("nothing depends on the saved inputs' node")

        _save_function_class = SaveInputs
    return _save_function_class


class _Ambient:
    """What surrounds the first run and must surround the second: random state, which part of it dropout
    draws, and autocast."""

    def __init__(self, preserve_rng_state: bool) -> None:
        self._rng = random.all_states() if preserve_rng_state else None
        self._autocast = [(*_C._get_autocast(cuda), cuda) for cuda in (False, True)]
        self._parts = _C._private._set_drop_parts(())

    @contextmanager
    def restored(self) -> Iterator[None]:
        with ExitStack() as stack:
            if self._rng is not None:
                stack.callback(random.restore_states, random.all_states())
                random.restore_states(self._rng)
            for enabled, dtype, cuda in self._autocast:
                stack.callback(_C._set_autocast, *_C._get_autocast(cuda), cuda)
                _C._set_autocast(enabled, dtype, cuda)
            set_parts = _C._private._set_drop_parts
            stack.callback(set_parts, set_parts(self._parts))
            stack.enter_context(wt.enable_grad())
            yield


class _Region:
    """One checkpointed call: its holders in the order of saving, and how to run it again."""

    def __init__(
        self,
        function: Callable,
        inputs: _Inputs,
        ambient: _Ambient,
        recompute_context: AbstractContextManager,
        describe: Callable[[Tensor], tuple] | None,
        early_stop: bool,
    ) -> None:
        self._function = function
        self._inputs = inputs
        self._ambient = ambient
        self._context = recompute_context
        self._describe = describe
        self._early_stop = early_stop
        self.first_run: Any = None  # of a selective checkpoint; not that of a region around this one
        # Weak: a tensor whose node died is not needed, and the second run does not keep it.
        self._holders: list[weakref.ref[_Holder]] = []
        self._descriptions: list[tuple] = []

    def pack(self, t: Tensor) -> _Holder | Tensor:
        call = self.first_run and self.first_run.call
        if call is not None and not call.finds(t):
            return t.detach()
        holder = _Holder()
        self._holders.append(weakref.ref(holder))
        if self._describe is not None:
            self._descriptions.append(self._describe(t))
        return holder

    def unpack(self, holder: _Holder | Tensor) -> Tensor:
        if not isinstance(holder, _Holder):
            return holder
        if holder.value is None:
            self._recompute()
        value, holder.value = holder.value, None
        if value is None:
            raise CheckpointError("checkpoint: the second run did not save a tensor that backward needs")
        return value

    def _recompute(self) -> None:
        expected, filled = len(self._holders), 0

        def fill(t: Tensor) -> Tensor:
            nonlocal filled
            kept = t.detach()
            if filled < expected:
                self._check(filled, t)
                holder = self._holders[filled]()
                if holder is not None:
                    holder.value = kept
            filled += 1
            if filled == expected and self._early_stop:
                raise _Done
            return kept

        try:
            with self._ambient.restored():
                # With gradients on: inputs that an enclosing region gives back get their history only then.
                args, kwargs = self._inputs.restore()
                with self._context, autograd.graph.saved_tensors_hooks(fill, _same):
                    self._function(*args, **kwargs)
        except _Done:
            pass
        if filled != expected:
            raise CheckpointError(
                f"checkpoint: expected the second run to save {expected} tensors as the first did, got "
                f"{filled}; the function must do the same both times (no outside state, all random numbers "
                "from generators that are restored)"
            )

    def _check(self, i: int, t: Tensor) -> None:
        if self._describe is None:
            return
        first, second = self._descriptions[i], self._describe(t)
        if first != second:
            raise CheckpointError(
                f"checkpoint: expected saved tensor {i} of the second run to be {first} (shape, dtype, "
                f"device) as in the first, got {second}; the function must do the same both times"
            )


def _same(t: Tensor) -> Tensor:
    return t


def checkpoint(
    function: Callable,
    *args: Any,
    use_reentrant: bool | None = None,
    context_fn: Callable[[], tuple[AbstractContextManager, AbstractContextManager]] = noop_context_fn,
    determinism_check: str = "default",
    debug: bool = False,
    early_stop: bool = True,
    **kwargs: Any,
) -> Any:
    """Returns ``function(*args, **kwargs)`` and keeps only the arguments for backward, which runs it again.

    Args:
        function: must do the same both times.
        use_reentrant: accepted; the non-reentrant way serves both values.
        context_fn: returns two contexts, around the first and the second run.
        determinism_check: "default" compares shape, dtype and device of what both runs save; "none" does not.
        debug: not supported.
        early_stop: end the second run once all that backward needs has been saved again.
        preserve_rng_state: (keyword, default True) let the second run draw the same random numbers.

    Raises:
        CheckpointError: in backward, if the second run saved other tensors.
        ValueError: an unknown ``determinism_check``.
        NotImplementedError: ``debug=True``.

    >>> from warptape.utils.checkpoint import checkpoint
    >>> x = torch.tensor(2.0, requires_grad=True)
    >>> checkpoint(lambda x: x**3, x, use_reentrant=False).backward()
    >>> x.grad
    tensor(12.)
    """
    preserve_rng_state = kwargs.pop("preserve_rng_state", True)
    if determinism_check not in ("default", "none"):
        raise ValueError(
            f"determinism_check should be one of ['default', 'none'], but got {determinism_check}"
        )
    if debug:
        raise NotImplementedError(
            "checkpoint: expected debug=False, got True: operator traces are not recorded; compare the two "
            "runs with determinism_check='default', which names the first tensor that differs"
        )
    if not wt.is_grad_enabled() or _C._tracer() is not None:  # a graph has no second run
        return function(*args, **kwargs)
    forward_context, recompute_context = context_fn()
    if _early_stop_override is not None:
        early_stop = _early_stop_override
    region = _Region(
        function,
        _Inputs(args, kwargs),
        _Ambient(preserve_rng_state),
        recompute_context,
        _describe if determinism_check == "default" else None,
        early_stop,
    )
    entered.first_run = None
    with forward_context:
        region.first_run = entered.first_run
        with autograd.graph.saved_tensors_hooks(region.pack, region.unpack):
            return function(*args, **kwargs)


def checkpoint_sequential(
    functions: Module | Sequence[Callable[..., Any]],
    segments: int,
    input: Any,
    use_reentrant: bool | None = None,
    **kwargs: Any,
) -> Any:
    """Runs ``functions`` (a Sequential or a list) in turn, checkpointing all segments but the last.

    Args:
        segments: how many parts of about equal length to cut the list into.
        input: of the first function; each function's result is the next one's input.
        preserve_rng_state: (keyword, default True) as in :func:`checkpoint`.

    Raises:
        ValueError: an unknown keyword, or ``segments`` outside [1, len(functions)].
    """
    preserve_rng_state = kwargs.pop("preserve_rng_state", True)
    if kwargs:
        raise ValueError("Unexpected keyword arguments: " + ",".join(kwargs))
    steps: Sequence[Callable] = (
        list(functions.children()) if isinstance(functions, nn.Sequential) else list(functions)
    )
    if not 1 <= segments <= len(steps):
        raise ValueError(f"checkpoint_sequential: expected 1 to {len(steps)} segments, got {segments}")
    size = len(steps) // segments
    for start in range(0, size * (segments - 1), size):
        input = checkpoint(
            _in_sequence(steps[start : start + size]),
            input,
            use_reentrant=use_reentrant,
            preserve_rng_state=preserve_rng_state,
        )
    return _in_sequence(steps[size * (segments - 1) :])(input)


def _in_sequence(steps: Sequence[Callable]) -> Callable:
    def run(value: Any) -> Any:
        for step in steps:
            value = step(value)
        return value

    return run
