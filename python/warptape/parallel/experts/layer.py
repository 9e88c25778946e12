"""The mixture itself, in one process or with its experts shared out among ranks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from ... import core as wt
from ... import nn
from ...autograd import Function
from ...core import Tensor
from ...distributed import DeviceMesh, all_to_all_single
from ...distributed import functional as dist_functional
from ...distributed.state import Group, resolve
from ...nn import functional as F
from ..dtensor.placement import Partial, Replicate, Shard
from ..dtensor.tensor import DTensor, place, plain
from ..shard.progress import in_backward
from ..tensor.redistribute import for_split_work, redistribute
from ..tensor.styles import ParallelStyle
from .grouped import grouped_mm
from .routing import Routing, TopKRouter, count_choices, kept_choices


class Experts(nn.Module):
    """E gated networks: rows [N, C], sorted by expert, -> W_out (silu(W_gate x) * W_up x).

    Where expert_parallel shares them out, `ranks` is among how many: gradients are divided by it.

    Args:
        num_experts: of this rank.
        dim: C.
        hidden: H, the width within an expert.
    """

    ranks = 1

    def __init__(self, num_experts: int, dim: int, hidden: int) -> None:
        super().__init__()
        self.w_in = nn.Parameter(wt.empty(num_experts, dim, 2 * hidden))
        self.w_out = nn.Parameter(wt.empty(num_experts, hidden, dim))
        for weight, width in ((self.w_in, dim), (self.w_out, hidden)):
            nn.init.uniform_(weight, -1 / math.sqrt(width), 1 / math.sqrt(width))

    def forward(self, x: Tensor, counts: Sequence[int] | Tensor) -> Tensor:
        """[N, C] with counts[e] rows of expert e -> [N, C]

        Args:
            x: tokens, sorted by expert.
            counts: how many each expert has.
        """
        gate, up = grouped_mm(x, self._local(self.w_in), counts).chunk(2, -1)
        return grouped_mm(F.silu(gate) * up, self._local(self.w_out), counts)

    def _local(self, weight: Tensor) -> Tensor:
        local = plain(weight)
        if self.ranks > 1 and local.requires_grad:
            local.register_hook(lambda gradient: gradient / self.ranks)
        return local


class _WithLoss(Function):
    """x, whose backward is also that of a loss: how losses of layers get into a training whose loss function
    sees the last stage's output alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, scale: float) -> Tensor:
        ctx.gradient = wt.full_like(loss, scale)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None]:
        return g, ctx.gradient, None


class MixtureOfExperts(nn.Module):
    """Each token through k of E experts, in place of a feed-forward layer: [.., C] -> [.., C].

    Dropless unless `capacity_factor` is given: tokens are sorted by expert and each expert has one product of
    as many rows as came (MegaBlocks, arXiv:2211.15841). With a capacity, choices beyond it add nothing to a
    token's output and `dropped` counts them. `shared` experts see all tokens (DeepSeekMoE, arXiv:2401.06066).

    Args:
        dim: C.
        hidden: width within an expert.
        num_experts: E.
        top_k: experts of a token.
        shared: experts of all tokens, beside the E.
        capacity_factor: tokens of an expert, as a multiple of N k / E of this call (on each rank).
        scores, normalize, balance: of `TopKRouter`.
        loss_weights: (balance, z): backward adds the gradients of losses so weighed by itself. For pipelines,
            whose loss function does not see the layers of other stages; else add `loss` to your own.

    After a forward pass `losses` has the router's losses, and `loss` weighs them. Raises: ValueError.
    """

    group: Any = None
    loss_scale = 1.0  # of loss_weights: one by the number of micro-batches, as parallelize sets it

    def __init__(
        self,
        dim: int,
        hidden: int,
        num_experts: int,
        top_k: int = 2,
        *,
        shared: int = 0,
        capacity_factor: float | None = None,
        scores: str = "softmax",
        normalize: bool = True,
        balance: str | None = "loss",
        loss_weights: tuple[float, float] | None = None,
    ) -> None:
        super().__init__()
        if capacity_factor is not None and not capacity_factor > 0:
            raise ValueError(f"MixtureOfExperts: capacity_factor must be over 0, got {capacity_factor}")
        self.router = TopKRouter(dim, num_experts, top_k, scores=scores, normalize=normalize, balance=balance)
        self.experts = Experts(num_experts, dim, hidden)
        self.shared = Experts(1, dim, shared * hidden) if shared else None
        self.capacity_factor, self.loss_weights = capacity_factor, loss_weights
        self.losses: dict[str, Tensor] = {}
        self.dropped = 0

    def forward(self, x: Tensor) -> Tensor:
        """[.., C] -> [.., C]

        Each token goes to its experts, and their outputs are added by the router's weights.

        Args:
            x: tokens.
        """
        rows = x.reshape(-1, x.shape[-1])
        routing = self.router(rows)
        if not in_backward():  # else they would keep all that a checkpoint made again
            self.losses = routing.losses
        out = self._routed(rows, routing)
        if self.shared is not None:
            out = out + self.shared(rows, routing.experts.new_full((1,), len(rows)))
        if self.loss_weights is not None and wt.is_grad_enabled():
            out = _WithLoss.apply(out, self.loss(*self.loss_weights), self.loss_scale)
        return out.view(x.shape)

    def loss(self, balance: float = 1e-2, z: float = 0.0) -> Tensor:
        """The last forward pass's balancing and z losses, weighed: what a training adds to its own.

        Args:
            balance, z: factors on the two losses.
        """
        parts = [w * self.losses[n] for n, w in (("balance", balance), ("z", z)) if w and n in self.losses]
        return wt.stack(parts).sum() if parts else self.router.gate.weight.new_zeros(())

    def _routed(self, x: Tensor, routing: Routing) -> Tensor:
        tokens, k = routing.experts.shape
        chosen, weights = routing.experts.reshape(-1), routing.weights.reshape(-1)
        if self.capacity_factor is not None:
            kept = kept_choices(routing.experts, self.router.num_experts, self.capacity_factor).reshape(-1)
            self.dropped = int((~kept).sum())
            choices = kept.nonzero().squeeze(1)
        else:
            choices = wt.arange(tokens * k, device=x.device)
        choices = choices[chosen[choices].argsort(stable=True)]  # sorted by expert
        counts = count_choices(chosen[choices], self.router.num_experts)
        source = choices // k
        rows = x.index_select(0, source)
        out = self.experts(rows, counts) if self.group is None else self._exchanged(rows, counts)
        return wt.zeros_like(x).index_add(0, source, out * weights[choices].unsqueeze(1))

    def _exchanged(self, rows: Tensor, counts: Tensor) -> Tensor:
        """Rows to the ranks of their experts and results back: two exchanges (GShard, section 3.2)."""
        n = self.group.size()
        arriving = wt.empty_like(counts)  # [n, E / n]: of each rank, for each expert here
        all_to_all_single(arriving, counts, group=self.group)
        sent, received = counts.view(n, -1).sum(1).tolist(), arriving.view(n, -1).sum(1).tolist()
        here = dist_functional.all_to_all(rows, sent, received, self.group)
        local = arriving.view(n, -1)
        owner = wt.arange(local.shape[1], device=rows.device).repeat(n).repeat_interleave(arriving)
        by_expert = owner.argsort(stable=True)  # from rank-major to expert-major
        out = self.experts(here.index_select(0, by_expert), local.sum(0))
        back = out.index_select(0, by_expert.argsort())
        return dist_functional.all_to_all(back, received, sent, self.group)


class SplitExperts(ParallelStyle):
    """For a plan of tensor parallelism: each of some `Experts` is split by its width H, W_in by columns (gate
    and up each by itself) and W_out by rows. Inputs and outputs are replicated."""

    def check(self, name: str, module: nn.Module, ranks: int) -> None:
        """Raises ValueError for other modules, and for widths that do not divide.

        Args:
            name: of the module, for errors.
            module: which should be Experts.
            ranks: how many.
        """
        if not isinstance(module, Experts):
            raise ValueError(f"{name}: SplitExperts splits Experts, got {type(module).__name__}")
        Shard(1).check(int(module.w_out.shape[1]), ranks, f"{name}: the width of an expert")

    def placements(self, module: nn.Module) -> dict[str, Shard | Replicate]:
        """Of both weights.

        Args:
            module: Experts.
        """
        return {"w_in": Shard(2, parts=2), "w_out": Shard(1)}

    def apply(self, module: nn.Module, mesh: DeviceMesh) -> None:
        """In place.

        Args:
            module: Experts.
            mesh: of one axis.
        """
        for name, where in self.placements(module).items():
            place(module.get_parameter(name), mesh, [where])
        module.register_forward_pre_hook(
            lambda m, args: (for_split_work(args[0], Replicate(), mesh), *args[1:])
        )
        module.register_forward_hook(lambda m, args, y: redistribute(y, Partial(), Replicate(), mesh))


def update_biases(module: nn.Module, speed: float = 1e-3) -> None:
    """`TopKRouter.update_bias` of a module's routers that balance by bias: after an optimizer's step.

    Args:
        module: with any number of routers.
        speed: the size of a step.
    """
    for m in module.modules():
        if isinstance(m, TopKRouter) and m.balance == "bias":
            m.update_bias(speed)


def mixtures(module: nn.Module) -> list[tuple[str, MixtureOfExperts]]:
    """Those of a module, with their names.

    Args:
        module: with any number of them.
    """
    return [(name, m) for name, m in module.named_modules() if isinstance(m, MixtureOfExperts)]


def check_experts(module: nn.Module, ranks: int, where: str) -> None:
    """Raises ValueError where the experts of a module cannot be shared out among that many ranks.

    Args:
        module: with any number of mixtures.
        ranks: how many.
        where: names the function in the error.
    """
    for name, layer in mixtures(module):
        if layer.router.num_experts % ranks:
            raise ValueError(
                f"{where}: the {layer.router.num_experts} experts of {name or 'the module'} do not "
                f"divide by {ranks} ranks; use a number of ranks that divides them"
            )
        if layer.group is not None:
            raise ValueError(f"{where}: the experts of {name or 'the module'} are shared out already")


def balance_over(module: nn.Module, group: Any) -> list[str]:
    """Routers count, and average, the tokens of all ranks of a group, as one process does. Returns the names
    that `DistributedDataParallel` leaves out."""
    ignored = list(getattr(module, "_ddp_params_and_buffers_to_ignore", ()))
    for name, layer in mixtures(module):
        layer.router.group = group
        ignored += [f"{name}.router.{key}".lstrip(".") for key in ("bias", "counts")]
    module._ddp_params_and_buffers_to_ignore = ignored  # type: ignore[assignment]
    return ignored


def expert_parallel(module: nn.Module, group: Group | DeviceMesh = None) -> nn.Module:
    """Shares the experts of every MixtureOfExperts of `module` out among the ranks of `group`, in place.

    Rank r keeps experts r E / n to (r + 1) E / n, as DTensors of placement Shard(0): so clipping,
    checkpoints and full_state_dict know of them. The ranks have different tokens, as many on each: `group`
    is one of data-parallel ranks (None: all), or a mesh of one axis. Gradients of experts, which hold the
    tokens of all ranks, are divided by n as the mean of the ranks' losses demands; `DistributedDataParallel`
    leaves them out.

    Raises: ValueError for E that n does not divide, before anything is changed.
    """
    device = next((p.device.type for p in module.parameters()), "cpu")
    mesh = group if isinstance(group, DeviceMesh) else DeviceMesh.from_group(resolve(group), device)
    check_experts(module, mesh.size(), "expert_parallel")
    ignored = balance_over(module, mesh.get_group())
    for name, layer in mixtures(module):
        layer.group, layer.experts.ranks = mesh.get_group(), mesh.size()
        for key, parameter in layer.experts.named_parameters():
            joined = mesh
            if isinstance(parameter, DTensor):  # by SplitExperts
                names = *(mesh.mesh_dim_names or ()), *(parameter.device_mesh.mesh_dim_names or ())
                joined = mesh.root[names]
            place(parameter, joined, [Shard(0)])
            ignored.append(f"{name}.experts.{key}".lstrip("."))
    return module
