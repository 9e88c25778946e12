"""Lines that each part of the tree may have. They only fall; who raises one says why."""

# Lines of the core, kernels + csrc. A device's backend, what lies between ranks, and PyTorch's API written
# with ops alone have budgets of their own: whoever reads the core can leave them out.
MAX_TOTAL_LINES = 56_779
BUDGETS = {
    # Before the backend, in whose folder some of it lies: the first part that has a file counts it.
    "inference": (
        9_454,
        (
            "csrc/inference/",
            "csrc/bindings/inference",
            "csrc/ops/packed_linear",
            "csrc/ops/quant_linear",
            "csrc/ops/paged_attention",
            "kernels/cpu/packed_linear",
            "kernels/cpu/quant_linear",
            "kernels/cpu/paged_attention",
            "kernels/cuda/packed_linear",
            "kernels/cuda/quant_linear",
            "kernels/cuda/paged_attention",
            "kernels/include/kernels/packed_linear",
            "kernels/include/kernels/quant_linear",
            "kernels/include/kernels/paged_attention",
            "python/warptape/inference/",
        ),
    ),
    # Sources for PyTorch's C++ API: the interface, headers of PyTorch's names over it, ops that others bring.
    "extensions": (
        6_602,
        (
            "csrc/capi/extension",
            "csrc/bindings/extension",
            "python/warptape/include/",
            "python/warptape/utils/_extension_build",
            "python/warptape/utils/cpp_extension",
            "python/warptape/_custom_ops",
            "python/warptape/library",
        ),
    ),
    "profiling": (
        4_725,
        (
            "csrc/bindings/profiler",
            "csrc/core/memory_trace",
            "csrc/core/profiler",
            "csrc/ops/profile",
            "python/warptape/autograd/profiler",
            "python/warptape/profiler/",
            "python/warptape/utils/_op_observer",
            "python/warptape/utils/_summary",
            "python/warptape/utils/flop_counter",
        ),
    ),
    # Limits of what clients send, templates in processes, other sites' requests.
    "serving": (8_190, ("python/warptape/serve/",)),
    "compression": (
        6_487,
        (
            "csrc/ops/binary_linear",
            "csrc/ops/fake_quantize",
            "csrc/ops/int8_conv",
            "kernels/cpu/binary_linear",
            "kernels/cpu/int8_conv",
            "kernels/include/kernels/binary_linear",
            "kernels/include/kernels/int8_conv",
            "python/warptape/ao/",
            "python/warptape/nn/utils/prune.py",
        ),
    ),
    "the CUDA backend": (
        21_037,  # attention by WGMMA, cuSOLVER, grouped products
        (
            "kernels/cuda/",
            "csrc/core/cuda/",
            "csrc/ops/fused_linear",  # for its library's epilogues alone
            "csrc/bindings/cuda",
            "python/warptape/cuda/",
        ),
    ),
    "DTensor": (
        2_363,
        ("python/warptape/parallel/dtensor/",),
    ),  # before the distributed part, in whose folder it lies
    # Before the distributed part, too.
    "the planner of layouts": (1_841, ("python/warptape/parallel/plan/",)),
    "the distributed part": (
        27_686,
        (
            "csrc/distributed/",
            "csrc/autograd/split_backward",  # for pipelines alone
            "csrc/bindings/distributed",
            "kernels/cpu/collective",
            "kernels/include/kernels/collective",
            "python/warptape/distributed/",
            "python/warptape/parallel/",
            "python/warptape/multiprocessing/spawn.py",
            "python/warptape/multiprocessing/_lifetime.py",
            "python/warptape/nn/parallel/",
            "python/warptape/utils/data/distributed.py",
            "python/warptape/futures.py",
        ),
    ),
    "nested tensors": (1_371, ("python/warptape/nested/",)),
    "data pipes": (1_590, ("python/warptape/utils/data/datapipes/",)),
    "sparse tensors": (
        1_749,
        (
            "csrc/ops/sparse",
            "kernels/cpu/sparse",
            "kernels/include/kernels/sparse",
            "python/warptape/sparse/",
        ),
    ),
    "the ops of torchvision and torchaudio": (
        1_309,
        (
            "csrc/ops/deform",
            "csrc/ops/recursive",
            "csrc/ops/vision",
            "kernels/cpu/deform",
            "kernels/cpu/recursive",
            "kernels/cpu/vision",
            "kernels/include/kernels/recursive",
            "kernels/include/kernels/vision",
        ),
    ),
    "probability distributions": (
        4_610,
        ("python/warptape/distributions/", "python/warptape/quasirandom.py"),
    ),
    "function transforms": (1_751, ("csrc/transforms/", "csrc/bindings/transforms")),
    "the graph compiler": (
        16_605,
        (
            "csrc/graph/",
            "csrc/tensor/run_kernel",
            "csrc/bindings/graph",
            "csrc/bindings/caller",  # where a call was written
            "csrc/bindings/trace",
            "csrc/capi/",
            "kernels/cpu/chain",
            "kernels/include/kernels/chain",
            "python/warptape/compiler.py",
            "python/warptape/_dynamo/",
            "python/warptape/_higher_order_ops/",
            "python/warptape/_graphs.py",
            "python/warptape/export/",
            "python/warptape/jit/",
        ),
    ),
    "the conversion of Python's control flow": (1_026, ("python/warptape/_control_flow/",)),
    "pictures of graphs": (
        1_007,
        (
            "python/warptape/graph_drawing.py",
            "python/warptape/_graph_layout.py",
            "python/warptape/fx/passes/graph_drawer.py",
        ),
    ),
    "ONNX": (2_279, ("python/warptape/onnx/",)),
    "models": (2_505, ("python/warptape/models/",)),
    "traced programs": (2_684, ("python/warptape/fx/",)),
    "the Python library": (32_121, ("python/warptape/",)),
}
