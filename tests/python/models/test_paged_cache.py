"""Decoders with keys and values in pages: the same tokens as without, however sequences are run."""

from __future__ import annotations

import pytest
import warptape as wt
from model_configs import CONFIGS, V, build, tokens
from warptape.models import Decoder, DecoderConfig, PagedCache

SIZE = PagedCache.TOKENS


def int32(values: object) -> wt.Tensor:
    return wt.tensor(values, dtype=wt.int32)


class Run:
    """Sequences in a paged cache, each with the pages of its row."""

    def __init__(self, model: Decoder, pages: list[list[int]], **options: object) -> None:
        self.model, self.pages = model, pages
        self.cache = PagedCache(model.config, 1 + max(max(row) for row in pages), **options)
        for pool in self.cache.keys + self.cache.values:
            pool.fill_(float("nan") if pool.dtype.is_floating_point else 127)
        self.lengths = [0] * len(pages)

    @wt.no_grad()
    def step(self, parts: dict[int, wt.Tensor]) -> dict[int, wt.Tensor]:
        """Tokens [n] of some sequences -> what the head is applied to for each, [n, C]."""
        starts = [0]
        for sequence, part in parts.items():
            self.lengths[sequence] += part.shape[0]
            starts.append(starts[-1] + part.shape[0])
        table, lengths = [self.pages[i] for i in parts], [self.lengths[i] for i in parts]
        self.cache.begin_step(int32(table), int32(starts), int32(lengths))
        out = self.model.hidden(wt.cat(list(parts.values()))[None], cache=self.cache)[0]
        return {s: out[a:b] for s, a, b in zip(parts, starts, starts[1:])}

    def pick(self, hidden: wt.Tensor) -> wt.Tensor:
        return self.model.lm_head(hidden[-1:]).argmax(-1)


@pytest.mark.parametrize("name", CONFIGS)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    """Prompts of several lengths enter at different times, one of them in pieces."""
    model, prompts, new = build(name), [tokens(1, n, seed=n)[0] for n in (3, 14, 7)], 15
    with wt.no_grad():
        want = [model.generate(p[None], new)[0] for p in prompts]
        run = Run(model, [[4], [0], [2]])
        got = [[] for _ in prompts]
        pending = {0: [prompts[0]], 1: list(prompts[1].split([5, 8, 1])), 2: [prompts[2]]}
        for turn in range(20):
            parts = {}
            for i in (2, 0, 1):  # in an order that is not theirs
                if pending[i] and turn >= i:
                    parts[i] = pending[i].pop(0)
                elif got[i] and len(got[i]) < new:
                    parts[i] = got[i][-1]
            for i, hidden in (run.step(parts) if parts else {}).items():
                if not pending[i]:
                    got[i].append(run.pick(hidden))
        assert [len(row) for row in got] == [new] * 3
        for row, prompt, full in zip(got, prompts, want):
            assert wt.equal(wt.cat([prompt, *row]), full)


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_more_than_a_page(name: str) -> None:
    """A sequence over several pages in any order, against the decoder without a cache."""
    config = DecoderConfig.from_hf({**CONFIGS[name].to_hf(), "max_position_embeddings": 100})
    wt.manual_seed(3)
    model, x = Decoder(config).eval(), tokens(1, 75)[0]
    run = Run(model, [[3, 0, 2]])
    with wt.no_grad():
        want = model.hidden(x[None])[0]
    got = wt.cat([run.step({0: part})[0] for part in x.split([1, 40, 20, 14])])
    assert (got - want).abs().max() <= 2e-5 * want.abs().max()


def test_bfloat16_and_int8_pages() -> None:
    exact, x = build("llama"), tokens(1, 20)[0]
    with wt.no_grad():
        want = exact.hidden(x[None])[0]
    half = Run(build("llama").bfloat16(), [[1]], dtype=wt.bfloat16).step({0: x})[0].float()
    bytes_ = Run(exact, [[1]], dtype=wt.int8).step({0: x})[0]
    for got, tolerance in ((half, 0.05), (bytes_, 0.03)):
        difference = (got - want).abs().max() / want.abs().max()
        assert 0 < difference <= tolerance, difference


def test_begin_step_refuses() -> None:
    model = build("gpt2")
    cache = PagedCache(model.config, 2)
    x = wt.zeros(1, 3, dtype=wt.int64)

    def begin(table: object, starts: object, lengths: object) -> None:
        cache.begin_step(int32(table), int32(starts), int32(lengths))

    with wt.no_grad():
        with pytest.raises(RuntimeError, match="begin_step before each forward pass"):
            model(x, cache=cache)
        for starts, lengths in (([0, 3], [2]), ([0, 3], [33]), ([3, 0], [3])):
            with pytest.raises(ValueError, match="begin_step: expected rising starts, and lengths"):
                begin([[0]], starts, lengths)
        begin([[0, 1]], [0, 2], [40])
        with pytest.raises(ValueError, match=r"expected the step's tokens as \[1, 2\], got \[1, 3\]"):
            model(x, cache=cache)
        with pytest.raises(ValueError, match="40 tokens are more than max_position_embeddings, 32"):
            model(x[:, :2], cache=cache)
        begin([[2]], [0, 3], [3])
        with pytest.raises(IndexError, match="slot 64 of token 0 is not within the 2 pages"):
            model(x, cache=cache)
        begin([[1]], [0, 3], [3])
        assert model(x, cache=cache).shape == (1, 3, V)
        with pytest.raises(RuntimeError, match="begin_step before each forward pass"):
            model(x, cache=cache)
    begin([[1]], [0, 3], [3])
    with pytest.raises(RuntimeError, match="no gradient flows through pages"):
        model(x, cache=cache)
    with pytest.raises(ValueError, match="at least 1 page"):
        PagedCache(model.config, 0)
