"""One decoder on several ranks: the tokens of one process, under any load, in an n-th of the memory."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
import traffic
import warptape as wt
import warptape.distributed as dist
from launched import launch, lines
from model_configs import CONFIGS, build
from warptape.inference import LLM, EngineArgs, LLMEngine, PackedLinear, SamplingParams
from warptape.inference.runner import page_bytes
from warptape.inference.tensor_parallel import ranks_of
from warptape.models import Decoder

LIMIT = timedelta(seconds=60)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [[1, 2, 3], [7] * 9, [5, 11, 30, 2, 2, 8, 21]]


def even(**changes):
    """A Llama whose parts fill whole panels of packed weights and whole groups of 32."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16, "vocab_size": 64}
    return dataclasses.replace(CONFIGS["llama"], **{**sizes, **changes})


def decoder(config):
    wt.manual_seed(2)
    return Decoder(config).eval()


def make(model, ranks, **more):
    return LLM(model, skip_tokenizer_init=True, tensor_parallel_size=ranks, **more)


def tokens_of(llm):
    return [out.outputs[0].token_ids for out in llm.generate(PROMPTS, GREEDY)]


def on_ranks(ranks, body):
    """What the body gives on each rank."""
    return dist.simulate(ranks, body, timeout=LIMIT)


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        *((n, 2) for n, c in CONFIGS.items() if c.qk_norm != "all" and c.num_key_value_heads % 2 == 0),
        ("gpt2", 4),
        ("gpt-neox", 4),
    ],
)
def test_tokens_are_those_of_one_process(name, ranks):
    def body():
        outs = make(build(name), ranks).generate(PROMPTS, GREEDY)
        return [(out.outputs[0].token_ids, out.outputs[0].cumulative_logprob) for out in outs]

    alone = make(build(name), 1).generate(PROMPTS, GREEDY)
    every = on_ranks(ranks, body)
    assert all(each == every[0] for each in every)  # to the bit
    for out, (tokens, logprob) in zip(alone, every[0], strict=True):
        assert tokens == out.outputs[0].token_ids
        assert logprob == pytest.approx(out.outputs[0].cumulative_logprob, abs=1e-4)


@pytest.mark.parametrize("tied", [False, True])
def test_a_vocabulary_that_does_not_divide(tied):
    config = even(vocab_size=61, tie_word_embeddings=tied)
    expected = tokens_of(make(decoder(config), 1))
    assert on_ranks(2, lambda: tokens_of(make(decoder(config), 2))) == [expected] * 2
    everything = SamplingParams(max_tokens=1, logprobs=61)
    entries = on_ranks(
        2, lambda: make(decoder(config), 2).generate([1], everything)[0].outputs[0].logprobs[0].keys()
    )
    assert all(max(each) == 60 for each in entries)


def test_random_sampling_is_the_same_on_every_rank():
    params = SamplingParams(temperature=1.5, max_tokens=20, n=2, top_p=0.9)

    def body():
        outs = make(build("llama"), 2, seed=4).generate(PROMPTS, params)
        return [answer.token_ids for out in outs for answer in out.outputs]

    first, second = on_ranks(2, body)
    assert first == second
    assert len({tuple(each) for each in first}) == len(first)


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_quantised_parts(quantization):
    def body():
        return tokens_of(make(decoder(even()), 2, quantization=quantization))

    first, second = on_ranks(2, body)
    assert first == second
    if quantization == "int4":  # groups of 32 inputs are the same ones in a part
        assert first == tokens_of(make(decoder(even()), 1, quantization=quantization))


@pytest.mark.parametrize("ranks", [2, 4])
def test_load_never_changes_an_answer(ranks):
    """Every kind of the traffic test on 2 ranks; on 4 those with as many key heads."""
    for seed in range(len(traffic.KINDS)):
        if ranks == 2 or traffic.KINDS[seed][0] == "gpt2":
            assert on_ranks(ranks, lambda seed=seed: traffic.different(seed, 8, ranks)) == [0] * ranks


def test_sums_of_many_rows_and_of_few():
    """100 tokens in one pass are 25,600 bytes, which shared memory sums in another way than those of 8."""
    prompt, config = [(7 * i) % 64 for i in range(100)], even(num_key_value_heads=4)
    config = dataclasses.replace(config, max_position_embeddings=128)

    def body():
        answers = []
        for most in (100, 8):
            llm = make(decoder(config), 4, max_num_batched_tokens=most)
            answers += llm.generate([prompt], GREEDY)[0].outputs
        first, second = answers
        assert first.token_ids == second.token_ids
        return first.cumulative_logprob, second.cumulative_logprob

    assert len({each for both in on_ranks(4, body) for each in both}) == 1


def test_memory_of_a_rank():
    def sizes(ranks):
        llm = make(decoder(even()), ranks, kv_cache_memory_bytes=1 << 20)
        model, cache = llm.llm_engine.runner.model, llm.llm_engine.runner.cache
        layers = [layer for layer in model.modules() if isinstance(layer, PackedLinear)]
        assert len(layers) == 3 * 4 + 1
        page = sum(each[0].nbytes for each in (*cache.keys, *cache.values))
        assert page == page_bytes(model, "auto")
        table = model.embed_tokens.weight
        held = table if ranks == 1 else table.to_local()
        return sum(layer.packed.nbytes for layer in layers), held.nbytes, page

    whole = sizes(1)
    for part in on_ranks(2, lambda: sizes(2)):
        assert [2 * size for size in part] == list(whole)


def test_processes_of_the_launcher(tmp_path):
    script = tmp_path / "generate.py"
    script.write_text(
        "import sys, warptape as wt, warptape.distributed as dist\n"
        f"sys.path.insert(0, {str(Path(traffic.__file__).parent)!r})\n"
        "from model_configs import build\n"
        "from warptape.inference import LLM, SamplingParams\n"
        "dist.init_process_group()\n"
        "llm = LLM(build('llama'), tensor_parallel_size=2)\n"
        "params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)\n"
        f"outs = llm.generate({PROMPTS}, params)\n"
        "every = [None, None]\n"
        "dist.all_gather_object(every, [out.outputs[0].token_ids for out in outs])\n"
        "if dist.get_rank() == 0: print(every)\n"
    )
    status, out, err = launch("--nproc-per-node=2", script)
    assert status == 0, err
    assert lines(out) == [[tokens_of(make(build("llama"), 1))] * 2]


def test_a_draft_model_is_split_too():
    draft = build("llama")

    def body():
        config = {"num_speculative_tokens": 3, "model": build("llama")}
        llm = make(build("llama"), 2, speculative_config=config)
        assert ranks_of(config["model"]) == 2
        tokens, stats = tokens_of(llm), llm.llm_engine.stats()
        return tokens, stats["proposed_tokens"], stats["accepted_tokens"]

    first, second = on_ranks(2, body)
    assert first == second
    assert first[0] == tokens_of(make(draft, 1))
    assert first[2] > first[1] / 2 > 0  # the model proposes what it draws itself


# ------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"num_attention_heads": 3, "num_key_value_heads": 3}, "num_attention_heads is 3"),
        ({"num_key_value_heads": 1}, "num_key_value_heads is 1"),
        ({"intermediate_size": 37}, "intermediate_size is 37"),
    ],
)
def test_sizes_that_do_not_divide(changes, named):
    def body():
        model = decoder(even(**changes))
        before = model.state_dict().keys()
        with pytest.raises(ValueError, match=f"tensor_parallel_size 2: the model's {named}"):
            make(model, 2)
        assert model.state_dict().keys() == before

    on_ranks(2, body)


def test_norms_over_all_heads():
    def body():
        with pytest.raises(
            NotImplementedError, match="the model, olmo2, norms queries and keys over all heads"
        ):
            make(build("olmo2"), 2)

    on_ranks(2, body)


def test_a_job_of_other_ranks():
    with pytest.raises(ValueError, match="joined no job; start 2 ranks with warptape-run"):
        make(build("llama"), 2)

    def body():
        with pytest.raises(ValueError, match="tensor_parallel_size is 4, but the job has 2 ranks"):
            make(build("gpt2"), 4)

    on_ranks(2, body)
    with pytest.raises(ValueError, match="tensor_parallel_size must be at least 1, got 0"):
        make(build("llama"), 0)
    for size in (1.5, True, None):
        with pytest.raises(TypeError, match="tensor_parallel_size must be int"):
            make(build("llama"), size)


def test_what_one_process_alone_can_do():
    def body():
        with pytest.raises(NotImplementedError, match="got a PackedLinear"):
            make(make(build("llama"), 1).llm_engine.runner.model, 2)
        llm = make(build("llama"), 2)
        with pytest.raises(NotImplementedError, match="a model that is split"):
            make(llm.llm_engine.runner.model, 2)
        with pytest.raises(ValueError, match="the model is split among 2 ranks"):
            LLMEngine(llm.llm_engine.runner.model, None, EngineArgs())
        return tokens_of(llm)  # and what was refused left nothing behind

    first, second = on_ranks(2, body)
    assert first == second == tokens_of(make(build("llama"), 1))
