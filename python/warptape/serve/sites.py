"""Requests that a web page sends for a user who knows nothing of it: cross-site ones, and DNS rebinding.

A browser says in Origin, and in Sec-Fetch-Site, which page sent a request; other programs do not. It sends
simple requests (forms, text/plain) and stored passwords without asking. A page whose name resolves to this
machine is of one origin with the server: its name in Host gives it away.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from .errors import ApiError
from .settings import Settings

SAFE = ("GET", "HEAD", "OPTIONS")
# What a browser sends across sites without asking the server first.
SIMPLE = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


def _listed(text: str) -> list[str]:
    return [each.strip().lower().rstrip("/") for each in text.split(",") if each.strip()]


def _name(host: str) -> str:
    """Without the port."""
    return host.partition("]")[0].lstrip("[") if host.startswith("[") else host.rpartition(":")[0] or host


def _is_local(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


class Sites:
    """Whose requests are taken.

    Args:
        with_tokens: clients send a token: a page elsewhere, by whatever name, has none.
    """

    def __init__(self, settings: Settings, with_tokens: bool) -> None:
        self._hosts = {*_listed(settings.allowed_hosts), settings.host.lower()}
        self._origins = _listed(settings.allowed_origins)
        self._any_host = with_tokens or not settings.loopback() or "*" in self._hosts

    def shared(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """The headers by which a browser hands an answer to a page of an allowed origin.

        Args:
            headers: of the request.
        """
        origin = headers.get(b"origin", b"")
        listed = origin.decode("latin-1").lower().rstrip("/") in self._origins
        if not origin or not (listed or "*" in self._origins):
            return []
        names = b"x-request-id, retry-after"
        return [
            (b"access-control-allow-origin", origin),
            (b"access-control-expose-headers", names),
            (b"vary", b"origin"),
        ]

    def check(self, headers: Mapping[bytes, bytes], method: str) -> None:
        """ApiError 403 for a request of another site.

        Args:
            headers: of the request.
            method: of HTTP.
        """
        host = headers.get(b"host", b"").decode("latin-1").lower()
        if host and not self._any_host:
            name = _name(host)
            if name not in self._hosts and not _is_local(name):
                text = f"Host {host!r:.100} is not this server's name; --allowed-hosts adds one"
                raise ApiError(403, text, code="host")
        if method in SAFE or "*" in self._origins:
            return
        origin = headers.get(b"origin", b"").decode("latin-1").lower().rstrip("/")
        if origin in self._origins:
            return
        fetched = headers.get(b"sec-fetch-site", b"none").decode("latin-1").lower()
        named = not origin or (host and origin.partition("://")[2] == host)  # a proxy may change Host
        if fetched != "same-origin" and not (fetched == "none" and named):
            page = origin or "another site"
            text = f"a page of {page!r:.100} may not ask this server; --allowed-origins adds one"
            raise ApiError(403, text, code="origin")


def check_order(content_type: str | None) -> None:
    """ApiError 415 for an order (load, unload, rollback) as a form or plain text, which any page may send.

    Args:
        content_type: of the request.
    """
    kind = (content_type or "").partition(";")[0].strip().lower()
    if kind in SIMPLE:
        text = f"an order is JSON: send Content-Type: application/json, not {kind}"
        raise ApiError(415, text, code="media_type")
