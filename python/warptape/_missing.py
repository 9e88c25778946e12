"""What to say of a PyTorch name that is not here."""

from __future__ import annotations

import difflib


def missing(name: str) -> str:
    """The message of the AttributeError for `warptape.<name>`, with the nearest name that exists."""
    import warptape

    near = difflib.get_close_matches(name, [n for n in vars(warptape) if not n.startswith("_")], 1)
    hint = f"; nearest: {near[0]}" if near else ""
    return f"warptape has no torch.{name} yet{hint}"
