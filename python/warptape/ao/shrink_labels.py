"""Which channels of a model belong together: labels on the dims of all values of a recorded graph.

Note [Labels]. Each index of a dim that may become smaller has a label, and labels that must go together are
united: a residual addition unites the channels of its operands, a view [.., H D] -> [.., H, D] the D elements
of a head, a grouped convolution the channels of a group. A dim without labels (None) keeps its size, as do
labels that meet one (`fixed`). A label may go if no product of its values with a weight (`Sink`) adds
anything, for the weight or the value is zero. Values that do not depend on the input are followed, too: a
channel whose filter is zero is its bias, and through batch norm and ReLU another number.

DepGraph (Fang et al. 2023, "Towards any structural pruning") groups layers in the same way.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np


class Labels:
    """Disjoint sets of labels; label 0 is in the set that keeps its size.

    Two channels are in one set where they can only go together.
    """

    def __init__(self) -> None:
        self.parent = [0]

    def fresh(self, n: int) -> np.ndarray:
        """n new labels.

        Args:
            n: how many.
        """
        start = len(self.parent)
        self.parent.extend(range(start, start + n))
        return np.arange(start, start + n)

    def find(self, label: int) -> int:
        """The least label of its set.

        Args:
            label: any.
        """
        parent = self.parent
        while parent[label] != label:
            parent[label] = parent[parent[label]]
            label = parent[label]
        return label

    def unite(self, a: np.ndarray | None, b: np.ndarray | None) -> None:
        """The labels of two dims of one size, index by index.

        Args:
            a, b: labels; None for a dim without.
        """
        for x, y in zip(*([d.tolist() for d in (a, b)] if a is not None and b is not None else ([], []))):
            x, y = self.find(x), self.find(y)
            if x != y:
                self.parent[max(x, y)] = min(x, y)
        if (a is None) != (b is None):
            self.fix(a if b is None else b)

    def join(self, rows: np.ndarray) -> np.ndarray:
        """Unites the labels within each row; returns one of each.

        Args:
            rows: labels, [rows, columns].
        """
        for k in range(1, rows.shape[1]):
            self.unite(rows[:, 0], rows[:, k])
        return rows[:, 0]

    def fix(self, *dims: np.ndarray | None) -> None:
        """Their sizes stay.

        Args:
            *dims: labels; None for a dim without.
        """
        for dim in dims:
            for label in [] if dim is None else dim.tolist():
                self.parent[self.find(label)] = 0

    def roots(self, dim: np.ndarray) -> np.ndarray:
        """The sets of a dim's labels.

        Args:
            dim: labels.
        """
        return np.array([self.find(label) for label in dim.tolist()], dtype=np.int64)


@dataclass
class Value:
    """A tensor of the graph: its sizes, the labels of its dims and, along `dim`, what is known of it.

    Attributes:
        known: the number that all elements at an index of `dim` have, NaN where it depends on the input.
        name: of the parameter or buffer that it is.
        tensor: its elements, of a constant.
    """

    sizes: tuple[int, ...]
    dims: list[np.ndarray | None]
    known: np.ndarray | None = None
    dim: int = 1
    name: str = ""
    tensor: Any = None

    def known_along(self, dim: int) -> np.ndarray:
        """What is known along a dim, NaN where nothing is.

        Args:
            dim: of the value.
        """
        dim %= len(self.sizes)
        if self.known is not None and self.dim == dim:
            return self.known
        return np.full(self.sizes[dim], math.nan)


@dataclass
class Sink:
    """A product that sums over labelled channels.

    Attributes:
        labels: of the channels.
        harmless: which of them add nothing.
        shifts: [channels, outputs]: what a known value adds to the outputs; None where it cannot be added
            to a bias.
        weight, bias: their names.
    """

    labels: np.ndarray
    harmless: np.ndarray
    shifts: np.ndarray | None
    weight: str
    bias: str | None


@dataclass
class Heads:
    """An attention: the labels of the heads of queries and of keys, and its weights' dims.

    Args:
        queries, keys: labels.
        packed: name of a weight that has all three.
    """

    queries: np.ndarray
    keys: np.ndarray
    packed: str | None = None  # the path of the nn.MultiheadAttention that it is


@dataclass
class ChannelGraph:
    """The labels of a recorded graph.

    Attributes:
        params: by name, what has labels of parameters and buffers.
        outs: (name, dim) of the dims of weights that make channels.
        unknown: names of ops whose channels stay as they are.
    """

    labels: Labels
    params: dict[str, Value] = field(default_factory=dict)
    sinks: list[Sink] = field(default_factory=list)
    heads: list[Heads] = field(default_factory=list)
    outs: list[tuple[str, int]] = field(default_factory=list)
    unknown: set[str] = field(default_factory=set)
