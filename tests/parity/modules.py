"""One entry of PyTorch's module_db in both: state_dict keys, outputs, gradients, state afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import warptape
from torch.testing._internal.common_modules import module_db

from . import filters
from .compare import Strictness, call_text, differences, text
from .convert import find, our_value
from .ops import Call, Failure, backward, error_text, raised, tensors

DTYPES = (torch.float32, torch.float64, torch.complex64)


def entries() -> list[Any]:
    """The compared entries of module_db."""
    return [entry for entry in module_db if "quantized" not in entry.module_cls.__module__]


class ModuleParity:
    """The comparisons of one module class."""

    def __init__(self, entry: Any, limits: dict[str, int] | None = None) -> None:
        self.entry, self.name = entry, entry.name
        self.limits = filters.SAMPLES if limits is None else limits

    def failures(self, dtypes: tuple[torch.dtype, ...] = DTYPES) -> Iterator[Failure]:
        """Everything that differs."""
        ours = find(warptape, self.name)
        if ours is None:
            yield Failure(self.name, "missing", "-", "no such class")
            return
        for dtype in dtypes:
            if dtype not in self.entry.supported_dtypes("cpu") or dtype not in DTYPES:
                continue
            for training in (True, False) if self.entry.train_and_eval_differ else (True,):
                yield from self.one_mode(ours, dtype, training)

    def one_mode(self, ours: Any, dtype: torch.dtype, training: bool) -> Iterator[Failure]:
        torch.manual_seed(5)
        warptape.manual_seed(5)
        inputs = self.entry.module_inputs_func(
            self.entry, device="cpu", dtype=dtype, requires_grad=True, training=training
        )
        for sample in filters.taken(inputs, self.limits.get("values")):
            built = Call(sample.constructor_input.args, sample.constructor_input.kwargs)
            for aspect, cause in self.compare(ours, sample, dtype, training):
                where = f"{'train' if training else 'eval'} {call_text(built.args, built.kwargs)}"
                yield Failure(self.name, aspect, str(dtype).rpartition(".")[2], cause, where)

    def compare(
        self, ours: Any, sample: Any, dtype: torch.dtype, training: bool
    ) -> Iterator[tuple[str, str]]:
        """One construction, one forward and backward."""
        built = Call(sample.constructor_input.args, sample.constructor_input.kwargs)
        mine = built.ours()
        theirs = built.apply(self.entry.module_cls).to(dtype).train(training)
        here, error = raised(lambda: mine.apply(ours).to(our_value(dtype)).train(training))
        if error is not None:
            yield "raises", f"constructor: {error_text(error)}"
            return
        call = Call(sample.forward_input.args, sample.forward_input.kwargs)
        if self.entry.is_lazy:
            call.apply(theirs)
            _, error = raised(call.ours().apply, here)
        keys = list(theirs.state_dict()), list(here.state_dict())
        if keys[0] != keys[1]:
            yield "state", f"keys: ours {keys[1]}, theirs {keys[0]}"
            return
        here.load_state_dict({key: our_value(value) for key, value in theirs.state_dict().items()})
        yield from self.forward(theirs, here, call)

    def forward(self, theirs: Any, here: Any, call: Call) -> Iterator[tuple[str, str]]:
        arguments = call.ours()
        before = {key: value.clone() for key, value in theirs.state_dict().items()}
        expected, refused = raised(call.apply, theirs)
        if refused is not None:
            return
        found, error = raised(arguments.apply, here)
        if error is not None:
            yield "raises", error_text(error)
            return
        if self.random(theirs, call, before, expected):
            return
        for difference in differences(expected, found, set(), set(), Strictness()):
            yield difference.aspect, difference.cause
            return
        after = {k: v.detach() for k, v in theirs.state_dict().items()}
        own = {k: v.detach() for k, v in here.state_dict().items()}
        for key, value in after.items():
            for difference in differences(value, own[key], set(), set(), Strictness()):
                yield "state", f"{key} afterwards: {difference.cause}"
        yield from self.gradients(theirs, here, call, arguments, expected, found)

    def random(self, theirs: Any, call: Call, before: dict[str, Any], expected: Any) -> bool:
        """True where PyTorch differs from itself."""
        after = {key: value.clone() for key, value in theirs.state_dict().items()}
        theirs.load_state_dict(before)
        again = call.apply(theirs)
        theirs.load_state_dict(after)
        pairs = zip(tensors(expected), tensors(again))
        return any(not torch.equal(a, b) and not a.isnan().any() for a, b in pairs)

    def gradients(
        self, theirs: Any, here: Any, call: Call, arguments: Call, expected: Any, found: Any
    ) -> Iterator[tuple[str, str]]:
        pairs = [(a, b) for a, b in zip(tensors(expected), tensors(found)) if a.requires_grad]
        names = [name for name, p in theirs.named_parameters() if p.requires_grad]
        if not pairs:
            return
        own = dict(here.named_parameters())
        their_leaves = [*call.leaves(), *(p for p in theirs.parameters() if p.requires_grad)]
        our_leaves = [*arguments.leaves(), *(own[name] for name in names)]
        outs = [a for a, _ in pairs], [b for _, b in pairs]
        for aspect, cause in backward(*outs, their_leaves, our_leaves, ("gradient",)):
            yield aspect, f"{cause} ({text(their_leaves[0].detach())} ..)"
