"""The walks of docs/explanation/how_it_works/python.md: which files of the package a call goes through."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import warptape as wt
from warptape import distributed as dist
from warptape import nn
from warptape.inference import LLM, SamplingParams
from warptape.models import Decoder, DecoderConfig
from warptape.nn.parallel import DistributedDataParallel

PAGE = Path(__file__).parents[2] / "docs/explanation/how_it_works/python.md"
PACKAGE = Path(wt.__file__).parent


def files_of(call: Callable[[], object]) -> list[str]:
    """The files of the package whose functions run in a call on this thread, by their first use."""
    found: dict[str, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            found[path.relative_to(PACKAGE).as_posix()] = None

    call()  # what the first call alone does is no part of the walk
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return list(found)


def of_module() -> list[str]:
    model, x = nn.Linear(4, 3), wt.randn(8, 4)
    return files_of(lambda: model(x))


def of_data_parallel() -> list[str]:
    def rank() -> list[str]:
        model = DistributedDataParallel(nn.Linear(4, 3))
        optimizer = wt.optim.SGD(model.parameters(), lr=0.1)
        x, target = wt.randn(8, 4), wt.zeros(8, dtype=wt.long)

        def step() -> None:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), target).backward()
            optimizer.step()

        return files_of(step)

    found: list[list[str]] = dist.simulate(2, rank)
    assert found[0] == found[1]
    return found[0]


def of_generation() -> list[str]:
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    llm = LLM(Decoder(DecoderConfig(vocab_size=26, max_position_embeddings=64, **sizes)))
    params = SamplingParams(max_tokens=2, temperature=0)
    return files_of(lambda: llm.generate({"prompt_token_ids": [1, 2]}, params, use_tqdm=False))


WALKS = {
    "model(x)": of_module,
    "A step of DistributedDataParallel": of_data_parallel,
    "LLM.generate": of_generation,
}


@pytest.mark.parametrize("name", WALKS)
def test_the_page_has_the_files_of_a_walk(name: str) -> None:
    section = PAGE.read_text().split(f"### {name}\n")[1].split("\n#")[0]
    written = re.findall(r"^\d+\. \[`([\w/.]+)`\]", section, re.M)
    assert sorted(WALKS[name]()) == sorted(written)
