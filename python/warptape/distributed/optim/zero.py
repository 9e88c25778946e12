"""Each rank keeps the optimizer state of its share of the parameters (Rajbhandari et al., "ZeRO: Memory
Optimizations Toward Training Trillion Parameter Models", section 5.1, stage 1)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..._C import _distributed as _C
from ...core import Tensor
from ...core.placed import replicas
from ...optim.optimizer import Optimizer, ParamsT
from ..algorithms.join import Joinable, JoinHook
from ..groups import get_group_rank
from ..objects import gather_object
from ..state import resolve

if TYPE_CHECKING:
    from warptape.distributed.state import Group


class _ZeROJoinHook(JoinHook):
    """Updates and sends this rank's share, by the gradients that DistributedDataParallel's hook left."""

    def __init__(self, zero: ZeroRedundancyOptimizer) -> None:
        self.zero = zero

    def main_hook(self) -> None:
        self.zero.step()


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """An optimizer that updates this rank's share of the parameters and gets the rest from the other ranks.

    Whole parameters are dealt out, the largest first, each to the rank that has least so far. Gradients must
    be equal on all ranks, as DistributedDataParallel leaves them. State takes 1/n of the memory; the
    parameters after a step are those of the plain optimizer. Experts that `parallelize` shares out are dealt
    out among the ranks that have the same ones. `Join([model, optimizer])` takes both, with
    gradient_as_bucket_view, where ranks have different numbers of inputs.

    Args:
        params: as any optimizer's, in the same order on all ranks.
        optimizer_class: what updates a share, made with `defaults`.
        process_group: None for the default one.
        parameters_as_bucket_view: makes no difference; parameters travel from where they are.

    Raises:
        NotImplementedError: overlap_with_ddp.
        ValueError: an optimizer whose updates read all parameters, as LBFGS.
    """

    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[Optimizer],
        process_group: Group = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        **defaults: Any,
    ) -> None:
        if overlap_with_ddp:
            raise NotImplementedError("ZeroRedundancyOptimizer: overlap_with_ddp is not supported")
        if getattr(optimizer_class, "update_scope", "element") == "all":
            raise ValueError(
                f"ZeroRedundancyOptimizer: an update of {optimizer_class.__name__} reads all parameters, of "
                "which a rank has its share; use the optimizer itself, or one that updates each parameter by "
                "itself"
            )
        self.process_group = resolve(process_group)
        self._load: dict[Any, list[int]] = {}  # by group, elements that each rank updates
        self._owner: dict[Tensor, tuple[Any, int]] = {}  # (group that has copies, rank in it)
        self._consolidated: dict[int, Any] | None = None
        self.optim: Optimizer | None = None
        Joinable.__init__(self)
        super().__init__(params, defaults)
        self.optim = optimizer_class([self._share(group) for group in self.param_groups], **defaults)
        self.state = self.optim.state
        self._take_defaults()

    def _share(self, group: dict[str, Any]) -> dict[str, Any]:
        """The group with this rank's parameters only. Every rank deals out alike."""
        for p in sorted(group["params"], key=lambda p: -p.numel()):
            copies = replicas(p, self.process_group)
            load = self._load.setdefault(copies, [0] * copies.size())
            owner = load.index(min(load))
            self._owner[p] = copies, owner
            load[owner] += p.numel()
        mine = [p for p in group["params"] if self._holds_state_of(p)]
        share = {key: value for key, value in group.items() if key not in ("params", "param_names")}
        return {**share, "params": mine}

    def _holds_state_of(self, p: Tensor) -> bool:
        copies, owner = self._owner[p]
        return bool(owner == copies.rank())

    def _take_defaults(self) -> None:
        assert self.optim is not None
        for group, share in zip(self.param_groups, self.optim.param_groups, strict=True):
            for key, value in share.items():
                group.setdefault(key, value)

    def _give_options(self) -> None:
        """What the user, or a scheduler, set in param_groups since the last step."""
        assert self.optim is not None
        for group, share in zip(self.param_groups, self.optim.param_groups, strict=True):
            share.update((k, v) for k, v in group.items() if k not in ("params", "param_names"))

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What a rank without inputs does: a step for each of the others'.

        Args:
            **kwargs: of `Join`, without effect here.
        """
        return _ZeROJoinHook(self)

    @property
    def join_device(self) -> Any:
        """Of the parameters."""
        return self.param_groups[0]["params"][0].device

    @property
    def join_process_group(self) -> Any:
        """Among whose ranks states are dealt out."""
        return self.process_group

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Adds a group, dealt out as the others. All ranks must add it.

        Args:
            param_group: a dict with "params".
        """
        super().add_param_group(param_group)
        if self.optim is not None:
            self.optim.add_param_group(self._share(self.param_groups[-1]))
            self._take_defaults()

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Updates this rank's share, then exchanges parameters. Every rank must call it."""
        assert self.optim is not None
        self._give_options()
        loss = self.optim.step() if closure is None else self.optim.step(closure)
        shares: dict[Any, list[Tensor]] = {}
        for group in self.param_groups:
            for p in group["params"]:
                shares.setdefault((*self._owner[p], p.dtype, p.device), []).append(p.detach())
        works = [
            copies._run(_C._Op.broadcast, [], same, root=owner, async_op=True)
            for (copies, owner, *_), same in shares.items()
        ]
        for work in works:
            work.wait()
        return loss

    def consolidate_state_dict(self, to: int = 0) -> None:
        """Brings the state of all ranks to rank `to` of the job, so that its state_dict() has it.

        Raises: RuntimeError for experts that are shared out: distributed.checkpoint saves their state.
        """
        if len(self._load) > 1:
            raise RuntimeError(
                "consolidate_state_dict: ranks have different experts; save with distributed.checkpoint"
            )
        root = get_group_rank(self.process_group, to)
        here = self.process_group.rank() == root
        every: list[Any] = [None] * self.process_group.size()
        own = super().state_dict()["state"]
        gather_object(own, every if here else None, group=self.process_group, group_dst=root)
        self._consolidated = {i: s for share in every for i, s in share.items()} if here else None

    def state_dict(self) -> dict[str, Any]:
        """The plain optimizer's: it loads into one, and the other way round.

        Raises: RuntimeError unless consolidate_state_dict(to=this rank) was called before.
        """
        if self._consolidated is None:
            raise RuntimeError(
                "Optimizer state has not been consolidated on this rank. Please call `consolidate_state_dict("
                "to=...)` on all ranks beforehand if you meant to save the global state."
            )
        packed = super().state_dict()
        return {**packed, "state": dict(sorted(self._consolidated.items()))}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes this rank's share of a whole state dict, of a plain optimizer or of consolidated ones."""
        assert self.optim is not None
        params = [p for group in self.param_groups for p in group["params"]]
        keys = [key for group in state_dict["param_groups"] for key in group["params"]]
        mine = {key for key, p in zip(keys, params, strict=False) if self._holds_state_of(p)}
        share = {key: value for key, value in state_dict["state"].items() if key in mine}
        super().load_state_dict({**state_dict, "state": share})
        self.optim.__setstate__({"state": self.state, "param_groups": self.optim.param_groups})
        self._consolidated = None
        self._give_options()
