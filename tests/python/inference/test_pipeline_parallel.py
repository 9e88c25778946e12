"""One decoder split by its layers: the answers of one process to the bit, in a part of the memory."""

import dataclasses
from datetime import timedelta
from pathlib import Path

import pytest
import traffic
import warptape as wt
import warptape.distributed as dist
from launched import launch, lines
from model_configs import CONFIGS, build
from warptape.inference import (
    LLM,
    EngineArgs,
    LLMEngine,
    SamplingParams,
    pipeline_parallel,
)
from warptape.inference.pipeline_parallel import divided, layers_of_stage
from warptape.inference.runner import page_bytes
from warptape.models import Decoder

LIMIT = timedelta(seconds=60)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [[1, 2, 3], [7] * 9, [5, 11, 30, 2, 2, 8, 21]]


@pytest.fixture(params=[64, 1], ids=["a batch a step", "several"], autouse=True)
def enough(request, monkeypatch):
    """Tokens of a batch: with 1 each step is cut among the stages."""
    monkeypatch.setattr(pipeline_parallel, "ENOUGH", request.param)


def make(model, stages, **more):
    return LLM(model, skip_tokenizer_init=True, pipeline_parallel_size=stages, **more)


def answers(llm, params=GREEDY):
    outs = llm.generate(PROMPTS, params)
    return [(each.token_ids, each.cumulative_logprob) for out in outs for each in out.outputs]


def on_ranks(ranks, body):
    """What the body gives on each rank."""
    return dist.simulate(ranks, body, timeout=LIMIT)


def windows():
    """A Qwen2 of four layers, some of which slide."""
    kinds = ("sliding_attention", "full_attention", "full_attention", "sliding_attention")
    sizes = {"num_hidden_layers": 4, "layer_types": kinds, "sliding_window": 4}
    wt.manual_seed(2)
    return Decoder(dataclasses.replace(CONFIGS["qwen2"], **sizes)).eval()


@pytest.mark.parametrize("name", ["gpt2", "llama", "mistral", "qwen3", "smollm3", "olmo3", "gemma3"])
def test_answers_are_those_of_one_process(name):
    alone = answers(make(build(name), 1))
    for stages in (2, 3):
        assert on_ranks(stages, lambda n=stages: answers(make(build(name), n))) == [alone] * stages


def test_layers_of_several_kinds():
    alone = answers(make(windows(), 1))
    for stages in (2, 3, 4):
        assert on_ranks(stages, lambda n=stages: answers(make(windows(), n))) == [alone] * stages


def test_with_tensor_parallel():
    """2 x 2 ranks give what the 2 ranks of a tensor-parallel model do, to the bit."""
    params = SamplingParams(temperature=1.2, max_tokens=12, n=2, seed=3, logprobs=1)

    def body(stages):
        return answers(make(build("llama"), stages, tensor_parallel_size=2), params)

    expected = on_ranks(2, lambda: body(1))[0]
    assert on_ranks(4, lambda: body(2)) == [expected] * 4


@pytest.mark.parametrize("quantization", ["int4", "int8"])
def test_quantised_and_packed_models(quantization):
    def body(stages):
        whole = make(build("llama"), 1, quantization=quantization).llm_engine.runner.model
        return answers(make(whole, stages))

    assert on_ranks(2, lambda: body(2)) == [body(1)] * 2


def test_load_never_changes_an_answer():
    for seed in range(len(traffic.KINDS)):
        stages = 2 + seed % 2
        assert on_ranks(stages, lambda seed=seed, n=stages: traffic.different(seed, 8, 1, n)) == [0] * stages
    assert on_ranks(4, lambda: traffic.different(2, 8, 2, 2)) == [0] * 4


def test_memory_of_a_stage():
    def sizes(stages):
        runner = make(build("llama"), stages, kv_cache_memory_bytes=1 << 20).llm_engine.runner
        model, cache = runner.model, runner.cache
        page = sum(each[0].nbytes for each in (*cache.keys, *cache.values))
        layers = sum(t.nbytes for t in model.layers.state_dict().values())
        rest = sum(t.nbytes for t in model.state_dict().values()) - layers
        return len(model.layers), layers, rest, page, cache.num_pages, page_bytes(model, "auto")

    _, layers, rest, page, *_ = sizes(1)
    first, second = on_ranks(2, lambda: sizes(2))
    assert (first[0], second[0]) == (2, 1)  # of three layers
    for part in (first, second):
        assert part[1] == layers * part[0] // 3
        assert part[3] == page * part[0] // 3
        assert part[5] == page * 2 // 3  # as on the stage with the most
    assert first[4] == second[4] == (1 << 20) // (page * 2 // 3)
    width = 4 * CONFIGS["llama"].hidden_size
    assert first[2] + second[2] == rest + width  # the row that says the dtype


def test_layers_of_stages():
    for layers in range(1, 9):
        for stages in range(1, layers + 1):
            every = [layers_of_stage(layers, stages, i) for i in range(stages)]
            assert [i for each in every for i in each] == list(range(layers))
            assert max(map(len, every)) - min(map(len, every)) <= 1


@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_batches_hold_each_request_once(parts):
    counts = [5, 1, 1, 7, 2, 1]
    starts = wt.tensor([0, *counts], dtype=wt.int32).cumsum(0).to(wt.int32)
    rows = wt.tensor([4, 5, 6, 13, 16])
    batch = {
        "tokens": wt.arange(17) + 100,
        "page_table": wt.arange(12, dtype=wt.int32).reshape(6, 2),
        "starts": starts,
        "lengths": wt.arange(10, 16, dtype=wt.int32),
        "logit_rows": rows,
        "adapters": [0, 1, 2, 3, 4, 5],
    }
    cut = divided(batch, parts)
    assert 1 <= len(cut) <= parts
    assert all(len(each["tokens"]) for each in cut)
    for name in ("tokens", "page_table", "lengths"):
        assert wt.equal(wt.cat([each[name] for each in cut]), batch[name])
    assert [a for each in cut for a in each["adapters"]] == batch["adapters"]
    assert [n for each in cut for n in each["starts"].diff().tolist()] == counts
    wanted = [each["tokens"][each["logit_rows"]] for each in cut]
    assert wt.equal(wt.cat(wanted), batch["tokens"][rows])
    assert all(each["starts"][0] == 0 for each in cut)


def test_processes_of_the_launcher(tmp_path):
    script = tmp_path / "generate.py"
    script.write_text(
        "import sys, warptape as wt, warptape.distributed as dist\n"
        f"sys.path.insert(0, {str(Path(traffic.__file__).parent)!r})\n"
        "from model_configs import build\n"
        "from warptape.inference import LLM, SamplingParams\n"
        "dist.init_process_group()\n"
        "llm = LLM(build('llama'), pipeline_parallel_size=2)\n"
        "params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)\n"
        f"outs = llm.generate({PROMPTS}, params)\n"
        "every = [None, None]\n"
        "dist.all_gather_object(every, [out.outputs[0].token_ids for out in outs])\n"
        "if dist.get_rank() == 0: print(every)\n"
    )
    status, out, err = launch("--nproc-per-node=2", script)
    assert status == 0, err
    assert lines(out) == [[[tokens for tokens, _ in answers(make(build("llama"), 1))]] * 2]


# ------------------------------------------------------------------------------------- errors


def test_jobs_and_sizes_that_do_not_fit():
    with pytest.raises(ValueError, match="joined no job; start 2 ranks with warptape-run"):
        make(build("llama"), 2)
    with pytest.raises(ValueError, match="pipeline_parallel_size must be at least 1, got 0"):
        make(build("llama"), 0)
    with pytest.raises(TypeError, match="pipeline_parallel_size must be int"):
        make(build("llama"), 1.5)

    def body():
        with pytest.raises(ValueError, match="make 4, but the job has 2 ranks"):
            make(build("llama"), 2, tensor_parallel_size=2)
        model = Decoder(dataclasses.replace(CONFIGS["llama"], num_hidden_layers=1))
        with pytest.raises(ValueError, match="pipeline_parallel_size 2: the model has only 1 layers"):
            make(model, 2)
        assert len(model.layers) == 1

    on_ranks(2, body)


def test_what_one_process_alone_can_do():
    def body():
        draft = {"num_speculative_tokens": 2, "model": build("llama")}
        with pytest.raises(NotImplementedError, match="draft model"):
            make(build("llama"), 2, speculative_config=draft)
        llm = make(build("llama"), 2)
        with pytest.raises(ValueError, match="the model is one of 2 stages"):
            LLMEngine(llm.llm_engine.runner.model, None, EngineArgs())
        with pytest.raises(ValueError, match="a stage of a pipeline already"):
            make(llm.llm_engine.runner.model, 2)
        return answers(llm)  # and what was refused left nothing behind

    assert on_ranks(2, body) == [answers(make(build("llama"), 1))] * 2
