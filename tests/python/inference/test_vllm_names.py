"""Names of vLLM that choose tokens, outputs and prompts: each against what it means."""

import asyncio
import json

import pytest
from serving_models import EOS, write_llm
from warptape.inference import LLM, AsyncLLM, RequestOutputKind, SamplingParams, StructuredOutputsParams

tokenizers = pytest.importorskip("tokenizers")
GREEDY = {"temperature": 0, "max_tokens": 12, "ignore_eos": True}


@pytest.fixture(scope="module")
def llm(tmp_path_factory):
    return LLM(write_llm(tmp_path_factory.mktemp("names"), max_position_embeddings=256))


def answer(llm, prompt="Once", **params):
    return llm.generate(prompt, SamplingParams(**{**GREEDY, **params}))[0].outputs[0]


def has(tokens, part):
    return any(tokens[i : i + len(part)] == part for i in range(len(tokens)))


def test_allowed_token_ids(llm):
    assert set(answer(llm, temperature=1.0, seed=1, allowed_token_ids=[65, 70, 200]).token_ids) <= {
        65,
        70,
        200,
    }
    assert answer(llm, allowed_token_ids=[7]).token_ids == [7] * 12
    assert answer(llm, allowed_token_ids=list(range(257))).token_ids == answer(llm).token_ids
    ended = answer(llm, allowed_token_ids=[EOS], ignore_eos=False)
    assert (ended.token_ids, ended.finish_reason) == ([EOS], "stop")
    stuck = answer(llm, allowed_token_ids=[EOS], ignore_eos=False, min_tokens=2)
    assert stuck.finish_reason == "error" and EOS not in stuck.token_ids


def test_bad_words(llm):
    """Whichever three tokens come by themselves do not come where their text is a bad word."""
    tokenizer, free = llm.get_tokenizer(), answer(llm).token_ids
    word = "xyz"
    forced = dict.fromkeys(tokenizer.encode(word), 60.0)
    tokens = tokenizer.encode(word)
    biased = {"logit_bias": forced, "temperature": 1.0, "max_tokens": 60}
    for seed in range(3):
        assert has(answer(llm, seed=seed, **biased).token_ids, tokens)
        out = answer(llm, seed=seed, bad_words=[word], **biased).token_ids
        assert not has(out, tokens) and tokens[2] in out and has(out, tokens[:2])
    # One token is never drawn; another request of the batch, and one without such texts, are as before.
    params = [SamplingParams(**GREEDY, bad_words=[tokenizer.decode([65])]), SamplingParams(**GREEDY)]
    biased_one = SamplingParams(**{**GREEDY, "logit_bias": {65: 99.0}}, bad_words=["never " * 5])
    outs = llm.generate(["Once", "Once", "Once"], [*params, biased_one])
    assert outs[1].outputs[0].token_ids == free and outs[2].outputs[0].token_ids == [65] * 12
    params[0].logit_bias = {65: 99.0}
    assert 65 not in llm.generate("Once", params[0])[0].outputs[0].token_ids


def test_bad_words_begin_with_a_space_or_not(tmp_path):
    from tokenizers import models, pre_tokenizers
    from warptape.inference.token_masks import bad_sequences
    from warptape.inference.tokenizer import Tokenizer

    words = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "a": 1, "▁a": 2, "b": 3}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    words.save(str(tmp_path / "tokenizer.json"))
    assert bad_sequences([" a"], Tokenizer(tmp_path)) == [[1], [2]]
    with pytest.raises(ValueError, match="bad_words need a tokenizer"):
        bad_sequences(["a"], None)


def test_masks_and_a_grammar_hold_together(llm):
    pytest.importorskip("llguidance")
    letters, ids = StructuredOutputsParams(regex="[a-d]{4}"), llm.get_tokenizer().encode
    out = answer(
        llm, structured_outputs=letters, allowed_token_ids=[*ids("bcx"), EOS], bad_words=["bb", "cc"], n=2
    )
    assert out.text in ("bcbc", "cbcb")
    stuck = answer(llm, structured_outputs=letters, allowed_token_ids=ids("xyz"))
    assert stuck.finish_reason == "error"


def test_masks_hold_beside_speculation_and_where_a_request_goes_on(llm, tmp_path):
    allowed = llm.get_tokenizer().encode("ab")
    params = SamplingParams(**GREEDY, allowed_token_ids=allowed, bad_words=["aa", "bb"], seed=3)
    out = llm.generate("abab" * 4, params)[0].outputs[0]
    whole = out.token_ids
    assert out.text in ("ab" * 6, "ba" * 6)
    config = {"num_speculative_tokens": 3, "method": "ngram", "prompt_lookup_min": 1}
    other = LLM(llm.llm_engine.runner.model, tokenizer=write_llm(tmp_path), speculative_config=config)
    assert other.generate("abab" * 4, params)[0].outputs[0].token_ids == whole
    engine = other.llm_engine
    engine.add_request("on", "abab" * 4, params, generated=[whole[:5]])
    while engine.has_unfinished_requests():
        outs = engine.step()
    assert outs[0].outputs[0].token_ids == whole


@pytest.mark.parametrize("stop", [None, "e"])
def test_output_kinds(llm, stop):
    kinds = RequestOutputKind
    params = {**GREEDY, "temperature": 1.0, "seed": 5, "n": 2, "logprobs": 1, "prompt_logprobs": 1,
              "max_tokens": 40, "stop": stop}  # fmt: skip
    expected = llm.generate("Once", SamplingParams(**params))[0]
    for kind in kinds:  # generate() returns the whole
        assert llm.generate("Once", SamplingParams(**params, output_kind=kind))[0].outputs == expected.outputs
    delta = list(llm.stream("Once", SamplingParams(**params, output_kind=kinds.DELTA)))
    for i, whole in enumerate(expected.outputs):
        parts = [each for out in delta for each in out.outputs if each.index == i]
        assert len(parts) == len(whole.token_ids) and all(len(each.token_ids) == 1 for each in parts)
        assert "".join(each.text for each in parts) == whole.text
        assert [t for each in parts for t in each.token_ids] == whole.token_ids
        assert [p for each in parts for p in each.logprobs] == whole.logprobs
        assert [each.finish_reason for each in parts] == [None] * (len(parts) - 1) + [whole.finish_reason]
        assert parts[-1].cumulative_logprob == whole.cumulative_logprob
    told = [out.prompt_logprobs for out in delta]
    assert told[0] == expected.prompt_logprobs and not any(told[1:])
    (last,) = llm.stream("Once", SamplingParams(**params, output_kind=kinds.FINAL_ONLY))
    assert last.finished and last.outputs == expected.outputs


def test_output_kinds_of_asyncio(llm):
    whole = answer(llm)
    params = {kind: SamplingParams(**GREEDY, output_kind=kind) for kind in RequestOutputKind}

    async def main():
        engine = AsyncLLM(llm.llm_engine)

        async def ask(params):
            return [output.outputs[0] async for output in engine.generate("Once", params)]

        try:
            return await asyncio.gather(*(ask(each) for each in params.values()))
        finally:
            engine.shutdown()

    cumulative, delta, final = asyncio.run(main())
    assert [len(each.token_ids) for each in cumulative] == list(range(1, 13)) and cumulative[-1] == whole
    assert [each.token_ids for each in delta] == [[t] for t in whole.token_ids]
    assert "".join(each.text for each in delta) == whole.text
    assert final == [whole]


def test_truncate_prompt_tokens(llm):
    prompt = [*range(100, 140)]
    out = llm.generate([prompt], SamplingParams(**GREEDY, truncate_prompt_tokens=5))[0]
    assert out.prompt_token_ids == prompt[-5:]
    assert out.outputs[0] == answer(llm, [prompt[-5:]])
    assert llm.generate([prompt], SamplingParams(truncate_prompt_tokens=99))[0].prompt_token_ids == prompt
    long = [*range(250)] * 2
    out = llm.generate([long], SamplingParams(**GREEDY, truncate_prompt_tokens=-1))[0]
    assert out.prompt_token_ids == long[-(256 - 12) :] and len(out.outputs[0].token_ids) == 12


def test_logprobs_of_the_whole_vocabulary(llm):
    out = llm.generate("abc", SamplingParams(**{**GREEDY, "max_tokens": 2}, logprobs=-1, prompt_logprobs=-1))[
        0
    ]
    for entries in (*out.outputs[0].logprobs, *out.prompt_logprobs[1:]):
        assert sorted(entries) == list(range(257))
        assert sorted(p.rank for p in entries.values()) == list(range(1, 258))


def test_spaces_between_special_tokens(tmp_path):
    from tokenizers import models
    from warptape.inference.tokenizer import Tokenizer

    words = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))  # its decoder puts spaces between
    words.add_special_tokens(["<x>", "<y>"])
    words.save(str(tmp_path / "tokenizer.json"))
    tokens = [0, 2, 3, 1, 2]
    for spaces, text in ((True, "a <x> <y> b <x>"), (False, "a <x><y> b <x>")):
        step = Tokenizer(tmp_path).stream(False, spaces)
        assert "".join(step(token) for token in tokens) == text


def test_continue_final_message(llm):
    talk = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "user:hi\nSure "}]
    params = SamplingParams(**GREEDY)

    def prompt(**more):
        return llm.chat(talk, params, **more)[0].prompt

    head = "user:hi\nassistant:user:hi\nSure "
    assert prompt() == head + "\nassistant:"
    assert prompt(add_generation_prompt=False) == head + "\n"
    assert prompt(add_generation_prompt=False, continue_final_message=True) == head
    options = {"add_generation_prompt": False, "continue_final_message": True}
    assert prompt(chat_template_kwargs=options) == head
    with pytest.raises(ValueError, match="continue_final_message needs add_generation_prompt=False"):
        prompt(continue_final_message=True)
    with pytest.raises(ValueError, match="leaves out the last message"):
        prompt(**options, chat_template="nothing")
    with pytest.raises(ValueError, match="content must be text"):
        llm.chat([{"role": "assistant", "content": None}], params, **options)
    for name in ("add_generation_prompt", "continue_final_message", "chat_template", "chat_template_kwargs"):
        with pytest.raises(TypeError, match=f"{name} must be"):
            prompt(**{name: 5})


def test_generation_config(tmp_path):
    folder, other = write_llm(tmp_path / "model"), tmp_path / "other"
    other.mkdir()
    assert LLM(folder).get_default_sampling_params() == SamplingParams()
    said = {"temperature": 0.0, "top_k": 7, "max_new_tokens": 3, "do_sample": True, "eos_token_id": [EOS, 65]}
    (folder / "generation_config.json").write_text(json.dumps(said))
    (other / "generation_config.json").write_text('{"top_p": 0.5, "min_p": null}')
    made = LLM(folder)
    assert made.get_default_sampling_params() == SamplingParams(temperature=0.0, top_k=7, max_tokens=3)
    assert made.llm_engine.eos_token_ids == [EOS, 65]
    greedy = answer(made, max_tokens=3, ignore_eos=False)
    assert made.generate("Once")[0].outputs[0] == greedy == [*made.stream("Once")][-1].outputs[0]
    ended = answer(made, ignore_eos=False, logit_bias={65: 99.0})
    assert (ended.token_ids, ended.finish_reason) == ([65], "stop")
    plain = LLM(folder, generation_config="vllm")
    assert plain.get_default_sampling_params() == SamplingParams() and 65 in plain.llm_engine.eos_token_ids
    assert LLM(folder, generation_config=other).get_default_sampling_params() == SamplingParams(top_p=0.5)
    with pytest.raises(TypeError, match="generation_config must be"):
        LLM(folder, generation_config=5)
    with pytest.raises(FileNotFoundError, match="generation_config"):
        LLM(folder, generation_config=tmp_path)
    for text, error, message in (
        ("{", ValueError, "is no JSON"),
        ("[]", ValueError, "must have an object"),
        ('{"top_p": 5}', ValueError, "generation_config.json: top_p must be in"),
        ('{"top_k": "x"}', TypeError, "generation_config.json: top_k must be int"),
        ('{"eos_token_id": 999}', ValueError, "eos_token_id must be tokens of 257"),
    ):
        (folder / "generation_config.json").write_text(text)
        with pytest.raises(error, match=message):
            LLM(folder)


@pytest.mark.parametrize(
    "given, error, text",
    [
        ({"bad_words": "word"}, TypeError, "bad_words must be a list of texts"),
        ({"bad_words": [1]}, TypeError, "bad_words must be a list of texts"),
        ({"bad_words": [""]}, ValueError, "bad_words must be texts that are not empty"),
        ({"allowed_token_ids": []}, ValueError, "allowed_token_ids must have at least one"),
        ({"allowed_token_ids": ["a"]}, TypeError, "allowed_token_ids must be a list of token ids"),
        ({"allowed_token_ids": [-1]}, IndexError, "allowed_token_ids: token -1"),
        ({"allowed_token_ids": [257]}, IndexError, "allowed_token_ids: token 257 .* vocabulary of 257"),
        ({"output_kind": 1}, TypeError, "output_kind must be a RequestOutputKind"),
        ({"truncate_prompt_tokens": 0}, ValueError, "truncate_prompt_tokens must be -1"),
        ({"truncate_prompt_tokens": -2}, ValueError, "truncate_prompt_tokens must be at least -1"),
        ({"truncate_prompt_tokens": "1"}, TypeError, "truncate_prompt_tokens must be int"),
        ({"logprobs": -2}, ValueError, "logprobs must be at least -1"),
        ({"prompt_logprobs": -2}, ValueError, "prompt_logprobs must be at least -1"),
        ({"spaces_between_special_tokens": 1}, TypeError, "spaces_between_special_tokens must be bool"),
    ],
)
def test_wrong_values(llm, given, error, text):
    with pytest.raises(error, match=text):
        llm.generate("x", SamplingParams(**given))
    assert not llm.llm_engine.has_unfinished_requests()
