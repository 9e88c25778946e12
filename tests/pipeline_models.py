"""Models for pipelines, and the same training in one process and in parts. As a script under a launcher: two
real processes against one."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.parallel import pipeline as pp
from warptape.utils.checkpoint import checkpoint

STEPS, BATCH, M, WIDTH = 20, 16, 4, 6
LARGEST_NORM = 0.1  # of gradients: less than what they have
SINGLE = {"gpipe": pp.ScheduleGPipe, "1f1b": pp.Schedule1F1B, "zb_h1": pp.ScheduleZBH1}
SEVERAL = {
    "interleaved": pp.ScheduleInterleaved1F1B,
    "looped_bfs": pp.ScheduleLoopedBFS,
    "interleaved_zero_bubble": pp.ScheduleInterleavedZeroBubble,
    "zb_v": pp.ScheduleZBVZeroBubble,
    "dualpipe_v": pp.ScheduleDualPipeV,
}
KINDS = [*SINGLE, *SEVERAL]
Batch = tuple[tuple[wt.Tensor, ...], wt.Tensor]


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=timedelta(seconds=30))


def make_schedule(kind: str, layers: Any, m: int = M, loss: Any = F.mse_loss, **how: Any) -> Any:
    scale = how.pop("scale_grads", True)
    if kind in SINGLE:
        (stage,) = pp.split_into_stages(layers, **how)
        return SINGLE[kind](stage, m, loss, scale_grads=scale)
    stages = pp.split_into_stages(layers, 2, placement=SEVERAL[kind].placement, **how)
    return SEVERAL[kind](stages, m, loss, scale_grads=scale)


def mlp() -> nn.Sequential:
    """Tame: with a norm after each layer, rounding grows tenfold with every step, in one process too."""
    parts: list[nn.Module] = []
    for _ in range(4):
        parts += [nn.Linear(WIDTH, WIDTH), nn.Sequential(nn.Tanh(), nn.Linear(WIDTH, WIDTH))]
    return nn.Sequential(*parts)


class Block(nn.Module):
    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.mlp = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        b, t, c = x.shape
        q, k, v = (a.reshape(b, t, 2, c // 2).transpose(1, 2) for a in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(b, t, c))
        return x + F.dropout(F.gelu(self.mlp(x)), 0.2)


class Head(nn.Module):
    def __init__(self, embedding: nn.Embedding) -> None:
        super().__init__()
        self.weight = embedding.weight

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return x @ self.weight.t()


def tied_transformer() -> nn.Sequential:
    embedding = nn.Embedding(11, WIDTH)
    return nn.Sequential(embedding, *[Block() for _ in range(6)], Head(embedding))


def frozen_front() -> nn.Sequential:
    """No gradient comes back to the first stages; and a frozen one in the middle passes it on."""
    net = mlp()
    for at in (0, 1, 2, 3, 5):
        net[at].requires_grad_(False)
    return net


class Skip(nn.Module):
    """Takes and returns three tensors: the state, a skip connection, and integers."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: wt.Tensor, skip: wt.Tensor, index: wt.Tensor) -> Any:
        return self.linear(x).tanh() * index.unsqueeze(1), skip, index


class Join(Skip):
    def forward(self, x: wt.Tensor, skip: wt.Tensor, index: wt.Tensor) -> Any:
        return self.linear(x) + skip * 0.5 + index.unsqueeze(1)


def skipping() -> nn.Sequential:
    return nn.Sequential(*[Skip() for _ in range(7)], Join())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.2), nn.Linear(WIDTH, WIDTH))

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def checkpointed() -> nn.Sequential:
    return nn.Sequential(*[Checkpointed() for _ in range(8)])


class Dropping(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return F.dropout(self.linear(x), 0.3) + F.dropout(x, 0.1)


def dropping() -> nn.Sequential:
    return nn.Sequential(*[Dropping() for _ in range(8)])


def draw(kind: str) -> list[Batch]:
    g = wt.Generator().manual_seed(7)

    def one() -> Batch:
        x = wt.randn(BATCH, WIDTH, generator=g, dtype=wt.float64)
        y = wt.randn(BATCH, WIDTH, generator=g, dtype=wt.float64)
        if kind == "skipping":
            return (x, y.sin(), wt.randint(0, 3, (BATCH,), generator=g)), y
        if kind == "tied_transformer":
            tokens = wt.randint(0, 11, (BATCH, 5), generator=g)
            return (tokens[:, :-1],), tokens[:, 1:]
        return (x,), y

    return [one() for _ in range(STEPS)]


def token_loss(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


MODELS: dict[str, tuple[Callable[[], nn.Sequential], Any]] = {
    "mlp": (mlp, F.mse_loss),
    "tied_transformer": (tied_transformer, token_loss),
    "frozen_front": (frozen_front, F.mse_loss),
    "skipping": (skipping, F.mse_loss),
    "checkpointed": (checkpointed, F.mse_loss),
    "dropping": (dropping, F.mse_loss),
}


def build(kind: str) -> tuple[nn.Sequential, Any]:
    wt.manual_seed(3)
    make, loss = MODELS[kind]
    return make().double(), loss


def optimizer_of(parameters: list[Any], kind: str) -> Any:
    trained = [p for p in parameters if p.requires_grad]
    if not trained:
        return None
    return optim.SGD(trained, lr=0.05, momentum=0.9) if kind == "sgd" else optim.AdamW(trained, lr=0.01)


Found = tuple[list[float], list[dict[str, wt.Tensor]]]


def train_plainly(kind: str, optimizer: str) -> Found:
    net, loss_fn = build(kind)
    opt = optimizer_of(list(net.parameters()), optimizer)
    losses, gradients = [], []
    for x, y in draw(kind):
        opt.zero_grad()
        out = net[0](*x)
        for layer in list(net)[1:]:
            out = layer(*out) if isinstance(out, tuple) else layer(out)
        loss = loss_fn(out, y)
        loss.backward()
        losses.append(loss.item())
        nn.utils.clip_grad_norm_(net.parameters(), LARGEST_NORM)
        named = dict(net.named_parameters(remove_duplicate=False))
        gradients.append({n: p.grad.clone() for n, p in named.items() if p.grad is not None})
        opt.step()
    return losses, gradients


def train_in_parts(kind: str, optimizer: str, schedule: str) -> Found:
    net, loss_fn = build(kind)
    runner = make_schedule(schedule, net, loss=loss_fn)
    named = {n: p for s in runner.stages.values() for n, p in s.submod.named_parameters()}
    parameters = list({id(p): p for p in named.values()}.values())  # two stages of a rank may share some
    opt = optimizer_of(parameters, optimizer)
    losses, gradients = [], []
    for x, y in draw(kind):
        parts: list[wt.Tensor] = []
        if opt is not None:
            opt.zero_grad()
        runner.step(*x, target=y, losses=parts)
        if parts:
            losses.append(sum(p.item() for p in parts) / M)
        nn.utils.clip_grad_norm_(parameters, LARGEST_NORM)  # of the whole model
        gradients.append({n: p.grad.clone() for n, p in named.items() if p.grad is not None})
        if opt is not None:
            opt.step()
    return losses, gradients


def assert_equal_training(found: list[Found], expected: Found) -> None:
    (losses,) = [losses for losses, _ in found if losses]
    for a, b in zip(losses, expected[0], strict=True):
        assert abs(a - b) <= 1e-10 * abs(b)
    for step, wanted in enumerate(expected[1]):
        got = [g[step] for _, g in found]
        assert set().union(*got) == set(wanted)
        for part in got:
            for name, gradient in part.items():
                limit = 1e-10 * wanted[name].norm().item()
                assert (gradient - wanted[name]).norm().item() <= limit, (step, name)


def main() -> None:
    """Every schedule of two processes against this process alone."""
    dist.init_process_group()
    expected = train_plainly("tied_transformer", "adamw")
    for schedule in KINDS:
        found: list[Any] = [None] * 2
        losses, gradients = train_in_parts("tied_transformer", "adamw", schedule)
        dist.all_gather_object(found, (losses, gradients))
        assert_equal_training(found, expected)
    print(f"rank {dist.get_rank()}: {len(KINDS)} schedules equal one process", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__" and "RANK" in os.environ:
    main()
