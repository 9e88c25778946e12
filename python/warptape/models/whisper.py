"""Speech to tokens by Whisper (Radford et al. 2022, arXiv 2212.04356).

B batch, M mel bins, S frames of the encoder, T tokens, C width, H heads, D head_dim.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from warptape import core as wt

from .. import nn
from .._C import ShapeError
from ..core import Tensor
from ..nn import functional as F
from . import _architectures
from .config import Config, Token
from .families import SPEECH
from .layers import activate
from .pretrained import PreTrained

if TYPE_CHECKING:
    from warptape.core.types import Device

RATE, WINDOW, HOP, SECONDS = 16_000, 400, 160, 30  # samples a second; of a frame; between frames; of a text
NEVER = -float("inf")


# ---- features ----


def _mel(hertz: Any) -> Any:
    """Slaney's scale: linear up to 1,000 Hz, and logarithmic from there on."""
    above = 15 + np.log(np.maximum(hertz, 1e-9) / 1000) * (27 / np.log(6.4))
    return np.where(hertz < 1000, hertz * 3 / 200, above)


def _hertz(mel: Any) -> Any:
    return np.where(mel < 15, mel * 200 / 3, 1000 * np.exp((mel - 15) * (np.log(6.4) / 27)))


def mel_filters(bins: int) -> np.ndarray:
    """Triangles of one area over the frequencies of a frame, float64 [WINDOW / 2 + 1, M]: as librosa's
    filters.mel(norm="slaney").

    Args:
        bins: M.
    """
    corners = _hertz(np.linspace(_mel(0.0), _mel(RATE / 2), bins + 2))
    each = np.linspace(0, RATE / 2, WINDOW // 2 + 1)[:, None]
    rising = (each - corners[:-2]) / (corners[1:-1] - corners[:-2])
    falling = (corners[2:] - each) / (corners[2:] - corners[1:-1])
    triangles: np.ndarray = np.maximum(0, np.minimum(rising, falling)) * (2 / (corners[2:] - corners[:-2]))
    return triangles


def log_mel(audio: Any, bins: int = 80, seconds: int = SECONDS) -> Tensor:
    """The features of a recording, float32 [M, 100 * seconds]: logarithms of the power in M bands of
    frequencies, 100 times a second, at most 8 orders below the largest.

    Args:
        audio: samples between -1 and 1, [N], 16,000 a second; what is shorter than `seconds` ends in silence,
            what is longer is cut.
        bins: M, of the model's config.
        seconds: that the model takes.

    Raises: ShapeError for what is no row of samples.

    >>> from warptape.models.whisper import log_mel
    >>> log_mel(torch.zeros(16000), seconds=2).shape
    torch.Size([80, 200])
    """
    samples = np.asarray(audio.numpy() if isinstance(audio, Tensor) else audio, np.float64)
    if samples.ndim != 1:
        raise ShapeError(f"log_mel: expected samples [N], got {list(samples.shape)}")
    length = seconds * RATE
    samples = np.pad(samples[:length], (0, max(0, length - len(samples))))
    around = np.pad(samples, WINDOW // 2, "reflect")
    frames = np.lib.stride_tricks.sliding_window_view(around, WINDOW)[::HOP][: length // HOP]
    hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(WINDOW) / WINDOW)
    power = np.abs(np.fft.rfft(frames * hann)) ** 2
    logs = np.log10(np.maximum(power @ mel_filters(bins), 1e-10))
    logs = (np.maximum(logs, logs.max() - 8) + 4) / 4
    return wt.from_numpy(np.ascontiguousarray(logs.T.astype(np.float32)))


# ---- the model ----


@dataclass(frozen=True, kw_only=True)
class WhisperConfig(Config):
    """Whisper as data. What Config names is the decoder's; both have the width hidden_size.

    Args:
        encoder_layers, encoder_attention_heads, encoder_ffn_dim: sizes of the encoder.
        num_mel_bins: of the features.
        max_source_positions: frames of the encoder, half as many as the features have.
        max_position_embeddings: the most tokens of a text.
        decoder_start_token_id: what a text begins with.

    Raises: ValueError that names the field and says what it may be.
    """

    encoder_layers: int
    encoder_attention_heads: int
    encoder_ffn_dim: int
    architecture: str = "whisper"
    hidden_act: str = "gelu"
    num_mel_bins: int = 80
    max_source_positions: int = 1500
    max_position_embeddings: int = 448
    decoder_start_token_id: Token = 50257
    bos_token_id: Token = None
    eos_token_id: Token = None
    pad_token_id: Token = None
    initializer_range: float = 0.02

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = SPEECH

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("num_attention_heads", "encoder_attention_heads"):
            if self.hidden_size % getattr(self, name):
                self._refuse(name, f"a divisor of hidden_size, {self.hidden_size}")
        if self.hidden_size % 2:
            self._refuse("hidden_size", "an even number")


class WhisperAttention(nn.Module):
    """Attention of tokens to themselves or to others; keys have no bias.

    Args:
        width: C.
        heads: H.
        **factory: device and dtype.
    """

    def __init__(self, width: int, heads: int, **factory: Any) -> None:
        super().__init__()
        self.heads = heads
        self.q_proj = nn.Linear(width, width, **factory)
        self.k_proj = nn.Linear(width, width, bias=False, **factory)
        self.v_proj = nn.Linear(width, width, **factory)
        self.out_proj = nn.Linear(width, width, **factory)

    def _heads(self, x: Tensor) -> Tensor:
        """[B, T, C] -> [B, H, T, D]"""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S, D].

        Args:
            x: what is attended to, [B, S, C].
        """
        return self._heads(self.k_proj(x)), self._heads(self.v_proj(x))

    def forward(self, x: Tensor, keys: tuple[Tensor, Tensor], mask: Tensor | None = None) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: that attends.
            keys: with their values.
            mask: True where one sees another, [T, S]; None: everywhere.
        """
        y = F.scaled_dot_product_attention(self._heads(self.q_proj(x)), *keys, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).flatten(2))


class WhisperLayer(nn.Module):
    """Attention, in a decoder also to the encoder, and an MLP, behind their norms: [B, T, C] -> [B, T, C].

    Args:
        config: sizes.
        decoder: of which part.
        **factory: device and dtype.
    """

    def __init__(self, config: WhisperConfig, decoder: bool, **factory: Any) -> None:
        super().__init__()
        width = config.hidden_size
        heads = config.num_attention_heads if decoder else config.encoder_attention_heads
        inner = config.intermediate_size if decoder else config.encoder_ffn_dim
        self.activation = config.hidden_act
        self.self_attn = WhisperAttention(width, heads, **factory)
        self.self_attn_layer_norm = nn.LayerNorm(width, **factory)
        if decoder:
            self.encoder_attn = WhisperAttention(width, heads, **factory)
            self.encoder_attn_layer_norm = nn.LayerNorm(width, **factory)
        self.fc1 = nn.Linear(width, inner, **factory)
        self.fc2 = nn.Linear(inner, width, **factory)
        self.final_layer_norm = nn.LayerNorm(width, **factory)

    def forward(self, x: Tensor, past: list[Any] | None = None, mask: Tensor | None = None) -> Tensor:
        """[B, T, C] -> [B, T, C].

        Args:
            x: of the layer before.
            past: keys and values of earlier tokens, to which these are added, and of the encoder; None: of an
                encoder's layer.
            mask: what tokens see; None: all.
        """
        inside = self.self_attn_layer_norm(x)
        keys = self.self_attn.keys(inside)
        if past is not None:
            if past[0] is not None:
                keys = tuple(wt.cat(pair, 2) for pair in zip(past[0], keys))  # type: ignore[assignment]
            past[0] = keys
        x = x + self.self_attn(inside, keys, mask)
        if past is not None:
            x = x + self.encoder_attn(self.encoder_attn_layer_norm(x), past[1])
        return x + self.fc2(activate(self.activation, self.fc1(self.final_layer_norm(x))))


class WhisperEncoder(nn.Module):
    """Features [B, M, 2 S] -> vectors [B, S, C].

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: WhisperConfig, **factory: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.conv1 = nn.Conv1d(config.num_mel_bins, width, 3, padding=1, **factory)
        self.conv2 = nn.Conv1d(width, width, 3, stride=2, padding=1, **factory)
        self.embed_positions = nn.Embedding(config.max_source_positions, width, **factory)
        self.layers = nn.ModuleList(
            WhisperLayer(config, False, **factory) for _ in range(config.encoder_layers)
        )
        self.layer_norm = nn.LayerNorm(width, **factory)

    def forward(self, features: Tensor) -> Tensor:
        """[B, M, 2 S] -> [B, S, C].

        Args:
            features: of log_mel.

        Raises: ShapeError for another number of bands or frames.
        """
        frames, bins = 2 * self.embed_positions.num_embeddings, self.conv1.in_channels
        if features.ndim != 3 or features.shape[1:] != (bins, frames):
            raise ShapeError(f"Whisper: expected features [B, {bins}, {frames}], got {list(features.shape)}")
        x = F.gelu(self.conv2(F.gelu(self.conv1(features))))
        x = x.transpose(1, 2) + self.embed_positions.weight
        for layer in self.layers:
            x = layer(x)
        return self.layer_norm(x)


class WhisperDecoder(nn.Module):
    """Tokens [B, T] and an encoder's vectors -> logits [B, T, V], of the embedding's own rows.

    Args:
        config: sizes.
        **factory: device and dtype.
    """

    def __init__(self, config: WhisperConfig, **factory: Any) -> None:
        super().__init__()
        width = config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, width, **factory)
        self.embed_positions = nn.Embedding(config.max_position_embeddings, width, **factory)
        self.layers = nn.ModuleList(
            WhisperLayer(config, True, **factory) for _ in range(config.num_hidden_layers)
        )
        self.layer_norm = nn.LayerNorm(width, **factory)

    def begin(self, encoded: Tensor) -> list[list[Any]]:
        """What a text begins with: for each layer no keys of tokens yet, and those of the encoder.

        Args:
            encoded: [B, S, C].
        """
        return [[None, layer.encoder_attn.keys(encoded)] for layer in self.layers]

    def forward(self, tokens: Tensor, past: list[list[Any]]) -> Tensor:
        """Logits [B, T, V].

        Args:
            tokens: [B, T], behind those before.
            past: of `begin`; it grows.

        Raises: ValueError for more tokens than there are positions.
        """
        before = 0 if past[0][0] is None else past[0][0][0].shape[2]
        count, most = before + tokens.shape[1], self.embed_positions.num_embeddings
        if count > most:
            raise ValueError(f"Whisper: {count} tokens are more than its positions, {most}")
        own = wt.arange(before, count, device=tokens.device)
        mask = own[:, None] >= wt.arange(count, device=tokens.device)
        x = self.embed_tokens(tokens) + self.embed_positions(own)
        for layer, kept in zip(self.layers, past):
            x = layer(x, kept, mask)
        return F.linear(self.layer_norm(x), self.embed_tokens.weight)


class Whisper(PreTrained):
    """Features of a recording and the tokens so far -> logits of the next ones.

    Args:
        dtype, device: of the parameters.

    >>> from warptape.models.whisper import Whisper, WhisperConfig, log_mel
    >>> sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    >>> encoder = {"encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    >>> model = Whisper(WhisperConfig(vocab_size=40, max_source_positions=50, **sizes, **encoder)).eval()
    >>> model.generate(log_mel(torch.randn(16000), seconds=1)[None], torch.tensor([[3]]), 4).shape
    torch.Size([1, 5])
    """

    config_class = WhisperConfig

    def __init__(
        self, config: WhisperConfig, *, dtype: wt.dtype | None = None, device: Device = None
    ) -> None:
        super().__init__(config)
        self.encoder = WhisperEncoder(config, dtype=dtype, device=device)
        self.decoder = WhisperDecoder(config, dtype=dtype, device=device)
        self.encoder.embed_positions.requires_grad_(False)
        if not self.decoder.embed_tokens.weight.is_meta:
            self.reset_parameters()

    @wt.no_grad()
    def reset_parameters(self) -> None:
        """As other models; the encoder's positions are sines and cosines."""
        super().reset_parameters()
        positions = self.encoder.embed_positions.weight
        count, width = positions.shape
        speeds = wt.exp(wt.arange(width // 2) * (-math.log(10000) / max(width // 2 - 1, 1)))
        angles = wt.arange(count)[:, None] * speeds
        positions.copy_(wt.cat([angles.sin(), angles.cos()], 1))

    def forward(self, features: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Logits [B, T, V] of the token after each.

        Args:
            features: [B, M, 2 S].
            tokens: [B, T].

        Raises: ShapeError for features of another shape, ValueError for more tokens than there are positions.
        """
        return self.decoder(tokens, self.decoder.begin(self.encoder(features)))

    @wt.no_grad()
    def generate(
        self,
        features: Tensor,
        tokens: Tensor,
        max_new_tokens: int,
        suppress_tokens: Sequence[int] = (),
        begin_suppress_tokens: Sequence[int] = (),
    ) -> Tensor:
        """The tokens [B, T] and up to so many likeliest ones behind them, until all texts have ended; texts
        that have, go on with pad_token_id.

        Args:
            features: [B, M, 2 S].
            tokens: what the texts begin with, as `<|startoftranscript|><|en|><|transcribe|><|notimestamps|>`.
            max_new_tokens: no more than there are positions for.
            suppress_tokens: which never come, as generation_config.json says.
            begin_suppress_tokens: which do not come first.

        Raises: as `forward`.
        """
        past = self.decoder.begin(self.encoder(features))
        ends = self.config.eos_token_id
        ends = [] if ends is None else list(ends) if isinstance(ends, (list, tuple)) else [ends]
        padding = self.config.pad_token_id if isinstance(self.config.pad_token_id, int) else 0
        done = wt.zeros(len(tokens), dtype=wt.bool, device=tokens.device)
        new = tokens
        for step in range(max_new_tokens):
            scores = self.decoder(new, past)[:, -1]
            for token in (*suppress_tokens, *(begin_suppress_tokens if step == 0 else ())):
                scores[:, token] = NEVER
            new = scores.argmax(-1)
            new = wt.where(done, padding, new)[:, None]
            tokens = wt.cat([tokens, new], 1)
            for end in ends:
                done = done | (new[:, 0] == end)
            if bool(done.all()):
                break
        return tokens
