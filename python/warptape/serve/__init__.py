"""Models behind HTTP and gRPC: `warptape serve`, and `Server` for embedding; see docs/guides/serving.md."""

from typing import TYPE_CHECKING

from .._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from .server import Server

__all__ = ["Server"]

_install_getattr(__name__, Server=lambda: __import__("warptape.serve.server").serve.server.Server)
