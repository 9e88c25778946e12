"""Smaller models: quantisation, pruning, binarised layers, distillation (docs/guides/compression.md)."""

from . import low_precision
from .binary import (
    BinaryConv2d,
    BinaryLinear,
    PackedBinaryConv2d,
    PackedBinaryLinear,
    TernaryLinear,
    binarize,
    pack_binary_,
    ternarize,
)
from .distillation import (
    Hint,
    attention_map,
    attention_transfer_loss,
    distill,
    hint_loss,
    kd_loss,
)
from .pruning import GradualPruner, NofM, PolynomialSchedule, n_of_m, sparsity
from .quantization import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    QATConfig,
    quantize_,
)
from .report import LayerError, Report, model_bytes, report
from .shrink import PruneReport, ShrinkError, ShrinkReport, prune_channels, shrink
from .shrink_modules import NarrowMultiheadAttention
