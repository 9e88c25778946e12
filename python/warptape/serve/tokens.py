"""Bearer tokens: of clients, and of admins, who alone may give orders where there are any."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import re
from collections.abc import Iterable

_ORDER = re.compile(
    r"/v2/repository/models/.+/(load|unload|rollback)|/v1/(un)?load_lora_adapter|/v1/update_weights"
)
# Orders that name any file of the machine: not for clients, whose tokens were given for requests.
_ANY_FILE = re.compile(r"/v1/(load_lora_adapter|update_weights)")


def is_order(path: str) -> bool:
    """Whether a path changes what the server serves.

    Args:
        path: of a request.
    """
    return _ORDER.fullmatch(path) is not None


class Tokens:
    """The bearer tokens that are taken; none: everybody is.

    Args:
        tokens: of clients.
        admins: whose holders may also give orders; none: every client may.

    Raises: ValueError for an empty token, or one that no header can have.
    """

    def __init__(self, tokens: Iterable[str], admins: Iterable[str] = ()) -> None:
        self._digests: list[tuple[bytes, str, bool]] = []
        for group, is_admin in ((tokens, False), (admins, True)):
            for token in group:
                if not token or not token.isascii() or not token.isprintable() or " " in token:
                    raise ValueError("a token must be printable ASCII without spaces, and not empty")
                digest = hashlib.sha256(token.encode()).digest()
                self._digests.append((digest, digest.hex()[:8], is_admin))
        kinds = [is_admin for _, _, is_admin in self._digests]
        self._open, self._admins = all(kinds), any(kinds)

    def __bool__(self) -> bool:
        """Whether clients need one."""
        return not self._open

    @property
    def several(self) -> bool:
        """Whether clients can be told apart."""
        return len(self._digests) > 1

    def key(self, authorization: bytes | None) -> str | None:
        """The name in the log of whoever has this header; None for nobody. Takes the same time for every
        wrong token."""
        token = self._found(authorization)
        if token is None:
            return "" if self._open else None
        return token[0]

    def may_order(self, authorization: bytes | None, path: str = "") -> bool:
        """Whether who has this header may load, unload and roll back.

        Args:
            authorization: the header.
            path: of the order.
        """
        token = self._found(authorization)
        if not self._admins:
            return not self._digests or _ANY_FILE.fullmatch(path) is None
        return token is not None and token[1]

    def _found(self, authorization: bytes | None) -> tuple[str, bool] | None:
        """Name, and whether it is an admin's."""
        scheme, _, token = (authorization or b"").partition(b" ")
        if scheme.lower() == b"basic":  # a browser, whose user gave the token as password
            with contextlib.suppress(ValueError):
                scheme, token = b"bearer", base64.b64decode(token, validate=True).partition(b":")[2]
        given = hashlib.sha256(token.strip()).digest()
        matching = None
        for digest, name, is_admin in self._digests:
            if hmac.compare_digest(digest, given):
                matching = name, is_admin
        return matching if scheme.lower() == b"bearer" else None
