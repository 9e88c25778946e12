"""What clients are told of models: KServe's index, and the status page."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .rollout import RolloutState


def index_rows(name: str, model: Any, switch: RolloutState, numbers: Iterable[int]) -> list[dict[str, Any]]:
    """Of a model's versions: name, version, state and reason.

    Args:
        model: with what is loaded of it; None where nothing is.
    """
    rows: list[dict[str, Any]] = []
    for number in sorted(numbers):
        reason, state = switch.refused.get(number, ""), "UNAVAILABLE"
        if model is not None and number == model.loading:
            state = "LOADING"
        elif model is not None and number in model.versions:
            state = "READY" if model.versions[number].ready else "LOADING"
        elif model is not None and not switch.loaded:
            reason = reason or model.error
        rows.append({"name": name, "version": str(number), "state": state, "reason": reason})
    if not rows:
        reason = model.error if model and model.error else "it has no version folder"
        rows.append({"name": name, "state": "UNAVAILABLE", "reason": reason})
    return rows


def described(name: str, model: Any) -> dict[str, Any]:
    """A model with its versions and shares.

    Args:
        name: of the model.
        model: with its versions.
    """
    s, share = model.switch, model.controller.share
    versions = []
    for number, v in sorted(model.versions.items()):
        role = {s.current: "current", s.previous: "previous", s.candidate: "candidate"}.get(number, "")
        percent = {"current": 100 - share, "candidate": share}.get(role, 0)
        versions.append(
            {
                "version": number,
                "role": role,
                "share": percent,
                "ready": v.ready,
                "users": v.users,
                "restarts": v.restarts,
                "kind": v.spec.kind,
                "pids": [w.pid for w in v.workers],
                "waiting": v.batcher.core.waiting if v.batcher else 0,
            }
        )
    refused = {str(number): reason for number, reason in s.refused.items()}
    return {"name": name, "versions": versions, "refused": refused, "error": model.error}
