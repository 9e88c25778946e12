"""Hugging Face's architectures as data, a file for each family: what configs say, and names of tensors.

`declare` has what a declaration consists of; `warptape.models._architectures` reads and writes configs by it.
A family's file is loaded when one of its architectures is first asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from .declare import Architecture as Architecture
from .declare import same as same


def _bert() -> Mapping[str, Architecture]:
    from .bert import ENCODERS

    return ENCODERS


def _gpt() -> Mapping[str, Architecture]:
    from .gpt import GPTS

    return GPTS


def _llama() -> Mapping[str, Architecture]:
    from .llama import LLAMAS

    return LLAMAS


def _gemma() -> Mapping[str, Architecture]:
    from .gemma import GEMMAS

    return GEMMAS


def _glm() -> Mapping[str, Architecture]:
    from .glm import GLMS

    return GLMS


def _moe() -> Mapping[str, Architecture]:
    from .moe import MIXTURES

    return MIXTURES


def _gpt_oss() -> Mapping[str, Architecture]:
    from .gpt_oss import GPT_OSS

    return GPT_OSS


def _deepseek() -> Mapping[str, Architecture]:
    from .deepseek import DEEPSEEKS

    return DEEPSEEKS


def _whisper() -> Mapping[str, Architecture]:
    from .whisper import SPEECH

    return SPEECH


def _towers() -> Mapping[str, Architecture]:
    from .vision import TOWERS

    return TOWERS


def _texts_beside_images() -> Mapping[str, Architecture]:
    from .vision import TEXTS

    return TEXTS


def _pairs() -> Mapping[str, Architecture]:
    from .vision import PAIRS

    return PAIRS


def _vision_language() -> Mapping[str, Architecture]:
    from .vision import LANGUAGE

    return LANGUAGE


class Families(Mapping[str, Architecture]):
    """Architectures by `model_type`, in the order of their names here.

    Args:
        names: of a family's architectures, with spaces between -> what loads them.
    """

    def __init__(self, names: Mapping[str, Callable[[], Mapping[str, Architecture]]]) -> None:
        self._families = {name: load for several, load in names.items() for name in several.split()}

    def __getitem__(self, name: str) -> Architecture:
        return self._families[name]()[name]

    def __contains__(self, name: object) -> bool:  # Mapping's own would load it
        return name in self._families

    def __iter__(self) -> Iterator[str]:
        return iter(self._families)

    def __len__(self) -> int:
        return len(self._families)


DECODERS = Families({
    "gpt2 gpt_neox starcoder2": _gpt,
    "llama mistral qwen2 qwen3 phi3 smollm3 olmo2 olmo3 granite granitemoehybrid": _llama,
    "gemma gemma2 gemma3_text": _gemma,
    "glm glm4": _glm,
    "mixtral qwen2_moe qwen3_moe": _moe,
    "gpt_oss": _gpt_oss,
    "deepseek_v2 deepseek_v3": _deepseek,
})  # fmt: skip
SPEECH = Families({"whisper": _whisper})
ENCODERS = Families({"bert roberta xlm-roberta modernbert": _bert})
TOWERS = Families({"siglip_vision_model clip_vision_model": _towers})
TOWER_TEXTS = Families({"siglip_text_model": _texts_beside_images})
PAIRS = Families({"siglip": _pairs})
VISION_LANGUAGE = Families({"llava": _vision_language})
