"""The inference engine on the device: its kernels against the CPU's, rows of them to the bit whatever shares
a call, and tokens equal to the CPU's.

N tokens, R sequences, H query heads, K key heads, D head size; M rows of linear layers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import warptape as torch
from model_configs import SMALL
from traffic import model_of as traffic_model
from traffic import write_adapters
from warptape._C import _private as ops
from warptape.inference import LLM, SamplingParams
from warptape.inference.linear import Float8Linear, PackedLinear, QuantLinear
from warptape.inference.llm import prepare
from warptape.inference.packed_file import load_packed, save_packed
from warptape.models import Decoder, DecoderConfig, PagedCache

pytestmark = pytest.mark.cuda
PAGE, NAN = 32, float("nan")
DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture(autouse=True)
def inference() -> Iterator[None]:
    with torch.inference_mode():
        yield


def drawn(*shape: int, dtype: Any = torch.float32, seed: int = 0) -> Any:
    return torch.tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).to(dtype)


def close(got: Any, expected: Any, tolerance: float) -> None:
    x, y = got.cpu().double().numpy(), expected.double().numpy()
    assert x.shape == y.shape
    assert np.abs(x - y).max(initial=0) <= tolerance * max(1, np.abs(y).max(initial=0))


# ---- attention to pages ----


class Case(NamedTuple):
    heads: int = 4
    kv_heads: int = 2
    d: int = 40
    dtype: Any = torch.float32
    pages: Any = None  # their dtype; None: dtype
    window: int | None = None
    cap: float | None = None
    sinks: bool = False


CASES = {
    "grouped": Case(),
    "one to one": Case(3, 3, 16),
    "many heads": Case(18, 2, 8),
    "window": Case(window=37),
    "bfloat16": Case(dtype=torch.bfloat16),
    "int8": Case(pages=torch.int8),
    "int8 of bfloat16": Case(dtype=torch.bfloat16, pages=torch.int8, window=70),
    # By tensor cores: tiles of 64, 128 and 256 elements, not all filled; more heads than a tile has rows.
    "64 elements": Case(8, 2, 64, torch.bfloat16, window=37),
    "128 elements": Case(20, 1, 72, torch.bfloat16),
    "256 elements": Case(3, 1, 136, torch.bfloat16),
    "int8 in 64": Case(4, 1, 48, torch.bfloat16, torch.int8, 37),
    "int8 in 128": Case(17, 1, 128, torch.bfloat16, torch.int8),
    "int8 in 256": Case(3, 3, 144, torch.bfloat16, torch.int8),
    "bfloat16 of odd heads": Case(4, 2, 7, torch.bfloat16),
    "capped, with sinks": Case(cap=1.5, sinks=True),
    "capped, with sinks, by tensor cores": Case(8, 2, 64, torch.bfloat16, cap=1.5, sinks=True),
    "capped int8": Case(8, 2, 64, torch.bfloat16, torch.int8, cap=1.5, sinks=True),
}


class Pages:
    """Pages of one layer on a device, full of NaN (int8: of scales that are)."""

    def __init__(self, case: Case, device: str, count: int = 48) -> None:
        dtype, k = case.pages or case.dtype, case.kv_heads
        fill = 77 if dtype == torch.int8 else NAN
        self.case, self.device = case, device
        self.both = [
            torch.full(shape, fill, dtype=dtype, device=device)
            for shape in ((count, k, case.d, PAGE), (count, k, PAGE, case.d))
        ]
        self.scales = {}
        if dtype == torch.int8:
            self.scales = {
                name: torch.full((count, k, PAGE), NAN, device=device)
                for name in ("key_scales", "value_scales")
            }

    def store(self, k: Any, v: Any, slots: list[int]) -> None:
        given = (x.to(self.device) for x in (k, v, torch.tensor(slots)))
        ops._paged_store(*self.both, *given, **self.scales)

    def attend(self, q: Any, table: list[list[int]], starts: list[int], lengths: list[int]) -> Any:
        metadata = (torch.tensor(x, dtype=torch.int32, device=self.device) for x in (table, starts, lengths))
        more = {"window": self.case.window, "cap": self.case.cap, **self.scales}
        if self.case.sinks:
            more["sinks"] = torch.linspace(-2, 6, self.case.heads, device=self.device)
        return ops._paged_attention(q.to(self.device), *self.both, *metadata, **more).cpu()


def tokens_of(case: Case, length: int, seed: int = 0) -> list[Any]:
    """q, k and v of a sequence."""
    heads = (case.heads, case.kv_heads, case.kv_heads)
    return [drawn(length, h, case.d, dtype=case.dtype, seed=3 * seed + i) for i, h in enumerate(heads)]


def slots_of(table: list[int], length: int) -> list[int]:
    return [table[i // PAGE] * PAGE + i % PAGE for i in range(length)]


@pytest.mark.parametrize("name", CASES)
def test_attention_to_pages_as_on_the_cpu(name: str) -> None:
    """Two sequences and one without queries in a call; unused places of pages and table are not read."""
    case = CASES[name]
    lengths, tables = [75, 1, 33], [[5, 2, 9], [7, -9, -9], [0, 11, -9]]
    parts = [tokens_of(case, n, i) for i, n in enumerate(lengths)]
    q = torch.cat([parts[0][0], parts[2][0][30:]])
    results, kept = [], []
    for device in ("cpu", "cuda"):
        pages = Pages(case, device)
        for (_, k, v), table, n in zip(parts, tables, lengths):
            pages.store(k, v, slots_of(table, n))
        results.append(pages.attend(q, tables, [0, 75, 75, 78], lengths))
        kept.append([x.cpu().float().numpy() for x in (*pages.both, *pages.scales.values())])
    for a, b in zip(*kept):
        np.testing.assert_array_equal(a, b)
    assert results[1].dtype == case.dtype
    close(results[1], results[0], 1e-2 if case.dtype == torch.bfloat16 else 2e-6)


@pytest.mark.parametrize("name", CASES)
def test_a_row_of_attention_depends_on_its_sequence_alone(name: str) -> None:
    """A prompt whole, in chunks, beside another sequence and in other pages: the same bits."""
    case, length = CASES[name], 70
    q, k, v = tokens_of(case, length)
    other = tokens_of(case, 40, 5)
    whole = Pages(case, "cuda")
    whole.store(k, v, slots_of([0, 1, 2], length))
    want = whole.attend(q, [[0, 1, 2]], [0, length], [length])
    pages, table, got, done = Pages(case, "cuda"), [9, 3, 40], [], 0
    pages.store(other[1], other[2], slots_of([17, 1], 40))
    for n in (1, 31, 2, 35, 1):
        end = done + n
        pages.store(k[done:end], v[done:end], slots_of(table, length)[done:end])
        out = pages.attend(
            torch.cat([other[0][-3:], q[done:end]]), [[17, 1, -1], table], [0, 3, 3 + n], [40, end]
        )
        got.append(out[3:])
        done = end
    assert torch.equal(torch.cat(got), want)


@pytest.mark.parametrize("name", ["grouped", "int8", "window", "bfloat16", "int8 of bfloat16"])
def test_splits_as_blocks_and_one_after_the_other(name: str) -> None:
    """Few rows have blocks for their splits of 256 keys, many go through them: the same bits, also where the
    table has room for more pages."""
    case, length = CASES[name]._replace(d=16), 2080
    if case.window:
        case = case._replace(window=1500)
    q, k, v = tokens_of(case, length)
    table = [int(p) for p in np.random.default_rng(1).permutation(66)[:65]]
    results = {}
    for device in ("cpu", "cuda"):
        pages = Pages(case, device, 66)
        pages.store(k, v, slots_of(table, length))
        results[device] = pages.attend(q[-40:], [table], [0, 40], [length])
    close(results["cuda"], results["cpu"], 1e-2 if case.dtype == torch.bfloat16 else 2e-6)
    for i in (-40, -32, -1):
        one = pages.attend(q[i:][:1], [table + 70 * [-9]], [0, 1], [length + 1 + i])
        assert torch.equal(one[0], results["cuda"][i])


@pytest.mark.parametrize("name", ["window", "64 elements", "int8 in 64"])
def test_what_a_window_hides_is_not_read(name: str) -> None:
    """Neither pages before it, whose places in the table hold anything, nor keys of the page it begins in."""
    case, length = CASES[name], 330
    q, k, v = tokens_of(case, length)
    first, results = length - case.window, []
    for hidden in (False, True):
        table = list(range(11))
        pages = Pages(case, "cuda")
        pages.store(k, v, slots_of(table, length))
        if hidden:
            nothing = torch.full((first % PAGE, case.kv_heads, case.d), NAN, dtype=case.dtype)
            pages.store(nothing, nothing, slots_of(table, length)[first // PAGE * PAGE : first])
            table[: first // PAGE] = [-9] * (first // PAGE)
        results.append(pages.attend(q[-1:], [table], [0, 1], [length]))
    assert torch.equal(*results)


@pytest.mark.parametrize("name", ["grouped", "64 elements"])
def test_strided_heads(name: str) -> None:
    """As a projection leaves them, also from an address on that is no multiple of 16 bytes."""
    case = CASES[name]
    parts = [x.to("cuda") for x in tokens_of(case, 20)]
    heads, results = [case.heads, case.kv_heads, case.kv_heads], []
    for offset in (None, 0, 1):
        if offset is not None:
            whole = torch.empty(20 * sum(heads) * case.d + offset, dtype=case.dtype, device="cuda")
            parts = list(
                whole[offset:].view(20, sum(heads), case.d).copy_(torch.cat(parts, 1)).split(heads, 1)
            )
        pages = Pages(case, "cuda")
        pages.store(*parts[1:], slots_of([4], 20))
        results.append(pages.attend(parts[0], [[4]], [0, 20], [20]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_bad_slots_and_pages_are_reported() -> None:
    case = CASES["grouped"]
    q, k, v = tokens_of(case, 2)
    pages = Pages(case, "cuda", 4)
    pages.store(k, v, [0, 128])
    with pytest.raises(IndexError, match=r"_paged_store: index 128"):
        torch.cuda.synchronize()
    pages.store(k, v, [0, 1])
    with pytest.raises(IndexError, match=r"_paged_attention: index 4"):
        pages.attend(q, [[4]], [0, 2], [2])


# ---- linear layers ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("inputs, outputs", [(200, 40), (33, 16), (7, 5), (0, 3)])
def test_packed_linear(inputs: int, outputs: int, dtype: Any) -> None:
    """The layout is the CPU's, values are near, and a row is the same in every number of rows."""
    weight, bias = drawn(outputs, inputs, dtype=dtype), drawn(outputs, dtype=dtype, seed=1)
    packed = ops._pack_linear_weight(weight)
    on = ops._pack_linear_weight(weight.to("cuda"))
    assert torch.equal(on.cpu(), packed)
    x = drawn(19, inputs, dtype=dtype, seed=2)
    for b in (None, bias):
        moved = None if b is None else b.to("cuda")
        got = ops._packed_linear(x.to("cuda"), on, outputs, moved).cpu()
        close(got, ops._packed_linear(x, packed, outputs, b), 1e-2 if dtype == torch.bfloat16 else 1e-6)
        for first, end in ((0, 1), (18, 19), (3, 5), (2, 6), (1, 17)):
            part = ops._packed_linear(x[first:end].to("cuda"), on, outputs, moved).cpu()
            assert torch.equal(part, got[first:end])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("bits, group", [(b, g) for b in (8, 4) for g in (0, 32, 64, 128)])
def test_quant_linear_is_the_cpus_to_the_bit(bits: int, group: int, symmetric: bool, dtype: Any) -> None:
    inputs, outputs = (1100 if group == 32 else 300), 85
    weight, bias = drawn(outputs, inputs), drawn(outputs, dtype=dtype, seed=1)
    parts = ops._quantize_linear_weight(weight, bits, group, symmetric)
    on = ops._quantize_linear_weight(weight.to("cuda"), bits, group, symmetric)
    for a, b in zip(parts, on, strict=True):
        assert b.device.type == "cuda" and torch.equal(a, b.cpu())
    packed, scales, minima = [*on, None][:3]
    x = drawn(70, inputs, dtype=dtype, seed=2)
    x[4] = 0
    want = ops._quant_linear(x, *[*parts, None][:3], outputs, bits, group, bias)
    for first, end in ((0, 10), (0, 1), (4, 5), (5, 8), (0, 70), (3, 19)):
        given = x[first:end].to("cuda")  # from 16 rows on by tensor cores
        got = ops._quant_linear(given, packed, scales, minima, outputs, bits, group, bias.to("cuda"))
        assert torch.equal(got.cpu(), want[first:end])


def test_float8_linear() -> None:
    """Sums are the CPU's up to their order, and a row is the same in every number of rows."""
    inputs, outputs = 1040, 48  # sums this long would be split, if they might
    weight = drawn(outputs, inputs).to(torch.float8_e4m3fn)
    x = drawn(70, inputs, seed=1).to(torch.float8_e4m3fn)
    got = ops._float8_linear(x.to("cuda"), weight.to("cuda")).cpu()
    assert got.dtype == torch.float32
    close(got, ops._float8_linear(x, weight), 1e-5)
    for first, end in ((0, 10), (0, 1), (4, 5), (5, 8), (3, 67)):
        assert torch.equal(
            ops._float8_linear(x[first:end].to("cuda"), weight.to("cuda")).cpu(), got[first:end]
        )
    assert ops._float8_linear(x[:0].to("cuda"), weight.to("cuda")).shape == (0, outputs)
    for sizes in ((40, 32), (32, 40)):
        odd, rows = (torch.zeros(s, device="cuda").to(torch.float8_e4m3fn) for s in (sizes, (2, sizes[1])))
        with pytest.raises(torch.ShapeError, match="multiples of 16"):
            ops._float8_linear(rows, odd)


def test_float8_models() -> None:
    """Layers of float8 are the CPU's up to the order of their sums; load changes nothing."""
    linear = torch.nn.Linear(64, 32)
    x = drawn(9, 64, dtype=torch.bfloat16, seed=3)
    layer = Float8Linear(linear)
    want = layer(x)
    on = layer.to("cuda")
    got = on(x.to("cuda"))
    close(got, want, 1e-2)
    assert torch.equal(on(x[2:3].to("cuda")).cpu(), got[2:3].cpu())


def test_what_is_not_finite_stays_in_its_row() -> None:
    weight, x = drawn(20, 64), drawn(4, 64, seed=1)
    x[1, 3], x[2, 40] = NAN, float("inf")
    layers: list[Any] = [PackedLinear, lambda linear: QuantLinear(linear, 4, 32)]
    for make in layers:
        linear = torch.nn.Linear(64, 20)
        linear.weight.copy_(weight)
        layer = make(linear).to("cuda")
        out = layer(x.to("cuda")).cpu()
        assert not out[1].isfinite().any() and not out[2].isfinite().any()
        assert torch.equal(out[::3], layer(x[::3].to("cuda")).cpu()) and out[::3].isfinite().all()


# ---- the engine ----


def model_of(device: str) -> Decoder:
    torch.manual_seed(0)
    config = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64}
    return Decoder(DecoderConfig(**config)).eval().to(device)


def test_paged_cache_moves_what_a_step_is_of() -> None:
    """begin_step takes tensors of the CPU for pages on the device."""
    model = model_of("cuda")
    tokens = torch.tensor([[3, 1, 4, 1, 5]], device="cuda")
    want = model(tokens)
    cache = PagedCache(model.config, 2, device="cuda")
    for first, end in ((0, 3), (3, 5)):
        metadata = ([[1, 0]], [0, end - first], [end])
        cache.begin_step(*(torch.tensor(x, dtype=torch.int32) for x in metadata))
        close(model(tokens[:, first:end], cache=cache), want[:, first:end].cpu(), 1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"quantization": "int4"},
        {"kv_cache_dtype": "int8"},
        {"speculative_config": {"num_speculative_tokens": 3}},
    ],
    ids=str,
)
def test_tokens_of_an_engine_on_the_device(options: dict[str, Any]) -> None:
    """Greedy tokens are the CPU's, and alone those in a batch that is cut into chunks, to the bit."""
    prompts: list[Any] = [[1, 2, 3], list(range(40)), [7]]
    params = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=1)

    def answers(device: str, prompts: list[Any], **limits: Any) -> list[Any]:
        llm = LLM(model_of(device), max_model_len=64, max_num_seqs=4, **options, **limits)
        return [out.outputs[0] for out in llm.generate(prompts, params)]

    cpu, cuda = (answers(device, prompts, max_num_batched_tokens=16) for device in ("cpu", "cuda"))
    assert [a.token_ids for a in cuda] == [a.token_ids for a in cpu]
    for prompt, together in zip(prompts, cuda):
        (alone,) = answers("cuda", [prompt])
        assert alone.token_ids == together.token_ids
        assert alone.cumulative_logprob == together.cumulative_logprob


def test_adapters_and_a_packed_file(tmp_path: Path) -> None:
    """Adapters of requests, and a packed file that is loaded and then moved: the CPU's tokens."""
    adapters = [None, *write_adapters(tmp_path)]
    save_packed(
        prepare(traffic_model("llama", "float32", None, invariant=False), "int4", True), tmp_path / "packed"
    )
    prompts: list[Any] = [[7 * i + j for j in range(10 + i)] for i in range(3)]
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    answers: list[Any] = []
    for device in ("cpu", "cuda"):
        plain = LLM(traffic_model("llama", "float32", None, invariant=False).to(device), max_model_len=64)
        packed = LLM(load_packed(tmp_path / "packed").to(device), max_model_len=64)
        outs = [*plain.generate(prompts, params, lora_request=adapters), *packed.generate(prompts, params)]
        answers.append([out.outputs[0].token_ids for out in outs])
    assert answers[0] == answers[1]


# ---- decoding steps as CUDA graphs ----

TRAFFIC: list[Any] = [[1, 2, 3], list(range(40)), [7], [5, 6], [9] * 33]


def decoded(llm: LLM, **params: Any) -> list[Any]:
    settings = {"temperature": 0, "max_tokens": 9, "ignore_eos": True, "logprobs": 1, **params}
    outs = llm.generate(TRAFFIC, SamplingParams(**settings))
    return [(out.outputs[0].token_ids, out.outputs[0].cumulative_logprob) for out in outs]


@pytest.mark.parametrize("options", [{}, {"kv_cache_dtype": "int8"}, {"quantization": "int4"}], ids=str)
def test_replayed_steps_are_the_launched_ones_to_the_bit(options: dict[str, Any]) -> None:
    """Of graphs of several sizes, some larger than the step, with pages that are reused."""

    def made(**more: Any) -> LLM:
        return LLM(model_of("cuda"), max_model_len=64, max_num_seqs=5, **options, **more)

    launched, replayed = made(enforce_eager=True), made(cudagraph_capture_sizes=[1, 3, 5])
    want = decoded(launched)
    for _ in range(2):
        assert decoded(replayed) == want
    assert decoded(made(max_num_batched_tokens=16)) == want
    assert launched.llm_engine.stats()["graph_replays"] == 0
    assert replayed.llm_engine.stats()["graph_replays"] >= 2 * 8
    graphs = replayed.llm_engine.runner.graphs
    assert graphs is not None and set(graphs._recorded) <= {1, 3, 5} and 5 in graphs._recorded


def test_steps_that_have_no_graph() -> None:
    """More requests than any graph is for, and several new tokens of a request: launched one by one."""
    want = decoded(LLM(model_of("cuda"), max_model_len=64, max_num_seqs=5, enforce_eager=True))
    small = LLM(model_of("cuda"), max_model_len=64, max_num_seqs=5, cudagraph_capture_sizes=[2])
    assert decoded(small) == want
    assert small.llm_engine.stats()["graph_replays"] == 0
    guessing = LLM(
        model_of("cuda"), max_model_len=64, max_num_seqs=5, speculative_config={"num_speculative_tokens": 2}
    )
    assert decoded(guessing) == want


def test_a_model_that_cannot_be_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says how to go on, and loses no request."""
    llm = LLM(model_of("cuda"), max_model_len=64)
    want = decoded(LLM(model_of("cuda"), max_model_len=64, enforce_eager=True))
    runner = llm.llm_engine.runner
    own = runner.model.lm_head.forward
    waits = [True]

    def forward(x: Any) -> Any:
        if waits[0]:
            float(x.sum())
        return own(x)

    monkeypatch.setattr(runner.model.lm_head, "forward", forward)
    params = SamplingParams(temperature=0, max_tokens=9, ignore_eos=True, logprobs=1)
    for i, prompt in enumerate(TRAFFIC):
        llm.llm_engine.add_request(str(i), prompt, params)
    outs: dict[str, Any] = {}

    def finish() -> None:
        while llm.llm_engine.has_unfinished_requests():
            outs.update((out.request_id, out) for out in llm.llm_engine.step())

    with pytest.raises(RuntimeError, match="enforce_eager=True"):
        finish()
    waits[0] = False
    finish()
    got = [outs[str(i)].outputs[0] for i in range(len(TRAFFIC))]
    assert [(out.token_ids, out.cumulative_logprob) for out in got] == want


def test_capture_sizes_out_of_range() -> None:
    with pytest.raises(ValueError, match="cudagraph_capture_sizes"):
        LLM(model_of("cuda"), max_model_len=64, cudagraph_capture_sizes=[0, 4])
