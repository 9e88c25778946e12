"""How a server runs: one place for the command line's flags and `Server`'s arguments."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field, fields
from typing import Any


def _of(default: Any, help: str) -> Any:
    return field(default=default, metadata={"help": help})


@dataclass(kw_only=True)
class Settings:
    """Limits of a server; the help of each field is its documentation.

    Raises: ValueError for values without a meaning.
    """

    host: str = _of("127.0.0.1", "address to listen on; other than loopback needs a token")
    port: int = _of(8000, "of HTTP; 0: a free one, which the first line of the output names")
    grpc_port: int | None = _of(None, "of gRPC; without it there is no gRPC")
    max_body_bytes: int = _of(64 << 20, "of a request's body; more is a 413")
    max_json_bytes: int = _of(8 << 20, "of JSON in a request, beside binary tensors; more is a 413")
    max_prompt_tokens: int | None = _of(None, "of a prompt; default: what the model's context allows")
    max_tokens: int | None = _of(None, "to be generated for one answer; default: as the context allows")
    max_images: int = _of(16, "of a request; more are a 400")
    max_image_pixels: int = _of(1 << 25, "of an image, before it is decoded; more are a 400")
    max_requests: int = _of(256, "that are worked on or wait, in all; more are a 429")
    max_connections: int = _of(2048, "open at once; more get a 429 and are closed")
    key_concurrency: int | None = _of(None, "requests of one token at once; more are a 429")
    key_rate: float | None = _of(None, "requests a second of one token, with as many at once; more are a 429")
    deadline_seconds: float = _of(600.0, "of a request; X-Request-Timeout asks for less")
    header_seconds: float = _of(10.0, "in which a request's headers must have come; else a 408")
    body_seconds: float = _of(30.0, "in which a request's body must have come; else a 408")
    send_seconds: float = _of(30.0, "that a client may take nothing of its answer")
    keep_alive_seconds: float = _of(60.0, "that a connection may be idle between two requests")
    drain_seconds: float = _of(60.0, "that requests may take after SIGTERM")
    drain_delay: float = _of(0.5, "seconds between not ready and not listening, for load balancers")
    template_seconds: float = _of(2.0, "that a chat template may take")
    ready_timeout: float = _of(300.0, "seconds that a model may take to load")
    poll_seconds: float = _of(2.0, "between two looks for new versions")
    trust_request_chat_template: bool = _of(False, "take chat templates from clients; they are programs")
    tls_certificate: str = _of("", "file of the certificate and its chain (PEM): HTTPS, and gRPC with TLS")
    tls_key: str = _of("", "file of the certificate's private key (PEM); default: it is in the same file")
    allowed_hosts: str = _of("", "names in Host that are this server's without a token; * for all")
    allowed_origins: str = _of("", "web pages elsewhere that may ask, https://chat.example,..; * for all")

    def __post_init__(self) -> None:
        for each in fields(self):
            value, low = getattr(self, each.name), 1 if "max" in each.name or "key" in each.name else 0
            if value is None or isinstance(value, str):
                continue
            if isinstance(each.default, bool):
                if not isinstance(value, bool):
                    raise ValueError(f"{each.name} must be True or False, got {value!r:.50}")
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value < 1 << 50:
                if not (each.name == "key_rate" and isinstance(value, float) and value > 0):
                    raise ValueError(f"{each.name} must be a number of at least {low}, got {value!r:.50}")
        for name in ("port", "grpc_port"):
            if not 0 <= (getattr(self, name) or 0) < 65536:
                raise ValueError(f"{name} must be in [0, 65535], got {getattr(self, name)}")

        if self.tls_key and not self.tls_certificate:
            raise ValueError("tls_key needs tls_certificate")

    def tls_files(self) -> tuple[str, str] | None:
        """The files of the certificate and of its key; None without TLS."""
        if not self.tls_certificate:
            return None
        return self.tls_certificate, self.tls_key or self.tls_certificate

    def loopback(self) -> bool:
        """Whether nobody outside this machine reaches the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
