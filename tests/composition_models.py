"""A small decoder whose author wrote its parallelism by hand, over three axes, with bugs by name.

Shapes: B batch, T sequence, C width, D of a head, E experts, V vocabulary. Axes: "dp" shares the
batch, "cp" each sequence, "tp" the heads and the experts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import warptape as wt
import warptape.distributed as dist
from warptape import nn
from warptape.autograd import Function
from warptape.distributed import functional as df
from warptape.nn import functional as F
from warptape.parallel import Layout

C, D, HEADS, E, V, T, ROWS, IGNORED = 8, 2, 4, 8, 16, 8, 8, -100


class Injected(Function):
    """x, whose backward is also that of a loss, as routers add theirs."""

    @staticmethod
    def forward(ctx: Any, x: wt.Tensor, loss: wt.Tensor, scale: float) -> wt.Tensor:
        ctx.gradient = wt.full_like(loss, scale)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: wt.Tensor) -> tuple[wt.Tensor, wt.Tensor, None]:
        return g, ctx.gradient, None


class Spread(nn.Module):
    """What a module knows of the ranks: nothing in one process."""

    tp: Any = None
    cp: Any = None
    data: tuple[Any, ...] = ()  # the axes whose ranks have other tokens
    bug = ""

    def own(self, name: str, dim: int) -> None:
        """Keeps this tensor-parallel rank's part of a parameter."""
        p = getattr(self, name)
        part = p.detach().chunk(self.tp.size(), dim)[self.tp.rank()].clone()
        p.data = part

    def summed(self, p: nn.Parameter) -> None:
        """The gradient of a replicated parameter on whose part of the work each rank has a part of it."""

        def total(g: wt.Tensor) -> wt.Tensor:
            g = g.clone()
            dist.all_reduce(g, group=self.tp)
            return g

        p.register_hook(total)


class Attention(Spread):
    """Heads that share keys and values, each with a sink, and a norm of each head's queries."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv, self.proj = (
            nn.Linear(C, C, bias=False),
            nn.Linear(C, 2 * D, bias=False),
            nn.Linear(C, C),
        )
        self.sinks, self.q_norm, self.drop = nn.Parameter(wt.randn(HEADS)), nn.RMSNorm(D), nn.Dropout(0.2)

    def split(self) -> None:
        for module, dim in ((self.q, 0), (self.proj, 1)):
            part = module.weight.detach().chunk(self.tp.size(), dim)[self.tp.rank()]
            module.weight.data = part.clone()
        self.own("sinks", 0)
        if self.bug != "head norm not summed":
            self.summed(self.q_norm.weight)
        if self.bug != "shared keys not summed":
            self.summed(self.kv.weight)

    def forward(self, x: wt.Tensor, start: int) -> wt.Tensor:
        b, t, _ = x.shape
        for_queries = for_keys = x
        if self.tp:
            for_queries = for_keys = df.pass_through_all_reduce(x, self.tp)
        q = self.q_norm(self.q(for_queries).view(b, t, -1, D)).transpose(1, 2)
        kv = self.kv(for_keys)
        if self.cp:
            gather = (
                df.all_gather_split
                if self.bug == "keys of others not summed"
                else df.all_gather_reduce_scatter
            )
            kv = gather(kv, 1, self.cp)
        k, v = kv.unsqueeze(1).chunk(2, -1)
        scores = q @ k.transpose(-2, -1) / D**0.5
        late = wt.arange(k.shape[2]) > wt.arange(start, start + t).unsqueeze(1)
        scores = scores.masked_fill(late, float("-inf"))
        sinks = self.sinks.view(1, -1, 1, 1).expand(b, -1, t, 1)
        y = (F.softmax(wt.cat([scores, sinks], -1), -1)[..., :-1] @ v).transpose(1, 2).flatten(2)
        if not self.tp:
            return self.proj(y)
        group = self.other if self.bug == "wrong group" else self.tp
        return df.all_reduce_pass_through(F.linear(y, self.proj.weight), group) + self.proj.bias


class Mixture(Spread):
    """Two of E experts for each token, which ranks of "tp" share out, and a balancing loss."""

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.weight, self.router = weight, nn.Linear(C, E, bias=False)
        self.experts = nn.Parameter(wt.randn(E, C, C) / C**0.5)

    def split(self) -> None:
        self.own("experts", 0)
        if self.bug == "experts divided by ranks":
            self.experts.register_hook(lambda g: g / self.tp.size())
        elif self.bug == "experts multiplied by ranks":
            self.experts.register_hook(lambda g: g * self.tp.size())

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        rows = x.flatten(0, 1)
        logits = self.router(rows)
        scores = F.softmax(logits, -1)
        kept = scores * (scores >= scores.topk(2, -1).values[:, -1:])
        weights = kept / kept.sum(-1, keepdim=True)
        first = self.tp.rank() * len(self.experts) if self.tp else 0
        if self.bug == "router detached":
            weights = weights.detach()
        elif self.tp and self.bug != "router not summed":
            weights = df.pass_through_all_reduce(weights, self.tp)
        given = df.pass_through_all_reduce(rows, self.tp) if self.tp else rows
        out = wt.zeros_like(rows)
        for e, expert in enumerate(self.experts.unbind(0)):
            out = out + weights[:, first + e : first + e + 1] * F.silu(given @ expert)
        if self.tp:
            out = df.all_reduce_pass_through(
                out, self.other if self.bug == "experts over the wrong group" else self.tp
            )
        return Injected.apply(out, self.balance(scores, kept > 0), self.weight).view(x.shape)

    def balance(self, scores: wt.Tensor, chosen: wt.Tensor) -> wt.Tensor:
        """E sum of share times mean score, of the tokens of all ranks."""
        counts = chosen.sum(0).to(scores.dtype)
        tokens = local = wt.full((), float(len(scores)), dtype=scores.dtype)
        if self.data:
            tokens = local.clone() if self.bug != "local count overwritten" else local
        for group in self.data:
            dist.all_reduce(tokens, group=group)
            dist.all_reduce(counts, group=group)
        scale = self.tp.size() if self.tp and self.bug == "balance scaled by ranks" else 1
        return scale * E * (counts / (2 * tokens) * (scores.sum(0) / local)).sum()


class Decoder(Spread):
    """Tokens [B, T] -> logits [B, T, V], of this rank's part of the sequence."""

    def __init__(self, balance: float = 0.0) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(V, C), nn.Embedding(T, C)
        self.norm1, self.norm2 = nn.RMSNorm(C), nn.RMSNorm(C)
        self.attn, self.moe, self.head = Attention(), Mixture(balance), nn.Linear(C, V, bias=False)

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        start = 0
        if self.cp:
            tokens = tokens.chunk(self.cp.size(), 1)[self.cp.rank()]
            start = self.cp.rank() * tokens.shape[1]
        first = 0 if self.bug == "positions of the part" else start
        x = self.embed(tokens) + self.places(wt.arange(first, first + tokens.shape[1]))
        if self.bug == "scattered over the wrong group":
            x = df.all_gather_split(df.split_all_gather(x, 1, self.other), 1, self.tp)
        x = x + self.attn(self.norm1(x), start)
        x = x + self.moe(self.norm2(x))
        return self.head(x)


def spread(model: Any, mesh: Any, bug: str = "") -> Any:
    """Lays the model out over the axes that the mesh has; gradients are averaged over those of data."""
    names = mesh.mesh_dim_names
    data = tuple(mesh[name].get_group() for name in ("dp", "cp") if name in names)
    for m in model.modules():
        if isinstance(m, Spread):
            m.bug, m.data = bug, data
            m.cp = mesh["cp"].get_group() if "cp" in names else None
            m.other = mesh["dp"].get_group() if "dp" in names else None
    if bug == "unfrozen later":
        model.head.requires_grad_(False)
    if "tp" in names:
        for m in (model.attn, model.moe):
            m.tp = mesh["tp"].get_group()
            m.split()
        model.tp = model.moe.tp
    for p in model.parameters():
        if data and p.requires_grad and bug != "never averaged":
            p.register_post_accumulate_grad_hook(lambda p: mean_(p.grad, data))
    if bug == "reduced twice":
        model.head.weight.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad, group=data[0]))
    model.head.requires_grad_(True)
    return model


def mean_(gradient: wt.Tensor, groups: tuple[Any, ...]) -> None:
    """Over the ranks of all groups, in place."""
    for group in groups:
        dist.all_reduce(gradient, dist.ReduceOp.AVG, group)


SPLIT = ("attn.q.weight", "attn.proj.weight", "attn.sinks", "moe.experts")


def clip(model: Any) -> wt.Tensor:
    """In one process: the norm of all gradients."""
    return nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def norm_on(bug: str = "") -> Callable[[Any], wt.Tensor]:
    """The norm by hand: each rank of "tp" counts its parts, and the first one what all have."""

    def after(model: Any) -> wt.Tensor:
        tp, total = model.moe.tp, wt.zeros((), dtype=wt.float64)
        for name, p in model.named_parameters():
            split = name in SPLIT and name != bug
            if split or tp.rank() == 0 or bug == "copies counted":
                total += p.grad.square().sum()
        dist.all_reduce(total, group=tp)
        if bug == "replicas summed":
            dist.all_reduce(total, group=model.other)
        return total.sqrt()

    return after


def token_loss(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    """Of what is not padding, the mean."""
    return F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED)


def loss_on(mesh: Any, bug: str = "") -> Callable[..., wt.Tensor]:
    """token_loss of a part of batch and sequence, so that the mean over ranks is that of the whole."""
    names = mesh.mesh_dim_names
    groups = [mesh[name].get_group() for name in ("dp", "cp") if name in names]

    def loss(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
        if "cp" in names:
            target = target.chunk(mesh.size("cp"), 1)[mesh.get_local_rank("cp")]
        if bug == "mean of means":
            return token_loss(logits, target)
        if bug == "logits gathered":
            from warptape.parallel.tensor import vocab_parallel_cross_entropy as split

            return split(logits.flatten(0, 1), target.flatten(), mesh["tp"], ignore_index=IGNORED)
        total = F.cross_entropy(logits.flatten(0, 1), target.flatten(), ignore_index=IGNORED, reduction="sum")
        count, ranks = (target != IGNORED).sum().to(total.dtype), 1
        for group in groups:
            dist.all_reduce(count, group=group)
            ranks *= 1 if bug == "scaled by dp alone" and group is not groups[0] else group.size()
        return total * ranks / count

    return loss


def batch() -> tuple[wt.Tensor, wt.Tensor]:
    """Tokens and targets of which some rows are padding for the most part."""
    g = wt.Generator().manual_seed(5)
    tokens = wt.randint(V, (ROWS, T + 1), generator=g)
    target = tokens[:, 1:].clone()
    for row in range(ROWS):
        target[row, T - row :] = IGNORED
    return tokens[:, :-1], target


def layout(axes: dict[str, int], bug: str = "", **more: Any) -> Layout:
    """Of the ranks that the axes have, with one bug."""
    ranks, names = math.prod(axes.values()), tuple(axes)
    more = {"loss_fn": lambda mesh: loss_on(mesh, bug), **more}
    shared = tuple(name for name in names if name == "dp")
    return Layout(
        ranks, lambda m, mesh: spread(m, mesh, bug), tuple(axes.values()), names, batch=shared, **more
    )
