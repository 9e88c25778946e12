"""/metrics for Prometheus, and a status page: one HTML file that asks /status.json every second."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from .kserve import JSON, Reply, endpoint, json_reply
from .metrics import Metrics
from .models import Models

PAGE = Path(__file__).with_name("status.html")
FRESH = 0.5  # seconds that the workers' numbers may be old


class Status:
    """What the page shows.

    Args:
        metrics: of the server.
    """

    def __init__(self, models: Models, metrics: Metrics) -> None:
        self.models, self.metrics = models, metrics
        self._started = time.time()
        self._lock = asyncio.Lock()
        self._asked = 0.0
        self._said: dict[tuple[str, int], dict[str, Any]] = {}

    async def _update(self) -> dict[tuple[str, int], dict[str, Any]]:
        """The workers are asked at most every FRESH seconds, however many look at the page."""
        async with self._lock:
            if time.monotonic() - self._asked >= FRESH:
                self._said = await self.metrics.update(self.models)
                self._asked = time.monotonic()
            return self._said

    async def prometheus(self, call: Any) -> Reply:
        """/metrics.

        Args:
            call: of HTTP.
        """
        await self._update()
        return 200, [(b"content-type", b"text/plain; version=0.0.4; charset=utf-8")], self.metrics.render()

    async def page(self, call: Any) -> Reply:
        """/status.

        Args:
            call: of HTTP.
        """
        policy = (
            b"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'"
        )
        headers = [
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", policy),
            (b"cache-control", b"no-store"),
        ]
        return 200, headers, PAGE.read_bytes()

    async def numbers(self, call: Any) -> Reply:
        """/status.json: models, versions, shares, and counts whose differences the page draws.

        Args:
            call: of HTTP.
        """
        said = await self._update()
        rows = self.models.describe()
        for model in rows:
            for version in model["versions"]:
                key = model["name"], version["version"]
                version["worker"] = said.get(key, {})
                version["counts"] = self.metrics.of(*key).statistics()
                version["tokens"] = self.metrics.of(*key).tokens()
        reply = json_reply(
            {"time": time.time(), "started": self._started, "ready": self.models.ready(), "models": rows}
        )
        reply[1][:] = [JSON, (b"cache-control", b"no-store")]
        return reply


def routes(models: Models, metrics: Metrics) -> list[Any]:
    """/metrics, /status and /status.json for a starlette application.

    Raises: ImportError without starlette.
    """
    from starlette.routing import Route

    status = Status(models, metrics)
    return [
        Route("/metrics", endpoint(status.prometheus), methods=["GET"]),
        Route("/status", endpoint(status.page), methods=["GET"]),
        Route("/status.json", endpoint(status.numbers), methods=["GET"]),
    ]
