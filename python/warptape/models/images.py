"""Images as models take them: decoded, of the model's size, and with normalised pixels, by the folder's
preprocessor_config.json.

S side of the model's images, in pixels.
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from warptape import core as wt

from ..core import Tensor
from .pretrained import read_json

FORMATS = ("PNG", "JPEG")
MOST_PIXELS = 1 << 25  # of an image, as it came and while it is resized
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
BICUBIC = 3  # Pillow's number
_FILES = ("preprocessor_config.json", "processor_config.json")


class PillowMissingError(ValueError):
    """Images cannot be decoded, since Pillow is not installed."""


def decoded(data: bytes, most_pixels: int = MOST_PIXELS) -> Any:
    """A PNG or JPEG file as Pillow's image, with red, green and blue, turned as its camera says.

    Args:
        data: the file.
        most_pixels: more are refused before they are decoded.

    Raises: PillowMissingError; ValueError for what is no such file, is damaged, or has more pixels.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise PillowMissingError("images need Pillow, which is not installed: pip install pillow") from error
    try:
        image = Image.open(io.BytesIO(data), formats=FORMATS)
    except Exception as error:
        raise ValueError("an image must be a PNG or JPEG file") from error
    if image.width * image.height > most_pixels:
        raise ValueError(
            f"an image may have {most_pixels} pixels, got {image.width} x {image.height}: send a smaller one"
        )
    try:
        image.load()
        return ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # Pillow raises whatever a file leads it to
        raise ValueError(f"an image is damaged: {error!s:.100}") from error


@dataclass(frozen=True, kw_only=True)
class ImageSettings:
    """How images become what a model takes.

    Args:
        height, width: to which an image is resized; width 0: height is that of the shorter side.
        crop_height, crop_width: of what is cut out of the middle; 0: nothing is cut.
        resample: Pillow's number of the filter.
        factor: what pixels of 0 to 255 are multiplied by.
        mean, std: of red, green and blue, which are subtracted and divided by.
    """

    height: int
    width: int
    crop_height: int = 0
    crop_width: int = 0
    resample: int = BICUBIC
    factor: float = 1 / 255
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    @classmethod
    def clip(cls, size: int) -> ImageSettings:
        """What CLIP was trained with.

        Args:
            size: S.
        """
        return cls(height=size, width=0, crop_height=size, crop_width=size, mean=CLIP_MEAN, std=CLIP_STD)

    @classmethod
    def siglip(cls, size: int) -> ImageSettings:
        """What SigLIP was trained with.

        Args:
            size: S.
        """
        return cls(height=size, width=size)

    @classmethod
    def of_folder(cls, folder: str | os.PathLike[str], config: Any) -> ImageSettings:
        """As a model's folder says, else as its kind of images was trained with.

        Args:
            folder: of the model.
            config: its VisionConfig.

        Raises: ValueError for settings that are none, or that do not lead to images of the model's size.
        """
        own = cls.clip if config.class_token else cls.siglip
        found = own(config.image_size)
        for name in _FILES:
            path = os.path.join(os.fspath(folder), name)
            if os.path.isfile(path):
                said = read_json(path)
                said = said if name == _FILES[0] else said.get("image_processor") or {}
                try:
                    found = cls._read(said, found)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    raise ValueError(f"{path}: expected settings of images, got {error}") from error
                break
        size = (found.crop_height, found.crop_width) if found.crop_height else (found.height, found.width)
        if size != (config.image_size,) * 2:
            raise ValueError(
                f"{folder}: images are prepared with {size[0]} x {size[1]} pixels, and the model takes "
                f"{config.image_size} x {config.image_size}"
            )
        return found

    @classmethod
    def _read(cls, said: Mapping[str, Any], usual: ImageSettings) -> ImageSettings:
        values = asdict(usual)
        for name in ("do_resize", "do_rescale", "do_normalize"):
            if not said.get(name, True):
                raise ValueError(f"{name}: false")
        for name in ("do_pad", "do_image_splitting"):
            if said.get(name):
                raise ValueError(f"{name}: true")
        if (size := said.get("size")) is not None:
            size = {"shortest_edge": size} if isinstance(size, int) else size
            edge = size.get("shortest_edge")
            whole = (size["height"], size["width"]) if edge is None else (edge, 0)
            values.update(height=int(whole[0]), width=int(whole[1]))
        if not said.get("do_center_crop", bool(usual.crop_height)):
            values.update(crop_height=0, crop_width=0)
        elif (crop := said.get("crop_size")) is not None:
            crop = {"height": crop, "width": crop} if isinstance(crop, int) else crop
            values.update(crop_height=int(crop["height"]), crop_width=int(crop["width"]))
        values["resample"] = int(said.get("resample") or values["resample"])
        values["factor"] = float(said.get("rescale_factor") or values["factor"])
        for key, name in (("image_mean", "mean"), ("image_std", "std")):
            given = tuple(float(each) for each in said.get(key) or values[name])
            if len(given) != 3 or (name == "std" and not all(given)):
                raise ValueError(f"{key}: {given}")
            values[name] = given
        return cls(**values)

    def resized(self, image: Any) -> np.ndarray[Any, Any]:
        """An image of the model's size, uint8 [S, S, 3].

        Args:
            image: Pillow's, with red, green and blue.

        Raises: ValueError for one that is so long that it would become too large.
        """
        width, height = self.width, self.height
        if not width:
            short, long = sorted(image.size)
            other = int(self.height * long / short)
            width, height = (self.height, other) if image.width <= image.height else (other, self.height)
        if width * height > MOST_PIXELS:
            raise ValueError(
                f"an image of {image.width} x {image.height} is too long beside its shorter side"
            )
        image = image.resize((width, height), resample=self.resample)
        if self.crop_height:
            top, left = (height - self.crop_height) // 2, (width - self.crop_width) // 2
            image = image.crop((left, top, left + self.crop_width, top + self.crop_height))
        return np.ascontiguousarray(np.asarray(image, np.uint8))

    def normalized(self, pixels: np.ndarray[Any, Any]) -> Tensor:
        """What the model takes of it, float32 [3, S, S].

        Args:
            pixels: uint8 [S, S, 3], of `resized`.
        """
        scaled = (pixels.astype(np.float64) * self.factor).astype(np.float32)
        values = (scaled - np.array(self.mean, np.float32)) / np.array(self.std, np.float32)
        return wt.from_numpy(np.ascontiguousarray(values.astype(np.float32).transpose(2, 0, 1)))

    def __call__(self, image: Any) -> Tensor:
        """What the model takes of Pillow's image, float32 [3, S, S].

        Raises: as `resized`.
        """
        return self.normalized(self.resized(image))
