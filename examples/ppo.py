"""Proximal policy optimization (Schulman et al., arXiv:1707.06347) that balances a pole on a cart.

    python examples/ppo.py
    warptape-run --nproc-per-node 2 examples/ppo.py      shares the environments among two processes

An episode is over when the pole leans too far, the cart leaves the track or 500 steps are done; a step's
reward is 1, so that a return is the number of steps that the pole stood.

Shapes: N environments, T steps of each between two updates, B samples of a batch.
"""

from __future__ import annotations

import argparse
import math
import sys

import warptape as wt
import warptape.nn.functional as F
from _common import Parser, ranks, run, share
from warptape import nn, optim
from warptape.distributions import Categorical

DISCOUNT, SMOOTHING, CLIP, LONGEST = 0.99, 0.95, 0.2, 500


class CartPole:
    """N carts at once (Barto, Sutton and Anderson, 1983): a state is place, speed, angle, angular speed."""

    def __init__(self, n: int) -> None:
        self.state, self.age = wt.rand(n, 4) * 0.1 - 0.05, wt.zeros(n)

    def step(self, right: wt.Tensor) -> tuple[wt.Tensor, wt.Tensor, wt.Tensor]:
        """Pushes each cart to the right or the left for 0.02 s.

        The states after it [N, 4], whether the pole fell [N] and whether time was up [N]; both start anew.
        """
        gravity, cart, pole, half_length, force = 9.8, 1.0, 0.1, 0.5, 10.0  # m/s^2, kg, kg, m, N
        v, angle, spin = self.state[:, 1:].unbind(1)
        sin, cos, mass = angle.sin(), angle.cos(), cart + pole
        pushed = (force * (2 * right - 1) + pole * half_length * spin.square() * sin) / mass
        turn = (gravity * sin - cos * pushed) / (half_length * (4 / 3 - pole * cos.square() / mass))
        speed_up = pushed - pole * half_length * turn * cos / mass
        after = self.state + 0.02 * wt.stack([v, speed_up, spin, turn], dim=1)
        self.age += 1
        fell = (after[:, 0].abs() > 2.4) | (after[:, 2].abs() > math.radians(12))
        late = (self.age >= LONGEST) & ~fell
        over = fell | late
        self.state = wt.where(over.unsqueeze(1), wt.rand_like(after) * 0.1 - 0.05, after)
        self.age = self.age * ~over
        return after, fell, late


class ActorCritic(nn.Module):
    """States [N, 4] -> logits of the two actions [N, 2] and the states' values [N]."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()

        def network(outputs: int, last_gain: float) -> nn.Module:
            layers = [nn.Linear(4, width), nn.Linear(width, width), nn.Linear(width, outputs)]
            for layer, gain in zip(layers, (math.sqrt(2), math.sqrt(2), last_gain)):
                nn.init.orthogonal_(layer.weight, gain)
                nn.init.zeros_(layer.bias)
            return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])

        self.actor, self.critic = network(2, 0.01), network(1, 1.0)

    def forward(self, states: wt.Tensor) -> tuple[wt.Tensor, wt.Tensor]:
        return self.actor(states), self.critic(states).squeeze(-1)


@wt.no_grad()
def collect(model: ActorCritic, carts: CartPole, steps: int) -> list[wt.Tensor]:
    """Plays T steps: states, actions, their log-probabilities, advantages and returns, each [T N, ..]."""
    played, values, deltas, goes_on = [], [], [], []
    for _ in range(steps):
        state = carts.state
        logits, value = model(state)
        policy = Categorical(logits=logits)
        action = policy.sample()
        after, fell, late = carts.step(action)
        # Time that was up is no reason to expect less: the value of the state after it counts all the same.
        deltas.append(1 + DISCOUNT * model.critic(after).squeeze(-1) * ~fell - value)
        played.append((state, action, policy.log_prob(action)))
        values.append(value)
        goes_on.append(~(fell | late))
    advantage, advantages = wt.zeros(len(carts.state)), []
    for delta, on in zip(reversed(deltas), reversed(goes_on)):  # arXiv:1506.02438, eq. 16
        advantage = delta + DISCOUNT * SMOOTHING * on * advantage
        advantages.append(advantage)
    of_steps = wt.stack(advantages[::-1])  # [T, N]
    parts = [*map(wt.stack, zip(*played)), of_steps, of_steps + wt.stack(values)]
    return [part.flatten(0, 1) for part in parts]


def loss_of(model: nn.Module, batch: list[wt.Tensor]) -> wt.Tensor:
    """The clipped objective (eq. 7), the values' error and a little for the policy's entropy (eq. 9)."""
    states, actions, old, advantages, returns = batch
    logits, values = model(states)
    policy = Categorical(logits=logits)
    ratio = (policy.log_prob(actions) - old).exp()
    advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = wt.minimum(ratio * advantages, ratio.clamp(1 - CLIP, 1 + CLIP) * advantages)
    return -gain.mean() + 0.5 * F.mse_loss(values, returns) - 0.01 * policy.entropy().mean()


@wt.no_grad()
def mean_return(model: ActorCritic, episodes: int = 100) -> float:
    """Of fresh episodes, with the likelier action at each step."""
    carts, stands, total = CartPole(episodes), wt.ones(episodes, dtype=wt.bool), 0
    for _ in range(LONGEST):
        total += int(stands.sum())
        _, fell, _ = carts.step(model.actor(carts.state).argmax(dim=1))
        stands &= ~fell
    return total / episodes


def program(options: argparse.Namespace) -> nn.Module:
    model = ActorCritic()
    shared = share(model, options.seed)
    optimizer = optim.Adam(model.parameters(), lr=2.5e-3, eps=1e-5, fused=True)
    schedule = optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, options.updates)
    carts = CartPole(options.environments // ranks()[1])
    before = mean_return(model)
    for update in range(1, options.updates + 1):
        samples = collect(model, carts, 128)
        for _ in range(4):
            order = wt.randperm(len(samples[0]))
            for part in order.chunk(4):
                loss = loss_of(shared, [each[part] for each in samples])
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
                optimizer.step()
        schedule.step()
        if update % 10 == 0:
            print(f"update {update} mean return {mean_return(model):.1f}", flush=True)
    print(f"mean return {mean_return(model):.1f} of {LONGEST}, {before:.1f} before training")
    return model


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--updates", 60, "rounds of playing and learning")
    parser.number("--environments", 32, "carts at a time", divided=True)
    sys.exit(run(program, parser))
