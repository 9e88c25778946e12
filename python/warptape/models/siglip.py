"""SigLIP (Zhai et al. 2023, arXiv 2303.15343): how well texts fit images.

B images, R texts of T tokens, C width, E width of embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from ..nn import functional as F
from . import _architectures
from .config import Config, ConfigBase, Token
from .families import PAIRS, TOWER_TEXTS
from .pretrained import PreTrained
from .vision import TowerLayer, VisionConfig, VisionTower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warptape.core.types import Device


@dataclass(frozen=True, kw_only=True)
class SiglipTextConfig(Config):
    """SigLIP's transformer of texts as data.

    Args:
        max_position_embeddings: the most tokens of a text.
        projection_size: E; None: hidden_size.
        norm_eps: added to the variance by LayerNorm.
        attention_dropout: in training.
        bos_token_id, eos_token_id, pad_token_id: kept for whoever makes tokens.
        initializer_range: standard deviation of a new model's matrices.

    Raises: ValueError that names the field and says what it may be.
    """

    architecture: str = "siglip_text_model"
    hidden_act: str = "gelu_pytorch_tanh"
    max_position_embeddings: int = 64
    projection_size: int = None  # type: ignore[assignment]
    norm_eps: float = 1e-6
    attention_dropout: float = 0.0
    bos_token_id: Token = None
    eos_token_id: Token = None
    pad_token_id: Token = None
    initializer_range: ClassVar[float] = 0.02

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = TOWER_TEXTS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._default("projection_size", self.hidden_size)
        if self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")


@dataclass(frozen=True, kw_only=True)
class SiglipConfig(ConfigBase):
    """SigLIP as data.

    Args:
        text, vision: of the two towers.

    Raises: ValueError for towers whose vectors have different widths.
    """

    architecture: str = "siglip"
    text: SiglipTextConfig
    vision: VisionConfig

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = PAIRS
    joined: ClassVar[Mapping[str, type[ConfigBase]]] = {"text": SiglipTextConfig, "vision": VisionConfig}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.vision.head or self.vision.hidden_size != self.text.projection_size:
            self._refuse("vision", f"with a head of {self.text.projection_size} numbers, as texts have")


class TextTower(PreTrained):
    """Tokens [R, T] -> vectors of texts [R, E]: of the last position, so that texts are padded to a length.

    Args:
        dtype, device: of the parameters.
    """

    config_class = SiglipTextConfig

    def __init__(
        self, config: SiglipTextConfig, *, dtype: wt.dtype | None = None, device: Device = None
    ) -> None:
        super().__init__(config)
        factory: dict[str, Any] = {"dtype": dtype, "device": device}
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, **factory)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width, **factory)
        self.layers = nn.ModuleList(TowerLayer(config, **factory) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.head = nn.Linear(width, config.projection_size, **factory)
        if not self.embed_tokens.weight.is_meta:
            self.reset_parameters()

    def forward(self, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """[R, T] -> [R, E].

        Args:
            tokens: with padding, which is seen as other tokens are.

        Raises: ShapeError for what is no [R, T], ValueError for more tokens than there are positions.
        """
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ShapeError(f"Siglip: expected tokens [R, T] with T > 0, got {list(tokens.shape)}")
        count, most = tokens.shape[1], self.config.max_position_embeddings
        if count > most:
            raise ValueError(f"Siglip: {count} tokens are more than its positions, {most}")
        x = self.embed_tokens(tokens) + self.embed_positions.weight[:count]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, -1])


class SiglipOutput(NamedTuple):
    """How well images and texts fit: logits of each pair [B, R], whose sigmoids are probabilities, and
    embeddings of length 1, [B, E] and [R, E].

    Args:
        logits_per_image, image_embeds, text_embeds: as above.
    """

    logits_per_image: Tensor
    image_embeds: Tensor
    text_embeds: Tensor


def _unit(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class Siglip(PreTrained):
    """Images and texts -> embeddings, and logits of each pair.

    Args:
        dtype, device: of the parameters.

    >>> from warptape.models.siglip import Siglip, SiglipConfig, SiglipTextConfig, VisionConfig
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> vision = VisionConfig(image_size=8, patch_size=4, **sizes)
    >>> model = Siglip(SiglipConfig(text=SiglipTextConfig(vocab_size=40, **sizes), vision=vision)).eval()
    >>> model(torch.randn(2, 3, 8, 8), torch.zeros(5, 64, dtype=torch.int64)).logits_per_image.shape
    torch.Size([2, 5])
    """

    config_class = SiglipConfig

    def __init__(self, config: SiglipConfig, *, dtype: wt.dtype | None = None, device: Device = None) -> None:
        super().__init__(config)
        self.vision = VisionTower(config.vision, dtype=dtype, device=device)
        self.text = TextTower(config.text, dtype=dtype, device=device)
        self.logit_scale = nn.Parameter(wt.zeros(1, dtype=dtype, device=device))
        self.logit_bias = nn.Parameter(wt.zeros(1, dtype=dtype, device=device))

    def image_embeds(self, pixels: Tensor) -> Tensor:
        """[B, channels, S, S] -> [B, E], of length 1.

        Args:
            pixels: as `warptape.models.images` prepares them.

        Raises: ShapeError for images of another size.
        """
        return _unit(self.vision(pixels).pooler_output)

    def text_embeds(self, tokens: Tensor) -> Tensor:
        """[R, T] -> [R, E], of length 1.

        Args:
            tokens: padded to max_position_embeddings, as the model was trained.

        Raises: as TextTower.
        """
        return _unit(self.text(tokens))

    def forward(self, pixels: Tensor, tokens: Tensor) -> SiglipOutput:  # type: ignore[override]
        """Logits of each pair, and embeddings.

        Args:
            pixels: [B, channels, S, S].
            tokens: [R, T].

        Raises: as `image_embeds` and `text_embeds`.
        """
        images, texts = self.image_embeds(pixels), self.text_embeds(tokens)
        logits = F.linear(images, texts) * self.logit_scale.exp() + self.logit_bias
        return SiglipOutput(logits, images, texts)
