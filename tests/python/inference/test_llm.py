"""warptape.inference as a user meets it: text in, text out."""

import asyncio
import io
import json
import re
import shutil
import time

import numpy as np
import pytest
import warptape as torch
from model_configs import SMALL, build
from warptape.inference import LLM, AsyncLLM, EngineArgs, SamplingParams, StructuredOutputsParams
from warptape.inference.__main__ import main
from warptape.models import Decoder, DecoderConfig

tokenizers = pytest.importorskip("tokenizers")
EOS = 256


def write_tokenizer(folder):
    """Bytes as tokens, 256 the end."""
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    text = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    text.add_special_tokens(["<end>"])
    text.save(str(folder / "tokenizer.json"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("model")
    torch.manual_seed(0)
    config = DecoderConfig(
        **{**SMALL, "vocab_size": 257, "max_position_embeddings": 256, "eos_token_id": EOS}
    )
    Decoder(config).save_pretrained(path)
    write_tokenizer(path)
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{{ eos_token }}"
    (path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template, "eos_token": "<end>"}))
    return path


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder, seed=3)


def test_text_in_and_out(llm):
    prompts = ["Hello", {"prompt": "another"}, {"prompt_token_ids": [1, 2, 3]}, [4, 5]]
    outs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=10))
    assert [o.prompt for o in outs] == ["Hello", "another", None, None]
    assert outs[2].prompt_token_ids == [1, 2, 3]
    tokenizer = llm.get_tokenizer()
    for out in outs:
        assert out.finished
        (answer,) = out.outputs
        assert answer.finish_reason in ("length", "stop")
        assert answer.text == tokenizer.decode(answer.token_ids)
    model = llm.llm_engine.runner.model
    assert (
        llm.generate("Hello", SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text
        == outs[0].outputs[0].text
    )
    assert model.training is False


def test_tokens_equal_those_of_decoder_generate(folder):
    reference = Decoder.from_pretrained(folder)
    prompt = list(range(20, 60))
    expected = reference.generate(torch.tensor([prompt]), 30)[0, 40:].tolist()
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True)
    assert LLM(folder).generate([prompt], params)[0].outputs[0].token_ids == expected


def test_several_answers_have_seeds_of_their_own(llm):
    out = llm.generate("abc", SamplingParams(n=3, seed=11, max_tokens=12, ignore_eos=True))[0]
    assert [a.index for a in out.outputs] == [0, 1, 2]
    texts = [a.token_ids for a in out.outputs]
    assert texts[0] != texts[1] != texts[2]
    for i in range(3):
        params = SamplingParams(seed=11 + i, max_tokens=12, ignore_eos=True)
        assert llm.generate("abc", params)[0].outputs[0].token_ids == texts[i]


def test_unseeded_requests_differ_and_an_engine_repeats_them(folder):
    def ask():
        llm = LLM(folder, seed=5)
        return [o.outputs[0].token_ids for o in llm.generate(["abc", "abc"], SamplingParams(max_tokens=12))]

    first, second = ask()
    assert first != second and ask() == [first, second]


def free_text(llm, count=40):
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    return llm.generate("Once", params)[0].outputs[0]


def test_stop_texts(llm):
    whole = free_text(llm)
    stop = whole.text[5:8]
    at = whole.text.find(stop)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=["\0never", stop])
    out = llm.generate("Once", params)[0].outputs[0]
    assert out.text == whole.text[:at] and out.finish_reason == "stop" and out.stop_reason == stop
    assert len(out.token_ids) < 40
    params.include_stop_str_in_output = True
    assert llm.generate("Once", params)[0].outputs[0].text == whole.text[: at + len(stop)]


def test_stop_tokens_and_the_end_of_sequence(llm):
    whole = free_text(llm)
    token = whole.token_ids[6]
    end = whole.token_ids.index(token) + 1
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop_token_ids=[token])
    out = llm.generate("Once", params)[0].outputs[0]
    assert out.token_ids == whole.token_ids[:end] and (out.finish_reason, out.stop_reason) == ("stop", token)
    params = SamplingParams(max_tokens=5, logit_bias={EOS: 1000.0})
    out = llm.generate("Once", params)[0].outputs[0]
    assert (out.token_ids, out.text, out.finish_reason, out.stop_reason) == ([EOS], "", "stop", None)
    params = SamplingParams(max_tokens=5, min_tokens=3, logit_bias={EOS: 1000.0})
    assert len(llm.generate("Once", params)[0].outputs[0].token_ids) == 4


def test_streams_grow_to_the_whole_and_hold_stop_texts_back(llm):
    whole = free_text(llm)
    params = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True)
    seen = [o.outputs[0] for o in llm.stream("Once", params)]
    assert [len(o.token_ids) for o in seen] == list(range(1, 41))
    assert all(whole.text.startswith(o.text) or "\ufffd" in o.text for o in seen)
    assert seen[-1].text == whole.text
    params.stop = None
    stopping = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, stop=whole.text[10:16])
    final = whole.text[: whole.text.find(whole.text[10:16])]
    assert all(final.startswith(o.outputs[0].text) for o in llm.stream("Once", stopping))
    for _ in llm.stream("Once", params):
        break  # the request is ended
    assert not llm.llm_engine.has_unfinished_requests()


def test_max_tokens_none_fills_the_context(llm):
    out = llm.generate("x" * 200, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))[0]
    assert len(out.outputs[0].token_ids) == 256 - 200


def test_logprobs(llm):
    out = llm.generate("abc", SamplingParams(temperature=0, max_tokens=4, logprobs=2))[0].outputs[0]
    assert out.cumulative_logprob == pytest.approx(
        sum(d[t].logprob for d, t in zip(out.logprobs, out.token_ids))
    )
    for d, token in zip(out.logprobs, out.token_ids):
        assert len(d) == 2 and d[token].rank == 1 and d[token].decoded_token is not None
        assert max(d.values(), key=lambda p: p.logprob) is d[token]
    assert llm.generate("abc", SamplingParams(max_tokens=1))[0].outputs[0].logprobs is None


def test_logprobs_of_the_prompt(folder):
    llm = LLM(folder, max_num_batched_tokens=16)
    params = SamplingParams(n=2, temperature=0, max_tokens=3, prompt_logprobs=2)
    llm.generate("abc" * 30, params)
    out = llm.generate("abc" * 30, params)[0]
    assert out.prompt_logprobs[0] is None and len(out.prompt_logprobs) == 90 and out.num_cached_tokens == 0
    reference = Decoder.from_pretrained(folder)
    with torch.no_grad():
        expected = torch.log_softmax(reference(torch.tensor([out.prompt_token_ids]))[0], -1)
    for i, entries in enumerate(out.prompt_logprobs[1:]):
        token = out.prompt_token_ids[i + 1]
        assert entries[token].logprob == pytest.approx(float(expected[i, token]), abs=1e-4)
        assert sorted(p.rank for p in entries.values())[:2] == [1, 2]
    plain = llm.generate("abc" * 30, SamplingParams(max_tokens=1))[0]
    assert plain.prompt_logprobs is None and plain.num_cached_tokens == 64


def test_chat(llm):
    messages = [{"role": "user", "content": "hi"}]
    out = llm.chat(messages, SamplingParams(temperature=0, max_tokens=3))[0]
    assert out.prompt == "<user>hi<end>"
    assert out.prompt_token_ids[-1] == EOS
    many = llm.chat([messages, messages], SamplingParams(temperature=0, max_tokens=3))
    assert [o.outputs[0].token_ids for o in many] == [out.outputs[0].token_ids] * 2
    own = "{% for m in messages %}{{ m.content }}{{ extra }}{% endfor %}"
    out = llm.chat(messages, chat_template=own, chat_template_kwargs={"extra": "!"})[0]
    assert out.prompt == "hi!" and llm.chat(messages)[0].prompt == "<user>hi<end>"
    with pytest.raises(ValueError, match="chat template"):
        llm.chat(messages, chat_template="{% for %}")


@pytest.mark.parametrize(
    "constraint, fits",
    [
        ({"regex": "[0-9]{3}-[a-c]+"}, lambda text: text[3] == "-" and text[:3].isdigit()),
        ({"choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"json": {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"],
                   "additionalProperties": False}}, lambda text: type(json.loads(text)["a"]) is bool),
        ({"grammar": 'start: "a" "b"+ "c"'}, lambda text: re.fullmatch("ab+c", text)),
    ],
)  # fmt: skip
def test_structured_outputs(llm, constraint, fits):
    pytest.importorskip("llguidance")
    params = SamplingParams(
        max_tokens=60, seed=1, structured_outputs=StructuredOutputsParams(**constraint), n=2
    )
    params.logit_bias = dict.fromkeys(b"}c", 3.0)  # ends soon
    free = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
    outs = llm.generate(["give", "Once"], [params, free])
    for answer in outs[0].outputs:
        assert fits(answer.text), answer
    assert outs[1].outputs[0].token_ids == free_text(llm, 10).token_ids
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"type": "no such type"}))
    with pytest.raises(ValueError, match="structured_outputs"):
        llm.generate("x", bad)
    # A constraint without a way on ends its request alone.
    yes = llm.get_tokenizer().encode("yes")
    stuck = SamplingParams(
        max_tokens=9, allowed_token_ids=yes[:2], structured_outputs=StructuredOutputsParams(choice=["yes"])
    )
    outs = llm.generate(["give", "Once"], [stuck, free])
    assert outs[0].outputs[0].finish_reason == "error" and outs[0].outputs[0].text == "ye"
    assert outs[1].outputs[0].token_ids == free_text(llm, 10).token_ids
    with pytest.raises(ValueError, match="exactly one constraint"):
        StructuredOutputsParams(regex="a", choice=["b"])


def test_asyncio(folder, monkeypatch):
    llm = LLM(folder)
    step = llm.llm_engine.step
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True)
    expected = {text: llm.generate(text, params)[0].outputs[0].token_ids for text in ("a", "bb", "ccc")}

    async def main():
        engine = AsyncLLM(llm.llm_engine)

        async def ask(text, params=params):
            last = None
            async for output in engine.generate(text, params):
                assert last is None or len(output.outputs[0].token_ids) > len(last.outputs[0].token_ids)
                last = output
            return last.outputs[0].token_ids

        answers = await asyncio.gather(*(ask(text) for text in expected))
        assert answers == list(expected.values())
        with pytest.raises(IndexError):
            async for _ in engine.generate([100000], params):
                pass
        # A task that leaves ends its request; one that is aborted gets to know.
        async for _ in engine.generate("a", params):
            break
        # A whole answer takes 50 ms, in which this thread might not get a turn.
        monkeypatch.setattr(llm.llm_engine, "step", lambda: time.sleep(0.002) or step())
        long = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        stream = engine.generate("bb", long, request_id="named")
        await anext(stream)
        await engine.abort("named")
        rest = [output async for output in stream]
        assert rest[-1].outputs[0].finish_reason == "abort"
        running = asyncio.ensure_future(ask("ccc", long))
        await asyncio.sleep(0.001)
        engine.shutdown()
        with pytest.raises(RuntimeError, match="shut down"):
            await running
        with pytest.raises(RuntimeError, match="shut down"):
            await ask("a")
        assert not llm.llm_engine.has_unfinished_requests()

    asyncio.run(main())


def draft_model():
    torch.manual_seed(1)
    return Decoder(DecoderConfig(**{**SMALL, "vocab_size": 257, "max_position_embeddings": 256}))


def test_speculation_and_small_limits_change_nothing(folder):
    params = SamplingParams(seed=4, max_tokens=50, ignore_eos=True, temperature=0.3)
    prompts = ["abcabcabc" * 3, "x", "Hello, hello"]
    plain = LLM(folder).generate(prompts, params)
    ngram = {"num_speculative_tokens": 3, "method": "ngram", "prompt_lookup_min": 1}
    for config in (ngram, {"num_speculative_tokens": 2, "model": draft_model()}):
        llm = LLM(folder, speculative_config=config, max_num_batched_tokens=8, max_num_seqs=2)
        other = llm.generate(prompts, params)
        assert [o.outputs[0].token_ids for o in plain] == [o.outputs[0].token_ids for o in other]
        assert llm.llm_engine.stats()["proposed_tokens"] > 0


def test_a_draft_model_that_is_the_model_is_right(folder):
    params = SamplingParams(seed=4, max_tokens=60, ignore_eos=True)
    plain = LLM(folder)
    expected = plain.generate(["Hello"], params)[0].outputs[0].token_ids
    llm = LLM(folder, speculative_config={"num_speculative_tokens": 3, "model": folder})
    assert llm.generate(["Hello"], params)[0].outputs[0].token_ids == expected
    stats = llm.llm_engine.stats()
    assert stats["accepted_tokens"] > 0.9 * stats["proposed_tokens"] > 30
    assert stats["steps"] < 25  # of 60 tokens; at the end of a page nothing is proposed
    for config, text in (
        ({"num_speculative_tokens": 2, "model": build("llama")}, "the draft model has 40 tokens"),
        ({"num_speculative_tokens": 2, "method": "eagle"}, "method 'ngram'"),
        ({"num_speculative_tokens": 99}, "num_speculative_tokens must be in"),
    ):
        with pytest.raises(ValueError, match=text):
            LLM(folder, speculative_config=config)


def test_errors_leave_other_requests(llm):
    engine = llm.llm_engine
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    engine.add_request("a", "Once", params)
    with pytest.raises(ValueError, match="in use"):
        engine.add_request("a", "Once", params)
    forward, engine.runner.forward = engine.runner.forward, lambda batch: 1 / 0
    with pytest.raises(ZeroDivisionError):
        engine.step()
    engine.runner.forward = forward
    while engine.has_unfinished_requests():
        out = engine.step()
    assert out[0].outputs[0].token_ids == free_text(llm, 5).token_ids


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda llm: llm.generate("x" * 256), ValueError, "maximum model length is 256"),
        (lambda llm: llm.generate([[1, 300]]), IndexError, "out of the vocabulary of 257"),
        (lambda llm: llm.generate([{"text": 1}]), TypeError, "'prompt' or 'prompt_token_ids'"),
        (lambda llm: llm.generate([3.5]), TypeError, "prompt must be a list of token ids"),
        (
            lambda llm: llm.generate(["a", "b"], [SamplingParams()]),
            ValueError,
            "one for each of the 2 prompts",
        ),
        (lambda llm: llm.generate([""]), ValueError, "the prompt has no token"),
        (lambda llm: SamplingParams(temperature=-1), ValueError, "temperature must be in"),
        (lambda llm: SamplingParams(temperature=float("nan")), ValueError, "temperature must be in"),
        (lambda llm: SamplingParams(top_p=0), ValueError, "top_p"),
        (lambda llm: SamplingParams(top_k="3"), TypeError, "top_k must be int"),
        (lambda llm: SamplingParams(n=0), ValueError, "n must be at least 1"),
        (lambda llm: SamplingParams(max_tokens=0), ValueError, "max_tokens must be at least 1"),
        (lambda llm: SamplingParams(stop=""), ValueError, "stop must be texts"),
        (lambda llm: SamplingParams(stop=5), TypeError, "stop must be a text"),
        (lambda llm: SamplingParams(stop_token_ids=["x"]), TypeError, "list of token ids"),
        (lambda llm: SamplingParams(stop_token_ids=[1 << 40]), IndexError, "out of any vocabulary"),
        (lambda llm: SamplingParams(logit_bias={"a": 1}), TypeError, "logit_bias"),
        (lambda llm: SamplingParams(logit_bias={1: "a"}), TypeError, "logit_bias"),
        (lambda llm: SamplingParams(structured_outputs=5), TypeError, "StructuredOutputsParams"),
        (lambda llm: llm.generate(None), TypeError, "expected a prompt"),
        (lambda llm: llm.generate([None]), TypeError, "list of token ids"),
        (lambda llm: llm.generate([[1, 1 << 40]]), IndexError, "out of any vocabulary"),
        (lambda llm: EngineArgs(max_num_seqs="a"), TypeError, "max_num_seqs must be int"),
        (lambda llm: EngineArgs(max_num_seqs=0), ValueError, "max_num_seqs must be at least 1"),
        (lambda llm: EngineArgs(seed="a"), TypeError, "seed must be int"),
        (
            lambda llm: LLM(build("llama"), speculative_config={"tokens": 3}),
            TypeError,
            "num_speculative_tokens",
        ),
        (lambda llm: SamplingParams(seed=-1), ValueError, "seed must be in"),
        (lambda llm: SamplingParams(min_tokens=20), ValueError, "min_tokens must be in"),
    ],
)
def test_wrong_input(llm, call, error, text):
    with pytest.raises(error, match=text):
        call(llm)
    assert not llm.llm_engine.has_unfinished_requests()


def test_models_and_folders_that_do_not_fit(folder, tmp_path):
    with pytest.raises(TypeError, match="unexpected keyword argument 'max_sequences'"):
        LLM(folder, max_sequences=3)
    with pytest.raises(ValueError, match="max_model_len must be in"):
        LLM(folder, max_model_len=1000)
    with pytest.raises(ValueError, match="kv_cache_memory_bytes"):
        LLM(folder, kv_cache_memory_bytes=1000)
    with pytest.raises(ValueError, match="quantization must be None or one of"):
        LLM(folder, quantization="int3")
    build("llama").save_pretrained(tmp_path)
    with pytest.raises(FileNotFoundError, match="skip_tokenizer_init"):
        LLM(tmp_path)
    write_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="vocabulary has 40"):
        LLM(tmp_path)
    llm = LLM(tmp_path, skip_tokenizer_init=True)
    with pytest.raises(ValueError, match="needs a tokenizer"):
        llm.generate("text")
    out = llm.generate([[1, 2]], SamplingParams(temperature=0, max_tokens=3))[0].outputs[0]
    assert len(out.token_ids) == 3 and out.text == ""
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="is no tokenizer"):
        LLM(tmp_path)


def test_memory_of_the_cache_holds(folder):
    """A cache of four pages serves any number of requests, one after the other."""
    model = Decoder.from_pretrained(folder)
    page = 2 * 3 * 4 * 6 * 32 * 4  # keys and values of layers, heads, head_dim, tokens, bytes
    llm = LLM(model, max_model_len=100, kv_cache_memory_bytes=4 * page)
    assert llm.llm_engine.num_pages == 4
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 256, 40).tolist() for _ in range(12)]
    outs = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=40, ignore_eos=True))
    reference = Decoder.from_pretrained(folder)
    for prompt, out in zip(prompts, outs):
        assert out.outputs[0].token_ids == reference.generate(torch.tensor([prompt]), 40)[0, 40:].tolist()


# ---- the command line ----


def command(monkeypatch, capsys, *arguments, typed=""):
    """(exit status, standard output, standard error)"""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    status = main([str(each) for each in arguments])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def test_generate_from_the_terminal(folder, llm, monkeypatch, capsys):
    expected = llm.generate("Once", SamplingParams(temperature=0, max_tokens=10))[0].outputs[0].text
    options = ("--temperature", 0, "--max-tokens", 10)
    assert command(monkeypatch, capsys, "generate", folder, "Once", *options) == (0, expected + "\n", "")
    assert command(monkeypatch, capsys, "generate", folder, *options, typed="Once")[1] == expected + "\n"
    drawn = [command(monkeypatch, capsys, "generate", folder, "Once", "--seed", 3)[1] for _ in range(2)]
    assert drawn[0] == drawn[1]
    assert command(monkeypatch, capsys, "generate", folder, "x" * 250, "--seed", 3)[0] == 0  # what fits
    status, out, err = command(monkeypatch, capsys, "generate", folder, "x" * 250, "--max-tokens", 50)
    assert (status, out) == (1, "") and "maximum model length" in err
    status, out, err = command(monkeypatch, capsys, "generate", folder / "nowhere", "Once")
    assert (status, out) == (1, "") and "config.json" in err and "Traceback" not in err
    assert command(monkeypatch, capsys, "generate", folder, "Once", "--temperature", -1)[0] == 1


def test_the_terminal_draws_as_the_model_says(folder, tmp_path, monkeypatch, capsys):
    """As its generation_config.json does, unless flags say other things."""
    own = shutil.copytree(folder, tmp_path / "own")
    (own / "generation_config.json").write_text('{"top_k": 1, "temperature": 0.5, "max_new_tokens": 7}')

    def text(*flags):
        return command(monkeypatch, capsys, "generate", own, "Once", *flags)[1]

    assert text("--seed", 1) == text("--seed", 2)
    longer = text("--seed", 1, "--max-tokens", 20)
    assert longer.startswith(text("--seed", 1).rstrip("\n")) and len(longer) > len(text("--seed", 1))
    assert text("--seed", 1, "--top-k", 0) != text("--seed", 2, "--top-k", 0)


def test_chat_in_the_terminal(folder, llm, monkeypatch, capsys):
    params = SamplingParams(temperature=0, max_tokens=4)
    talk = [{"role": "user", "content": "hi"}]
    first = llm.chat(talk, params)[0].outputs[0].text
    talk += [{"role": "assistant", "content": first}, {"role": "user", "content": "more"}]
    second = llm.chat(talk, params)[0].outputs[0].text
    options = ("--temperature", 0, "--max-tokens", 4)
    status, out, _ = command(monkeypatch, capsys, "chat", folder, *options, typed="hi\nmore\n")
    assert (status, out) == (0, f"{first}\n{second}\n")


def test_weights_of_float16_are_taken(folder, tmp_path):
    """As float32, whose tokens they give; a draft model's, too."""
    half = shutil.copytree(folder, tmp_path / "half")
    Decoder.from_pretrained(folder).half().save_pretrained(half)
    params = SamplingParams(temperature=0, max_tokens=12)
    expected = LLM(Decoder.from_pretrained(half).float()).generate([[1, 2]], params)[0].outputs[0].token_ids
    for more in ({}, {"speculative_config": {"num_speculative_tokens": 2, "model": str(half)}}):
        llm = LLM(half, **more)
        assert llm.llm_engine.runner.model.embed_tokens.weight.dtype == torch.float32
        assert llm.generate([[1, 2]], params)[0].outputs[0].token_ids == expected
    assert LLM(half, dtype="bfloat16").llm_engine.runner.model.embed_tokens.weight.dtype == torch.bfloat16


def test_options_of_the_terminal_that_are_wrong(folder, tmp_path, monkeypatch, capsys):
    for arguments, text in (
        (("pack", folder, tmp_path / "p", "--dtype", "int3"), "dtype must be 'auto' or one of"),
        (("pack", folder, tmp_path / "p", "--quantization", "int5"), "quantization must be None or one of"),
        (("generate", folder, "x", "--max-tokens", "0"), "max_tokens must be at least 1"),
    ):
        status, out, err = command(monkeypatch, capsys, *arguments)
        assert status == 1 and out == "" and text in err and err.count("\n") == 1
    with pytest.raises(ValueError, match=r"the weights are .*float16, but the engine's kernels have float32"):
        LLM(build("llama").half())
