"""New weights of a worker's engine: read and packed beside its steps, put in between two of them.

The front gives two orders, so that all workers of a model change or none: "read_weights", which may fail, and
then "put_weights", which does not.
"""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from ..inference.weights import IN_FLIGHT, NewWeights, read_weights
from .worker import failure

Answer = tuple[dict[str, Any], list[Any]]  # of a call: header and buffers


class WeightOrders:
    """What is under way.

    Args:
        engine: an LLMEngine.

    Attributes:
        held: requests that wait until weights are put in, by number.
    """

    def __init__(self, engine: Any) -> None:
        self._engine, self._threads = engine, ThreadPoolExecutor(1, "warptape-weights")
        self._reading: tuple[dict[str, Any], Future[NewWeights]] | None = None
        self._read: tuple[int, NewWeights] | None = None  # with their version
        self._waiting: dict[str, Any] | None = None  # an order to put them in, after the last request
        self.held: dict[int, dict[str, Any]] = {}

    def restore(self, weights: dict[str, Any]) -> None:
        """Gives an engine that was started again the weights that the one before had.

        Args:
            weights: path, version and convert of the last order.
        """
        new = self._pack(weights)
        self._engine.update_weights(new, version=weights["version"])

    def _pack(self, order: dict[str, Any]) -> NewWeights:
        new: NewWeights = self._engine.prepare_weights(read_weights(order["path"]), convert=order["convert"])
        return new

    def take(self, order: dict[str, Any]) -> dict[str, Any] | None:
        """Follows an order; None where its answer comes later.

        Args:
            order: of the front.
        """
        if order["op"] == "read_weights":
            if order["in_flight"] not in IN_FLIGHT:
                raise ValueError(f"in_flight must be one of {', '.join(IN_FLIGHT)}")
            self._reading = order, self._threads.submit(self._pack, order)
            return None
        if order["op"] == "drop_weights":
            self._reading = self._read = None
            return {}
        if self._engine.weights_version == order["version"]:
            return {}  # it was started again, with them
        if self._read is None or self._read[0] != order["version"]:
            raise ValueError(f"no weights of version {order['version']} were read")
        self._waiting = order
        return None

    @property
    def holds(self) -> bool:
        """Whether new requests must wait."""
        return self._waiting is not None and self._waiting["in_flight"] == "finish"

    @property
    def busy(self) -> bool:
        """Whether answers() has something to do."""
        return self._reading is not None or self._waiting is not None

    def answers(self) -> list[Answer]:
        """Puts in what can be, between two steps; answers of orders that are done."""
        out = []
        if self._reading is not None:
            order, read = self._reading
            if not self._engine.has_unfinished_requests():
                wait([read], 0.005)
            if read.done():
                self._reading = None
                out.append((self._done(order, read), list[Any]()))
        order = self._waiting or {}
        if (
            order
            and self._read is not None
            and (not self.holds or not self._engine.has_unfinished_requests())
        ):
            how = {name: order[name] for name in ("version", "in_flight", "keep_prefix_cache")}
            self._engine.update_weights(self._read[1], **how)
            self._read = self._waiting = None
            out.append(({"id": order["id"]}, []))
        return out

    def _done(self, order: dict[str, Any], read: Future[NewWeights]) -> dict[str, Any]:
        error = read.exception()
        if error is not None:
            return failure(order["id"], error)
        self._read = order["version"], read.result()
        return {"id": order["id"]}
