"""The decisions about versions, without processes: time is a number."""

import json

import pytest
from warptape.serve.config import ConfigError, Rollout, config_of, read_config
from warptape.serve.rollout import (
    Controller,
    RolloutError,
    RolloutState,
    offered,
    refused,
    rolled_back,
)

ROLLOUT = Rollout(steps=(10, 50, 100), hold_seconds=10, watch_seconds=30, error_rate=0.1, min_requests=10)


BEGUN = RolloutState(current=1, candidate=2)


def controller(switch: RolloutState = BEGUN) -> Controller:
    return Controller(ROLLOUT, switch, 0.0)


def test_first_version_serves_at_once():
    assert offered(RolloutState(), 3) == RolloutState(current=3)


def test_candidate_gets_exactly_its_share():
    c = controller()
    assert [c.pick() for _ in range(100)].count(2) == 10
    c.adopt(RolloutState(current=1, candidate=2, step=1), 5.0)
    assert [c.pick() for _ in range(100)].count(2) == 50
    assert [controller(RolloutState(current=1)).pick() for _ in range(5)] == [1] * 5


def test_steps_go_on_with_time_and_the_old_version_is_kept():
    c, seen = controller(), []
    for now in range(40):
        switch = c.decide(float(now))
        if switch is not None:
            c.adopt(switch, float(now))
            seen.append((now, c.share, switch.current, switch.previous))
    assert seen == [(10, 50, 1, None), (20, 0, 2, 1)]
    assert c.pick() == 2


@pytest.mark.parametrize("errors,goes", [(1, False), (2, True)])
def test_errors_of_the_candidate_roll_it_back(errors, goes):
    c = controller()
    for i in range(10):
        c.record(2, i >= errors)
        c.record(1, False)  # the old one's errors say nothing of the new one
    switch = c.decide(1.0)
    assert (switch is not None) == goes
    if goes:
        assert switch == RolloutState(current=1, refused=switch.refused) and "2 of 10" in switch.refused[2]


def test_few_requests_say_nothing():
    c = controller()
    for _ in range(9):
        c.record(2, False)
    assert c.decide(1.0) is None


def test_errors_after_the_last_step_bring_the_old_version_back_while_watched():
    def taken_over():
        c = controller(RolloutState(current=1, candidate=2, step=1))
        c.adopt(c.decide(10.0), 10.0)
        assert c.switch == RolloutState(current=2, previous=1)
        return c

    c = taken_over()
    for _ in range(10):
        c.record(2, False)
    assert c.decide(11.0).current == 1
    late = taken_over()
    assert late.decide(41.0) is None
    for _ in range(10):
        late.record(2, False)
    assert late.decide(42.0) is None


def test_a_step_forgets_the_counts_of_the_one_before():
    c = controller()
    for _ in range(9):
        c.record(2, False)
    c.adopt(c.decide(10.0), 10.0)
    c.record(2, False)
    assert c.decide(10.5) is None


def test_rollback_by_order():
    s = rolled_back(RolloutState(current=1, candidate=2), "asked")
    assert s == RolloutState(current=1, refused={2: "asked"})
    s = rolled_back(RolloutState(current=2, previous=1), "asked")
    assert s == RolloutState(current=1, refused={2: "asked"})
    with pytest.raises(RolloutError, match="no previous"):
        rolled_back(s, "asked")
    assert offered(s, 2).refused == {}  # by number it can be asked for again


def test_what_cannot_be_offered():
    with pytest.raises(RolloutError, match="version 2 is taking over"):
        offered(RolloutState(current=1, candidate=2), 3)
    with pytest.raises(RolloutError, match="serves already"):
        offered(RolloutState(current=1), 1)


def test_switches_go_through_json():
    s = refused(RolloutState(4, 3, 5, 1), 2, "corrupt")
    assert RolloutState.from_json(json.loads(json.dumps(s.to_json()))) == s
    for bad in ({}, {**s.to_json(), "current": "4"}, {**s.to_json(), "step": -1}, [], None):
        with pytest.raises(ValueError):
            RolloutState.from_json(bad)


# ---- config.json ----


def test_config_in_tritons_words():
    config = config_of(
        {
            "name": "m",
            "backend": "program",
            "max_batch_size": 16,
            "dynamic_batching": {
                "preferred_batch_size": [8, 4],
                "max_queue_delay_microseconds": 500,
                "priority_levels": 2,
                "latency_target_ms": 20,
            },
            "instance_group": [{"count": 2, "kind": "KIND_CPU"}],
            "parameters": {"threads": {"string_value": "1"}, "freeze": False},
            "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [3, -1]}],
            "output": [{"name": "y", "data_type": "TYPE_STRING", "dims": []}],
            "rollout": {"steps": [5, 100], "hold_seconds": 1},
        },
        "config.json",
        "m",
    )
    assert config.dynamic_batching.preferred_batch_size == (4, 8)
    assert config.dynamic_batching.default_priority_level == 1
    assert config.dynamic_batching.latency_target_ms == 20.0
    assert config.instances == 2 and config.parameters == {"threads": 1, "freeze": False}
    assert config.output[0].datatype == "BYTES" and config.rollout.steps == (5, 100)
    assert config.to_triton()["output"][0]["data_type"] == "TYPE_STRING"


@pytest.mark.parametrize(
    "data,message",
    [
        ({"name": "other"}, "name must be the folder's name, 'm'"),
        ({"max_batch_size": "8"}, "max_batch_size must be an integer from 0"),
        ({"max_batch_size": True}, "max_batch_size must be an integer"),
        ({"max_batch_sise": 8}, "max_batch_sise is no key; known are name"),
        ({"dynamic_batching": {}}, "dynamic_batching needs a max_batch_size"),
        (
            {"max_batch_size": 4, "dynamic_batching": {"preferred_batch_size": [8]}},
            "dynamic_batching.preferred",
        ),
        ({"max_batch_size": 4, "dynamic_batching": {"delay": 8}}, "dynamic_batching.delay is no key"),
        ({"backend": "python"}, "backend must be one of llm, program, module"),
        ({"instance_group": [{"count": 0}]}, r"instance_group\[0\].count must be an integer from 1"),
        ({"instance_group": [{"kind": "KIND_GPU"}]}, r"instance_group\[0\].kind"),
        ({"input": [{"name": "x", "data_type": "FLOAT"}]}, r"input\[0\].data_type must be TYPE_"),
        (
            {"input": [{"name": "x", "data_type": "TYPE_FP32"}] * 2},
            r"input\[1\].name must be a name of its own",
        ),
        ({"rollout": {"steps": [50, 10, 100]}}, "rollout.steps must be growing percents"),
        ({"rollout": {"error_rate": 2}}, "rollout.error_rate must be a number from 0 to 1"),
        ({"version_policy": {"all": {}}}, "version_policy must be"),
        ([], "the file must be an object"),
    ],
)
def test_wrong_configs_name_file_and_key(data, message):
    with pytest.raises(ConfigError, match="config.json: " + message):
        config_of(data, "config.json", "m")


def test_config_that_is_no_json(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config.json: no JSON"):
        read_config(tmp_path)
