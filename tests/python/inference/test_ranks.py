"""What ranks do together: adapters in parts, prompts cut by rank 0's clock, AsyncLLM on rank 0."""

import asyncio
import dataclasses
import itertools
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import traffic
import warptape as wt
import warptape.distributed as dist
from launched import launch, lines
from model_configs import CONFIGS
from safetensors.numpy import save_file
from traffic import model_of, write_adapters
from warptape.inference import LLM, AsyncLLM, LoRARequest, SamplingParams, async_llm
from warptape.models import Decoder

LIMIT = timedelta(seconds=60)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=1)
PROMPTS = [[(7 * i + j) % traffic.VOCAB for j in range(20 + i)] for i in range(6)]
SPLITS = [(2, 1), (1, 2)]  # tensor_ and pipeline_parallel_size


def make(split, model=None, **more):
    """The Llama of the traffic test on the ranks of a job."""
    ranks, stages = split
    return LLM(
        model or model_of("llama", "float32", None, invariant=False),
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
        **more,
    )


def on_ranks(ranks, body):
    """What the body gives on each rank."""
    return dist.simulate(ranks, body, timeout=LIMIT)


def config_of(name, **changes):
    return dataclasses.replace(CONFIGS[name], **changes)


def answers(outs):
    return [(each.token_ids, each.cumulative_logprob) for out in outs for each in out.outputs]


# ---------------------------------------------------------------------------------- adapters


def check(split, alone, every, within=1e-3):
    """That all ranks gave the answers of one process: to the bit in a pipeline, else up to rounding."""
    assert all(each == every[0] for each in every)
    if split[0] == 1:
        assert every[0] == alone
    for (tokens, logprob), (expected, expected_logprob) in zip(every[0], alone, strict=True):
        assert tokens == expected
        assert logprob == pytest.approx(expected_logprob, abs=within)


@pytest.mark.parametrize("split", [*SPLITS, (2, 2), (1, 3)])
def test_adapters_are_those_of_one_process(split, tmp_path):
    """With every linear layer adapted, those whose inputs are split too."""
    adapters = [None, *write_adapters(tmp_path)]
    asked = [adapters[i % 3] for i in range(6)]

    def body(split):
        return answers(make(split).generate(PROMPTS, GREEDY, lora_request=asked))

    alone = body((1, 1))
    plain = answers(make((1, 1)).generate(PROMPTS, GREEDY))
    assert [a == p for a, p in zip(alone, plain, strict=True)] == [True, False, False] * 2
    check(split, alone, on_ranks(split[0] * split[1], lambda: body(split)))


@pytest.mark.parametrize("quantization", [None, "int4"])
def test_adapters_of_biased_layers_and_a_padded_vocabulary(quantization, tmp_path):
    """A head of 61 rows; beside quantised weights."""
    wt.manual_seed(5)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 61, "head_dim": 16}
    model = Decoder(config_of("qwen2", max_position_embeddings=128, **sizes)).eval()
    model.save_pretrained(tmp_path / "model")
    rng, arrays = np.random.default_rng(1), {}
    for name, (outputs, inputs) in {
        "model.layers.0.self_attn.k_proj": (model.config.num_key_value_heads * model.config.head_dim, 64),
        "model.layers.1.mlp.down_proj": (64, 128),
        "lm_head": (61, 64),
    }.items():
        stem = f"base_model.model.{name}"
        arrays[f"{stem}.lora_A.weight"] = rng.normal(0, 0.2, (2, inputs)).astype(np.float32)
        arrays[f"{stem}.lora_B.weight"] = rng.normal(0, 0.2, (outputs, 2)).astype(np.float32)
    (tmp_path / "adapter").mkdir()
    save_file(arrays, tmp_path / "adapter" / "adapter_model.safetensors")
    (tmp_path / "adapter" / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 4}')
    lora = LoRARequest("a", 1, tmp_path / "adapter")
    prompts = [[token % 61 for token in prompt] for prompt in PROMPTS]

    def body(ranks):
        model = Decoder.from_pretrained(tmp_path / "model")
        llm = make((ranks, 1), model, quantization=quantization)
        return answers(llm.generate(prompts, GREEDY, lora_request=lora))

    # Groups of 32 inputs are the same ones in a part, but inputs are rounded to 8 bits beside int4 weights: a
    # sum over ranks that differs in its last bits moves some of them by a step.
    check((2, 1), body(1), on_ranks(2, lambda: body(2)), 5e-2 if quantization else 1e-3)


def test_wrong_adapters_raise_on_every_rank(tmp_path):
    first, _ = write_adapters(tmp_path)
    path = Path(first.lora_path)

    def body(split):
        llm = make(split)
        with pytest.raises(FileNotFoundError):
            llm.generate(PROMPTS, GREEDY, lora_request=LoRARequest("none", 3, tmp_path / "nowhere"))
        with pytest.raises(ValueError, match=r"no linear layer here is called model\.layers\.9"):
            llm.generate(PROMPTS, GREEDY, lora_request=LoRARequest("other", 4, tmp_path / "other"))
        return answers(llm.generate(PROMPTS, GREEDY, lora_request=first))

    (tmp_path / "other").mkdir()
    arrays = {
        f"base_model.model.model.layers.9.mlp.up_proj.lora_{x}.weight": np.zeros((2, 2), np.float32)
        for x in "AB"
    }
    save_file(arrays, tmp_path / "other" / "adapter_model.safetensors")
    (tmp_path / "other" / "adapter_config.json").write_text((path / "adapter_config.json").read_text())
    for split in SPLITS:
        check(split, body((1, 1)), on_ranks(2, lambda split=split: body(split)))


# ---------------------------------------------------------------------------- rank 0's clock


@pytest.mark.parametrize("split", SPLITS)
def test_prompts_are_cut_by_the_clock_of_rank_0(split):
    """Clocks of other ranks, and so their own limits, differ; the ranks' steps are those of rank 0."""

    def body(split, **limits):
        engine = make(split, enable_prefix_caching=False, **limits).llm_engine
        if limits and split != (1, 1) and dist.get_rank() > 0:
            engine._rate_control.tokens = lambda: 17  # what this rank would do by itself
        out, counts = {}, []
        for i, prompt in enumerate(PROMPTS):
            engine.add_request(str(i), prompt * 3, SamplingParams(seed=i, max_tokens=20, ignore_eos=True))
            engine.step()
        while engine.has_unfinished_requests():
            for output in engine.step():
                out[output.request_id] = output.outputs[0].token_ids
            counts.append(dict(engine.num_scheduled_tokens))
        return out, counts

    plain, fewer = body((1, 1))
    first, second = on_ranks(2, lambda: body(split, max_prefill_slowdown=1.001))
    assert first == second
    assert first[0] == plain and len(first[1]) > len(fewer)


# ------------------------------------------------------------------------------------ asyncio


async def ask(engine, prompt, params=GREEDY, **more):
    async for output in engine.generate(prompt, params, **more):
        last = output
    return last.outputs[0].token_ids


def serve(engine, main):
    """Runs what clients do on rank 0; the other ranks follow."""
    if dist.get_rank() > 0:
        with pytest.raises(RuntimeError, match="requests go to rank 0"):
            asyncio.run(ask(engine, [1]))
    out = asyncio.run(main(engine)) if dist.get_rank() == 0 else None
    engine.shutdown()
    assert not engine.engine.has_unfinished_requests()
    return out


@pytest.mark.parametrize("split", SPLITS)
def test_asyncio_on_rank_0(split, tmp_path, monkeypatch):
    monkeypatch.setattr(async_llm, "SIGN_OF_LIFE", 0.01)
    adapter, _ = write_adapters(tmp_path)
    alone = answers(make((1, 1)).generate(PROMPTS, GREEDY))
    adapted = answers(make((1, 1)).generate(PROMPTS[:1], GREEDY, lora_request=adapter))
    drawn = SamplingParams(max_tokens=12, ignore_eos=True)  # with a seed of the engine's

    async def main(engine):
        got = await asyncio.gather(*(ask(engine, prompt) for prompt in PROMPTS))
        assert got == [tokens for tokens, _ in alone]
        await asyncio.sleep(0.1)  # nothing to do, which the others are told
        assert await ask(engine, PROMPTS[0], lora_request=adapter) == adapted[0][0]
        for prompt, error, text in (
            ([100000], IndexError, "out of the vocabulary"),
            (3.5, TypeError, "prompt must be"),
            ([1] * 500, ValueError, "maximum model length"),
        ):
            with pytest.raises(error, match=text):
                await ask(engine, prompt)
        with pytest.raises(FileNotFoundError):
            await ask(engine, [1], lora_request=LoRARequest("none", 3, tmp_path / "nowhere"))
        with pytest.raises(TypeError):
            await ask(engine, [1], temperature=3)
        async for _ in engine.generate(PROMPTS[1], GREEDY):  # a task that leaves
            break
        long = SamplingParams(temperature=0, max_tokens=None, ignore_eos=True)
        stream = engine.generate(PROMPTS[2], long, request_id="named")
        await anext(stream)
        with pytest.raises(ValueError, match="in use"):
            await ask(engine, [1], request_id="named")
        await engine.abort("named")
        rest = [output async for output in stream]
        assert rest[-1].outputs[0].finish_reason == "abort"
        assert len({tuple(await ask(engine, PROMPTS[0], drawn)) for _ in range(3)}) == 3
        return await ask(engine, PROMPTS[0])

    first, second = on_ranks(
        2, lambda: serve(AsyncLLM(make(split, max_prefill_slowdown=1.5).llm_engine), main)
    )
    assert (first, second) == (alone[0][0], None)


def test_a_request_that_another_rank_refuses(tmp_path):
    """Its folder is there on rank 0 alone: nobody computes it, and the others go on."""
    first, _ = write_adapters(tmp_path)
    alone = answers(make((1, 1)).generate(PROMPTS[:1], GREEDY))

    def body():
        inner = make((2, 1)).llm_engine
        if dist.get_rank() == 1:
            number = inner.runner.adapters.number

            def without(request):
                if request is not None:
                    raise FileNotFoundError(f"{request.lora_path}: not on this host")
                return number(request)

            inner.runner.adapters.number = without
        engine = AsyncLLM(inner)  # from here on it steps, as soon as the other rank asks

        async def main(engine):
            running = asyncio.ensure_future(ask(engine, PROMPTS[0]))
            with pytest.raises(RuntimeError, match=r"refused on another rank: rank 1: .*not on this host"):
                await ask(engine, PROMPTS[0], lora_request=first)
            return await running

        return serve(engine, main)

    assert on_ranks(2, body)[0] == alone[0][0]


def test_an_error_of_the_model(tmp_path):
    """On all ranks: the requests end with it, and others can come. On one: all learn of it."""

    def body(wrong):
        inner = make((2, 1)).llm_engine
        runner, calls = inner.runner, itertools.count()
        forward = runner.forward

        def sometimes(batch):
            if next(calls) == 3 and dist.get_rank() in wrong:
                raise ZeroDivisionError("planted")
            return forward(batch)

        async def main(engine):
            with pytest.raises((ZeroDivisionError, dist.DistBackendError, RuntimeError)) as raised:
                await ask(engine, PROMPTS[0])
            if wrong == [0, 1]:
                assert raised.type is ZeroDivisionError
                assert len(await ask(engine, PROMPTS[0])) == 12
            else:
                with pytest.raises(RuntimeError, match="AsyncLLM: it ended"):
                    await ask(engine, PROMPTS[0])

        runner.forward = sometimes
        engine = AsyncLLM(inner)
        if len(wrong) == 2:
            return serve(engine, main)
        if dist.get_rank() == 0:
            asyncio.run(main(engine))
        with pytest.raises(dist.DistBackendError):
            engine.shutdown()
        return None

    on_ranks(2, lambda: body([0, 1]))
    on_ranks(2, lambda: body([0]))
    on_ranks(2, lambda: body([1]))


@pytest.mark.parametrize("wrong", [[0, 1], [0], [1]], ids=str)
def test_an_error_after_the_collectives_of_a_step(wrong):
    """Where tokens are taken, which needs no other rank: ranks that went on would answer differently."""

    def body():
        inner = make((2, 1)).llm_engine
        take, calls = inner._take, itertools.count()

        def sometimes(*args):
            if next(calls) == 3 and dist.get_rank() in wrong:
                raise ZeroDivisionError("planted")
            return take(*args)

        inner._take = sometimes
        engine = AsyncLLM(inner)

        async def main(engine):
            with pytest.raises((ZeroDivisionError, RuntimeError)) as raised:
                await ask(engine, PROMPTS[0])
            assert (raised.type is ZeroDivisionError) == (len(wrong) == 2), raised.value
            return None if len(wrong) == 2 else str(raised.value)

        said = asyncio.run(main(engine)) if dist.get_rank() == 0 else None
        if len(wrong) == 2:
            return engine.shutdown()
        with pytest.raises(dist.DistBackendError, match=rf"failed on rank {wrong[0]}: ZeroDivisionError"):
            engine.shutdown()
        return said

    on_ranks(2, body)


def test_processes_of_the_launcher(tmp_path):
    adapter, _ = write_adapters(tmp_path)
    script = tmp_path / "serve.py"
    script.write_text(
        "import asyncio, sys, warptape as wt, warptape.distributed as dist\n"
        f"sys.path.insert(0, {str(Path(traffic.__file__).parent)!r})\n"
        "from traffic import model_of\n"
        "from warptape.inference import LLM, AsyncLLM, LoRARequest, SamplingParams\n"
        "dist.init_process_group()\n"
        "model = model_of('llama', 'float32', None, invariant=False)\n"
        "engine = AsyncLLM(LLM(model, tensor_parallel_size=2).llm_engine)\n"
        "params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)\n"
        f"adapters = [None, LoRARequest('1', 1, {str(adapter.lora_path)!r})]\n"
        "async def ask(prompt, adapter):\n"
        "    async for out in engine.generate(prompt, params, lora_request=adapter): pass\n"
        "    return out.outputs[0].token_ids\n"
        "async def main():\n"
        f"    return await asyncio.gather(*(ask({PROMPTS[0]}, a) for a in adapters))\n"
        "if dist.get_rank() == 0: print(asyncio.run(main()))\n"
        "engine.shutdown()\n"
    )
    status, out, err = launch("--nproc-per-node=2", script)
    assert status == 0, err
    prompts = [PROMPTS[0]] * 2
    expected = make((1, 1)).generate(prompts, GREEDY, lora_request=[None, adapter])
    assert lines(out) == [[tokens for tokens, _ in answers(expected)]]


# ---------------------------------------------------------------------------------- new weights


def config_with(name):
    return config_of(name, hidden_size=64, head_dim=16, intermediate_size=128, num_hidden_layers=3)


def model_with(name, seed):
    wt.manual_seed(seed)
    return Decoder(config_with(name)).eval()


def short(llm):
    prompts = [[t % 40 for t in prompt[:15]] for prompt in PROMPTS[:3]]
    return answers(llm.generate(prompts, GREEDY))


def engine_of(split, name, seed, **more):
    return make(split, model_with(name, seed), skip_tokenizer_init=True, **more)


@pytest.mark.parametrize("split", [(2, 1), (1, 2), (2, 2)])
@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen2"])
def test_new_weights_are_taken_in_parts(split, name):
    """Of any layout, to the bit those of an engine that is split from them."""
    from warptape.distributed.tensor import Replicate, Shard, distribute_tensor

    def body(updated):
        used = engine_of(split, name, 0 if updated else 1)
        if updated:
            mesh = dist.init_device_mesh("cpu", (split[0] * split[1],))
            places = itertools.cycle([None, Replicate(), Shard(0), Shard(-1)])
            state = model_with(name, 1).state_dict()
            for key, place in zip(state, places):
                if place is not None:
                    state[key] = distribute_tensor(state[key], mesh, [place])
            assert used.llm_engine.update_weights(state) == 1
        return short(used)

    ranks = split[0] * split[1]
    assert on_ranks(ranks, lambda: body(True)) == on_ranks(ranks, lambda: body(False))


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_new_weights_of_quantised_parts(quantization):
    def body(seed, state=None):
        used = engine_of((2, 1), "llama", seed, quantization=quantization)
        if state:
            used.llm_engine.update_weights(state)
        return short(used)

    state = model_with("llama", 1).state_dict()
    assert on_ranks(2, lambda: body(0, state)) == on_ranks(2, lambda: body(1))


def test_weights_that_one_rank_refuses_change_none():
    def body():
        used = engine_of((2, 1), "llama", 0)
        before, state = short(used), model_with("llama", 1).state_dict()
        if dist.get_rank() == 1:
            state["norm.weight"] = state["norm.weight"][:-1]
        with pytest.raises((RuntimeError, ValueError)) as raised:
            used.llm_engine.update_weights(state)
        assert short(used) == before and used.llm_engine.weights_version == 0
        return str(raised.value)

    first, second = on_ranks(2, body)
    assert "refused on another rank: rank 1" in first and "norm.weight has shape" in second


def test_weights_of_rank_0_reach_the_others():
    state, prompt = model_with("llama", 1).state_dict(), [1, 2, 3]

    async def lead(engine):
        with pytest.raises(ValueError, match="missing"):
            await engine.update_weights({})
        with pytest.raises(TypeError, match="plain tensor"):
            await engine.update_weights({"norm.weight": 1})
        await engine.update_weights(state)
        outs = [out async for out in engine.generate(prompt, GREEDY)]
        return answers(outs[-1:])

    def body():
        engine = AsyncLLM(engine_of((2, 1), "llama", 0).llm_engine)
        try:
            return asyncio.run(lead(engine)) if dist.get_rank() == 0 else None
        finally:
            engine.shutdown()

    def expected():
        return answers(engine_of((2, 1), "llama", 1).generate([prompt], GREEDY))

    assert on_ranks(2, body)[0] == on_ranks(2, expected)[0]
