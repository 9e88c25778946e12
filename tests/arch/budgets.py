"""Lines of each part of the tree; the test gives 3 % of room. They only fall; who raises one says why."""

# Lines of the core, kernels + csrc. A device's backend, what lies between ranks, and PyTorch's API written
# with ops alone have budgets of their own: whoever reads the core can leave them out.
MAX_TOTAL_LINES = 57_143
BUDGETS = {
    # Before the backend, in whose folder some of it lies: the first part that has a file counts it.
    "inference": (
        # Tokenizers of five kinds of files, GGUF written, weights exchanged on several ranks, models of the
        # hub, forwards of training with the engine's bits, images in prompts.
        12_780,
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
            "kernels/cuda/attention/paged_",
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
            "python/warptape/torch/include/",
            "python/warptape/utils/_extension_build",
            "python/warptape/utils/cpp_extension",
            "python/warptape/library/__init__.py",
            "python/warptape/library/custom_ops.py",
        ),
    ),
    "profiling": (
        4_860,  # signatures with types, and Args of what an observer is told
        (
            "csrc/bindings/device/profiler",
            "csrc/core/memory/memory_trace",
            "csrc/core/profiler",
            "csrc/op/profile",
            "python/warptape/autograd/profiler",
            "python/warptape/tools/profiler/",
            "python/warptape/utils/op_observer",
            "python/warptape/utils/model_summary",
            "python/warptape/utils/flop_counter",
        ),
    ),
    # Limits of what clients send, templates in processes, other sites' requests, models' folders; the APIs of
    # Anthropic, Ollama and OpenAI's responses, a table of options, adapters and new weights at run time, TLS,
    # scores of encoders, arguments of calls in pieces, images in messages.
    "serving": (11_600, ("python/warptape/serve/",)),
    "reinforcement learning": (720, ("python/warptape/rl/",)),
    # Classes with __torch_dispatch__: rules by which ops are taken apart, and gradients made of ops of aten.
    "subclasses": (
        # Gradients of every op: by its own backward on tensors without data, or asked for as an op; of
        # comparisons and draws in place, too.
        2_260,
        (
            "csrc/bindings/ops/dispatch",
            "python/warptape/core/wrappers.py",
            "python/warptape/library/aten_backward.py",
            "python/warptape/library/subclass_",
        ),
    ),
    # float8 and block formats emulated: rounding, training, which layers break.
    "low precision": (790, ("python/warptape/ao/low_precision/",)),
    "compression": (
        6_977,
        (
            "csrc/ops/quant/binary_linear",
            "csrc/ops/quant/fake_quantize",
            "csrc/ops/quant/int8_conv",
            "kernels/cpu/quant/binary_linear",
            "kernels/cpu/quant/int8_conv",
            "kernels/include/kernels/quant/binary_linear",
            "kernels/include/kernels/quant/int8_conv",
            "python/warptape/ao/",
            "python/warptape/core/coded",
            "python/warptape/nn/utils/prune.py",
        ),
    ),
    "the CUDA backend": (
        21_700,  # attention by WGMMA, cuSOLVER, grouped products by WGMMA, paged attention by mma
        (
            "kernels/cuda/",
            "csrc/core/cuda/",
            "csrc/ops/nn/fused_linear",  # for its library's epilogues alone
            "csrc/bindings/device/cuda",
            "python/warptape/cuda/",
        ),
    ),
    "DTensor": (
        3_133,  # placements, split parameters and their interface lie here, too
        ("python/warptape/parallel/dtensor/", "python/warptape/core/placed"),
    ),  # before the distributed part, in whose folder it lies
    # Before the distributed part, too. What runs hashed to, and where two of them part.
    "traces of runs": (
        1_150,
        ("python/warptape/tools/trace/", "python/warptape/distributed/collective_hooks.py"),
    ),
    "the planner of layouts": (2_054, ("python/warptape/parallel/plan/",)),
    "the distributed part": (
        29_070,  # causes of bugs that `verify` names, other grids of ranks
        (
            "csrc/distributed/",
            "csrc/autograd/split_backward",  # for pipelines alone
            "csrc/bindings/distributed/distributed",
            "kernels/cpu/distributed/collective",
            "kernels/include/kernels/distributed/collective",
            "python/warptape/distributed/",
            "python/warptape/parallel/",
            "python/warptape/multiprocessing/spawn.py",
            "python/warptape/multiprocessing/lifetime.py",
            "python/warptape/nn/parallel/",
            "python/warptape/utils/data/distributed.py",
            "python/warptape/core/futures.py",
        ),
    ),
    "nested tensors": (1_376, ("python/warptape/extras/nested/",)),
    "sparse tensors": (
        1_814,
        (
            "csrc/ops/linalg/sparse",
            "kernels/cpu/linalg/sparse",
            "kernels/include/kernels/linalg/sparse",
            "python/warptape/extras/sparse/",
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
        5_180,  # signatures with types take more lines, and so does the list of exported names
        ("python/warptape/extras/distributions/", "python/warptape/extras/quasirandom.py"),
    ),
    "function transforms": (1_751, ("csrc/transforms/", "csrc/bindings/autograd/transforms")),
    "the graph compiler": (
        17_205,
        (
            "csrc/graph/",
            "csrc/tensor/run_kernel",
            "csrc/bindings/graph/graph",
            "csrc/bindings/caller",  # where a call was written
            "csrc/bindings/graph/trace",
            "csrc/capi/",
            "kernels/cpu/fused/chain",
            "kernels/include/kernels/fused/chain",
            "python/warptape/compiler/__init__.py",
            "python/warptape/torch/names/_dynamo/",
            "python/warptape/compiler/eval_frame.py",
            "python/warptape/compiler/higher_order_ops/",
            "python/warptape/compiler/graphs.py",
            "python/warptape/compiler/export/",
            "python/warptape/compiler/jit/",
        ),
    ),
    # Args of each kind of statement are said.
    "the conversion of Python's control flow": (1_165, ("python/warptape/compiler/control_flow/",)),
    "pictures of graphs": (
        1_007,
        (
            "python/warptape/tools/graph_drawing.py",
            "python/warptape/tools/graph_layout.py",
            "python/warptape/compiler/fx/passes/graph_drawer.py",
        ),
    ),
    "ONNX": (2_279, ("python/warptape/compiler/onnx/",)),
    # Mixtures of experts, latent attention, GGUF files of 17 families, read and written, matrices as five
    # programs store them, encoders with a norm before each part, Whisper; towers of images, SigLIP, LLaVA,
    # what makes pixels of images, and the search for codes of GGUF's kinds.
    "models": (
        8_500,
        ("python/warptape/models/",),
    ),  # heads of encoders, transformers' models computed by Decoder
    "traced programs": (3_025, ("python/warptape/compiler/fx/",)),
    # Of them 2,300 lay in the distributed part and in the library.
    # The last: the CPU as a device module, inner names of process groups that libraries import.
    "PyTorch's names": (7_110, ("python/warptape/torch/",)),
    "the Python library": (35_000, ("python/warptape/",)),  # docstrings with arguments
}
