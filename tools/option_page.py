"""Writes docs/reference/serving_options.md, the options of `warptape serve`.

After a change of EngineArgs, LLM, or the options of the server: python tools/option_page.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from warptape.serve.options import page

PAGE = Path(__file__).resolve().parents[1] / "docs/reference/serving_options.md"


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
