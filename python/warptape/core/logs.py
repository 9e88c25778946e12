"""What the parts of warptape log, by `WARPTAPE_LOGS` or `set_logs`: torch._logging's manner over `logging`.

    WARPTAPE_LOGS="+distributed,serve,-compiler" python train.py

`name` logs from INFO on, `+name` from DEBUG, `-name` errors alone; `all` stands for every part. Records go to
stderr with the rank of a process group where there is one. Loggers are named `warptape.<part>`, so that a
program's own configuration of `logging` reaches them as well. A compiled function logs what was asked for
when it was compiled.
"""

from __future__ import annotations

import logging
import os

#: Parts that log.
PARTS = ("compiler", "distributed", "serve")
_SIGNS = {"+": logging.DEBUG, "-": logging.ERROR}


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        rank = os.environ.get("RANK")
        self._style._fmt = (
            f"{'' if rank is None else f'[rank{rank}] '}%(asctime)s %(name)s %(levelname)s: %(message)s"
        )
        return super().format(record)


_handler = logging.StreamHandler()
_handler.setFormatter(_Formatter())


def set_logs(**levels: int) -> None:
    """Sets what parts log, for example `set_logs(distributed=logging.DEBUG)`.

    Args:
        levels: a level of `logging` for each part named; `all` for those that are not named.

    Raises:
        ValueError: for a part that does not log, before any level is changed.
    """
    unknown = sorted(set(levels) - {*PARTS, "all"})
    if unknown:
        raise ValueError(f"no part named {', '.join(unknown)} logs; expected {', '.join(PARTS)} or all")
    for part in PARTS:
        level = levels.get(part, levels.get("all"))
        if level is None:
            continue
        logger = logging.getLogger(f"warptape.{part}")
        logger.setLevel(level)
        if _handler not in logger.handlers:
            logger.addHandler(_handler)
            logger.propagate = False  # or the root logger's handler would print it twice


def from_environment(text: str) -> None:
    """Sets what `WARPTAPE_LOGS` asks for.

    Raises:
        ValueError: for a part that does not log.
    """
    levels = {}
    for item in filter(None, (each.strip() for each in text.split(","))):
        levels[item.lstrip("+-")] = _SIGNS.get(item[0], logging.INFO)
    try:
        set_logs(**levels)
    except ValueError as error:
        raise ValueError(f"WARPTAPE_LOGS={text!r}: {error}") from None
