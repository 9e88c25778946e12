"""Five optimizers that PyTorch does not have, each in a few lines: copy what you need.

    python examples/optimizers.py              trains a small net with each, beside AdamW and Muon
    python examples/optimizers.py --steps 300

NorMuon          Li et al., "NorMuon: Making Muon more efficient and scalable" (2025), algorithm 1
Polar Express    Amsel et al., "The Polar Express" (2025), algorithm 1: NorMuon's and Muon's iteration
SOAP             Vyas et al., "SOAP: Improving and stabilizing Shampoo using Adam" (2024), algorithm 3
ScheduleFree     Defazio et al., "The road less scheduled" (2024), AdamW without a schedule
Adam8bit         Dettmers et al., "8-bit optimizers via block-wise quantization" (2021)

Shapes: M rows and N columns of a matrix.
"""

from __future__ import annotations

import argparse
from typing import Any

import warptape as wt
from warptape import nn, optim

# Of the odd polynomial of degree 5, iteration by iteration, for singular values from 0.001 on.
POLAR_EXPRESS = [
    (8.28721201814563, -23.595886519098837, 17.300387312530933),
    (4.107059111542203, -2.9478499167379106, 0.5448431082926601),
    (3.9486908534822946, -2.908902115962949, 0.5518191394370137),
    (3.3184196573706015, -2.488488024314874, 0.51004894012372),
    (2.300652019954817, -1.6689039845747493, 0.4188073119525673),
    (1.891301407787398, -1.2679958271945868, 0.37680408948524835),
    (1.8750014808534479, -1.2500016453999487, 0.3750001645474248),
    (1.875, -1.25, 0.375),
]


def polar_express(matrix: wt.Tensor, steps: int = 5, dtype: Any = wt.bfloat16) -> wt.Tensor:
    """The nearest orthogonal matrix, roughly; [.., M, N], so that experts' matrices are done together. All
    but the last coefficients are those of singular values that are 1 % larger, for rounding's sake."""
    tall = matrix.size(-2) > matrix.size(-1)
    x = matrix.mT if tall else matrix
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) * 1.01 + 1e-7)).to(dtype)
    for step in range(steps):
        a, b, c = POLAR_EXPRESS[min(step, len(POLAR_EXPRESS) - 1)]
        if step < len(POLAR_EXPRESS) - 1:
            a, b, c = a / 1.01, b / 1.01**3, c / 1.01**5
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x.mT if tall else x


class NorMuon(optim.Optimizer):
    """Muon whose rows (neurons) get steps of one size: [.., M, N]."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.02,
        momentum: float = 0.95,
        beta2: float = 0.95,
        weight_decay: float = 0.0,
        eps: float = 1e-8,
        steps: int = 5,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "momentum": momentum, "beta2": beta2, "weight_decay": weight_decay}
            | {"eps": eps, "steps": steps},
        )

    @wt.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = optim_loss(closure)
        for group, p, state in with_gradients(self):
            if not state:
                state["mean"] = wt.zeros_like(p)
                state["rows"] = wt.zeros_like(p[..., :1])
            mean = state["mean"].lerp_(p.grad, 1 - group["momentum"])
            o = polar_express(p.grad.lerp(mean, group["momentum"]), group["steps"]).to(p.dtype)
            rows = state["rows"].lerp_(o.square().mean(-1, keepdim=True), 1 - group["beta2"])
            o = o / (rows.sqrt() + group["eps"])
            size = o.norm(dim=(-2, -1), keepdim=True)
            o = o * (0.2 * (o.size(-2) * o.size(-1)) ** 0.5 / size)  # as large as AdamW's steps
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(o, alpha=group["lr"])
        return loss


class SOAP(optim.Optimizer):
    """Adam in the eigenbasis of Shampoo's two matrices, which is brought up to date every `frequency` steps
    by a step of power iteration. What is no matrix gets Adam."""

    def __init__(
        self,
        params: Any,
        lr: float = 3e-3,
        betas: tuple[float, float] = (0.95, 0.95),
        shampoo_beta: float = 0.95,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        frequency: int = 10,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "shampoo_beta": shampoo_beta, "eps": eps}
            | {"weight_decay": weight_decay, "frequency": frequency},
        )

    @wt.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = optim_loss(closure)
        for group, p, state in with_gradients(self):
            g, (beta1, beta2) = p.grad, group["betas"]
            if not state:
                sides = (
                    [wt.zeros(n, n, dtype=p.dtype, device=p.device) for n in p.shape] if p.ndim == 2 else []
                )
                state.update(step=0, mean=wt.zeros_like(p), square=wt.zeros_like(p), sides=sides, bases=[])
            state["step"] += 1
            for side, gram in zip(state["sides"], (g @ g.mT, g.mT @ g) if state["sides"] else ()):
                side.lerp_(gram, 1 - group["shampoo_beta"])
            if not state["bases"]:
                state["bases"] = [wt.linalg.eigh(side)[1] for side in state["sides"]]
            elif state["step"] % group["frequency"] == 0:
                state["bases"] = [
                    wt.linalg.qr(side @ base)[0] for side, base in zip(state["sides"], state["bases"])
                ]
            mean = state["mean"].lerp_(g, 1 - beta1)
            turned = self.turn(g, state["bases"])
            square = state["square"].mul_(beta2).addcmul_(turned, turned, value=1 - beta2)
            root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
            move = self.turn(mean, state["bases"]) / (1 - beta1 ** state["step"]) / root
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_(self.turn(move, [base.mT for base in state["bases"]]), alpha=group["lr"])
        return loss

    @staticmethod
    def turn(x: wt.Tensor, bases: list[wt.Tensor]) -> wt.Tensor:
        """x in the basis whose columns are given for both sides."""
        return bases[0].mT @ x @ bases[1] if bases else x


class ScheduleFreeAdamW(optim.Optimizer):
    """AdamW whose average takes the place of a schedule. `train()` before steps, `eval()` before the model is
    judged or saved: parameters are y while it trains, and the average x else."""

    def __init__(
        self,
        params: Any,
        lr: float = 0.0025,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        warmup_steps: int = 0,
    ) -> None:
        super().__init__(
            params,
            {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
            | {"warmup_steps": warmup_steps, "k": 0, "weights": 0.0, "most": 0.0, "trains": False},
        )

    @wt.no_grad()
    def _swap(self, trains: bool) -> None:
        for group in self.param_groups:
            if group["trains"] is not trains:
                share = 1 - group["betas"][0] if trains else 1 - 1 / group["betas"][0]
                for p in group["params"]:
                    if self.state[p]:
                        p.lerp_(self.state[p]["z"], share)
                group["trains"] = trains

    def train(self) -> None:
        """Parameters become y, at which gradients are taken."""
        self._swap(True)

    def eval(self) -> None:
        """Parameters become x, the average."""
        self._swap(False)

    @wt.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = optim_loss(closure)
        for group in self.param_groups:
            if not group["trains"]:
                raise RuntimeError("ScheduleFreeAdamW.step: call train() before steps, and eval() after them")
            (beta1, beta2), group["k"] = group["betas"], group["k"] + 1
            lr = group["lr"] * min(1.0, group["k"] / max(group["warmup_steps"], 1))
            group["most"] = max(lr, group["most"])
            weight = group["most"] ** 2
            group["weights"] += weight
            share = weight / group["weights"] if group["weights"] else 0.0
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(z=p.clone(), square=wt.zeros_like(p))
                square = state["square"].mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
                move = p.grad / (square / (1 - beta2 ** group["k"])).sqrt_().add_(group["eps"])
                move.add_(p, alpha=group["weight_decay"])
                p.lerp_(state["z"], share).add_(move, alpha=lr * (beta1 * (1 - share) - 1))
                state["z"].sub_(move, alpha=lr)
        return loss


def dynamic_codes(signed: bool) -> wt.Tensor:
    """The 256 numbers in [-1, 1] or [0, 1] of the dynamic tree format: exponents of ten, and what bits are
    left for a fraction."""
    values = [0.0, 1.0]
    for exponent in range(7):
        edges = wt.linspace(0.1, 1, 2 ** (exponent if signed else exponent + 1) + 1, dtype=wt.float64)
        means = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - 6)
        values += means.tolist() + ((-means).tolist() if signed else [])
    return wt.tensor(sorted(values), dtype=wt.float32)


class Codes:
    """Numbers of a tensor as bytes, `block` of which share the greatest magnitude as their scale."""

    def __init__(self, like: wt.Tensor, signed: bool, block: int = 256) -> None:
        self.shape, self.block = like.shape, block
        self.table = dynamic_codes(signed).to(like.device)
        self.edges = (self.table[:-1] + self.table[1:]) / 2
        self.write(wt.zeros_like(like))

    def write(self, x: wt.Tensor) -> None:
        """Stores the nearest numbers."""
        x = x.flatten().float()
        x = nn.functional.pad(x, (0, -x.numel() % self.block)).view(-1, self.block)
        self.scales = x.abs().amax(1, keepdim=True)
        scaled = x / wt.where(self.scales == 0, wt.ones_like(self.scales), self.scales)
        self.bytes = wt.bucketize(scaled, self.edges).to(wt.uint8)

    def read(self) -> wt.Tensor:
        """What is stored, in float32."""
        values = self.table[self.bytes.long()] * self.scales
        return values.flatten()[: self.shape.numel()].view(self.shape)


class Adam8bit(optim.Optimizer):
    """AdamW whose two averages are kept in 8 bits; those of small parameters (below `least` numbers) stay."""

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        least: int = 4096,
    ) -> None:
        super().__init__(
            params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "least": least}
        )

    @wt.no_grad()
    def step(self, closure: Any = None) -> Any:
        loss = optim_loss(closure)
        for group, p, state in with_gradients(self):
            beta1, beta2 = group["betas"]
            coded = p.numel() >= group["least"]
            if not state:
                mean, square = (wt.zeros_like(p, dtype=wt.float32) for _ in range(2))
                state.update(step=0, mean=mean, square=square)
                if coded:
                    state.update(mean=Codes(p, True), square=Codes(p, False))
            state["step"] += 1
            mean, square = (state[k].read() if coded else state[k] for k in ("mean", "square"))
            g = p.grad.float()
            mean.lerp_(g, 1 - beta1)
            square.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            root = (square / (1 - beta2 ** state["step"])).sqrt_().add_(group["eps"])
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.sub_((mean / (1 - beta1 ** state["step"]) / root).to(p.dtype), alpha=group["lr"])
            if coded:
                state["mean"].write(mean)
                state["square"].write(square)
        return loss


# ---- what they share, and the comparison -----------------------------------------------------------------


def with_gradients(optimizer: optim.Optimizer) -> Any:
    """Group, parameter and state of each parameter that has a gradient."""
    for group in optimizer.param_groups:
        for p in group["params"]:
            if p.grad is not None:
                yield group, p, optimizer.state[p]


def optim_loss(closure: Any) -> Any:
    """What a closure gives, with gradients."""
    if closure is None:
        return None
    with wt.enable_grad():
        return closure()


MADE: dict[str, Any] = {
    "AdamW": lambda params: optim.AdamW(params, lr=3e-3),
    "Muon": lambda params: optim.Muon(params, lr=0.02, weight_decay=0.0),
    "NorMuon": lambda params: NorMuon(params, lr=0.02),
    "SOAP": lambda params: SOAP(params, lr=1e-2),
    "ScheduleFree": lambda params: ScheduleFreeAdamW(params, lr=1e-2),
    "Adam8bit": lambda params: Adam8bit(params, lr=3e-3, least=512),
}


def trained(name: str, steps: int, seed: int = 0) -> float:
    """The loss of a net of two matrices on random pairs, after some steps."""
    generator = wt.Generator().manual_seed(seed)
    x, y = wt.randn(128, 32, generator=generator), wt.randint(0, 8, (128,), generator=generator)
    first, second = (
        (wt.randn(shape, generator=generator) * shape[0] ** -0.5).requires_grad_()
        for shape in ((32, 64), (64, 8))
    )
    optimizer = MADE[name]([first, second])
    if name == "ScheduleFree":
        optimizer.train()
    for _ in range(steps):
        loss = nn.functional.cross_entropy((x @ first).relu() @ second, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if name == "ScheduleFree":
        optimizer.eval()
    with wt.no_grad():
        return nn.functional.cross_entropy((x @ first).relu() @ second, y).item()


def main() -> None:
    """Prints each optimizer's loss."""
    parser = argparse.ArgumentParser(description="Train a small net with optimizers of 2024 to 2026.")
    parser.add_argument("--steps", type=int, default=100)
    steps = parser.parse_args().steps
    for name in MADE:
        print(f"{name:14} {trained(name, steps):.4f}")


if __name__ == "__main__":
    main()
