"""Recording a graph takes the memory that one call of eager inference takes, and little more."""

from __future__ import annotations

import subprocess
import sys

BODY = r"""
import re, sys
import warptape as torch
from warptape import nn
F = nn.functional
torch.set_num_threads(1)

def peak():
    with open("/proc/self/status") as f:
        return int(re.search(r"VmHWM:\s+(\d+)", f.read())[1]) / 1024

class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b, self.n = nn.Conv2d(c, c, 1), nn.Conv2d(c, c, 3, padding=1), nn.BatchNorm2d(c)
    def forward(self, x):
        return F.relu(self.n(self.b(F.relu(self.a(x))))) + x

net = nn.Sequential(nn.Conv2d(3, 32, 3, padding=1), *[Block(32) for _ in range(16)]).eval()
x = torch.randn(1, 3, 128, 128)
start = peak()
with torch.inference_mode():
    net(x)
eager = peak() - start
torch.jit.trace(net, x) if sys.argv[1] == "trace" else torch.export.export(net, (x,))
print(eager, peak() - start)
"""


def test_peak_of_traces_and_exports():
    for kind in ("trace", "export"):
        command = [sys.executable, "-c", BODY, kind]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True)
        eager, recorded = map(float, done.stdout.split())
        assert recorded < 2 * eager + 8, kind
