"""Models with weights in Hugging Face's folders: one decoder and one encoder, described by configs."""

from .._missing import install_getattr as _install_getattr
from ._sources import Codes
from .adapters import Adapter, load_adapter
from .cache import KVCache, PagedCache
from .config import DecoderConfig, EncoderConfig
from .decoder import Decoder
from .encoder import Encoder, EncoderOutput
from .rotary import RotaryScaling

__all__ = [
    "Adapter",
    "Codes",
    "Decoder",
    "DecoderConfig",
    "Encoder",
    "EncoderConfig",
    "EncoderOutput",
    "KVCache",
    "PagedCache",
    "RotaryScaling",
    "load_adapter",
]
_install_getattr(__name__)
