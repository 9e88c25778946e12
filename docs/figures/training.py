"""Draws training.svg: one training program under PyTorch and under warptape, loss over CPU time.

    python docs/figures/training.py --pytorch PATH_OF_A_PYTHON_WITH_TORCH

Both run this file's `work` on one thread and take turns of ten steps, so that other work on the machine meets
both alike. Time is CPU time of the process, which other programs disturb less than the clock. The text is
that of examples/train_gpt.py, and so is the shape of the model.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
STEPS, TURN = 300, 10
WIDTH, HEIGHT, LEFT, TOP, RIGHT, BOTTOM = 760, 380, 70, 50, 30, 50
INK, FAINT, OURS, THEIRS = "#333333", "#dddddd", "#0072B2", "#D55E00"


def work() -> None:
    """Trains a GPT by PyTorch's API; after each line on stdin ten steps, and a line with what they took."""
    import numpy as np
    import torch
    from torch import nn

    sys.path.insert(0, str(ROOT / "examples"))
    from gpt_text import sentences

    torch.set_num_threads(1)
    torch.manual_seed(0)

    class Block(nn.Module):
        def __init__(self, width, heads):
            super().__init__()
            self.heads = heads
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x):
            B, T, C = x.shape
            parts = self.qkv(self.norm1(x)).split(C, dim=2)
            q, k, v = (part.view(B, T, self.heads, -1).transpose(1, 2) for part in parts)
            y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(B, T, C))
            return x + self.mlp(self.norm2(x))

    class GPT(nn.Module):
        def __init__(self, layers=4, heads=4, width=128, block=64):
            super().__init__()
            self.tokens, self.places = nn.Embedding(256, width), nn.Embedding(block, width)
            self.blocks = nn.Sequential(*[Block(width, heads) for _ in range(layers)])
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    nn.init.normal_(parameter, std=0.05)

        def forward(self, tokens):
            x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1]))
            return self.head(self.norm(self.blocks(x)))

    text = np.frombuffer(sentences(0, 500_000), dtype=np.uint8)
    draw = np.random.default_rng(0)
    model = GPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, betas=(0.9, 0.98))
    print(json.dumps(torch.__version__), flush=True)
    for _ in sys.stdin:
        begin, total = time.process_time(), 0.0
        for _ in range(TURN):
            starts = draw.integers(len(text) - 65, size=16)
            rows = np.stack([text[s : s + 65] for s in starts]).astype(np.int64)
            tokens = torch.from_numpy(rows)
            logits = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            total += loss.item()
        print(json.dumps([time.process_time() - begin, total / TURN]), flush=True)


class Peer:
    """A process that trains when it is told to."""

    def __init__(self, *command: str) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [*command, __file__, "--work"], stdin=pipe, stdout=pipe, text=True, cwd=ROOT
        )
        self.version = json.loads(self._line())
        self.seconds, self.losses = [0.0], [float("nan")]

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def turn(self) -> None:
        """Ten steps."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        took, loss = json.loads(self._line())
        self.seconds.append(self.seconds[-1] + took)
        self.losses.append(loss)


def draw(ours: Peer, theirs: Peer) -> str:
    """Two curves, and the ratio of their ends."""
    longest = max(ours.seconds[-1], theirs.seconds[-1])
    top = max(ours.losses[1], theirs.losses[1])

    def place(second: float, loss: float) -> str:
        x = LEFT + (WIDTH - LEFT - RIGHT) * second / longest
        y = HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * loss / top
        return f"{x:.1f},{y:.1f}"

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.0f}" y="{y:.0f}" {more}>{words}</text>'

    ratio = ours.seconds[-1] / theirs.seconds[-1]
    title = f"{STEPS} steps of a small GPT: the same losses in {ratio:.2f} of PyTorch's CPU time"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'font-family="sans-serif" font-size="13" fill="{INK}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(LEFT, 24, title, 'font-weight="bold" font-size="15"'),
        text(WIDTH / 2, HEIGHT - 12, "CPU seconds on one thread", 'text-anchor="middle"'),
        text(LEFT, TOP - 8, "nats per byte"),
    ]
    for loss in range(int(top) + 1):
        x, y = place(0, loss).split(",")
        parts.append(f'<line x1="{x}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}" stroke="{FAINT}"/>')
        parts.append(text(float(x) - 8, float(y) + 4, str(loss), 'text-anchor="end"'))
    for part in range(5):
        second = longest * part / 4
        x = float(place(second, 0).split(",")[0])
        parts.append(text(x, HEIGHT - BOTTOM + 18, f"{second:.0f}", 'text-anchor="middle"'))
    for i, (peer, color) in enumerate(((theirs, THEIRS), (ours, OURS))):
        points = " ".join(map(place, peer.seconds[1:], peer.losses[1:]))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2.5"/>')
        x, y = map(float, place(peer.seconds[-1], peer.losses[-1]).split(","))
        parts.append(f'<circle cx="{x}" cy="{y}" r="4" fill="{color}"/>')
        name = "warptape" if peer is ours else f"PyTorch {peer.version.partition('+')[0]}"
        more = f'text-anchor="end" fill="{color}" font-weight="bold"'
        parts.append(
            text(
                WIDTH - RIGHT,
                TOP + 22 * (i + 1),
                f"{name}: {peer.seconds[-1]:.1f} s, {peer.losses[-1]:.2f}",
                more,
            )
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def main() -> None:
    """Trains by turns and draws."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", action="store_true")
    parser.add_argument("--pytorch")
    options = parser.parse_args()
    if options.work:
        work()
        return
    ours, theirs = Peer(sys.executable, "-m", "warptape.torch"), Peer(options.pytorch)
    for turn in range(STEPS // TURN):
        for peer in (ours, theirs) if turn % 2 else (theirs, ours):
            peer.turn()
    for peer in (ours, theirs):
        print(f"{peer.version:24} {peer.seconds[-1]:7.1f} s  loss {peer.losses[-1]:.4f}")
        peer.process.terminate()
    (ROOT / "docs/figures/training.svg").write_text(draw(ours, theirs))


if __name__ == "__main__":
    main()
