"""Images in messages: data: URLs, decoded beside the event loop, and their places in the prompt."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ..inference.images import expanded
from ..models.images import ImageSettings, decoded
from .errors import ApiError

DATA = "data:"


def refused(message: str, where: str = "messages") -> ApiError:
    """A request that is the client's fault.

    Args:
        message: for the client.
        where: the field.
    """
    return ApiError(400, message, where)


def part_of(part: Mapping[str, Any], where: str, urls: list[str]) -> dict[str, Any]:
    """What a template gets of OpenAI's part of a message that is an image.

    Args:
        part: of the type "image_url".
        where: the message.
        urls: gets the image's.

    Raises: ApiError for what has no data: URL.
    """
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise refused(f"{where}: image_url must be an object with a url", where)
    if url[: len(DATA)].lower() != DATA:
        raise refused(f"{where}: an image must be a data: URL; this server fetches nothing", where)
    urls.append(url)
    return {"type": "image"}


def _file_of(url: str) -> bytes:
    """The file in a data: URL. ValueError for what is none in base64."""
    head, comma, text = url.partition(",")
    if not comma or not head.lower().endswith(";base64"):
        raise ValueError("an image's URL must be data:image/png;base64,.. or image/jpeg")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"an image is not in base64: {error}") from error


def laid_out(messages: Sequence[Any], template: str, place: str) -> list[Any]:
    """Messages as a template expects those with images: as lists of parts, where it looks for their type,
    else as texts in which a token stands for each.

    Args:
        messages: whose content is a text or a list of parts.
        template: its source.
        place: the token's text.

    >>> from warptape.serve.images import laid_out
    >>> parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    >>> laid_out([{"role": "user", "content": parts}], "{{ m.content }}", "<image>")[0]["content"]
    '<image>\\nWhat?'
    """
    by_type = any(f"{quote}image{quote}" in template for quote in "\"'")
    out = []
    for message in messages:
        content = message["content"]
        if by_type and isinstance(content, str):
            content = [{"type": "text", "text": content}]
        elif not by_type and isinstance(content, list):
            content = "".join(f"{place}\n" if part["type"] == "image" else part["text"] for part in content)
        out.append({**message, "content": content})
    return out


class Images:
    """Decodes images, one at a time, in a thread.

    Args:
        most: of a request.
        most_pixels: of an image.
    """

    def __init__(self, most: int, most_pixels: int) -> None:
        self._most, self._most_pixels = most, most_pixels
        self._pool = ThreadPoolExecutor(1, "warptape-images")

    def close(self) -> None:
        """Ends the thread."""
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _pixels(self, url: str, settings: ImageSettings) -> bytes:
        try:
            return settings.resized(decoded(_file_of(url), self._most_pixels)).tobytes()
        except ValueError as error:
            raise refused(str(error)) from error

    async def pixels(self, urls: Sequence[str], said: Mapping[str, Any]) -> list[bytes]:
        """Of each image, as the model's worker takes them. ApiError for what cannot be read.

        Args:
            urls: of images.
            said: of images in the model's metadata.
        """
        if len(urls) > self._most:
            raise refused(f"a request may have {self._most} images, got {len(urls)}; see --max-images")
        settings = ImageSettings(**said["settings"])
        loop = asyncio.get_running_loop()
        return [await loop.run_in_executor(self._pool, self._pixels, url, settings) for url in urls]


def with_places(tokens: list[int], said: Mapping[str, Any], images: int) -> list[int]:
    """A prompt's tokens, with as many for each image as it has vectors. ApiError where there are not as many
    places as images.

    Args:
        tokens: of a rendered conversation.
        said: of images in the model's metadata.
        images: how many.
    """
    try:
        return expanded(tokens, said["token"], images, said["count"])
    except ValueError as error:
        raise refused(f"{error}; is the token's text in a message?") from error
