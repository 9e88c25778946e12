"""How long pipelines wait, on stages that sleep; and the pictures of it."""

from __future__ import annotations

import importlib.util
import re
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest
from time_limits import seconds
from warptape.parallel import pipeline as pp
from warptape.parallel.pipeline import picture
from warptape.parallel.pipeline.actions import B, W

ROOT = Path(__file__).resolve().parents[2]
ATTEMPTS = 5
LONGER = 1.6  # a loaded machine wakes a sleeper late, by as much however long it slept


def figure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("figure", ROOT / "docs/figures/pipeline.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", pp.SCHEDULES)
def test_measured_bubble_is_the_ideal_one(name: str) -> None:
    module, seen = figure(), []
    if name in (
        "interleaved_zero_bubble",
        "zb_v",
        "dualpipe_v",
    ):  # the least bubble of the most sleeps, each a little late
        module.SECONDS *= 3
    # The first stage has no gradient of an input to make first: all its backward is where the others have the
    # second half. That fits into the gaps of the other schedules, and lengthens this one.
    most = 0.6 if name == "interleaved_zero_bubble" else 0.15
    ideal = module.ideal(name)
    expected = [[a for a, _, _ in spans] for spans in ideal.spans]
    weights = {a for actions in expected for a in actions if a.kind is W}

    def asked(action: pp.Action) -> pp.Action:
        """What the schedule says where the first stage ran backward at once."""
        half = replace(action, kind=W)
        return half if action.kind is B and half in weights else action

    for _ in range(ATTEMPTS):
        timeline = module.measured(name)
        order = [[a for a, _, _ in spans] for spans in timeline.spans]
        assert [list(map(asked, actions)) for actions in order] == expected
        if name == "zb_h1":  # the first stage runs backward at once, and is drawn so
            assert {a.kind.value for a in order[0]} == {"F", "I", "B"}
            assert {a.kind.value for a in order[1]} == {"F", "I", "W"}
        seen.append(timeline.bubble / module.ideal(name).bubble)
        if abs(seen[-1] - 1) <= seconds(most):
            return
        module.SECONDS *= LONGER
    pytest.fail(f"measured bubbles are {seen} times the ideal one")


def test_a_picture_has_a_box_for_each_computation() -> None:
    timeline = pp.simulate_schedule(pp.zb_h1(3, 5), 3)
    text = pp.draw_timelines({"one": timeline, "other": timeline})
    for kind in ("F", "I", "W"):
        color = picture.COLORS[pp.Kind(kind)]
        assert text.count(color) == 2 * 15 + 1  # and the legend
    assert "one: waits 12% of the time" in text  # 2 units of 17
    widths = [float(w) for w in re.findall(r'x="52" y="\d+.?\d*" width="([\d.]+)"', text)]
    assert max(widths) == picture.WIDTH - picture.LEFT - 8
    assert text.startswith("<svg") and text.rstrip().endswith("</svg>")


def test_the_pictures_of_the_page_show_each_schedule() -> None:
    module = figure()
    assert set(module.TITLES) == set(pp.SCHEDULES)
    for name in pp.SCHEDULES:
        text = (ROOT / f"docs/figures/pipeline_{name}.svg").read_text()
        ideal = module.ideal(name)
        boxes = text.count("stroke-width")
        assert boxes == 2 * sum(map(len, ideal.spans))
        assert f"ideal: waits {ideal.bubble / ideal.length:.0%} of the time" in text
