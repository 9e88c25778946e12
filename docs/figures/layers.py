"""Draws the pictures of docs/explanation/how_it_works: layers_*.svg.

    python docs/figures/layers.py

What can be asked of the library is (strides, a tape, coordinates in a mesh), and the pictures are written as
text, so that they need no plotting library and are the same on every machine.
"""

from __future__ import annotations

import html
import math
import sys
from pathlib import Path

import warptape as torch
from warptape.graph_drawing import draw
from warptape.tools.graph_layout import Graph, Vertex, place

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
sys.path.append(str(ROOT / "tests"))  # where the imports of the package are read

from arch.python_graph import Graph as Imports  # noqa: E402
from arch.python_rules import packages  # noqa: E402

LINE = 17
STYLE = (
    "text{font:13px sans-serif;fill:#222}.head{font-weight:bold}.mono{font-family:monospace;font-size:12px}"
    ".note{fill:#555;font-size:12px}.box{stroke:#0072B2;fill:#e8f2f9}.warm{stroke:#c77f00;fill:#fdf3e0}"
    ".green{stroke:#00805c;fill:#e3f4ee}.grey{stroke:#888;fill:#f2f2f2}.arrow{stroke:#444;fill:none;"
    "stroke-width:1.5;marker-end:url(#tip)}.dashed{stroke-dasharray:5 4}"
)
TIP = (
    '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
    'orient="auto-start-reverse"><path d="M0,0L8,4L0,8z" fill="#444"/></marker></defs>'
)


class Picture:
    """Boxes, arrows and words, written as SVG."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts: list[str] = []

    def text(self, x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> None:
        """A line of words; y is its baseline."""
        kind = f' class="{kind}"' if kind else ""
        self.parts.append(
            f'<text{kind} x="{x:g}" y="{y:g}" text-anchor="{anchor}">{html.escape(words)}</text>'
        )

    def box(self, x: float, y: float, w: float, h: float, lines: str = "", kind: str = "box") -> None:
        """A box with centred lines; the first is its name where a `|` follows it."""
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{w:g}" height="{h:g}" rx="4"/>')
        name, bar, rest = lines.partition("|")
        rows = [(name, "head"), *((row, "note") for row in rest.split("\n"))] if bar else [(lines, "")]
        top = y + h / 2 - LINE * (len(rows) - 1) / 2 + 4.5
        for i, (row, style) in enumerate(rows):
            self.text(x + w / 2, top + LINE * i, row, style, "middle")

    def arrow(self, *points: tuple[float, float], label: str = "", kind: str = "") -> None:
        """A line through points, with its tip at the last and a label at its middle."""
        path = "L".join(f"{x:g},{y:g}" for x, y in points)
        self.parts.append(f'<path class="arrow {kind}" d="M{path}"/>')
        if label:
            (x0, y0), (x1, y1) = points[0], points[-1]
            self.text((x0 + x1) / 2 + 6, (y0 + y1) / 2 + 4, label, "note")

    def save(self, name: str) -> None:
        """As layers_<name>.svg."""
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img"><title>{self.title}</title>'
        ground = f'<rect width="{self.width}" height="{self.height}" fill="#fff"/>'
        text = "\n".join([head, f"<style>{STYLE}</style>{TIP}{ground}", *self.parts, "</svg>"])
        (FOLDER / f"layers_{name}.svg").write_text(text + "\n")


def overview() -> None:
    """The stack: each includes only what is below it."""
    p = Picture(640, 462, "The layers, each on those below it")
    p.box(
        10, 10, 620, 46, "python/warptape|nn, optim, data, distributed, parallel, inference, serve", "green"
    )
    p.box(10, 66, 620, 46, "csrc/bindings|translates between Python and C++, never computes", "warm")
    p.box(10, 122, 200, 46, "csrc/graph|regions, programs, graphs")
    p.box(220, 122, 200, 46, "csrc/inference|scheduler, pages, sampler")
    p.box(430, 122, 200, 46, "csrc/transforms|vmap, jvp")
    p.box(10, 178, 410, 46, "csrc/ops|every function on tensors, with its backward")
    p.box(430, 178, 200, 46, "csrc/distributed|groups, collectives")
    p.box(10, 234, 620, 46, "csrc/autograd|the tape: nodes, engine, views")
    p.box(10, 290, 620, 46, "csrc/tensor|storage, strides, factories; knows no gradient")
    p.box(10, 346, 620, 46, "csrc/core|dtype, device, errors, allocators, generators, contexts")
    p.box(10, 402, 620, 46, "kernels|raw pointers and plain views: cpu, cuda", "grey")
    p.save("overview")


def kernels() -> None:
    """How a slot finds its function."""
    p = Picture(640, 288, "A slot and the functions that may fill it")
    p.box(10, 20, 190, 56, "csrc/ops/nn/softmax.cpp|softmax_slot(ctx, ...)", "warm")
    p.box(240, 20, 180, 56, 'Slot "softmax"|one pointer per device')
    p.arrow((200, 48), (240, 48))
    p.box(470, 20, 160, 56, "resolve_kernel()|at the first call", "grey")
    p.arrow((420, 48), (470, 48))
    for i, (name, note, kind) in enumerate(
        [
            ("sse42", "CPU, level 1", "green"),
            ("avx2", "CPU, level 2", "green"),
            ("avx512", "CPU, level 3", "green"),
            ("CUDA", "in the plugin", "grey"),
        ]
    ):
        p.box(10 + 158 * i, 136, 146, 52, f"{name}|{note}", kind)
        p.arrow((550, 76), (83 + 158 * i, 136), kind="" if i == 2 else "dashed")
    notes = [
        "Entries of the linker section wt_kernels: name, function type, device, level. Where the processor",
        "has AVX-512, level 3 wins. Its pointer is kept in the slot, so that the next call is one load and",
        "one jump. A device's plugin is opened when something of it is first asked for.",
    ]
    for i, note in enumerate(notes):
        p.text(10, 216 + 18 * i, note, "note")
    p.save("kernels")


def size_class(size: int) -> int:
    """The bytes that the CPU's allocator takes for `size` bytes (csrc/core/memory/cpu_allocator.cpp)."""
    if size <= 512:
        return -(-size // 64) * 64
    log = (size - 1).bit_length() - 1
    step = 1 << (log - 3)
    return (1 << log) + -(-(size - (1 << log)) // step) * step


def core() -> None:
    """Freed blocks by size class, and what a request gets."""
    p = Picture(640, 268, "The caching allocator of the CPU")
    sizes = [4000, 4100, 5000]
    p.text(10, 22, "a request", "head")
    p.text(190, 22, "its class", "head")
    p.text(300, 22, "freed blocks of that class, the newest first", "head")
    held = {4096: 2, 4608: 0, 5120: 3}
    for i, size in enumerate(sizes):
        y = 36 + 56 * i
        taken = size_class(size)
        p.box(10, y, 130, 36, f"{size:,} bytes", "warm")
        p.arrow((140, y + 18), (190, y + 18))
        p.box(190, y, 80, 36, f"{taken:,}")
        for k in range(held[taken]):
            p.arrow((270 + 82 * k + (10 if k else 0), y + 18), (300 + 82 * k, y + 18))
            p.box(300 + 82 * k, y, 62, 36, "block", "green")
        if not held[taken]:
            p.arrow((270, y + 18), (300, y + 18), kind="dashed")
            p.box(300, y, 220, 36, "none: aligned_alloc, a fresh one", "grey")
    p.text(
        10,
        222,
        "Eight classes to each power of two: no block is more than 12.5 % larger than asked for.",
        "note",
    )
    p.text(
        10,
        240,
        "Blocks are kept until together they exceed WARPTAPE_CPU_CACHE_MB (1 GiB unless set);",
        "note",
    )
    p.text(10, 258, "beyond that a freed block goes back to the system.", "note")
    p.save("core")


def tensor() -> None:
    """Three tensors on one storage."""
    x = torch.arange(12).view(3, 4)
    views = [("x", x), ("x.T", x.T), ("x[1:, ::2]", x[1:, ::2])]
    p = Picture(640, 268, "Three tensors that share one storage")
    cell = 38
    for i, (name, t) in enumerate(views):
        p.box(
            10 + 212 * i,
            10,
            196,
            92,
            f"{name}|sizes {tuple(t.shape)}\nstrides {t.stride()}\noffset {t.storage_offset()}",
            "warm",
        )
        p.arrow((108 + 212 * i, 102), (108 + 212 * i, 148))
    p.text(10, 142, "storage", "head")
    left = (640 - 12 * cell) / 2
    p.parts.append(
        f'<rect class="grey" x="{left - 6:g}" y="150" width="{12 * cell + 12}" height="44" rx="4"/>'
    )
    inside = {int(v) for v in views[2][1].flatten()}
    for k in range(12):
        p.box(left + k * cell + 1, 154, cell - 2, 36, str(k), "green" if k in inside else "box")
    p.text(
        10,
        222,
        "An element lies at offset + i * strides[0] + j * strides[1]. Green: the elements of x[1:, ::2].",
        "note",
    )
    p.text(
        10,
        240,
        "The storage has the bytes, their device, a count of references and the version that every",
        "note",
    )
    p.text(
        10,
        258,
        "in-place change raises; sizes, strides and offset are the tensors' own, so a view copies nothing.",
        "note",
    )
    p.save("tensor")


def tape() -> None:
    """A real tape."""
    w = torch.ones(3, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)
    x = torch.ones(2, 3)
    loss = ((x * w + b).tanh() * w).sum()
    draw(loss, names={"w": w, "b": b}).save(FOLDER / "layers_tape.svg")


def call() -> None:
    """From Python to a kernel and back."""
    p = Picture(640, 420, "The way of softmax(x, 1)")
    steps = [
        ("Python|torch.softmax(x, 1)", "green", "vectorcall: no tuple, no dict"),
        ("csrc/bindings|parse the arguments into values", "warm", "overloads are tried in their order"),
        ("Op::operator()|one word of the thread, all plain?", "box", "else: checks, then interceptors"),
        ("softmax_impl|check, infer shape, take the output", "box", "no kernel on meta, or when deferred"),
        ("Slot|kernel of this device and processor", "grey", "cut into chunks for the thread pool"),
        ("the tape|record a node, save what backward needs", "box", "only if some input requires a gradient"),
    ]
    for i, (lines, kind, note) in enumerate(steps):
        y = 10 + 66 * i
        p.box(10, y, 330, 48, lines, kind)
        p.text(360, y + 28, note, "note")
        if i:
            p.arrow((175, y - 18), (175, y))
    p.text(
        10,
        412,
        "Then the result goes back up: the bindings give it a Python object, and that is the call.",
        "note",
    )
    p.save("ops")


def graph() -> None:
    """What a compiled region does."""
    p = Picture(640, 330, "A compiled region")
    p.text(10, 22, "Python runs, calls are recorded", "head")
    for i, name in enumerate(["linear", "gelu", "add", "linear", "backward ..."]):
        p.box(10 + 126 * i, 34, 116, 34, name, "warm")
    p.arrow((320, 72), (320, 102))
    p.text(330, 92, "somebody reads a value, or the function ends", "note")
    p.box(
        10,
        104,
        620,
        40,
        "the form of the calls: ops, geometry, which storages are one, which are seen outside",
        "grey",
    )
    p.arrow((160, 146), (160, 176), label="new")
    p.arrow((480, 146), (480, 252), label="known: looked up")
    p.box(10, 178, 380, 46, "passes|remove_dead, schedule, recompute, fuse, fuse_epilogues")
    p.arrow((200, 226), (200, 252), label="verify()")
    p.box(
        10,
        254,
        620,
        62,
        "the program runs, step by step|chains: elementwise steps, block by block in registers and cache\n"
        "epilogues: steps inside of a product; rows: norms and softmax by parts",
        "green",
    )
    p.save("graph")


def distributed() -> None:
    """Rounds over shared memory."""
    p = Picture(640, 308, "A small all-reduce of three ranks over shared memory")
    p.text(10, 22, "a round", "head")
    for r in range(3):
        p.box(10 + 212 * r, 34, 196, 40, f"rank {r} writes slot {r}", "warm")
        p.arrow((108 + 212 * r, 74), (108 + 212 * r, 100))
    p.box(
        10, 102, 620, 42, "a memory file without a name: slots 0, 1, 2, each with a counter of rounds", "grey"
    )
    for r in range(3):
        for s in range(3):
            p.arrow((108 + 212 * s + 50 * (r - 1), 144), (108 + 212 * r + 50 * (s - 1), 206), kind="dashed")
        p.box(10 + 212 * r, 208, 196, 40, f"rank {r} adds 0 + 1 + 2", "green")
    p.text(
        10,
        274,
        "Between writing and reading each raises its counter and waits until all are as high. All add in",
        "note",
    )
    p.text(
        10,
        292,
        "the same order, so all have the same bits. The next round takes the other slots of the pairs.",
        "note",
    )
    p.save("distributed")


def parallel() -> None:
    """Who has what in a mesh of eight."""
    p = Picture(640, 330, "Eight ranks along dp, pp and tp")
    ranks = torch.arange(8).view(2, 2, 2)
    for dp in range(2):
        p.parts.append(f'<rect class="grey" x="{10 + 316 * dp}" y="34" width="304" height="236" rx="4"/>')
        p.text(20 + 316 * dp, 26, f"dp {dp}: part {dp} of the batch", "head")
        for pp in range(2):
            for tp in range(2):
                p.box(
                    22 + 316 * dp + 146 * tp,
                    50 + 112 * pp,
                    134,
                    88,
                    f"rank {int(ranks[dp, pp, tp])}|stage {pp}\npart {tp} of weights",
                    "warm" if pp else "green",
                )
        p.arrow((162 + 316 * dp, 138), (162 + 316 * dp, 162))
    p.text(
        10,
        290,
        "Along tp: sums twice in each half of a layer. Along pp: activations from stage to stage (arrows).",
        "note",
    )
    p.text(
        10,
        308,
        "Along dp: gradients, once a step. With ZeRO the ranks along dp share what they keep.",
        "note",
    )
    p.save("parallel")


def inference() -> None:
    """A step of the engine."""
    p = Picture(640, 316, "A step of the engine")
    p.text(10, 22, "requests", "head")
    rows = [
        ("A", "generates", "1 token"),
        ("B", "generates", "1 + 3 drafts"),
        ("C", "prompt of 900", "a chunk of 512"),
    ]
    for i, (name, what, share) in enumerate(rows):
        p.box(10, 34 + 52 * i, 150, 42, f"{name}|{what}", "warm")
        p.arrow((160, 55 + 52 * i), (220, 55 + 52 * i))
        p.box(220, 34 + 52 * i, 120, 42, share, "green")
    p.text(220, 22, "schedule()", "head")
    p.box(400, 34, 230, 68, "Batch|tokens [517], page_table [3, ...]\nstarts [4], lengths [3]")
    p.arrow((340, 107), (400, 75))
    p.arrow((515, 102), (515, 124))
    p.box(400, 124, 230, 42, "Decoder, in one pass|keys and values into pages", "green")
    p.arrow((515, 166), (515, 188))
    p.box(400, 188, 230, 42, "finish_step(logits)|sample, check drafts, publish pages")
    p.arrow((400, 209), (85, 209), (85, 180))
    p.text(100, 228, "new tokens; full pages stay known", "note")
    p.text(
        10,
        266,
        "Each kernel computes a row of the batch independently of the others, and the noise of a draw",
        "note",
    )
    p.text(
        10,
        284,
        "depends on (seed, position, token) alone: whatever else is in the step, and however the prompt",
        "note",
    )
    p.text(10, 302, "was cut, a request gets the same tokens.", "note")
    p.save("inference")


def bindings() -> None:
    """Who owns whom."""
    p = Picture(640, 250, "A tensor and its Python object")
    p.text(10, 22, "while Python holds the object", "head")
    p.box(10, 34, 130, 44, "Python's variable", "grey")
    p.arrow((140, 56), (180, 56))
    p.box(180, 34, 150, 44, "Tensor object|__dict__, subclass", "green")
    p.arrow((330, 48), (400, 48))
    p.arrow((400, 66), (330, 66), kind="dashed")
    p.text(350, 42, "owns", "note")
    p.box(400, 34, 130, 44, "TensorImpl")
    p.text(10, 122, "when Python has let go, C++ still holds it, and the object has state of its own", "head")
    p.box(10, 134, 130, 44, "a node, a list", "grey")
    p.arrow((140, 146), (180, 146), (180, 200), (465, 200), (465, 178))
    p.box(220, 134, 150, 44, "Tensor object|__dict__, subclass", "green")
    p.box(400, 134, 130, 44, "TensorImpl")
    p.arrow((400, 156), (370, 156))
    p.text(542, 160, "owns_python", "note")
    p.text(
        10,
        226,
        "So a Parameter keeps its class, its attributes and its identity (p is p) for as long as anything",
        "note",
    )
    p.text(
        10,
        244,
        "holds the tensor. An object without state is freed, and made anew when it is asked for.",
        "note",
    )
    p.save("bindings")


def package() -> None:
    """What the packages of python/warptape import, read from their sources by the rules of tests/arch."""
    imports = packages(Imports(ROOT))
    graph = Graph()
    places = {name: graph.add(Vertex([name])) for name in imports}
    for name, known in imports.items():
        for other in sorted(known):
            graph.connect(places[name], places[other])
    laid = place(graph)
    p = Picture(
        math.ceil(laid.width) + 20, math.ceil(laid.height) + 20, "who imports whom in python/warptape"
    )
    kinds = {"core": "green", "torch": "warm", "extras": "warm"}
    for name, box in zip(imports, laid.boxes, strict=True):
        p.box(box.x + 10, box.y + 10, box.width, box.height, name, kinds.get(name, "box"))
    for points in laid.paths:
        p.arrow(*((x + 10, y + 10) for x, y in points))
    p.save("python")


PICTURES = (
    overview,
    kernels,
    core,
    tensor,
    tape,
    call,
    graph,
    distributed,
    parallel,
    inference,
    bindings,
    package,
)

if __name__ == "__main__":
    for picture in PICTURES:
        picture()
