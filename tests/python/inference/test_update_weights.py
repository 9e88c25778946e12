"""Other weights in an engine between two steps: what a new engine on them answers, versions, and refusals."""

from __future__ import annotations

import asyncio
from typing import Any

import on_policy
import pytest
import warptape as torch
from model_configs import SMALL
from warptape import multiprocessing
from warptape.distributed.tensor import distribute_tensor
from warptape.inference import LLM, AsyncLLM, LoRARequest, SamplingParams
from warptape.inference.weights import read_weights
from warptape.models import Decoder, DecoderConfig, load_adapter

PROMPTS = [[1, 2, 3], list(range(5, 39)), [7]]
GREEDY = SamplingParams(temperature=0, max_tokens=12, logprobs=1)


def decoder(seed: int, **more: Any) -> Decoder:
    torch.manual_seed(seed)
    return Decoder(DecoderConfig(**{**SMALL, "max_position_embeddings": 64, **more}))


def llm(model: Decoder, **more: Any) -> LLM:
    return LLM(model, skip_tokenizer_init=True, **more)


def answers(of: LLM) -> Any:
    outs = of.generate(PROMPTS, GREEDY)
    return [(o.outputs[0].token_ids, o.outputs[0].cumulative_logprob) for o in outs]


@pytest.mark.parametrize(
    "more",
    [{}, {"quantization": "int8"}, {"quantization": "int4"}, {"quantization": "fp8"}, {"invariant": False}],
)
@pytest.mark.parametrize("tied", [False, True])
def test_answers_are_those_of_an_engine_on_the_new_weights(more, tied):
    new = decoder(1, tie_word_embeddings=tied)
    state = {name: t.clone() for name, t in new.state_dict().items() if not tied or name != "lm_head.weight"}
    used = llm(decoder(0, tie_word_embeddings=tied), **more)
    before = answers(used)
    assert used.llm_engine.update_weights(state) == 1
    for t in state.values():
        t.zero_()  # the engine has copies
    after = answers(used)
    assert after == answers(llm(new, **more)) and after != before


def test_bfloat16_takes_what_a_trainer_has_if_it_may_convert():
    used, new = llm(decoder(0).bfloat16()), decoder(1)
    before = answers(used)
    with pytest.raises(torch.DtypeError, match=r"is torch.float32, the engine's is torch.bfloat16"):
        used.llm_engine.update_weights(new.state_dict())
    assert answers(used) == before and used.llm_engine.weights_version == 0
    used.llm_engine.update_weights(new.state_dict(), convert=True)
    assert answers(used) == answers(llm(new.bfloat16()))


def run(engine: Any) -> dict[str, Any]:
    done = {}
    while engine.has_unfinished_requests():
        done.update({out.request_id: out for out in engine.step()})
    return done


@pytest.mark.parametrize("in_flight", ["finish", "continue", "abort"])
def test_requests_that_run_do_as_is_chosen(in_flight):
    old, new = answers(llm(decoder(0))), answers(llm(decoder(1)))
    engine = llm(decoder(0)).llm_engine
    for i, prompt in enumerate(PROMPTS):
        engine.add_request(str(i), prompt, GREEDY)
    for _ in range(5):
        engine.step()
    assert engine.update_weights(decoder(1).state_dict(), version=7, in_flight=in_flight) == 7
    engine.add_request("later", PROMPTS[1], GREEDY)
    done = run(engine)
    late = done.pop("later").outputs[0]
    assert (late.token_ids, late.cumulative_logprob) == new[1]  # nothing of the old cache is in it
    assert late.weights_versions == (7,)
    for i, out in sorted(done.items()):
        answer, tokens = out.outputs[0], old[int(i)][0]
        if in_flight == "finish":
            assert answer.token_ids == tokens and answer.weights_versions == (0,)
        elif in_flight == "continue":
            assert answer.token_ids[:5] == tokens[:5] and answer.weights_versions == (0, 7)
            assert len(answer.token_ids) == 12
        else:
            assert answer.token_ids == tokens[:5] and answer.finish_reason == "abort"
    assert len(done) == 3


def test_the_prefix_cache_is_kept_by_choice():
    for keep, cached in ((True, 32), (False, 0)):
        used = llm(decoder(0))
        answers(used)
        used.llm_engine.update_weights(decoder(1).state_dict(), keep_prefix_cache=keep)
        assert used.generate([PROMPTS[1]], GREEDY)[0].num_cached_tokens == cached


def test_what_does_not_fit_leaves_the_engine_as_it_was():
    used, state = llm(decoder(0)), decoder(1).state_dict()
    engine, before = used.llm_engine, answers(used)
    name = "layers.0.self_attn.o_proj.weight"
    engine.add_request("runs", PROMPTS[0], GREEDY)
    engine.step()
    bad: list[tuple[Any, Any, str]] = [
        ({**state, name: state[name][:-1]}, torch.ShapeError, f"{name} has shape"),
        ({**state, name: state[name].half()}, torch.DtypeError, f"{name} is torch.float16"),
        ({**state, name: state[name].long()}, torch.DtypeError, name),
        ({k: v for k, v in state.items() if k != name}, ValueError, "1 weights are missing"),
        ({**state, "other.weight": state[name]}, ValueError, "1 are of nothing in the model"),
        ({**state, name: [1.0]}, TypeError, "must be a tensor, got list"),
        ([1], TypeError, "expected a state_dict"),
    ]
    for weights, error, words in bad:
        with pytest.raises(error, match=words):
            engine.update_weights(weights)
    with pytest.raises(ValueError, match="in_flight must be one of"):
        engine.update_weights(state, in_flight="later")
    for version in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="version must be a number above 0"):
            engine.update_weights(state, version=version)
    with pytest.raises(ValueError, match="for another engine"):
        engine.update_weights(llm(decoder(0)).llm_engine.prepare_weights(state))
    assert run(engine)["runs"].outputs[0].token_ids == before[0][0]
    assert answers(used) == before and engine.weights_version == 0


def test_dtensors_are_gathered():
    def rank() -> Any:
        mesh = torch.distributed.init_device_mesh("cpu", (2,))
        state = {
            name: distribute_tensor(t, mesh, [torch.distributed.tensor.Shard(0)])
            for name, t in decoder(1).state_dict().items()
        }
        used = llm(decoder(0))
        used.llm_engine.update_weights(state)
        return answers(used)

    assert torch.distributed.simulate(2, rank) == [answers(llm(decoder(1)))] * 2


def test_an_engine_in_a_thread_takes_weights_between_steps():
    async def both() -> Any:
        engine = AsyncLLM(llm(decoder(0)).llm_engine)
        try:
            with pytest.raises(ValueError, match="missing"):
                await engine.update_weights({})

            async def last(prompt: list[int]) -> Any:
                return [out async for out in engine.generate(prompt, GREEDY)][-1].outputs[0]

            first = asyncio.create_task(last(PROMPTS[0]))
            await asyncio.sleep(0.01)
            version = await engine.update_weights(decoder(1).state_dict())
            return version, await first, await last(PROMPTS[0])
        finally:
            engine.shutdown()

    version, first, second = asyncio.run(both())
    old, new = answers(llm(decoder(0)))[0][0], answers(llm(decoder(1)))[0][0]
    assert version == 1 and first.token_ids == old and first.weights_versions == (0,)
    assert second.token_ids == new and second.weights_versions == (1,)


def test_weights_in_memory_that_another_process_shared():
    """The engine's copies stay when that process writes again, or is gone."""
    queue, go = multiprocessing.get_context("fork").SimpleQueue(), multiprocessing.get_context("fork").Event()

    def train() -> None:
        state = decoder(1).state_dict()
        queue.put(state)
        go.wait(30)
        for t in state.values():
            t.zero_()

    trainer = multiprocessing.get_context("fork").Process(target=train, daemon=True)
    trainer.start()
    used = llm(decoder(0))
    used.llm_engine.update_weights(queue.get())
    go.set()
    trainer.join(30)
    assert trainer.exitcode == 0
    assert answers(used) == answers(llm(decoder(1)))


def test_weights_of_a_file_and_of_a_folder(tmp_path):
    used, new = llm(decoder(0)), decoder(1)
    torch.utils.safetensors.save_file(new.state_dict(), tmp_path / "new.safetensors")
    used.llm_engine.update_weights(read_weights(tmp_path / "new.safetensors"))
    assert answers(used) == answers(llm(decoder(1)))
    decoder(2).save_pretrained(tmp_path / "folder")
    used.llm_engine.update_weights(read_weights(tmp_path / "folder"))
    assert answers(used) == answers(llm(decoder(2)))
    (tmp_path / "new.safetensors").write_bytes(b"none")
    with pytest.raises(ValueError, match="update_weights: "):
        read_weights(tmp_path / "new.safetensors")
    with pytest.raises(FileNotFoundError, match="no folder and no file"):
        read_weights(tmp_path / "nothing")


def test_an_adapter_gets_other_factors(tmp_path):
    model = on_policy.model_of(0, {}, torch.float32)
    folders = [tmp_path / str(i) for i in range(2)]
    for i, folder in enumerate(folders):
        folder.mkdir()
        on_policy.write_adapter(folder, i, model)
    of_folder = [LoRARequest(folder.name, i + 1, folder) for i, folder in enumerate(folders)]
    used = llm(on_policy.model_of(0, {}, torch.float32))

    def answered(lora: Any) -> Any:
        return used.generate([[1, 2, 3]], GREEDY, lora_request=lora)[0].outputs[0].token_ids

    plain, first, second = [answered(lora) for lora in (None, *of_folder)]
    assert len({*map(tuple, (plain, first, second))}) == 3
    factors = [load_adapter(model, folder).factors for folder in folders]
    own, engine = LoRARequest("mine", 7, "nowhere"), used.llm_engine
    assert engine.update_adapter(own, factors[0]) == 1 and answered(own) == first
    assert engine.update_adapter(own, factors[1], in_flight="continue") == 2 and answered(own) == second
    name = "layers.0.mlp.down_proj"
    for wrong, error in (
        ({"layers.0": factors[0][name]}, ValueError),
        ({"layers.0.self_attn.qkv_proj": factors[0][name]}, torch.ShapeError),
    ):
        with pytest.raises(error, match="adapter: "):
            engine.update_adapter(own, wrong)
    assert answered(own) == second and answered(None) == plain and engine.weights_version == 2
