"""The programs, each with a driver: a folder of a repository, sizes, and data. One file holds one kind."""

from __future__ import annotations

import _agents
import _examples
import _generative
import _language
import _learning
import _ranks
import _science
import _speech
import _vision
from _registry import PROGRAMS

__all__ = [
    "PROGRAMS",
    "_agents",
    "_examples",
    "_generative",
    "_language",
    "_learning",
    "_ranks",
    "_science",
    "_speech",
    "_vision",
]
