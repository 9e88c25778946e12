"""Selective activation checkpointing: results of some ops are kept from a checkpointed region's first run.

The first run keeps what the policy says, under a mode that sees every op. The second run takes these results
in the same order and computes the rest. In the place of an op that is not run again a Function saves what the
op saved of its arguments, as the second run has them; anything else that it saved (such as the row sums of
attention) is kept by the first run.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

from warptape import core as wt
from warptape.core import Tensor, random

from ..autograd import Function
from ..core.by_name import map_tensors, tensors_in
from ..library import ops
from ._checkpoint_policy import CheckpointPolicy, SelectiveCheckpointContext, entered
from ._python_dispatch import TorchDispatchMode


class _Place(NamedTuple):
    """A saved tensor as an argument's memory."""

    argument: int  # among the tensors of a call, in order
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


class _KeptCall:
    """A call whose results are kept, while its op runs: what it saves of its arguments."""

    def __init__(self, tensors: list[Tensor]) -> None:
        self._memory = {t.untyped_storage().data_ptr(): i for i, t in reversed([*enumerate(tensors)])}
        self._dtypes = [t.dtype for t in tensors]
        self.saved: list[_Place] = []

    def finds(self, t: Tensor) -> bool:
        """Whether a tensor that the op saves is an argument's memory, which the second run has anew."""
        i = self._memory.get(t.untyped_storage().data_ptr())
        if i is None or t.dtype != self._dtypes[i]:
            return False
        self.saved.append(_Place(i, tuple(t.shape), tuple(t.stride()), int(t.storage_offset())))
        return True


class _Kept(NamedTuple):
    result: Any  # of the call, its tensors without history
    versions: list[int]
    history: list[bool]  # whether they need gradients
    saved: list[_Place]
    drawn: Any  # the generators' states behind an op that draws random numbers


_Policy = Callable[..., Any]
_Results = defaultdict[Any, deque[_Kept]]


def _under_torch_names(func: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    """The op that PyTorch's dispatcher sees in the place of one that is an op of its own here, or None."""
    aten = ops.aten
    if func is aten.linear.default:
        return aten.mm.default if len(args) < 3 or args[2] is None else aten.addmm.default
    if func is aten.matmul.default:
        return aten.mm.default if args[1].ndim == 2 else aten.bmm.default
    return None


_KEPT = (CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_SAVE, CheckpointPolicy.MUST_CPU_OFFLOAD)


def _saves(
    policy: _Policy, again: bool, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    context = SelectiveCheckpointContext(is_recompute=again)
    for op in (func, _under_torch_names(func, args)):
        answer = policy(context, op, *args, **kwargs) if op is not None else False
        if answer is True or answer in _KEPT:
            return True
    return False


class _FirstRun(TorchDispatchMode):
    def __init__(self, policy: _Policy, results: _Results) -> None:
        super().__init__()
        self._policy, self._results = policy, results
        self.call: _KeptCall | None = None  # whose results are kept, while its op runs

    def __enter__(self) -> Any:
        entered.first_run = self
        return super().__enter__()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _saves(self._policy, False, func, args, kwargs):
            return func(*args, **kwargs)
        call = self.call = _KeptCall(list(tensors_in((args, kwargs))))
        before = random.all_states()
        try:
            out = func(*args, **kwargs)
        finally:
            self.call = None
        tensors = list(tensors_in(out))
        kept = map_tensors(out, Tensor.detach)
        history = [t.requires_grad for t in tensors]
        versions = [t._version for t in tensors_in(kept)]
        after = random.all_states()
        drawn = after if any(not wt.equal(a, b) for (_, a), (_, b) in zip(before, after)) else None
        self._results[func].append(_Kept(kept, versions, history, call.saved, drawn))
        return out


class _SecondRun(TorchDispatchMode):
    def __init__(self, policy: _Policy, results: _Results, may_change: bool) -> None:
        super().__init__()
        self._policy, self._results, self._may_change = policy, results, may_change

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Collection[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if not _saves(self._policy, True, func, args, kwargs):
            return func(*args, **kwargs)
        if func not in self._results:
            raise RuntimeError(f"{func} encountered during backward, but not found in storage")
        if not self._results[func]:
            raise RuntimeError(
                "Trying to backward an extra time. You are only allowed to backward once on any region "
                "computed under selective activation checkpoint."
            )
        kept = self._results[func].popleft()
        if not self._may_change and [t._version for t in tensors_in(kept.result)] != kept.versions:
            raise RuntimeError("Tensor cached during selective activation checkpoint has been mutated")
        if kept.drawn is not None:
            random.restore_states(kept.drawn)
        if not any(kept.history):
            return kept.result
        tensors = list(tensors_in((args, kwargs)))
        saved = [tensors[place.argument].detach().as_strided(*place[1:]) for place in kept.saved]
        recorded = [t for t, has in zip(tensors_in(kept.result), kept.history) if has]
        anchor = wt.empty(0, requires_grad=True)
        results = iter(_InPlaceOfOp.apply(anchor, len(saved), *saved, *recorded))
        history = iter(kept.history)
        return map_tensors(kept.result, lambda t: next(results) if next(history) else t)

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        # A run that stopped early leaves some, which another one may not take.
        for waiting in self._results.values():
            waiting.clear()


class _InPlaceOfOp(Function):
    """Saves what an op saved. Its kept results get a history: what reads them is recorded, and saves."""

    @staticmethod
    def forward(ctx: Any, anchor: Tensor, count: int, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.save_for_backward(*tensors[:count])
        return tuple(t.detach() for t in tensors[count:])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        raise AssertionError("no backward pass runs through a second run")


def contexts(policy: _Policy | Sequence[Any], may_change: bool) -> tuple[_FirstRun, _SecondRun]:
    """See create_selective_checkpoint_contexts."""
    if not callable(policy):
        ops = set(policy)
        save, rest = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE
        policy = lambda context, op, *args, **kwargs: save if op in ops else rest
    results: _Results = defaultdict(deque)
    return _FirstRun(policy, results), _SecondRun(policy, results, may_change)
