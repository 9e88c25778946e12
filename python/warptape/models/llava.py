"""Images and text to text: LLaVA (Liu et al. 2023, arXiv 2304.08485).

B texts of T tokens, I images of N vectors, C the language model's width.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from . import _architectures
from .cache import KVCache
from .config import ACTIVATIONS, ConfigBase, DecoderConfig
from .decoder import Cache, Decoder
from .families import VISION_LANGUAGE
from .layers import activate
from .pretrained import PreTrained
from .vision import VisionConfig, VisionTower

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warptape.core.types import Device


@dataclass(frozen=True, kw_only=True)
class LlavaConfig(ConfigBase):
    """LLaVA as data.

    Args:
        text: of the language model, whose token embeddings are not scaled.
        vision: of the transformer of images.
        image_token_id: the token in whose places vectors of images stand.
        projector_act: one of ACTIVATIONS, between the two layers that make vectors of C numbers.
        projector_bias: whether these layers have biases.
        feature_layer: of which layer of `vision` the output is taken, as -2, the last but one.
        features: "default": those of the patches; "full": also the one before them, where there is one.

    Raises: ValueError that names the field and says what it may be.
    """

    architecture: str = "llava"
    text: DecoderConfig
    vision: VisionConfig
    image_token_id: int = 32000
    projector_act: str = "gelu"
    projector_bias: bool = True
    feature_layer: Any = -2
    features: str = "default"

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = VISION_LANGUAGE
    joined: ClassVar[Mapping[str, type[ConfigBase]]] = {"text": DecoderConfig, "vision": VisionConfig}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("projector_act", ACTIVATIONS)
        self._one_of("features", ("default", "full"))
        if self.image_token_id >= self.text.vocab_size:
            self._refuse("image_token_id", f"a token of the vocabulary of {self.text.vocab_size}")
        layers = self.vision.num_hidden_layers
        if type(self.feature_layer) is not int or not -layers - 1 <= self.feature_layer <= layers:
            self._refuse("feature_layer", f"one layer, from {-layers - 1} to {layers}")
        if self.text.embedding_scale != 1 or self.text.positions != "rotary":
            self._refuse("text", "a model with rotary positions, and token embeddings that are not scaled")
        if self.features == "default" and self.image_tokens < 1:
            self._refuse("features", '"full", as an image is one vector')

    @property
    def image_tokens(self) -> int:
        """N, how many vectors stand for an image."""
        return self.vision.patches + self.vision.class_token - (self.features == "default")

    @property
    def feature_layers(self) -> int:
        """How many layers of `vision` are computed."""
        return self.feature_layer % (self.vision.num_hidden_layers + 1)


class Projector(nn.Module):
    """Vectors of images as the language model takes them: [.., width] -> [.., C].

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: LlavaConfig, **factory: Any) -> None:
        super().__init__()
        width, bias, self.act = config.text.hidden_size, config.projector_bias, config.projector_act
        self.linear_1 = nn.Linear(config.vision.hidden_size, width, bias=bias, **factory)
        self.linear_2 = nn.Linear(width, width, bias=bias, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[.., width] -> [.., C].

        Args:
            x: of the transformer of images.
        """
        return self.linear_2(activate(self.act, self.linear_1(x)))


class Llava(PreTrained):
    """Tokens, some of which stand for images, and images -> logits.

    Args:
        dtype, device: of the parameters.

    >>> from warptape.models.llava import DecoderConfig, Llava, LlavaConfig, VisionConfig
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> text = DecoderConfig(vocab_size=40, max_position_embeddings=32, **sizes)
    >>> vision = VisionConfig(image_size=8, patch_size=4, head=False, **sizes)
    >>> model = Llava(LlavaConfig(text=text, vision=vision, image_token_id=39, features="full")).eval()
    >>> model(torch.tensor([[1, 39, 39, 39, 39, 2]]), torch.randn(1, 3, 8, 8)).shape
    torch.Size([1, 6, 40])
    """

    config_class = LlavaConfig

    def __init__(self, config: LlavaConfig, *, dtype: wt.dtype | None = None, device: Device = None) -> None:
        super().__init__(config)
        factory: dict[str, Any] = {"dtype": dtype, "device": device}
        self.vision = VisionTower(config.vision, **factory)
        self.projector = Projector(config, **factory)
        self.language_model = Decoder(config.text, **factory)
        if not self.projector.linear_1.weight.is_meta:
            self._reset_projector()

    @wt.no_grad()
    def _reset_projector(self) -> None:
        for layer in (self.projector.linear_1, self.projector.linear_2):
            nn.init.normal_(layer.weight, std=self.config.text.initializer_range)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def reset_parameters(self) -> None:
        """Those of the parts."""
        self.vision.reset_parameters()
        self.language_model.reset_parameters()
        self._reset_projector()

    def tie_weights(self) -> None:
        """Those of the language model."""
        self.language_model.tie_weights()

    def image_features(self, pixels: Tensor) -> Tensor:
        """The vectors that stand in the places of images, [I, N, C].

        Args:
            pixels: [I, channels, S, S], as `warptape.models.images` prepares them.

        Raises: ShapeError for images of another size.
        """
        x = self.vision.through(pixels, self.config.feature_layers)
        return self.projector(x[:, 1:] if self.config.features == "default" else x)

    def embed(self, input_ids: Tensor, pixels: Tensor | None) -> Tensor:
        """What the language model's first layer gets, [B, T, C]: vectors of tokens, and in the places of
        image_token_id those of the images, one after the other.

        Args:
            input_ids: [B, T].
            pixels: [I, channels, S, S], or None.

        Raises: ShapeError where there are not N tokens for each image.
        """
        x, at = self.language_model.embed_tokens(input_ids), input_ids == self.config.image_token_id
        there, N = int(at.sum()), self.config.image_tokens
        images = 0 if pixels is None else len(pixels)
        if there != images * N:
            raise ShapeError(
                f"Llava: expected {N} tokens {self.config.image_token_id} for each of {images} images, got "
                f"{there} in all"
            )
        if pixels is None or images == 0:
            return x
        features = self.image_features(pixels).flatten(0, 1).to(x.dtype)  # [I N, C]
        own = (at.flatten().cumsum(0) - 1).clamp(min=0)  # which feature
        return wt.where(at.unsqueeze(-1), features[own].view(x.shape), x)

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        pixels: Tensor | None = None,
        *,
        cache: Cache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        """Logits [B, T, V] of the token after each.

        Args:
            input_ids: [B, T].
            pixels: [I, channels, S, S], or None.
            cache, positions: as of Decoder.forward.

        Raises: as `embed` and Decoder.forward.
        """
        inside = self.embed(input_ids, pixels)
        hidden = self.language_model.hidden(input_ids, cache=cache, positions=positions, embedded=inside)
        return self.language_model.logits(hidden)

    @wt.no_grad()
    def generate(self, input_ids: Tensor, pixels: Tensor | None, max_new_tokens: int) -> Tensor:
        """[B, T] with so many of the likeliest tokens appended.

        Args:
            input_ids: [B, T].
            pixels: [I, channels, S, S], or None.
            max_new_tokens: as far as the context reaches.

        Raises: as `forward`; ValueError for more tokens than the context has.
        """
        model, given = self.language_model, input_ids.shape[1]
        most, end = model.config.max_position_embeddings, given + max_new_tokens
        if max_new_tokens < 1 or end > most:
            raise ValueError(f"Llava: expected 1 to {most - given} new tokens, got {max_new_tokens}")
        weight = model.embed_tokens.weight
        cache = KVCache(model.config, len(input_ids), end, dtype=weight.dtype, device=weight.device)
        out, logits = [input_ids], self(input_ids, pixels, cache=cache)
        for step in range(max_new_tokens):
            out.append(logits[:, -1:].argmax(-1).to(input_ids.dtype))
            if step + 1 < max_new_tokens:
                logits = model(out[-1], cache=cache)
        return wt.cat(out, 1)
