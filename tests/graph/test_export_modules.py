"""Forty modules exported for ranges of sizes: equal to the bit to the module at ten sizes, both ends of the
range among them, and refused beyond; and sizes by the dozen."""

from __future__ import annotations

import random

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape.export import Dim, export

HIGH = 33


class Called(nn.Module):
    """A module's result by a function of the module and its inputs."""

    def __init__(self, part, f):
        super().__init__()
        self.part, self.f = part, f

    def forward(self, *args):
        return self.f(self.part, *args)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.norm, self.down = nn.BatchNorm2d(8), nn.AdaptiveAvgPool2d(1)

    def forward(self, x):
        y = self.b(F.relu(self.norm(self.a(x)))) + x
        return self.down(y).flatten(1), y.mean((2, 3))


class Causal(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.position = nn.Embedding(19, 8), nn.Embedding(64, 8)
        self.qkv, self.norm, self.head = nn.Linear(8, 24), nn.LayerNorm(8), nn.Linear(8, 19)

    def forward(self, ids):
        n, t = ids.shape
        x = self.embed(ids) + self.position(torch.arange(t))
        q, k, v = (y.view(n, t, 2, 4).transpose(1, 2) for y in self.qkv(self.norm(x)).split(8, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(x + y.transpose(1, 2).reshape(n, t, 8))


def numbers(*last):
    return lambda n, t: (
        torch.linspace(-2, 2, max(1, n * t * 64)).sin()[: n * t].view(n, t, *[1] * len(last))
        * (torch.linspace(0.5, 1.5, max(1, torch.Size(last).numel())).view(last) if last else 1)
    )


def tokens(n, t):
    return torch.arange(n * t).view(n, t) * 7 % 19


# Sizes n and t vary: [n, t], for rows [n, t, 8], for signals [n, 4, t], for images [n, 4, t, 5].
def rows(n, t):
    return numbers(8)(n, t)


def signal(n, t):
    return numbers(4)(n, t).transpose(1, 2).contiguous()


def image(n, t):
    return numbers(4, 5)(n, t).transpose(1, 2).contiguous()


def volume(n, t):
    return numbers(4, 5, 4)(n, t).transpose(1, 2).contiguous()


MLP = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8), nn.Softmax(-1))
# By name: the module, its inputs at sizes n and t, and the least t.
MODULES = {
    "linear": (lambda: nn.Linear(8, 3), rows, 0),
    "perceptron": (lambda: MLP, rows, 0),
    "bilinear": (lambda: Called(nn.Bilinear(8, 8, 3), lambda m, x: m(x, x.flip(-1))), rows, 0),
    "layer norm": (lambda: nn.LayerNorm(8), rows, 0),
    "root mean square norm": (lambda: nn.RMSNorm(8), rows, 0),
    "group norm": (lambda: nn.GroupNorm(2, 4), signal, 2),
    "batch norm": (lambda: nn.BatchNorm1d(4), signal, 0),
    "batch norm of images": (lambda: nn.BatchNorm2d(4), image, 0),
    "instance norm": (lambda: nn.InstanceNorm1d(4), signal, 2),
    "local response norm": (lambda: nn.LocalResponseNorm(3), image, 1),
    "convolution": (lambda: nn.Conv1d(4, 6, 3, padding=1), signal, 1),
    "convolution with stride": (lambda: nn.Conv1d(4, 6, 3, stride=2), signal, 3),
    "dilated convolution": (lambda: nn.Conv1d(4, 6, 3, dilation=2, padding=2), signal, 1),
    "grouped convolution": (lambda: nn.Conv2d(4, 8, 3, groups=2, padding=1), image, 1),
    "depthwise convolution": (lambda: nn.Conv2d(4, 4, 3, groups=4, padding=1, bias=False), image, 1),
    "convolution of volumes": (lambda: nn.Conv3d(4, 2, 3, padding=1), volume, 1),
    "transposed convolution": (lambda: nn.ConvTranspose1d(4, 3, 4, stride=2, padding=1), signal, 1),
    "transposed convolution of images": (lambda: nn.ConvTranspose2d(4, 3, 2, stride=2), image, 1),
    "largest of pools": (lambda: nn.MaxPool1d(2), signal, 2),
    "largest of pools of images": (lambda: nn.MaxPool2d(3, stride=2, padding=1), image, 1),
    "mean of pools": (lambda: nn.AvgPool1d(3, stride=1, padding=1), signal, 1),
    "adaptive mean": (lambda: nn.AdaptiveAvgPool1d(1), signal, 1),
    "adaptive largest": (lambda: nn.AdaptiveMaxPool1d(1), signal, 1),
    "embedding": (lambda: nn.Embedding(19, 8, padding_idx=0), tokens, 0),
    "embedding bag": (lambda: nn.EmbeddingBag(19, 8, mode="mean"), tokens, 1),
    "one hot": (lambda: Called(nn.Linear(19, 3), lambda m, x: m(F.one_hot(x, 19).float())), tokens, 1),
    "recurrent": (lambda: nn.RNN(8, 5, batch_first=True), rows, 1),
    "long short-term memory": (lambda: nn.LSTM(8, 5, 2, batch_first=True, bidirectional=True), rows, 1),
    "gated recurrent": (lambda: nn.GRU(8, 5, batch_first=True), rows, 1),
    "cell": (lambda: Called(nn.GRUCell(8, 5), lambda m, x: m(x.sum(1))), rows, 1),
    "attention": (
        lambda: Called(nn.MultiheadAttention(8, 2, batch_first=True), lambda m, x: m(x, x, x)[0]),
        rows,
        1,
    ),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), rows, 1),
    "encoder, norm first": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True, activation="gelu"),
        rows,
        1,
    ),
    "decoder layer": (
        lambda: Called(nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), lambda m, x: m(x, x[:, :1])),
        rows,
        1,
    ),
    "causal model": (Causal, tokens, 1),
    "residual block": (Residual, image, 1),
    "gated unit": (lambda: nn.Sequential(nn.Linear(8, 16), nn.GLU()), rows, 0),
    "upsampling": (lambda: nn.Upsample(scale_factor=2.0, mode="nearest"), image, 1),
    "upsampling between pixels": (
        lambda: nn.Upsample(scale_factor=2.0, mode="bilinear", align_corners=False),
        image,
        1,
    ),
    "shuffled pixels": (lambda: nn.PixelShuffle(2), image, 1),
    "padding by reflection": (lambda: nn.ReflectionPad1d((1, 2)), signal, 3),
    "flat": (lambda: Called(nn.Linear(4, 2), lambda m, x: m(x.flatten(2).transpose(1, 2))), image, 0),
    "unfolded": (lambda: nn.Unfold((3, 3), padding=1), image, 1),
    "distance": (lambda: Called(nn.PairwiseDistance(), lambda m, x: m(x, x.roll(1, 1))), rows, 1),
    "loss": (
        lambda: Called(nn.CrossEntropyLoss(), lambda m, x: m(x.flatten(0, 1), x.argmax(-1).flatten())),
        rows,
        1,
    ),
}


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


def equal(got, want):
    pairs = [*zip(leaves(got), leaves(want), strict=True)]
    return all(a.shape == b.shape and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True) for a, b in pairs)


def dim_of(inputs):
    """Where t is."""
    return 1 if inputs in (rows, tokens) else 2


@pytest.mark.parametrize("name", MODULES)
def test_ten_sizes_with_both_ends(name):
    make, inputs, least = MODULES[name]
    torch.manual_seed(0)
    model = make().eval()
    n, t = Dim("n", min=1, max=HIGH), Dim("t", min=least, max=HIGH)
    with torch.no_grad():
        program = export(model, (inputs(3, 6),), dynamic_shapes=({0: n, dim_of(inputs): t},))
        assert program.range_constraints == {"n": (1, HIGH), "t": (least, HIGH)}
        module, rng = program.module(), random.Random(name)
        ends = [(a, b) for a in (1, HIGH) for b in (least, HIGH)]
        between = [(rng.randint(1, HIGH), rng.randint(least, HIGH)) for _ in range(6)]
        for a, b in ends + between:
            x = inputs(a, b)
            assert equal(module(x), model(x)), (name, a, b)
        for a, b in ((HIGH + 1, 6), (0, 6), (3, HIGH + 1), *([(3, least - 1)] if least else [])):
            with pytest.raises(torch.ShapeError, match="is outside of the range"):
                module(inputs(a, b))


def test_there_are_forty():
    assert len(MODULES) >= 40


def test_a_dozen_sizes(monkeypatch):
    """Sizes that have nothing to do with each other share recordings: tens of runs, not 2 ** 12."""
    runs = 0

    def f(*xs):
        nonlocal runs
        runs += 1
        sums = [x.sum() * x.shape[0] + x.mean(1)[None].sum() for x in xs]
        flat = [x.reshape(x.shape[0] * x.shape[1]) for x in xs]
        return torch.stack(sums), torch.cat(flat), xs[0] @ torch.ones(xs[0].shape[1], xs[1].shape[0])

    sizes = [(Dim(f"a{k}", min=2, max=40), Dim(f"b{k}", min=2, max=40)) for k in range(6)]
    args = tuple(torch.ones(3 + k, 4 + k) for k in range(6))
    program = export(f, args, dynamic_shapes=tuple(dict(enumerate(s)) for s in sizes))
    assert len(program.range_constraints) == 12 and runs < 60
    rng, module = random.Random(0), program.module()
    for shapes in (
        [(2, 2)] * 6,
        [(40, 40)] * 6,
        *([(rng.randint(2, 40), rng.randint(2, 40)) for _ in range(6)] for _ in range(8)),
    ):
        xs = [torch.linspace(0, 1, a * b).view(a, b) for a, b in shapes]
        assert equal(module(*xs), f(*xs))
    with pytest.raises(torch.ShapeError, match="b5 = 41 is outside of the range"):
        module(*(torch.ones(3 + k, 41 if k == 5 else 4) for k in range(6)))
