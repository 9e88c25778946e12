"""A laboratory for float8 and formats of blocks: rounding, training and a report, without hardware for them
(docs/guides/low_precision.md)."""

from .formats import FORMATS, Encoded, Format, decode, encode, multiply, pack_float4, round_to
from .report import LayerPrecision, Lost, PrecisionReport, precision_report
from .training import RECIPES, LowPrecisionLinear, Recipe, convert_to_low_precision_training

__all__ = [
    "FORMATS",
    "RECIPES",
    "Encoded",
    "Format",
    "LayerPrecision",
    "Lost",
    "LowPrecisionLinear",
    "PrecisionReport",
    "Recipe",
    "convert_to_low_precision_training",
    "decode",
    "encode",
    "multiply",
    "pack_float4",
    "precision_report",
    "round_to",
]
