"""One way to spread a model over ranks, and what the program that trains it does."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...distributed import DeviceMesh, init_device_mesh
from .hardware import PlanError

SCHEDULES = ("GPipe", "1F1B", "Interleaved1F1B", "ZBH1", "DualPipe")
RECOMPUTE = ("none", "selective", "full")
# Bytes: a weight, its gradient, the optimizer's state and copies, an activation, a gradient as it is sent.
PRECISIONS = {
    "fp32": (4, 4, 8, 4, 4),
    "fp16": (2, 2, 12, 2, 2),  # Adam's two moments and the copy of weights in float32
    "bf16": (2, 4, 12, 2, 4),  # gradients are summed in float32
    "fp8": (3, 4, 8, 2, 2),  # weights in bf16 and fp8, moments in bf16 (DeepSeek-V3, section 3.3)
}


# For plan(..., **PARALLELIZE): layouts that `parallelize` can take, of models that know nothing of ranks.
# Those that take their positions from `context.positions` can have cp, too, and those whose experts are a
# `MixtureOfExperts` ep.
PARALLELIZE: dict[str, Any] = {"cp": 1, "ep": 1, "recompute": ("none", "full")}


@dataclass(frozen=True)
class Layout:
    """Axes of ranks and how each rank works; dp * cp * tp * pp ranks, of which neighbours have tp in common.

    Args:
        dp, tp, pp, cp, ep: data, tensor, pipeline, context, expert; ep is part of dp * cp.
        sp: sequence parallelism, over the ranks of tp.
        schedule: one of SCHEDULES; chunks: stages on a rank, above 1 for Interleaved1F1B.
        zero: what ranks along dp and cp share, as in `parallelize`.
        recompute: "none"; "selective": norms, activation functions and, unless attention is fused, its
            scores; "full": all of a layer but its input.
        micro_batch: sequences of one; n_microbatches: how many a rank runs in a step.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    sp: bool = False
    schedule: str = "1F1B"
    chunks: int = 1
    zero: int = 0
    recompute: str = "none"
    micro_batch: int = 1
    n_microbatches: int = 1

    @property
    def ranks(self) -> int:
        """How many ranks there are."""
        return self.dp * self.tp * self.pp * self.cp

    def __str__(self) -> str:
        axes = "".join(
            f" {name}{getattr(self, name)}"
            for name in ("dp", "tp", "pp", "cp", "ep")
            if getattr(self, name) > 1
        )
        pipe = f" {self.schedule}" + (f"x{self.chunks}" if self.chunks > 1 else "") if self.pp > 1 else ""
        return (
            (axes.strip() or "one rank")
            + (" +sp" if self.sp else "")
            + pipe
            + f" zero{self.zero} recompute={self.recompute}"
            + f" {self.n_microbatches} x {self.micro_batch}"
        )

    def mesh(self, device_type: str = "cpu") -> DeviceMesh:
        """The mesh of its ranks, for `parallelize`.

        Args:
            device_type: "cpu" or "cuda".
        """
        sizes = {"pp": self.pp, "dp": self.dp, "cp": self.cp, "tp": self.tp}
        return init_device_mesh(device_type, tuple(sizes.values()), mesh_dim_names=tuple(sizes))

    def arguments(self) -> dict[str, Any]:
        """What it says to `parallelize`, by the names of its arguments. Raises PlanError for what
        that has not."""
        if self.recompute == "selective":
            raise PlanError(
                "parallelize has no selective recomputation; plan with **PARALLELIZE for what it has"
            )
        if self.schedule not in SCHEDULES[:4]:
            raise PlanError(
                f"parallelize has no schedule {self.schedule}; plan for {', '.join(SCHEDULES[:4])}"
            )
        return {
            "schedule": self.schedule,
            "chunks": self.chunks,
            "n_microbatches": self.n_microbatches,
            "zero": self.zero if self.dp * self.cp > 1 else 0,
            "ep": self.ep,
        }


@dataclass(frozen=True)
class Program:
    """What decides time and memory beside the layout. The defaults are today's practice.

    Args:
        precision: one of PRECISIONS.
        fused_attention: whether scores stay on the chip; else they are written, read and kept.
        overlap_data: whether gradients (and ZeRO's parameters) travel while others are computed.
        overlap_tensor: the share of tensor parallelism's traffic that is hidden by products.
        overlap_pipeline, overlap_experts: whether these messages are hidden.
        split_sends: whether the ranks of tp each send a part of what all of them have to the next stage.
        router_nodes: to how many nodes at most a token is sent; 0: no limit.
        communication_cores: streaming multiprocessors that send and receive instead of computing.
        regather: whether with sequence parallelism a rank keeps its part of a product's input and gathers the
            rest again in backward, as Megatron-LM does and `SequenceParallel` does not.
        dropout: whether there is any, whose masks are kept.
        overhead: bytes that a process has of its own: the device's context, libraries' workspaces, buffers
            of NCCL.
    """

    precision: str = "bf16"
    fused_attention: bool = True
    overlap_data: bool = True
    overlap_tensor: float = 0.0
    overlap_pipeline: bool = True
    overlap_experts: bool = False
    split_sends: bool = True
    router_nodes: int = 0
    communication_cores: int = 0
    regather: bool = True
    dropout: bool = False
    overhead: float = 2e9

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise PlanError(f"unknown precision {self.precision!r}: expected one of {', '.join(PRECISIONS)}")
        if not 0 <= self.overlap_tensor <= 1:
            raise PlanError(f"plan: expected overlap_tensor from 0 to 1, got {self.overlap_tensor!r}")


# What Megatron-LM's program of 2021 did ("Efficient Large-Scale Language Model Training on GPU Clusters").
MEGATRON_2021 = Program(
    "fp16", fused_attention=False, overlap_data=False, overlap_pipeline=False, dropout=True
)
