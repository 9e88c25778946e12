"""What a decoder computes: who sees whom, caches, training, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from model_configs import CONFIGS, SMALL, T, V, build, tokens
from warptape.models import Decoder, DecoderConfig, EncoderConfig, KVCache
from warptape.nn.parallel import DistributedDataParallel
from warptape.parallel import parallelize_module
from warptape.parallel.tensor import ColwiseParallel, RowwiseParallel, divide


def near(a: wt.Tensor, b: wt.Tensor, tolerance: float = 2e-5) -> bool:
    return a.shape == b.shape and bool((a - b).abs().max() <= tolerance * b.abs().max())


def cache_of(model: Decoder, batch: int = 2, capacity: int = 32) -> KVCache:
    return KVCache(model.config, batch, capacity)


def loss_of(model: Decoder, x: wt.Tensor) -> wt.Tensor:
    return F.cross_entropy(model(x[:, :-1]).reshape(-1, V), x[:, 1:].reshape(-1))


@pytest.mark.parametrize("name", CONFIGS)
def test_a_token_sees_those_before_it(name: str) -> None:
    model, x = build(name), tokens()
    y = model(x)
    assert y.shape == (2, T, V) and y.dtype == wt.float32
    changed = x.clone()
    changed[:, 7] = (x[:, 7] + 1) % V
    z = model(changed)
    assert near(z[:, :7], y[:, :7]) and not near(z[:, 7:], y[:, 7:], 1e-3)


def test_a_window_ends() -> None:
    config = replace(CONFIGS["mistral"], num_hidden_layers=1)  # of several layers the windows add up
    x, changed = tokens(), tokens()
    changed[:, 2] = (x[:, 2] + 1) % V
    model = Decoder(config).eval()
    y, z = model(x), model(changed)
    differs = [not near(z[:, i], y[:, i]) for i in range(T)]
    assert differs == [2 <= i < 2 + 5 for i in range(T)]


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("steps", [(1,) * T, (5, 1, 4, 2), (T,), (11, 1)])
def test_a_cache_changes_nothing(name: str, steps: tuple[int, ...]) -> None:
    model, x = build(name), tokens()
    with wt.no_grad():
        whole, cache = model(x), cache_of(model)
        parts = [model(piece, cache=cache) for piece in x.split(list(steps), 1)]
        assert cache.length == T
        assert near(wt.cat(parts, 1), whole)
        cache.truncate(3)  # and from there another way
        other = wt.cat([x[:, :3], tokens(seed=5)[:, 3:]], 1)
        assert near(model(other[:, 3:], cache=cache), model(other)[:, 3:])


def test_rotary_positions_are_relative() -> None:
    model, x = build("llama-biases"), tokens()
    y = model(x)
    shifted = wt.arange(T) + 9
    assert near(model(x, positions=shifted), y, 1e-4)
    rows = wt.stack([wt.arange(T), shifted])
    assert near(model(x, positions=rows), y, 1e-4)
    assert not near(model(x, positions=wt.arange(T) * 2), y, 1e-2)
    learned = build("gpt2")
    assert not near(learned(x, positions=shifted), learned(x), 1e-2)
    assert near(learned(x, positions=rows)[1], learned(x, positions=shifted)[1])


@pytest.mark.parametrize("name", CONFIGS)
def test_training(name: str) -> None:
    wt.manual_seed(0)
    model, x = Decoder(replace(CONFIGS[name], initializer_range=0.05)), tokens(4)
    loss_of(model, x).backward()
    for key, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None and bool((parameter.grad != 0).any()), key
    optimizer, losses = wt.optim.AdamW(model.parameters(), lr=1e-2), []
    for _ in range(30):
        optimizer.zero_grad()
        loss = loss_of(model, x)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[0] > 3.0 and losses[-1] < 0.5 * losses[0], losses


def test_start() -> None:
    wt.manual_seed(0)
    config = DecoderConfig(**{**SMALL, "hidden_size": 64, "initializer_range": 0.02}, mlp_bias=True)
    model = Decoder(config)
    layer = model.layers[0]
    assert layer.mlp.gate_up_proj.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert layer.mlp.down_proj.weight.std().item() == pytest.approx(0.02 / 6**0.5, rel=0.1)
    assert model.embed_tokens.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert (layer.mlp.down_proj.bias == 0).all() and (model.norm.weight == 1).all()


def test_tied_heads_are_one_parameter() -> None:
    model = build("qwen3")
    assert model.lm_head.weight is model.embed_tokens.weight
    assert "lm_head.weight" not in dict(model.named_parameters())
    model.bfloat16()
    assert model.lm_head.weight is model.embed_tokens.weight
    untied = build("llama")
    assert untied.lm_head.weight is not untied.embed_tokens.weight


def test_bfloat16() -> None:
    """Positions keep their precision: far ones are as near to each other as near ones."""
    model, x = build("llama-biases"), tokens()
    exact = model(x)
    half = build("llama-biases").bfloat16()
    got = half(x, positions=wt.arange(T) + 20_000)
    assert got.dtype == wt.bfloat16 and near(got.float(), exact, 0.05)


def test_dropout_is_for_training() -> None:
    config = replace(CONFIGS["gpt2"], embedding_dropout=0.1, residual_dropout=0.1, attention_dropout=0.1)
    model, x = Decoder(config), tokens()
    assert not near(model(x), model(x), 1e-3)
    model.eval()
    assert wt.equal(model(x), model(x))


@pytest.mark.parametrize("name", CONFIGS)
def test_generate(name: str) -> None:
    model, x = build(name), tokens(3, 4)
    got = model.generate(x, 9)
    plain = x
    with wt.no_grad():
        for _ in range(9):
            plain = wt.cat([plain, model(plain)[:, -1:].argmax(-1)], 1)
    assert got.shape == (3, 13) and wt.equal(got, plain)


def test_generate_ends() -> None:
    model, x = build("qwen2"), tokens(3, 4)
    whole = model.generate(x, 9)
    end = int(whole[0, 6])
    got = model.generate(x, 9, eos_token_id=end)
    for row, full in zip(got, whole):
        texts = full[4:].tolist()
        n = texts.index(end) + 1 if end in texts else 9
        assert row[4 : 4 + n].tolist() == texts[:n]
        assert row[4 + n :].tolist() == [end] * (got.shape[1] - 4 - n)
    alone = model.generate(x[:1], 9, eos_token_id=end)
    assert alone.shape[1] == 4 + whole[0, 4:].tolist().index(end) + 1
    for count in (0, -1, 29):
        with pytest.raises(ValueError, match="expected 1 to 28 new tokens after 4, as the context has 32"):
            model.generate(x, count)
    assert model.generate(x, 28).shape == (3, 32)


def test_caches_are_checked() -> None:
    model, x = build("llama"), tokens()
    cache = cache_of(model, capacity=T + 1)
    with pytest.raises(RuntimeError, match="no gradient flows through a cache"):
        model(x, cache=cache)
    with wt.no_grad():
        model(x, cache=cache)
        with pytest.raises(ValueError, match=f"{T} of {T + 1} positions are taken, 2 more do not fit"):
            model(x[:, :2], cache=cache)
        with pytest.raises(ValueError, match="made for 2 sequences, got 1"):
            model(x[:1, :1], cache=cache)
        with pytest.raises(IndexError):
            model(x[:, :1] + V, cache=cache)
        assert cache.length == T  # what failed left it as it was
        assert near(model(x[:, :1], cache=cache)[:, 0], model(wt.cat([x, x[:, :1]], 1))[:, -1])
    assert cache.keys[0].shape == (2, 2, T + 1, 6) and len(cache.values) == 3
    for wrong in (-1, T + 2):
        with pytest.raises(ValueError, match="cannot keep"):
            cache.truncate(wrong)
    with pytest.raises(ValueError, match="above 0"):
        KVCache(model.config, 0, 4)


def test_refused_inputs() -> None:
    model, learned = build("llama"), build("gpt2")
    for x in (tokens()[0], tokens()[:, :0], wt.zeros(1, 2, 3, dtype=wt.int64)):
        with pytest.raises(wt.ShapeError, match=r"expected tokens \[B, T\] with T > 0"):
            model(x)
        with pytest.raises(wt.ShapeError, match=r"expected tokens \[B, T\] with T > 0"):
            model.generate(x, 3)
    with pytest.raises(wt.ShapeError, match=r"expected positions \[12\] or \[2, 12\], got \[11\]"):
        model(tokens(), positions=wt.arange(11))
    with pytest.raises(ValueError, match="33 tokens are more than max_position_embeddings, 32"):
        learned(tokens(1, 33))
    assert model(tokens(1, 33)).shape == (1, 33, V)  # rotary positions have no end
    with pytest.raises(TypeError, match="expected a DecoderConfig, got EncoderConfig"):
        Decoder(
            EncoderConfig(vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1)  # type: ignore[arg-type]
        )


def test_compiled() -> None:
    model, x = build("qwen2"), tokens()
    compiled = wt.compile(lambda x: loss_of(model, x))
    expected = loss_of(model, x)
    expected.backward()
    grads = [p.grad.clone() for p in model.parameters()]
    for _ in range(3):
        model.zero_grad()
        loss = compiled(x)
        loss.backward()
        assert wt.equal(loss, expected)
        assert all(wt.equal(p.grad, g) for p, g in zip(model.parameters(), grads))


def test_data_parallel() -> None:
    x = tokens(4)
    model = build("qwen3")
    loss_of(model, x).backward()
    expected = {name: p.grad for name, p in model.named_parameters()}

    def rank() -> None:
        ddp = DistributedDataParallel(build("qwen3"))
        mine = x.chunk(2)[dist.get_rank()]
        F.cross_entropy(ddp(mine[:, :-1]).reshape(-1, V), mine[:, 1:].reshape(-1)).backward()
        for name, p in ddp.module.named_parameters():
            assert near(p.grad, expected[name], 1e-4), name

    dist.simulate(2, rank, timeout=timedelta(seconds=60))


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen3"])
def test_tensor_parallel(name: str) -> None:
    """Heads and inner widths divided by a plan, as for any model."""
    config, x = CONFIGS[name], tokens()
    expected = build(name)(x)
    queries, keys = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
    up = {"gate_up_proj": ColwiseParallel(parts=2)} if config.gated else {"up_proj": ColwiseParallel()}
    plan = {
        "layers.*.self_attn": divide("heads", "kv_heads"),
        "layers.*.self_attn.qkv_proj": ColwiseParallel(parts=(queries, keys, keys)),
        "layers.*.self_attn.o_proj": RowwiseParallel(),
        **{f"layers.*.mlp.{part}": how for part, how in up.items()},
        "layers.*.mlp.down_proj": RowwiseParallel(),
    }

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        model = parallelize_module(build(name), mesh, plan)
        assert near(model(x), expected, 1e-4)

    dist.simulate(2, rank, timeout=timedelta(seconds=60))
