"""Transformers of images: SigLIP's (Zhai et al. 2023, arXiv 2303.15343) and CLIP's (Radford et al. 2021).

B images of S x S pixels, N patches and what stands before them, P pixels of a patch in all channels, C width.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from ..nn import functional as F
from . import _architectures
from .config import ACTIVATIONS, ConfigBase
from .families import TOWERS
from .layers import MLP, Attention
from .pretrained import PreTrained

if TYPE_CHECKING:
    from collections.abc import Mapping

    from warptape.core.types import Device


@dataclass(frozen=True, kw_only=True)
class VisionConfig(ConfigBase):
    """A transformer of images as data.

    Args:
        hidden_size, num_hidden_layers, num_attention_heads, intermediate_size: sizes.
        image_size, patch_size: of the sides, in pixels.
        num_channels: of a pixel.
        hidden_act: one of ACTIVATIONS.
        norm_eps: added to the variance by LayerNorm.
        attention_dropout: in training.
        class_token: whether a vector stands before those of the patches, which then have no bias and pass a
            norm before the layers (CLIP).
        head: whether a vector of the image is what one learned query attends to (SigLIP).
        initializer_range: standard deviation of a new model's matrices.

    Raises: ValueError that names the field and says what it may be.
    """

    architecture: str = "siglip_vision_model"
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    intermediate_size: int
    image_size: int
    patch_size: int
    num_channels: int = 3
    hidden_act: str = "gelu_pytorch_tanh"
    norm_eps: float = 1e-6
    attention_dropout: float = 0.0
    class_token: bool = False
    head: bool = True
    initializer_range: float = field(default=0.02, compare=False)

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = TOWERS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("hidden_act", ACTIVATIONS)
        if self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")
        if self.patch_size > self.image_size:
            self._refuse("patch_size", f"at most image_size, {self.image_size}")

    @property
    def patches(self) -> int:
        """How many patches an image has."""
        return (self.image_size // self.patch_size) ** 2


class TowerLayer(nn.Module):
    """Attention over all and an MLP behind their norms, which add to what they read: [B, N, C] -> [B, N, C].

    Args:
        config: sizes, of images or texts.
        **factory: device and dtype.
    """

    def __init__(self, config: Any, **factory: Any) -> None:
        super().__init__()
        width, heads = config.hidden_size, config.num_attention_heads
        self.input_layernorm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.self_attn = Attention(
            width, heads, heads, width // heads, dropout=config.attention_dropout, **factory
        )
        self.post_attention_layernorm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.mlp = MLP(width, config.intermediate_size, config.hidden_act, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, C] -> [B, N, C].

        Args:
            x: of the layer before.
        """
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Patches(nn.Conv2d):
    """Pixels [B, channels, S, S] -> vectors of patches [B, N, C]: a convolution whose windows do not overlap,
    computed as the product of rows, so that an image's bits do not depend on others.

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: VisionConfig, **factory: Any) -> None:
        size, bias = config.patch_size, not config.class_token
        super().__init__(config.num_channels, config.hidden_size, size, stride=size, bias=bias, **factory)
        self.size, self.image_size, self.packed = size, config.image_size, None

    packed: nn.Module | None  # what computes the product instead

    def linear(self) -> nn.Linear:
        """The layer of rows that it is, on the same memory."""
        made = nn.Linear(self.weight[0].numel(), self.out_channels, bias=self.bias is not None, device="meta")
        made.weight = nn.Parameter(self.weight.detach().flatten(1), requires_grad=False)
        if self.bias is not None:
            made.bias = nn.Parameter(self.bias.detach(), requires_grad=False)
        return made

    def forward(self, pixels: Tensor) -> Tensor:
        """[B, channels, S, S] -> [B, N, C].

        Args:
            pixels: of images of the model's size.

        Raises: ShapeError for another size.
        """
        shape = [self.in_channels, self.image_size, self.image_size]
        if pixels.ndim != 4 or list(pixels.shape[1:]) != shape:
            expected = ", ".join(map(str, shape))
            raise ShapeError(f"expected pixels [B, {expected}], got {list(pixels.shape)}")
        P, many = self.size, self.image_size // self.size
        whole = pixels[:, :, : many * P, : many * P]
        rows = whole.reshape(len(whole), self.in_channels, many, P, many, P)
        rows = rows.permute(0, 2, 4, 1, 3, 5).reshape(len(whole), many * many, -1)  # [B, N, P]
        if self.packed is not None:
            return self.packed(rows)
        return F.linear(rows, self.weight.flatten(1), self.bias)


class PoolingHead(nn.Module):
    """What one learned query sees of the patches, and an MLP: [B, N, C] -> [B, C].

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: VisionConfig, **factory: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.probe = nn.Parameter(wt.zeros(1, 1, width, **factory))
        self.qkv_proj = nn.Linear(width, 3 * width, **factory)
        self.o_proj = nn.Linear(width, width, **factory)
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.mlp = MLP(width, config.intermediate_size, config.hidden_act, **factory)

    def forward(self, x: Tensor) -> Tensor:
        """[B, N, C] -> [B, C].

        Args:
            x: of the last norm.
        """
        _, k, v = self.qkv_proj(x).chunk(3, -1)
        q = self.qkv_proj(self.probe).chunk(3, -1)[0].expand(len(x), -1, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in (q, k, v))
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        y = self.o_proj(seen)
        return (y + self.mlp(self.norm(y)))[:, 0]


class VisionOutput(NamedTuple):
    """What a transformer of images gives: vectors [B, N, C], and one of the image [B, C] where it has one.

    Args:
        last_hidden_state, pooler_output: as above.
    """

    last_hidden_state: Tensor
    pooler_output: Tensor | None


class VisionTower(PreTrained):
    """Pixels [B, channels, S, S] -> vectors.

    Args:
        dtype, device: of the parameters.

    >>> from warptape.models.vision import VisionConfig, VisionTower
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> tower = VisionTower(VisionConfig(image_size=8, patch_size=4, **sizes)).eval()
    >>> tower(torch.randn(2, 3, 8, 8)).last_hidden_state.shape
    torch.Size([2, 4, 16])
    """

    config_class = VisionConfig

    def __init__(self, config: VisionConfig, *, dtype: wt.dtype | None = None, device: Device = None) -> None:
        super().__init__(config)
        factory: dict[str, Any] = {"dtype": dtype, "device": device}
        width, own = config.hidden_size, config.class_token
        self.patches = Patches(config, **factory)
        self.class_token = nn.Parameter(wt.zeros(width, **factory)) if own else None
        self.embed_positions = nn.Embedding(config.patches + own, width, **factory)
        self.input_norm = nn.LayerNorm(width, eps=config.norm_eps, **factory) if own else None
        self.layers = nn.ModuleList(TowerLayer(config, **factory) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(width, eps=config.norm_eps, **factory)
        self.head = PoolingHead(config, **factory) if config.head else None
        if not self.embed_positions.weight.is_meta:
            self.reset_parameters()

    @wt.no_grad()
    def reset_parameters(self) -> None:
        """As other models."""
        super().reset_parameters()
        if self.class_token is not None:
            nn.init.normal_(self.class_token, std=self.config.initializer_range)

    def through(self, pixels: Tensor, layers: int) -> Tensor:
        """What the first layers make of images, [B, N, C].

        Args:
            pixels: [B, channels, S, S].
            layers: how many.

        Raises: ShapeError for images of another size.
        """
        x = self.patches(pixels)
        if self.class_token is not None:
            x = wt.cat([self.class_token.expand(len(x), 1, -1), x], 1)
        x = x + self.embed_positions.weight
        if self.input_norm is not None:
            x = self.input_norm(x)
        for layer in self.layers[:layers]:
            x = layer(x)
        return x

    def forward(self, pixels: Tensor) -> VisionOutput:  # type: ignore[override]
        """[B, channels, S, S] -> vectors; CLIP's of the image is that before the patches, normed alone.

        Args:
            pixels: as `warptape.models.images` prepares them.

        Raises: ShapeError for images of another size.
        """
        x = self.through(pixels, len(self.layers))
        if self.class_token is not None:
            return VisionOutput(x, self.norm(x[:, 0]))
        x = self.norm(x)
        return VisionOutput(x, None if self.head is None else self.head(x))
