"""What estimated_times.py estimates: kernels, shapes, the trips of their loops and the targets.

Sizes and block sizes are those of the launchers in kernels/cuda; a row's shape fills its tiles, so that no
part of a block is idle. Trips are of one warp.
"""

from __future__ import annotations

from typing import NamedTuple

from hot_path import PREFER, Exactly, Loop

COPY = 4.3e12  # bytes a second that a large copy reaches on an H200: what shares of bandwidth are of
PROCESSORS = 132
WIDE_LOAD, WIDE_STORE = r"LDG\S*\.128", r"STG\S*\.128"
K, M = 1024, 1024 * 1024


class Part(NamedTuple):
    """One launch. `bytes` and `operations` are of the whole launch; `units` is how many equal pieces of work
    it is cut into, for the last round; 0 where blocks differ and the small ones come last."""

    source: str  # in kernels/cuda
    kernel: str  # a pattern of one demangled name
    threads: int
    blocks: float
    bytes: float
    operations: float = 0
    peak: str = "f32"
    loops: tuple[Loop, ...] = ()
    shared: int = 0  # dynamic shared memory of a block
    warps: int = 0  # of a block that work, where it is not all of them
    units: float = 0
    prefer: str = PREFER
    exactly: Exactly | None = None


class Target(NamedTuple):
    name: str
    seconds: float


class Row(NamedTuple):
    name: str
    shape: str
    parts: tuple[Part, ...]
    targets: tuple[Target, ...] = ()


def of_copy(moved: float, first: float, then: float) -> tuple[Target, ...]:
    """Shares of a copy's bandwidth, in percent."""
    return tuple(Target(f"{share:g} %", moved / (share / 100 * COPY)) for share in (first, then))


def at_rate(operations: float, tera: float) -> tuple[Target, ...]:
    return (Target(f"{tera:g} TFLOP/s", operations / (tera * 1e12)),)


def elementwise(name: str, source: str, formula: str, inputs: int) -> Row:
    """A thread has 2 accesses of 8 elements to each operand. Where a formula branches by value, the way with
    the exponential is taken."""
    n = 256 * M
    part = Part(
        source,
        rf"^flat_kernel<{formula}, BFloat16>",
        256,
        n / (256 * 8 * 2),
        (inputs + 1) * 2 * n,
        prefer=rf"{PREFER}|MUFU\.EX2",
    )
    return Row(name, "268 M bf16", (part._replace(units=part.blocks),), of_copy(part.bytes, 85, 90))


def by_rows(
    name: str,
    source: str,
    kernel: str,
    tensors: int,
    lanes: int,
    shares: tuple[float, float],
    fixed_blocks: int = 0,
    loads: int = 0,
) -> Row:
    """A row of 1,024 bfloat16 in the registers of `lanes` threads, in blocks of 256; `tensors` are read or
    written. With `fixed_blocks` each of them walks over rows and stores 2 pieces a thread of each. `loads` of
    16 bytes a thread and row tell weights in float32, as autocast has them, from those in bfloat16."""
    rows, n = 64 * K, K
    blocks = rows * lanes / 256
    loops: tuple[Loop, ...] = ()
    if fixed_blocks:
        trips = blocks / fixed_blocks
        loops = (Loop(WIDE_STORE, 2, trips, exactly=Exactly(WIDE_LOAD, loads)),)
        blocks = fixed_blocks
    part = Part(source, kernel, 256, blocks, tensors * 2 * rows * n, loops=loops, units=blocks)
    if loads:
        part = part._replace(prefer=WIDE_STORE, exactly=Exactly(WIDE_LOAD, loads))
    if fixed_blocks:
        # The next pieces of a thread, 2 of dy and 2 of x, whose memory the columns' sums take at the end.
        part = part._replace(shared=max(2 * n * 4, 256 * 2 * 2 * 16), exactly=None)
    return Row(name, "65,536 x 1,024 bf16", (part,), of_copy(part.bytes, *shares))


def cross_entropy(backward: bool) -> Row:
    """A block of 256 threads a row, of which a thread takes two pieces a trip. GPT-2's vocabulary, padded."""
    rows, classes = 32 * K, 50304
    trips = classes / 8 / (2 * 256)
    marker = WIDE_STORE if backward else WIDE_LOAD
    part = Part(
        "nn/loss.cu",
        rf"^{'backward' if backward else 'forward'}_kernel<BFloat16>",
        256,
        rows,
        (2 if backward else 1) * 2 * rows * classes,
        loops=(Loop(marker, 2, trips),),
        units=rows,
        prefer=rf"{PREFER}|MUFU\.EX2",
    )
    name = f"cross entropy, {'backward' if backward else 'forward'}"
    return Row(
        name, "32,768 x 50,304 bf16", (part,), of_copy(part.bytes, *((65, 75) if backward else (75, 85)))
    )


def adam() -> Row:
    """GPT-2 124M, states and gradients in float32: 4 numbers read and 3 written an element. A block has a
    chunk of 8,192, a thread 4 elements a trip, each with one root."""
    n = 124_439_808
    part = Part(
        "optim/multi_tensor.cu",
        r"^adam_kernel<float>",
        256,
        n / 8192,
        28 * n,
        loops=(Loop(r"MUFU\.RSQ$", 4, 8192 / (256 * 4), exactly=Exactly(WIDE_LOAD, 4)),),
        units=n / 8192,
        prefer=r"MUFU\.RSQ$",
    )
    return Row("AdamW, fused", "124 M float32", (part,), of_copy(part.bytes, 75, 85))


def gradient_norm() -> Row:
    n = 124_439_808
    part = Part(
        "optim/multi_tensor.cu",
        r"^norm_kernel<float>",
        256,
        n / 8192,
        4 * n,
        loops=(Loop(WIDE_LOAD, 4, 2),),
        units=n / 8192,
    )
    return Row("norm of all gradients", "124 M float32", (part,), of_copy(part.bytes, 75, 85))


def sums() -> Row:
    """A block has a row, a thread 4 loads of 16 bytes a trip."""
    rows, n = 64 * K, 8 * K
    part = Part(
        "reduce/reduce.cu",
        r"^reduce_rows_kernel<Folded<float, Plus>",
        256,
        rows,
        4 * rows * n,
        loops=(Loop(WIDE_LOAD, 4, n / (4 * 4 * 256)),),
        units=rows,
    )
    return Row("sum along rows", "65,536 x 8,192 float32", (part,), of_copy(part.bytes, 85, 90))


def embedding() -> Row:
    """A thread moves several pieces of 16 bytes."""
    rows, width = 32 * K, 768
    pieces = rows * width * 4 / 16
    part = Part(
        "index/gather.cu", r"^rows_kernel<uint4>", 256, pieces / (256 * 4), 2 * 16 * pieces + 8 * rows
    )
    return Row("embedding", "32,768 of 768 float32", (part._replace(units=part.blocks),))


# ---- attention: 16 heads of 128, causal, 16,384 queries and keys ----
HEADS, T, D = 16, 16 * K, 128
ONE = 2 * T * T * D * HEADS  # operations of one product of all pairs


def seen(rows: int, tile: int) -> float:
    """Tiles of keys that a block of `rows` queries walks over, in the mean over all blocks."""
    return (T / rows + 1) / 2 * rows / tile


def walked(rows: int, tile: int, products: int) -> float:
    """Operations over those tiles, whose hidden pairs are computed, too."""
    return products * HEADS * (T / rows) * seen(rows, tile) * 2 * rows * tile * D


def attention_forward(kind: str) -> Row:
    moved = 4 * 2 * HEADS * T * D
    if kind == "WGMMA":
        # 8 products of 16 along the head and 8 along 128 keys; the first scores and the last values apart.
        part = Part(
            "attention/attention_wgmma.cu",
            r"^wgmma_forward<BFloat16, 128, true>",
            384,
            HEADS * T / 128,
            moved,
            walked(128, 128, 2),
            "bf16",
            (Loop("HGMMA", 16, seen(128, 128) - 1),),
            5 * 128 * D * 2 + 1024,
            8,
        )
    else:
        part = Part(
            "attention/attention_mma.cu",
            r"^mma_forward<BFloat16, 128, false>",
            128,
            HEADS * T / 64,
            moved,
            walked(64, 64, 2),
            "bf16",
            (Loop("HMMA", 128, seen(64, 64), exactly=Exactly("LDGSTS", 16)),),
            5 * 64 * D * 2,
        )
    return Row(f"attention {kind}, forward", "16 heads of 128, causal, 16,384", (part,), at_rate(ONE, 600))


def attention_backward(kind: str) -> Row:
    """Two kernels: 3 products for the queries, 4 for keys and values. The target counts 5, as all do."""
    moved = 5 * 2 * HEADS * T * D
    if kind == "WGMMA":
        queries = Part(
            "attention/attention_wgmma_backward.cu",
            r"^wgmma_query_gradient<BFloat16, 128, true>",
            384,
            HEADS * T / 128,
            moved,
            walked(128, 64, 3),
            "bf16",
            (Loop("HGMMA", 20, seen(128, 64) - 1),),
            (2 * 128 + 4 * 64) * D * 2 + 1024,
            8,
        )
        keys = queries._replace(
            kernel=r"^wgmma_key_gradients<BFloat16, 128, true>",
            bytes=6 * 2 * HEADS * T * D,
            operations=walked(128, 64, 4),
            loops=(Loop("HGMMA", 24, seen(128, 64) - 1),),
        )
    else:
        queries = Part(
            "attention/attention_mma_backward.cu",
            r"^mma_query_gradient<BFloat16, 128>",
            128,
            HEADS * T / 64,
            moved,
            walked(64, 64, 3),
            "bf16",
            (Loop("HMMA", 192, seen(64, 64), exactly=Exactly("LDGSTS", 16)),),
            6 * 64 * D * 2,
        )
        keys = queries._replace(
            kernel=r"^mma_key_gradients<BFloat16, 128>",
            bytes=6 * 2 * HEADS * T * D,
            operations=walked(64, 32, 4),
            loops=(Loop("HMMA", 128, seen(64, 32), exactly=Exactly("LDGSTS", 8)),),
            shared=(2 * 64 + 4 * 32) * D * 2,
        )
    shape = "16 heads of 128, causal, 16,384"
    return Row(f"attention {kind}, backward", shape, (queries, keys), at_rate(2.5 * ONE, 500))


def paged() -> Row:
    """Decoding: a token of each sequence, 4 query heads a key head. A block is a warp, which walks over the
    pages of a key head; what merging splits, each 8 pages, adds to that is left out."""
    sequences, keys, heads, key_heads, d, page = 128, 4 * K, 32, 8, 128, 32
    part = Part(
        "attention/paged_mma.cu",
        r"^paged_mma<BFloat16, 128>",
        32,
        sequences * key_heads,
        2 * 2 * sequences * d * (keys * key_heads + heads),
        4.0 * sequences * keys * heads * d,
        "bf16",
        (Loop("HMMA", 64, keys / page),),
        2 * 2 * 2 * d * page + (2 + 4) * 16 * d,
        units=sequences * key_heads,
    )
    shape = "128 sequences of 4,096 keys, 32 heads of 128, 8 of keys, bf16"
    return Row("paged attention, decoding", shape, (part,), of_copy(part.bytes, 70, 80))


# ---- products ----
def gemm(step: str) -> Row:
    """8,192 x 8,192 x 8,192. cuBLASLt was measured at 770 to 800 TFLOP/s in bfloat16."""
    n = 8 * K
    work = 2.0 * n**3
    if step in ("wgmma", "multicast"):
        cluster = 2 if step == "multicast" else 1
        tiles = (n / 128) * (n / 256)
        # A block is persistent: in the mean it makes tiles / 132 tiles, each 128 slices of 4 products.
        part = Part(
            f"gemm_ladder/{step}.cu",
            rf"^wgmma_tiles<BFloat16, false, false, {cluster}>",
            384,
            PROCESSORS,
            3 * 2 * n * n,
            work,
            "bf16",
            (Loop("HGMMA", 4, n / 64), Loop("STSM", 16, tiles / PROCESSORS)),
            4 * (128 + 256) * 128 + 128 * 256 + 1024,
            8,
            tiles,
            rf"{PREFER}|STSM",
        )
        return Row(f"GEMM {step}", "8,192 cubed bf16", (part,), at_rate(work, 0.9 * 785))
    blocks = (n / 128) ** 2
    if step == "mma":
        part = Part(
            "gemm_ladder/mma.cu",
            r"^mma_tiles<BFloat16>",
            256,
            blocks,
            3 * 2 * n * n,
            work,
            "bf16",
            (Loop("HMMA", 32, n / 32, exactly=Exactly("LDGSTS", 4)),),
            4 * 2 * 128 * 32 * 2,
            units=blocks,
        )
        return Row("GEMM mma", "8,192 cubed bf16", (part,))
    part = Part(
        "gemm/warp_tiles.cu",
        r"^warp_tiles<2>",
        256,
        blocks,
        3 * 4 * n * n,
        work,
        loops=(
            Loop(WIDE_STORE, 16, 1),
            Loop("FFMA", 16 * 64, n / 16, exactly=Exactly("LDGSTS", 4)),
            Loop("LDGSTS", 1, 2, each=True),
        ),
        units=blocks,
        prefer=rf"FFMA|{WIDE_STORE}",
    )
    return Row("GEMM warp_tiles", "8,192 cubed float32", (part,))


def grouped(step: str) -> Row:
    m, n, k, groups = 32 * K, 4 * K, 4 * K, 8
    shape = "8 groups of 4,096 x 4,096 x 4,096 bf16"
    if step == "wgmma":
        tiles = (m / 128) * (n / 256)
        part = Part(
            "gemm/grouped_mm.cu",
            r"^grouped_wgmma_tiles<BFloat16, true, false>",
            384,
            PROCESSORS,
            2 * (m * k + groups * k * n + m * n),
            2.0 * m * n * k,
            "bf16",
            (Loop("HGMMA", 4, k / 64), Loop("STSM", 16, tiles / PROCESSORS)),
            4 * (128 + 256) * 128 + 128 * 256 + 1024,
            8,
            tiles,
            rf"{PREFER}|STSM",
        )
        return Row("grouped_mm wgmma", shape, (part,))
    blocks = (m / 128) * (n / 128)
    part = Part(
        "gemm/grouped_mm.cu",
        r"^grouped_mma<BFloat16, true, false>",
        256,
        blocks,
        2 * (m * k + groups * k * n + m * n),
        2.0 * m * n * k,
        "bf16",
        (Loop("HMMA", 32, k / 32, exactly=Exactly("LDGSTS", 4)),),
        4 * 2 * 128 * 32 * 2,
        units=blocks,
    )
    return Row("grouped_mm mma", shape, (part,))


def packed() -> Row:
    """One row of tokens: the weight is streamed, 16 bytes a thread and trip; a block has 16 outputs."""
    outputs, inputs = 16 * K, 4 * K
    part = Part(
        "quant/packed_linear.cu",
        r"^linear_kernel<BFloat16, 2, 1>",
        256,
        outputs / 16,
        2 * outputs * inputs,
        2.0 * outputs * inputs,
        loops=(Loop(WIDE_LOAD, 1, inputs / 2 / 64),),
        units=outputs / 16,
    )
    return Row("packed linear, one row", "1 x 4,096 x 16,384 bf16", (part,))


def quantised() -> Row:
    """8-bit codes in groups of 128 along k: 4 steps of 8 products a group."""
    rows, outputs, inputs = 2 * K, 4 * K, 4 * K
    blocks = (rows / 64) * (outputs / 64)
    part = Part(
        "quant/quant_linear_mma.cu",
        r"^mma_kernel<8, BFloat16, Half>",
        128,
        blocks,
        rows * inputs + outputs * inputs + 2 * rows * outputs,
        2.0 * rows * outputs * inputs,
        "int8",
        (Loop(r"BAR\.SYNC", 2, inputs / 128, exactly=Exactly("LDGSTS", 7)),),
        units=blocks,
        prefer="IMMA|I2F|STG",
    )
    return Row("quantised linear", "2,048 x 4,096 x 4,096, 8 bits", (part,))


ROWS: list[Row] = [
    elementwise("add", "elementwise/elementwise_arithmetic.cu", "Add", 2),
    elementwise("GELU (tanh)", "elementwise/elementwise_activation.cu", "GeluTanh", 1),
    elementwise("GELU (tanh), backward", "elementwise/elementwise_activation.cu", "GeluTanhBackward", 2),
    sums(),
    by_rows("softmax, forward", "nn/softmax.cu", r"^softmax_kernel<BFloat16, false>", 2, 32, (75, 85)),
    by_rows(
        "softmax, backward", "nn/softmax.cu", r"^softmax_backward_kernel<BFloat16, false>", 3, 32, (65, 75)
    ),
    by_rows(
        "layer norm, forward", "norm/norm.cu", r"^norm_kernel<BFloat16, true, Element", 2, 32, (75, 85), 0, 20
    ),
    by_rows(
        "layer norm, backward", "norm/norm.cu", r"^backward_kernel<BFloat16, true>", 3, 64, (65, 75), 264, 12
    ),
    by_rows(
        "RMS norm, forward", "norm/norm.cu", r"^norm_kernel<BFloat16, false, Element", 2, 32, (75, 85), 0, 12
    ),
    by_rows(
        "RMS norm, backward", "norm/norm.cu", r"^backward_kernel<BFloat16, false>", 3, 64, (65, 75), 264, 12
    ),
    cross_entropy(False),
    cross_entropy(True),
    adam(),
    gradient_norm(),
    embedding(),
    attention_forward("WGMMA"),
    attention_backward("WGMMA"),
    attention_forward("mma"),
    attention_backward("mma"),
    paged(),
    gemm("wgmma"),
    gemm("multicast"),
    gemm("mma"),
    gemm("warp_tiles"),
    grouped("wgmma"),
    grouped("mma"),
    packed(),
    quantised(),
]
