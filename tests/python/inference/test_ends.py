"""How answers end where no token can be drawn, or a grammar says so; what the engine keeps of requests."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import numpy as np
import pytest
import warptape as wt
from serving_models import write_llm
from warptape.inference import LLM, SamplingParams, StructuredOutputsParams
from warptape.inference.engine import MOST_SALTS, NO_PROBABILITIES
from warptape.models import Decoder, DecoderConfig

VOCAB, BAD = 26, 7


def model(value: float | None = None) -> Decoder:
    """Its logits are no numbers after the token BAD, where a value is given."""
    wt.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    made = Decoder(DecoderConfig(vocab_size=VOCAB, max_position_embeddings=64, **sizes))
    if value is not None:
        made.embed_tokens.weight.data[BAD] = value
    return made


KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1e-320},  # whose inverse is infinite
    {"top_k": 5, "top_p": 0.9, "min_p": 0.1},
    {"logprobs": 3},
    {"prompt_logprobs": 2},
    {"repetition_penalty": 1.3, "presence_penalty": 1.0},
    {"n": 3},
    {"allowed_token_ids": [1, 2]},
]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("speculation", ["none", "ngram", "draft"])
def test_logits_that_are_no_numbers_end_their_answers_alone(value: float, speculation: str) -> None:
    config = {
        "none": None,
        "ngram": {"num_speculative_tokens": 3},
        "draft": {"num_speculative_tokens": 2, "model": model(value)},
    }[speculation]
    broken, whole = LLM(model(value), speculative_config=config), LLM(model())
    for kind in KINDS:
        params = SamplingParams(max_tokens=6, seed=3, **kind)
        ended, others = broken.generate([[1, BAD], [1, 2, 3]], params)
        for answer in ended.outputs:
            assert (answer.finish_reason, answer.token_ids) == ("error", []), kind
            assert answer.stop_reason == NO_PROBABILITIES
        for answer, expected in zip(others.outputs, whole.generate([[1, 2, 3]], params)[0].outputs):
            tokens = expected.token_ids
            drawn = BAD in tokens[:-1]
            assert answer.token_ids == (tokens[: tokens.index(BAD) + 1] if drawn else tokens), kind
            assert answer.finish_reason == ("error" if drawn else "length")


def test_parameters_that_leave_no_token() -> None:
    llm = LLM(model())
    none = SamplingParams(logit_bias=dict.fromkeys(range(VOCAB), float("-inf")))
    assert llm.generate([[1]], none)[0].outputs[0].finish_reason == "error"
    with pytest.raises(ValueError, match="logit_bias must be below infinity"):
        llm.generate([[1]], SamplingParams(logit_bias={1: float("inf")}))


# ---- grammars ----

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
          "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
GRAMMARS: list[tuple[dict[str, Any], Any]] = [
    ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
    ({"regex": "[0-9]{3}"}, lambda text: re.fullmatch("[0-9]{3}", text)),
    ({"regex": "a*"}, lambda text: re.fullmatch("a*", text)),
    ({"grammar": 'start: "a" "b"* "c"'}, lambda text: re.fullmatch("ab*c", text)),
    ({"json": SCHEMA}, json.loads),
]
BESIDE: list[dict[str, Any]] = [
    {},
    {"min_tokens": 20},
    {"ignore_eos": True},
    {"min_tokens": 20, "ignore_eos": True},
    {"min_tokens": 20, "bad_words": ["zz"]},
    {"min_tokens": 20, "stop_token_ids": [24]},
    {"min_tokens": 30, "temperature": 0.0},
]


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    pytest.importorskip("llguidance")
    folder = write_llm(tmp_path_factory.mktemp("ends"), max_position_embeddings=256)
    without = write_llm(tmp_path_factory.mktemp("endless"), max_position_embeddings=256, eos_token_id=None)
    draft = {"num_speculative_tokens": 2, "model": str(folder)}
    return {
        "plain": LLM(folder),
        "ngram": LLM(folder, speculative_config={"num_speculative_tokens": 4}),
        "draft": LLM(folder, speculative_config=draft),
        "no-end": LLM(without),  # without an end-of-sequence token
    }


@pytest.mark.parametrize("name", ["plain", "ngram", "draft", "no-end"])
def test_grammars_end_where_they_are_whole(engines, name: str) -> None:
    """Whatever min_tokens and ignore_eos say: there is no other text to go on with."""
    encode = engines[name].get_tokenizer().encode
    soon = dict.fromkeys(encode("}c"), 3.0) | dict.fromkeys(encode(" \n\t\r"), -100.0)
    for grammar, fits in GRAMMARS:
        for beside in BESIDE:
            constraint = StructuredOutputsParams(**grammar)
            params = {"max_tokens": 60, "seed": 1, "logit_bias": soon, **beside}
            (out,) = engines[name].generate("give", SamplingParams(structured_outputs=constraint, **params))
            answer, endless = out.outputs[0], grammar in ({"regex": "a*"}, GRAMMARS[3][0])
            assert answer.finish_reason == "stop" or (endless and answer.finish_reason == "length"), (
                grammar,
                beside,
                answer,
            )
            assert answer.finish_reason == "length" or fits(answer.text), (grammar, beside, answer.text)
            if grammar == {"regex": "a*"}:  # which can always go on
                assert len(answer.token_ids) >= beside.get("min_tokens", 0)


# ---- what is kept ----


def test_salts_are_not_kept(monkeypatch) -> None:
    engine = LLM(model()).llm_engine

    def cached(salt: str | None) -> int:
        engine.add_request("x", [1] * 33, SamplingParams(max_tokens=1, seed=0), cache_salt=salt)
        while True:
            for out in engine.step():
                if out.finished:
                    return out.num_cached_tokens

    assert [cached(s) for s in (None, None, "", "", "a", "a", "b")] == [0, 32, 0, 32, 0, 32, 0]
    for i in range(MOST_SALTS + 10):
        engine._salt(0, f"{i}" * 100, b"")
    assert len(engine._salts) == MOST_SALTS
    assert sum(len(digest) for _, digest in engine._salts) <= 32 * MOST_SALTS
    assert cached("a") == 0  # long out of use: found no more, and never another's


def test_a_step_does_not_look_at_all_that_wait() -> None:
    """Time of a step beside 8,000 waiting requests, and beside 100."""

    def seconds(count: int, **params: Any) -> float:
        llm = LLM(model(), max_num_seqs=4, speculative_config={"num_speculative_tokens": 2})
        each = SamplingParams(max_tokens=40, seed=1, ignore_eos=True, **params)
        stream = llm._run([[1, 2, 3]] * count, each, None, None, [])
        next(stream)
        times = []
        for _ in range(60):
            start = time.perf_counter()
            next(stream)
            times.append(time.perf_counter() - start)
        return float(np.median(sorted(times)[-20:]))  # those with a step in them

    for params in ({}, {"allowed_token_ids": [1, 2, 3]}):
        few = min(seconds(100, **params) for _ in range(2))
        many = min(seconds(8_000, **params) for _ in range(2))
        assert many < 3 * few + 0.002, (few, many)


def test_states_of_prompts_are_those_of_one_pass() -> None:
    """In chunks beside others; what was computed before is told again, and nothing is found in the cache."""
    llm = LLM(model(), max_num_batched_tokens=16)
    engine, prompt = llm.llm_engine, [int(t) for t in np.random.default_rng(0).integers(0, VOCAB, 50)]
    llm.generate([prompt], SamplingParams(max_tokens=1))
    got: dict[int, Any] = {}

    def watch(position: int, states: Any) -> None:
        for i, row in enumerate(states.float().numpy().copy()):
            got.setdefault(position + i, row)

    engine.add_request("other", [1, 2], SamplingParams(max_tokens=20, seed=0, ignore_eos=True))
    engine.step()
    engine.add_request("x", prompt, SamplingParams(max_tokens=1, seed=0), states=watch, share_cache=False)
    while engine.has_unfinished_requests():
        engine.step()
    with wt.inference_mode():
        whole = engine.runner.model.hidden(wt.tensor([prompt]))[0].float().numpy()
    assert sorted(got) == list(range(50))
    np.testing.assert_allclose(np.stack([got[i] for i in range(50)]), whole, atol=1e-5)
