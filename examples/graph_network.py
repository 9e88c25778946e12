"""Graph networks that read handwritten digits after five labels of each.

    pip install 'warptape[examples]'
    python examples/graph_network.py
    warptape-run --nproc-per-node 2 examples/graph_network.py      shares the labels among two processes

A node is a digit, and its neighbours are those that look most like it; few nodes have a label. A GCN (Kipf
and Welling, arXiv:1609.02907) and a GAT (Velickovic et al., arXiv:1710.10903) use the edges; an MLP, to
compare, does not.

Shapes: N = 1,797 nodes, E edges, each a column of edges [2, E] (target, source), C features, H heads.
"""

from __future__ import annotations

import argparse
import sys

import warptape as wt
import warptape.nn.functional as F
from _common import Parser, ranks, run, share
from train_digits import load_digits
from warptape import nn, optim

NEIGHBOURS, LABELS = 8, 5


def nearest_neighbours(x: wt.Tensor) -> wt.Tensor:
    """Edges [2, E] of each node [N, C] to itself, to its nearest ones and to those it is nearest to."""
    n = len(x)
    nearest = wt.cdist(x, x).topk(NEIGHBOURS + 1, largest=False)[1]  # [N, 1 + neighbours], itself included
    adjacent = wt.zeros(n, n, dtype=wt.bool).scatter_(1, nearest, True)
    return (adjacent | adjacent.t()).nonzero().t()


def normalized_adjacency(edges: wt.Tensor, n: int) -> wt.Tensor:
    """D^-1/2 A D^-1/2, D the degrees: a sparse matrix [N, N] in rows."""
    scale = edges[0].bincount(minlength=n).float().rsqrt()
    weights = scale[edges[0]] * scale[edges[1]]
    return wt.sparse_coo_tensor(edges, weights, (n, n)).coalesce().to_sparse_csr()


class GraphConvolution(nn.Module):
    """A W x + b, with A the normalized adjacency: [N, C] -> [N, C']."""

    def __init__(self, inputs: int, outputs: int, adjacency: wt.Tensor) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.bias = nn.Parameter(wt.zeros(outputs))
        self.adjacency = adjacency

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return self.adjacency @ self.linear(x) + self.bias


class GraphAttention(nn.Module):
    """The mean of H sums over the neighbours, weighted by attention: [N, C] -> [N, C']."""

    def __init__(self, inputs: int, outputs: int, edges: wt.Tensor, heads: int = 4) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, heads * outputs, bias=False)
        self.to_target = nn.Parameter(wt.randn(heads, outputs) / outputs**0.5)
        self.to_source = nn.Parameter(wt.randn(heads, outputs) / outputs**0.5)
        self.bias = nn.Parameter(wt.zeros(outputs))
        self.edges = edges

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        target, source = self.edges
        x = self.linear(x).view(len(x), *self.to_target.shape)  # [N, H, C']
        scores = (x * self.to_target).sum(-1)[target] + (x * self.to_source).sum(-1)[source]  # [E, H]
        scores = F.leaky_relu(scores, 0.2)
        # A softmax over the edges of each target; the largest score of all keeps exp in range.
        weights = (scores - scores.detach().max()).exp()
        total = wt.zeros_like(x[:, :, 0]).index_add(0, target, weights)  # [N, H]
        weights = weights / total[target]
        gathered = wt.zeros_like(x).index_add(0, target, weights.unsqueeze(-1) * x[source])  # [N, H, C']
        return gathered.mean(dim=1) + self.bias


def two_layers(first: nn.Module, second: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Dropout(0.5), first, nn.ReLU(), nn.Dropout(0.5), second)


def train(
    model: nn.Module, x: wt.Tensor, y: wt.Tensor, known: wt.Tensor, options: argparse.Namespace
) -> float:
    """Learns the labels y of the nodes `known`; the accuracy on all others.

    A process goes through the whole graph, for any node may be a neighbour, but learns its own labels alone.
    """
    rank, count = ranks()
    mine = known[rank::count]
    shared = share(model, options.seed)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.05, fused=True)
    for _ in range(options.steps):
        loss = F.cross_entropy(shared(x)[mine], y[mine])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with wt.no_grad():
        right = model(x).argmax(dim=1) == y
    right[known] = False
    return right.sum().item() / (len(y) - len(known))


def program(options: argparse.Namespace) -> nn.Module:
    parts = load_digits(options.seed)
    x = wt.cat([part.tensors[0] for part in parts]).flatten(1)  # [N, 64]
    y = wt.cat([part.tensors[1] for part in parts])
    known = wt.cat([(y == digit).nonzero().squeeze(1)[:LABELS] for digit in range(10)])
    edges = nearest_neighbours(x)
    print(f"{len(x):,} nodes, {edges.shape[1]:,} edges, {len(known)} labels")
    adjacency, width = normalized_adjacency(edges, len(x)), 32
    models = {
        "MLP": two_layers(nn.Linear(64, width), nn.Linear(width, 10)),
        "GCN": two_layers(GraphConvolution(64, width, adjacency), GraphConvolution(width, 10, adjacency)),
        "GAT": two_layers(GraphAttention(64, width, edges), GraphAttention(width, 10, edges)),
    }
    rights = {name: train(model, x, y, known, options) for name, model in models.items()}
    print("accuracy " + ", ".join(f"{name} {right:.4f}" for name, right in rights.items()))
    return nn.ModuleDict(models)


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--steps", 100, "training steps of each network")
    sys.exit(run(program, parser))
