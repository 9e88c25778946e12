"""Images in prompts: their places among the tokens, and the vectors that stand there.

An image's vectors are computed alone, in the step that first needs them, so that they have the same bits
whatever is beside them. As many images as a step has are bounded by its tokens, of which each has N.

N vectors of an image, C width, S side of the model's images.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from warptape import core as wt

from .. import nn
from ..core import Tensor
from .linear import PackedLinear, pack_

if TYPE_CHECKING:
    from ..models.images import ImageSettings
    from ..models.llava import Llava

MOST_BYTES = 256 << 20  # of vectors that are kept
MOST_IMAGES = 64  # of a prompt


class Image(NamedTuple):
    """An image of the model's size.

    Args:
        pixels: uint8 [S, S, 3].
        digest: SHA-256 of these.
    """

    pixels: np.ndarray[Any, Any]
    digest: bytes


class PlacedImage(NamedTuple):
    """An image in a prompt.

    Args:
        first: the place of its first token.
        image: of the model's size.
    """

    first: int
    image: Image


class ImageEncoder:
    """What makes vectors of images; the last used ones are kept.

    Args:
        model: whose layers are packed, but for those of its language model.
        settings: how images become pixels.
        invariant: see EngineArgs.
    """

    def __init__(self, model: Llava, settings: ImageSettings, invariant: bool = True) -> None:
        self._model, self.settings = model, settings
        self.token, self.count = model.config.image_token_id, model.config.image_tokens
        self.side: int = model.config.vision.image_size
        self._dtype = model.projector.linear_1.weight.dtype
        self._known: OrderedDict[bytes, Tensor] = OrderedDict()
        self._bytes = 0
        if invariant:
            patches = model.vision.patches
            patches.packed = PackedLinear(patches.linear())
            pack_(model.vision)
            pack_(model.projector)

    def described(self) -> dict[str, Any]:
        """What another process needs, to make tokens and pixels: JSON."""
        return {"token": self.token, "count": self.count, "settings": asdict(self.settings)}

    def image(self, given: Any) -> Image:
        """An image, as prompts have it.

        Args:
            given: Pillow's image, or uint8 [S, S, 3].

        Raises: TypeError for what is neither, ValueError for an array of another shape or dtype.
        """
        if isinstance(given, np.ndarray):
            size = self.side
            if given.dtype != np.uint8 or given.shape != (size, size, 3):
                raise ValueError(
                    f"an image's pixels must be uint8 [{size}, {size}, 3], got {given.dtype} {[*given.shape]}"
                )
            pixels = np.ascontiguousarray(given)
        elif hasattr(given, "convert") and hasattr(given, "resize"):
            pixels = self.settings.resized(given.convert("RGB"))
        else:
            raise TypeError(f"an image must be Pillow's or an array, got {type(given).__name__}")
        return Image(pixels, hashlib.sha256(pixels.tobytes()).digest())

    @wt.inference_mode()
    def vectors(self, image: Image) -> Tensor:
        """Those that stand for an image, [N, C].

        Args:
            image: of `image`.
        """
        found = self._known.get(image.digest)
        if found is None:
            device = self._model.vision.embed_positions.weight.device
            pixels = self.settings.normalized(image.pixels)[None].to(device, self._dtype)
            found = self._known[image.digest] = self._model.image_features(pixels)[0]
            self._bytes += found.numel() * found.element_size()
        self._known.move_to_end(image.digest)
        while self._bytes > MOST_BYTES and len(self._known) > 1:
            _, gone = self._known.popitem(last=False)
            self._bytes -= gone.numel() * gone.element_size()
        return found


def placed(
    encoder: ImageEncoder | None, prompt: Any, tokens: list[int]
) -> tuple[list[int], list[PlacedImage]]:
    """A prompt's tokens, N in the place of each image, and its images.

    Args:
        encoder: None: the model has no images.
        prompt: with vLLM's {"multi_modal_data": {"image": one or several}}, where it has images.
        tokens: one for each image, or N.

    Raises: ValueError for images of a model that has none, tokens that do not fit, and what
    ImageEncoder.image raises.
    """
    data = prompt.get("multi_modal_data") if isinstance(prompt, Mapping) else None
    if data is not None and (not isinstance(data, Mapping) or set(data) - {"image"}):
        raise ValueError("multi_modal_data must be {'image': an image, or a list of them}")
    given: Any = [] if data is None else data.get("image", [])
    given = list(given) if isinstance(given, (list, tuple)) else [given]
    if encoder is None:
        if given:
            raise ValueError("the model has no images")
        return tokens, []
    if len(given) > MOST_IMAGES:
        raise ValueError(f"a prompt may have at most {MOST_IMAGES} images, got {len(given)}")
    tokens = expanded(tokens, encoder.token, len(given), encoder.count)
    images, at = [], -1
    for each in given:
        first = at = tokens.index(encoder.token, at + 1)
        if tokens[first : first + encoder.count] != [encoder.token] * encoder.count:
            raise ValueError(f"the {encoder.count} tokens of an image must follow each other")
        at += encoder.count - 1
        images.append(PlacedImage(first, encoder.image(each)))
    return tokens, images


def expanded(tokens: list[int], token: int, images: int, count: int) -> list[int]:
    """Tokens with so many for each image.

    Args:
        tokens: with one for each image, or as many as it shall have.
        token: of images.
        images: how many.
        count: N.

    Raises: ValueError for another number.

    >>> from warptape.inference.images import expanded
    >>> expanded([1, 9, 2], 9, 1, 3)
    [1, 9, 9, 9, 2]
    """
    there = tokens.count(token)
    if there == images * count:
        return tokens
    if there != images:
        raise ValueError(
            f"a prompt has {there} places for images (token {token}) and {images} images: one place is for "
            "one image"
        )
    return [each for one in tokens for each in ([token] * count if one == token else [one])]


def rows_of_images(
    encoder: ImageEncoder | None, batch: Mapping[str, Any], requests: Mapping[int, Any]
) -> list[tuple[int, Tensor]]:
    """Which rows of a step are images' vectors: the first row and the vectors [n, C].

    Args:
        encoder: None: there are none.
        batch: of the engine.
        requests: by the numbers in it.
    """
    out: list[tuple[int, Tensor]] = []
    if encoder is None or not any(requests[number].images for number in batch["requests"]):
        return out
    starts, lengths = batch["starts"].tolist(), batch["lengths"].tolist()
    for r, number in enumerate(batch["requests"]):
        begin, end = lengths[r] - (starts[r + 1] - starts[r]), lengths[r]
        for first, image in requests[number].images:
            low, high = max(first, begin), min(first + encoder.count, end)
            if low < high:
                vectors = encoder.vectors(image)[low - first : high - first]
                out.append((starts[r] + low - begin, vectors))
    return out


def embedded(embed: nn.Module, tokens: Tensor, rows: Sequence[tuple[int, Tensor]]) -> Tensor | None:
    """What a model's first layer gets of tokens [1, N], where some rows are images'; None where none is.

    Args:
        embed: makes vectors of tokens.
        tokens: of a step.
        rows: of `rows_of_images`.
    """
    if not rows:
        return None
    x: Tensor = embed(tokens).clone()
    for first, vectors in rows:
        x[0, first : first + len(vectors)] = vectors.to(x.dtype)
    return x
