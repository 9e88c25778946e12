"""Reinforcement learning, on tasks of _stubs.py."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
import numpy as np
from _registry import import_from, program, script


def _minimal(clones: Path, name: str, task: Any) -> None:
    _stubs.gym(task)
    script(clones / "minimalRL" / f"{name}.py")


@program("rl_dqn", "seungeunrho/minimalRL dqn")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "dqn", _stubs.CartPole)


@program("rl_ppo", "seungeunrho/minimalRL ppo")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "ppo", _stubs.CartPole)


@program("rl_ppo_lstm", "seungeunrho/minimalRL ppo-lstm")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "ppo-lstm", _stubs.CartPole)


@program("rl_acer", "seungeunrho/minimalRL acer")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "acer", _stubs.CartPole)


@program("rl_vtrace", "seungeunrho/minimalRL vtrace")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "vtrace", _stubs.CartPole)


@program("rl_ddpg", "seungeunrho/minimalRL ddpg")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "ddpg", _stubs.Pendulum)


@program("rl_sac", "seungeunrho/minimalRL sac")
def _(clones: Path, work: Path) -> None:
    _minimal(clones, "sac", _stubs.Pendulum)


@program("td3", "sfujim/TD3")
def _(clones: Path, work: Path) -> None:
    folder = clones / "TD3"
    td3 = import_from(folder, "TD3").TD3(3, 1, 2.0)
    memory = import_from(folder, "utils").ReplayBuffer(3, 1)
    task = _stubs.Pendulum()
    state, _info = task.reset()
    for _ in range(300):
        action = np.clip(td3.select_action(state) + task.random.normal(0, 0.2, 1), -2, 2)
        after, reward, done, *_rest = task.step(action)
        memory.add(state, action, after, reward, float(done))
        state = task.reset()[0] if done else after
    while True:
        td3.train(memory, 64)


class _Tasks:
    """gymnasium's vector of tasks, as far as cleanrl asks: each begins anew when it ends."""

    def __init__(self, makers: list[Any]) -> None:
        self.tasks = [make() for make in makers]
        self.num_envs = len(makers)
        self.single_observation_space = _Box()
        self.single_action_space = _Discrete()

    def reset(self, seed: int | None = None) -> tuple[Any, dict]:
        return np.stack([task.reset()[0] for task in self.tasks]), {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        found = [task.step(int(action)) for task, action in zip(self.tasks, actions, strict=True)]
        states = [t.reset()[0] if f[2] else f[0] for t, f in zip(self.tasks, found, strict=True)]
        rewards, ends = np.array([f[1] for f in found]), np.array([f[2] for f in found])
        return np.stack(states), rewards, ends, np.zeros_like(ends), {}


class _Box:
    shape, dtype = (4,), np.dtype("float32")


class _Discrete:
    n, shape, dtype = 2, (), np.dtype("int64")

    def __init__(self) -> None:
        self.seed(0)

    def seed(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)

    def sample(self) -> int:
        return int(self.random.integers(self.n))


def _cleanrl(clones: Path, work: Path, name: str, **settings: Any) -> None:
    os.chdir(work)
    _stubs.anything("torch.utils.tensorboard")

    def make(*args: Any, **kwargs: Any) -> Any:
        task = _stubs.CartPole()
        task.action_space = _Discrete()
        return task

    kinds = {name: type(name, (), {}) for name in ("MultiDiscrete", "MultiBinary", "Dict", "Space")}
    spaces = _stubs.module("gymnasium.spaces", Discrete=_Discrete, Box=_Box, **kinds)
    names = {
        "make": make,
        "wrappers": SimpleNamespace(RecordEpisodeStatistics=lambda env: env),
        "vector": SimpleNamespace(SyncVectorEnv=_Tasks),
        "spaces": spaces,
    }
    _stubs.module("gymnasium", **names)

    def cli(kind: Any) -> Any:
        return kind(**settings)

    _stubs.module("tyro", cli=cli)
    sys.path.insert(0, str(clones / "cleanrl"))
    script(clones / "cleanrl/cleanrl" / f"{name}.py")


@program("cleanrl_ppo", "vwxyzjn/cleanrl ppo")
def _(clones: Path, work: Path) -> None:
    _cleanrl(clones, work, "ppo", num_steps=32)


@program("cleanrl_dqn", "vwxyzjn/cleanrl dqn")
def _(clones: Path, work: Path) -> None:
    _cleanrl(clones, work, "dqn", learning_starts=200)


@program("cleanrl_c51", "vwxyzjn/cleanrl c51")
def _(clones: Path, work: Path) -> None:
    _cleanrl(clones, work, "c51", learning_starts=200)
