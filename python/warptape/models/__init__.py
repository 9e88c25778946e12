"""Models with weights in Hugging Face's folders: one decoder and one encoder, described by configs."""

from typing import TYPE_CHECKING

from .._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from ._sources import Codes
    from .adapters import Adapter, load_adapter
    from .adopted import decoder_of
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
    "decoder_of",
    "load_adapter",
]
_LATE = {  # imported when first asked for
    "_sources": "Codes",
    "adapters": "Adapter load_adapter",
    "adopted": "decoder_of",
    "cache": "KVCache PagedCache",
    "config": "DecoderConfig EncoderConfig",
    "decoder": "Decoder",
    "encoder": "Encoder EncoderOutput",
    "rotary": "RotaryScaling",
}
_install_getattr(__name__, _LATE)
