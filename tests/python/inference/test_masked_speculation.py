"""Speculation for requests with masks: tokens and log-probabilities of the run without, in fewer steps."""

import numpy as np
import pytest
import warptape as torch
from model_configs import SMALL
from serving_models import EOS, write_llm
from warptape.inference import LLM, SamplingParams, StructuredOutputsParams
from warptape.inference.step_masks import StepMasks, masks_along
from warptape.inference.token_masks import TokenMask
from warptape.models import Decoder, DecoderConfig

pytest.importorskip("tokenizers")
pytest.importorskip("llguidance")
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "colour": {"enum": ["red", "green", "blue"]},
        "sizes": {"type": "array", "items": {"type": "integer", "maximum": 99, "minimum": 0}, "maxItems": 3},
    },
    "required": ["name", "colour", "sizes"],
    "additionalProperties": False,
}
COMPACT = {**SCHEMA, "x-guidance": {"whitespace_flexible": False}}
GRAMMARS = (
    {"json": COMPACT},
    {"json": SCHEMA},
    {"regex": "(ab|abc|cab){2,9}"},
    {"choice": ["yes", "yesterday", "no"]},
    {"grammar": 'start: "a" "b"+ "c" | "the same text " | "the same test"'},
)
NGRAM = {"num_speculative_tokens": 3, "method": "ngram", "prompt_lookup_min": 1}


class PlantedError(RuntimeError):
    pass


def draft():
    """A model of the vocabulary that is another one than the model."""
    torch.manual_seed(8)
    return Decoder(
        DecoderConfig(**{**SMALL, "vocab_size": 257, "max_position_embeddings": 256, "eos_token_id": EOS})
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_llm(tmp_path_factory.mktemp("masked"), max_position_embeddings=256)


@pytest.fixture(scope="module")
def plain(folder):
    return LLM(folder, enable_prefix_caching=False)


def random_params(rng):
    """With masks of every kind, and without."""
    params = {
        "max_tokens": int(rng.integers(1, 40)),
        "seed": int(rng.integers(1 << 40)),
        "temperature": float(rng.choice([0.0, 0.7, 1.5])),
        "logprobs": 1,
        "n": int(rng.integers(1, 3)),
    }
    kind = rng.integers(8)
    if kind:
        params["structured_outputs"] = StructuredOutputsParams(**GRAMMARS[rng.integers(len(GRAMMARS))])
    if kind < 3:
        params["bad_words"] = ["ab", "e", "the same t"][: rng.integers(1, 4)]
    if kind == 1:  # some of what the grammar may want is not there: the request ends by an error
        params["allowed_token_ids"] = [*rng.choice(256, 240, replace=False).tolist(), EOS]
    if kind == 3:
        params["min_tokens"] = int(rng.integers(params["max_tokens"]))
    if kind == 4:
        params |= {"repetition_penalty": 1.3, "frequency_penalty": 0.3}
    return SamplingParams(**params)


def answers(output):
    """Tokens, ends and log-probabilities to the bit."""
    return [
        (
            o.token_ids,
            o.finish_reason,
            o.stop_reason,
            [{t: p.logprob for t, p in d.items()} for d in o.logprobs],
        )
        for o in output.outputs
    ]


@pytest.mark.parametrize("kind", ["ngram", "draft", "self"])
@pytest.mark.parametrize("seed", range(2))
def test_random_traffic_equals_the_run_without(folder, plain, kind, seed):
    """Beside others, in chunks, with scarce pages, and where requests are aborted in the middle."""
    rng = np.random.default_rng(seed)
    models = {"ngram": None, "draft": draft(), "self": folder}
    config = NGRAM if kind == "ngram" else {"num_speculative_tokens": 3, "model": models[kind]}
    engine = LLM(folder, speculative_config=config, max_num_batched_tokens=24, max_num_seqs=5).llm_engine
    asked, got, aborted = {}, {}, set()

    def step():
        for output in engine.step():
            if output.finished:
                got[output.request_id] = answers(output)

    for i in range(24):
        prompt, params = "the same text ab abc " * int(rng.integers(4)) + str(i), random_params(rng)
        asked[str(i)] = prompt, params
        engine.add_request(str(i), prompt, params)
        for _ in range(rng.integers(0, 5)):
            step()
        if rng.integers(8) == 0 and engine._requests:
            aborted.add(gone := str(rng.choice(list(engine._requests))))
            assert engine.abort_request(gone) is not None
    while engine.has_unfinished_requests():
        step()
    for name, (prompt, params) in asked.items():
        if name not in aborted:
            assert got[name] == answers(plain.generate(prompt, params)[0]), (name, params)
    stats = engine.stats()
    assert 0 < stats["accepted_tokens"] <= stats["proposed_tokens"]
    assert stats["accepted_tokens"] < stats["proposed_tokens"] or kind == "self"  # some were taken back
    assert stats["idle_pages"] == engine.num_pages and not stats["running"]


def test_forced_text_is_accepted_whole(folder, plain):
    text = "this is the only text that may come"
    params = SamplingParams(max_tokens=60, structured_outputs=StructuredOutputsParams(choice=[text]))
    config = {"num_speculative_tokens": 8, "method": "ngram"}
    llm = LLM(folder, speculative_config=config)
    for each in (plain, llm):
        before = each.llm_engine.stats()["steps"]
        (out,) = each.generate("Say", params)[0].outputs
        assert out.text == text and out.finish_reason == "stop"
        steps = each.llm_engine.stats()["steps"] - before
        if each is plain:
            assert steps == len(text) + 1
    assert steps <= 2 + len(text) // 8
    stats = llm.llm_engine.stats()
    assert stats["accepted_tokens"] >= len(text) - steps


def test_a_draft_model_draws_what_the_mask_allows(folder, plain):
    """A draft model that is the model draws the same: none of its tokens is taken back."""
    params = SamplingParams(
        max_tokens=50, seed=4, structured_outputs=StructuredOutputsParams(json=COMPACT), bad_words=["red"]
    )
    llm = LLM(folder, speculative_config={"num_speculative_tokens": 3, "model": folder})
    assert (
        llm.generate("x", params)[0].outputs[0].token_ids
        == plain.generate("x", params)[0].outputs[0].token_ids
    )
    stats = llm.llm_engine.stats()
    assert stats["accepted_tokens"] > 20
    assert stats["proposed_tokens"] - stats["accepted_tokens"] <= 3  # beyond the end


@pytest.mark.parametrize("of_draft", [False, True])
def test_a_forward_pass_that_fails_loses_nothing(folder, plain, of_draft, monkeypatch):
    params = SamplingParams(
        max_tokens=40, seed=2, structured_outputs=StructuredOutputsParams(json=COMPACT), logprobs=1
    )
    config = {"num_speculative_tokens": 3, "model": folder} if of_draft else NGRAM
    engine = LLM(folder, speculative_config=config).llm_engine
    engine.add_request("a", "text", params)
    runner, calls = engine._draft if of_draft else engine.runner, 0
    forward = runner.forward

    def fails(batch):
        nonlocal calls
        calls += 1
        if calls % 3 == 0:
            raise PlantedError
        return forward(batch)

    monkeypatch.setattr(runner, "forward", fails)
    failed = 0
    while engine.has_unfinished_requests():
        try:
            for output in engine.step():
                last = output
        except PlantedError:
            failed += 1
    assert failed > 2 and answers(last) == answers(plain.generate("text", params)[0])


def words(*tokens):
    out = [0, 0]
    for token in tokens:
        out[token // 32] |= 1 << token % 32
    return out


def test_masks_along_drafts():
    mask = TokenMask(words(1, 2, 3, 40), [[1, 2], [2, 3, 40]], ([3], 1), None)
    assert masks_along(mask, []) == [words(1, 2, 40)]
    right = [words(1, 2, 40), words(1, 2, 3, 40), words(1, 2, 3)]
    assert masks_along(mask, [2, 3]) == right
    assert masks_along(mask, [2, 3], 1) == right[1:] and masks_along(mask, [2, 3], 2) == right[2:]
    assert masks_along(mask, [2, 3, 40, 1]) == right  # a draft that its mask forbids
    assert masks_along(mask, [3, 1]) == right[:1]
    assert masks_along(mask, [2, 3]) == right  # it stays where it was
    assert [mask.fits(each) for each in ([2, 3, 1], [2, 3, 40], [3], [7], [])] == [3, 2, 0, 0, 0]
    only = TokenMask(words(1), [[1, 1]], ([], 0), None)
    assert masks_along(only, [1, 1]) == [words(1)]  # no token may come after it
    only.accept(1)
    assert masks_along(only, []) == []


def test_masks_that_a_step_has_are_not_made_again():
    class Core:
        def __init__(self):
            self.calls = []

        def allow(self, *call):
            self.calls.append(call)

    core, mask = Core(), TokenMask(words(1, 2), [[1, 2]], ([], 0), None)
    masks = StepMasks(core, 4)
    for drafts in ([], [1]):
        masks.begin(5, mask, drafts, len(drafts))
        assert masks.give() == []
    masks.begin(5, mask, [1], 0)
    masks.begin(6, TokenMask(words(1), [[1]], ([], 0), None), [], 0)
    assert masks.give() == [6]
    assert core.calls == [(5, 0, words(1, 2)), (5, 1, words(1))]
    masks.begin(5, mask, [2, 1], 0)
    masks.reset()  # a step that failed
    masks.begin(5, mask, [2], 0)
    assert masks.give() == [] and core.calls[2:] == [(5, 0, words(1, 2)), (5, 1, words(1, 2))]


def test_bad_words_and_a_grammar_cut_what_is_proposed(plain):
    grammar = plain.llm_engine.grammar(
        SamplingParams(structured_outputs=StructuredOutputsParams(regex="(abc)+"))
    )
    tokens = plain.get_tokenizer().encode("abcabd")
    assert grammar.fits(tokens) == 5 and grammar.forced() == tokens[:3]
    along = masks_along(grammar, tokens)
    assert len(along) == 6 and along[0] == grammar.mask() and along[5] == along[2]
    assert along[3] == [*along[0][:8], 1]  # the end may come there as well
    both = TokenMask(words(*range(64)) + [(1 << 32) - 1] * 7, [tokens[1:5]], ([], 0), grammar)
    assert both.forced() == tokens[:3] and both.fits(tokens) == 4
