"""Weights and activations in few bits, with the names of torchao.quantization and torch.ao.quantization.

docs/guides/compression.md shows each method.
"""

from ...core.coded import CodedTensor, Float8Tensor, QuantizedTensor, rebuild
from ._calibration import round_to_nearest_
from ._report import QuantizationReport
from ._schemes import (
    per_channel_affine,
    per_channel_affine_float_qparams,
    per_channel_symmetric,
    per_tensor_affine,
    per_tensor_symmetric,
    qint8,
    qscheme,
    quint8,
)
from .fake_quantize import (
    FakeQuantize,
    FakeQuantizeBase,
    default_fake_quant,
    default_per_channel_weight_fake_quant,
    default_weight_fake_quant,
    disable_fake_quant,
    disable_observer,
    enable_fake_quant,
    enable_observer,
)
from .files import save_quantized
from .gptq import gptq_
from .observer import (
    HistogramObserver,
    MinMaxObserver,
    MovingAverageMinMaxObserver,
    MovingAveragePerChannelMinMaxObserver,
    ObserverBase,
    PercentileObserver,
    PerChannelMinMaxObserver,
    PlaceholderObserver,
    default_histogram_observer,
    default_observer,
    default_per_channel_weight_observer,
    default_placeholder_observer,
    default_weight_observer,
)
from .qat import FakeQuantizedLinear
from .qconfig import (
    QConfig,
    QConfigMapping,
    default_dynamic_qconfig,
    default_per_channel_qconfig,
    default_qat_qconfig,
    default_qconfig,
    get_default_qat_qconfig,
    get_default_qat_qconfig_mapping,
    get_default_qconfig,
    get_default_qconfig_mapping,
)
from .quant_api import (
    Float8DynamicActivationFloat8WeightConfig,
    Float8WeightOnlyConfig,
    FqnToConfig,
    Int4WeightOnlyConfig,
    Int8DynamicActivationInt8WeightConfig,
    Int8WeightOnlyConfig,
    ModuleFqnToConfig,
    QATConfig,
    is_linear,
    quantize_,
    quantize_dynamic,
)
from .quantize import convert, fuse_modules, prepare, prepare_qat
from .quantize_fx import convert_fx, fuse_fx, prepare_fx, prepare_qat_fx, quantization_report
from .smoothing import awq_, smooth_quant_
from .stubs import DeQuantStub, QuantStub, QuantWrapper
