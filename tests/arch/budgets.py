"""Lines that each part of the tree may have. They only fall; who raises one says why."""

# Lines of the core, kernels + csrc. A device's backend, what lies between ranks, and PyTorch's API written
# with ops alone have budgets of their own: whoever reads the core can leave them out.
MAX_TOTAL_LINES = 57_029
BUDGETS = {
    # Before the backend, in whose folder some of it lies: the first part that has a file counts it.
    "inference": (
        9_454,
        (
            "csrc/inference/",
            "csrc/bindings/inference",
            "csrc/ops/quant/packed_linear",
            "csrc/ops/quant/quant_linear",
            "csrc/ops/attention/paged_attention",
            "kernels/cpu/quant/packed_linear",
            "kernels/cpu/quant/quant_linear",
            "kernels/cpu/attention/paged_attention",
            "kernels/cuda/quant/packed_linear",
            "kernels/cuda/quant/quant_linear",
            "kernels/cuda/attention/paged_attention",
            "kernels/include/kernels/quant/packed_linear",
            "kernels/include/kernels/quant/quant_linear",
            "kernels/include/kernels/attention/paged_attention",
            "python/warptape/inference/",
        ),
    ),
    # Sources for PyTorch's C++ API: the interface, headers of PyTorch's names over it, ops that others bring.
    "extensions": (
        6_603,
        (
            "csrc/capi/extension/",
            "csrc/bindings/ops/extension",
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
            "csrc/bindings/device/profiler",
            "csrc/core/memory/memory_trace",
            "csrc/core/profiler",
            "csrc/op/profile",
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
            "csrc/ops/quant/binary_linear",
            "csrc/ops/quant/fake_quantize",
            "csrc/ops/quant/int8_conv",
            "kernels/cpu/quant/binary_linear",
            "kernels/cpu/quant/int8_conv",
            "kernels/include/kernels/quant/binary_linear",
            "kernels/include/kernels/quant/int8_conv",
            "python/warptape/ao/",
            "python/warptape/nn/utils/prune.py",
        ),
    ),
    "the CUDA backend": (
        21_432,  # attention by WGMMA, cuSOLVER, grouped products
        (
            "kernels/cuda/",
            "csrc/core/cuda/",
            "csrc/ops/nn/fused_linear",  # for its library's epilogues alone
            "csrc/bindings/device/cuda",
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
        27_438,
        (
            "csrc/distributed/",
            "csrc/autograd/split_backward",  # for pipelines alone
            "csrc/bindings/distributed/distributed",
            "kernels/cpu/distributed/collective",
            "kernels/include/kernels/distributed/collective",
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
            "csrc/ops/linalg/sparse",
            "kernels/cpu/linalg/sparse",
            "kernels/include/kernels/linalg/sparse",
            "python/warptape/sparse/",
        ),
    ),
    "the ops of torchvision and torchaudio": (
        1_309,
        (
            "csrc/ops/conv/deform",
            "csrc/ops/extra/recursive",
            "csrc/ops/extra/vision",
            "kernels/cpu/conv/deform",
            "kernels/cpu/extra/recursive",
            "kernels/cpu/extra/vision",
            "kernels/include/kernels/extra/recursive",
            "kernels/include/kernels/extra/vision",
        ),
    ),
    "probability distributions": (
        4_610,
        ("python/warptape/distributions/", "python/warptape/quasirandom.py"),
    ),
    "function transforms": (1_751, ("csrc/transforms/", "csrc/bindings/autograd/transforms")),
    "the graph compiler": (
        16_606,
        (
            "csrc/graph/",
            "csrc/tensor/run_kernel",
            "csrc/bindings/graph/graph",
            "csrc/bindings/caller",  # where a call was written
            "csrc/bindings/graph/trace",
            "csrc/capi/",
            "kernels/cpu/fused/chain",
            "kernels/include/kernels/fused/chain",
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
