"""Models whose channels are coupled in the ways that real ones are."""

import warptape as torch
from warptape import nn
from warptape.nn import functional as F


def randomise(model, seed=0):
    """Statistics and scales of norms that are not those of a new model; returns the model in evaluation."""
    torch.manual_seed(seed)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)
            module.running_var.uniform_(0.5, 2.0)
            with torch.no_grad():
                module.weight.uniform_(0.5, 1.5)
                module.bias.uniform_(-0.3, 0.3)
    return model.eval()


class Basic(nn.Module):
    """ResNet-18's block, or ResNet-50's with `bottleneck`."""

    def __init__(self, inputs, outputs, stride, bottleneck):
        super().__init__()
        mid = outputs // 4 if bottleneck else outputs
        sizes = [(inputs, mid, 1), (mid, mid, 3), (mid, outputs, 1)]
        sizes = sizes if bottleneck else [(inputs, mid, 3), (mid, outputs, 3)]
        self.convs = nn.ModuleList(
            nn.Conv2d(i, o, k, padding=k // 2, stride=stride if n == 0 else 1, bias=False)
            for n, (i, o, k) in enumerate(sizes)
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(o) for _, o, _ in sizes)
        self.down = None
        if stride != 1 or inputs != outputs:
            self.down = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x):
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms)):
            y = norm(conv(y))
            y = F.relu(y) if i + 1 < len(self.convs) else y
        return F.relu(y + (x if self.down is None else self.down(x)))


class ResNet(nn.Module):
    def __init__(self, bottleneck=False, width=16, classes=10):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        layers, now = [], width
        for i, stride in enumerate((1, 2, 2)):
            out = width << i
            for n in range(2):
                layers.append(Basic(now, out, stride if n == 0 else 1, bottleneck))
                now = out
        self.layers = nn.Sequential(*layers)
        self.pool, self.fc = nn.AdaptiveAvgPool2d(1), nn.Linear(now, classes)

    def forward(self, x):
        return self.fc(torch.flatten(self.pool(self.layers(self.stem(x))), 1))


class Inverted(nn.Module):
    """MobileNetV2's block."""

    def __init__(self, inputs, outputs, expand):
        super().__init__()
        mid = inputs * expand
        self.body = nn.Sequential(
            nn.Conv2d(inputs, mid, 1, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU6(),
            nn.Conv2d(mid, mid, 3, padding=1, groups=mid, bias=False),
            nn.BatchNorm2d(mid),
            nn.ReLU6(),
            nn.Conv2d(mid, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.same = inputs == outputs

    def forward(self, x):
        return x + self.body(x) if self.same else self.body(x)


class MobileNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), Inverted(8, 16, 3), Inverted(16, 16, 3), nn.MaxPool2d(2)
        )
        self.grouped = nn.Conv2d(16, 32, 3, groups=4)
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(32 * 4, 10))

    def forward(self, x):
        return self.head(F.adaptive_avg_pool2d(F.relu(self.grouped(self.features(x))), 2))


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down1 = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(4, 8), nn.ReLU())
        self.down2 = nn.Sequential(
            nn.Conv2d(8, 16, 3, padding=1), nn.InstanceNorm2d(16, affine=True), nn.ReLU()
        )
        self.up = nn.ConvTranspose2d(16, 8, 2, stride=2)
        self.merge = nn.Sequential(nn.Conv2d(16, 12, 3, padding=1), nn.BatchNorm2d(12), nn.LeakyReLU(0.1))
        self.out = nn.Conv2d(12, 2, 1)

    def forward(self, x):
        a = self.down1(x)
        b = self.down2(F.max_pool2d(a, 2))
        b = torch.cat([self.up(b), a], dim=1)
        return self.out(self.merge(b))


class Encoder(nn.Module):
    """Two layers around nn.MultiheadAttention."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.attention = nn.ModuleList(
            nn.MultiheadAttention(width, heads, batch_first=True) for _ in range(2)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 48), nn.GELU(), nn.Linear(48, width))

    def forward(self, x):
        for attention, norm in zip(self.attention, self.norms):
            y = norm(x)
            x = x + attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(x)


class OwnAttention(nn.Module):
    """Queries, keys and values from one layer; with `fixed` the code knows its width."""

    def __init__(self, width=32, heads=4, fixed=False):
        super().__init__()
        self.n_head, self.width, self.fixed = heads, width, fixed
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, width))

    def forward(self, x):
        B, T, C = x.shape
        if self.fixed:
            q, k, v = (p.view(B, T, self.n_head, -1).transpose(1, 2) for p in self.qkv(x).split(C, dim=2))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(B, T, C)
        else:
            q, k, v = self.qkv(x).reshape(B, T, 3, self.n_head, C // 4).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) / 8**0.5).softmax(-1)
            y = (weights @ v).transpose(1, 2).flatten(2)
        x = x + self.out(y)
        return x + self.mlp(x)


class Shared(nn.Module):
    """One layer called twice."""

    def __init__(self, width=16):
        super().__init__()
        self.first, self.twice, self.last = nn.Linear(8, width), nn.Linear(width, width), nn.Linear(width, 4)

    def forward(self, x):
        x = F.relu(self.first(x))
        return self.last(F.relu(self.twice(F.relu(self.twice(x)))))
