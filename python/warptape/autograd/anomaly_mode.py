"""Anomaly detection: errors of backward name the forward call they belong to; NaN gradients are errors."""

from __future__ import annotations

from typing import Any

from .. import _C

__all__ = ["detect_anomaly", "set_detect_anomaly"]


class set_detect_anomaly:
    """Switches anomaly detection on or off at once; as a context, puts it back at the end.

    Args:
        mode: on or off.
        check_nan: whether a NaN gradient raises.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = (_C._set_anomaly_enabled(mode), _C._set_anomaly_check_nan(check_nan))

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: Any) -> None:
        _C._set_anomaly_enabled(self._before[0])
        _C._set_anomaly_check_nan(self._before[1])


class detect_anomaly(set_detect_anomaly):
    """Inside, the forward's traceback is kept per op, and a NaN gradient raises with it.

    It costs time: use it to find an error.

    Args:
        check_nan: whether a NaN gradient raises.

    >>> x = torch.tensor([0.0], requires_grad=True)
    >>> with torch.autograd.detect_anomaly():
    ...     (x * 2).sum().backward()
    """

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan

    def __enter__(self) -> None:
        super().__init__(True, self._check_nan)
