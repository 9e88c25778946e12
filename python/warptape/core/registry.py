"""What parts above offer to those below, by name, so that these need not import them."""

from collections.abc import Callable
from typing import Any

_offers: dict[str, Callable[[], Any]] = {}


def offer(name: str, load: Callable[[], Any]) -> None:
    """Registers a part by name. `load` returns it, and is called at each use: parts may load late.

    >>> from warptape.core import offer, offered
    >>> offer("answers", lambda: [42])
    >>> offered("answers")
    [42]
    """
    _offers[name] = load


def offered(name: str) -> Any:
    """The part that was registered by this name.

    Raises:
        KeyError: none was.
    """
    return _offers[name]()
