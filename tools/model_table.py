"""Writes the table of architectures and kinds of files into docs/guides/models.md.

After a change of warptape.models.families or gguf_families: python tools/model_table.py
"""

from __future__ import annotations

import argparse
from pathlib import Path

from warptape.models.config import DecoderConfig, EncoderConfig
from warptape.models.gguf_families import FAMILIES
from warptape.models.llava import LlavaConfig
from warptape.models.siglip import SiglipConfig
from warptape.models.vision import VisionConfig
from warptape.models.whisper import WhisperConfig

PAGE = Path(__file__).resolve().parents[1] / "docs/guides/models.md"
BEGIN, END = "<!-- made by tools/model_table.py -->\n", "<!-- end -->\n"


def table() -> str:
    """A row for each `model_type`: its class in transformers, and what of it is read."""
    lines = ["| `model_type` | class | folders | folders in few bits | GGUF files |", "| --- " * 5 + "|"]
    for config in (DecoderConfig, EncoderConfig, WhisperConfig, VisionConfig, SiglipConfig, LlavaConfig):
        for kind, of in config.architectures.items():
            files = [
                f"`{name}`" for name, each in FAMILIES.items() if kind in (each.architecture, *each.also)
            ]
            few = "yes" if config in (DecoderConfig, EncoderConfig) else "no"
            lines.append(f"| `{kind}` | `{of.name}` | yes | {few} | {', '.join(files) or 'no'} |")
    return "\n".join(lines) + "\n"


def written(page: str) -> str:
    """The page with the table of today.

    Args:
        page: its text.
    """
    before, rest = page.split(BEGIN)
    return before + BEGIN + table() + END + rest.split(END)[1]


def main() -> None:
    """Writes the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(written(PAGE.read_text()))


if __name__ == "__main__":
    main()
