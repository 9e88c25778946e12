"""Models behind HTTP and gRPC: `warptape serve`, and `Server` for embedding; see docs/serving.md."""

from .._missing import lookup as _lookup

__all__ = ["Server"]


def __getattr__(name: str) -> object:
    if name != "Server":
        return _lookup(__name__)(name)
    from .server import Server

    return Server
