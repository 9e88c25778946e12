"""A training forward that gives the engine's log-probabilities to the bit, with gradients."""

from __future__ import annotations

import numpy as np
import on_policy
import pytest
import warptape as torch
from model_configs import build
from warptape import inference, nn
from warptape.inference import LLM, SamplingParams
from warptape.inference import invariant as invariant_module
from warptape.inference.invariant import invariant, token_logprobs
from warptape.inference.linear import Float8Linear, PackedLinear, QuantLinear


@pytest.mark.parametrize("seed", range(6))
def test_the_trainer_reads_what_the_sampler_drew(seed):
    total, different = on_policy.round_of(seed, 8)
    assert total > 20 and different == 0


def test_tokens_that_are_nearly_certain():
    """Their log-probabilities are tiny, and had few digits where the largest logit was added to a logarithm:
    another order of the sum once changed one here."""
    assert on_policy.round_of(5, 24) == (764, 0)


@pytest.mark.parametrize("gap", [0, 5, 15, 25, 35, 60])
def test_log_probabilities_have_all_digits_of_float32(gap):
    """Also that of a token that is almost sure: by a sum in 64 bits of mantissa, without its own share."""
    rng, vocabulary = np.random.default_rng(gap), 300
    x = (rng.standard_normal((40, vocabulary)) * 3).astype(np.float32)
    x[:, 7] = x.max(1) + np.float32(gap)
    for token in (7, 8):
        found = torch._C._token_logprobs(torch.from_numpy(x), [token] * len(x)).numpy()
        others = np.delete(x, 7, 1).astype(np.longdouble) - x[:, 7:8]
        exact = (x[:, token].astype(np.longdouble) - x[:, 7]) - np.log1p(np.exp(others).sum(1))
        nearest = exact.astype(np.float32)
        # Of another token half a step may be lost beside the difference of logits.
        assert (np.abs(found - nearest) <= (0 if token == 7 else np.spacing(np.abs(nearest)))).all()


def test_log_probabilities_are_those_of_a_softmax():
    torch.manual_seed(0)
    logits = (torch.randn(70, 33) * 4).requires_grad_()
    tokens = torch.randint(0, 33, (70,))
    found = invariant_module._Chosen.apply(logits, tokens)
    expected = logits.double().log_softmax(-1).gather(1, tokens.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(found, expected.float())
    weights = torch.randn(70)
    (given,) = torch.autograd.grad((found * weights).sum(), logits)
    (wanted,) = torch.autograd.grad((expected * weights).sum(), logits)
    torch.testing.assert_close(given, wanted, rtol=1e-4, atol=1e-6)
    with pytest.raises(IndexError, match="token 33 of 33"):
        torch._C._token_logprobs(logits.detach(), [33] * 70)
    with pytest.raises(torch.ShapeError, match=r"expected logits \[2, V\]"):
        torch._C._token_logprobs(logits.detach(), [1, 2])


@pytest.mark.parametrize("quantization", ["int8", "int4"])
@pytest.mark.parametrize("seed", range(3))
def test_an_adapter_of_layers_in_few_bits_is_read_as_it_was_served(quantization, seed):
    total, different = on_policy.round_of(seed, 8, quantization=quantization)
    assert total > 20 and different == 0


@pytest.mark.parametrize("seed", range(3))
def test_traffic_of_an_engine_on_two_ranks_is_read_by_one_process(seed):
    total, different = on_policy.round_of(seed, 8, ranks=2)
    assert total > 20 and different == 0


@pytest.mark.parametrize(("bits", "group"), [(8, 0), (8, 64), (4, 32)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_layers_in_few_bits_have_straight_through_gradients(bits, group, dtype, monkeypatch):
    torch.manual_seed(0)
    linear = nn.Linear(128, 48).to(dtype)
    layer = QuantLinear(linear, bits, group)
    monkeypatch.setattr(inference.linear, "_ROWS", 20)  # parts that end within panels
    x = torch.randn(3, 5, 128, dtype=dtype, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, layer(x.detach()))
    up = torch.randn(3, 5, 48, dtype=dtype)
    y.backward(up)
    expected = up.double() @ layer.dequantize().double()
    torch.testing.assert_close(
        x.grad.double(), expected, rtol=0.02, atol=0.05 if dtype != torch.float32 else 1e-5
    )


def test_float8_layers_have_straight_through_gradients():
    torch.manual_seed(0)
    linear = nn.Linear(32, 16)
    layer = Float8Linear(linear)
    x = torch.randn(4, 32, requires_grad=True)
    y = layer(x)
    assert torch.equal(y, layer(x.detach()))
    y.sum().backward()
    torch.testing.assert_close(x.grad, layer.dequantize().sum(0).expand(4, 32))
    torch.testing.assert_close(layer.dequantize(), linear.weight, rtol=0.07, atol=0.01)


@pytest.mark.parametrize("kind", on_policy.KINDS)
def test_an_engine_on_two_ranks_is_read_by_one_process(kind):
    def body():
        used = LLM(
            on_policy.model_of(0, {**kind, "num_key_value_heads": 2}, torch.float32),
            skip_tokenizer_init=True,
            tensor_parallel_size=2,
        )
        params = SamplingParams(max_tokens=12, seed=3, logprobs=0)
        outs = used.generate([[1, 2, 3], [*range(20)]], params)
        return [([*out.prompt_token_ids, *out.outputs[0].token_ids], drawn_at(out)) for out in outs]

    found, again = torch.distributed.simulate(2, body)
    assert found == again
    trainer = on_policy.model_of(0, {**kind, "num_key_value_heads": 2}, torch.float32)
    sequences = [sequence for sequence, _ in found]
    read = token_logprobs(trainer, sequences, tensor_parallel_size=2)
    for values, (_, drawn) in zip(read, found):
        assert values[-len(drawn) :].tolist() == drawn
    sum(t.sum() for t in read).backward()
    assert all(p.grad is not None for p in trainer.parameters())
    torch.testing.assert_close(read, token_logprobs(trainer, sequences), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", ["gpt2", "llama", "qwen2", "qwen3"])
def test_models_by_the_names_of_transformers(name, tmp_path):
    """Their parameters, by the engine's computation; tests/parity has transformers' own models."""
    model = build(name)
    model.save_pretrained(tmp_path)
    theirs = on_policy.Theirs(tmp_path)
    sequences = [[1, 2, 3, 4], [7, 5]]
    read = token_logprobs(theirs, sequences)
    expected = token_logprobs(model.eval(), sequences)
    assert all(torch.equal(a, b) for a, b in zip(read, expected))
    sum(t.sum() for t in read).backward()
    sum(t.sum() for t in expected).backward()
    ours = sum(p.grad.square().sum() for p in model.parameters())
    torch.testing.assert_close(sum(p.grad.square().sum() for p in theirs.parameters()), ours)
    with pytest.raises(TypeError, match="a model of transformers"):
        token_logprobs(nn.Linear(2, 2), sequences)


def drawn_at(out):
    answer = out.outputs[0]
    return [entry[t].logprob for entry, t in zip(answer.logprobs, answer.token_ids)]


def test_the_plain_forward_does_not():
    """Else there would be nothing to test."""
    assert sum(on_policy.round_of(seed, 8, plain=True)[1] for seed in range(6)) > 0


@pytest.mark.parametrize("kind", on_policy.KINDS)
def test_gradients_are_those_of_the_plain_forward(kind):
    sequences = [[1, 2, 3, 4, 5], [*range(40)], [7, 7]]
    models = [on_policy.model_of(3, kind, torch.float32) for _ in range(2)]
    ours = token_logprobs(models[0], sequences)
    theirs = [on_policy._plain(models[1], each) for each in sequences]
    for a, b in zip(ours, theirs):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    sum((t * t).sum() for t in ours).backward()
    sum((t * t).sum() for t in theirs).backward()
    for (name, p), q in zip(models[0].named_parameters(), models[1].parameters()):
        torch.testing.assert_close(p.grad, q.grad, rtol=1e-3, atol=1e-3, msg=name)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_of_linear_layers_do_not_depend_on_others(dtype):
    layer = nn.Linear(70, 33).to(dtype)
    x = torch.randn(50, 70, dtype=dtype, requires_grad=True)
    with invariant():
        whole = layer(x)
        rows = torch.cat([layer(x[i : i + 1]) for i in range(50)])
    assert torch.equal(whole, rows) and torch.equal(whole, PackedLinear(layer)(x.detach()))
    whole.sum().backward()
    assert torch.equal(layer.bias.grad, torch.full((33,), 50.0, dtype=dtype))
    torch.testing.assert_close(x.grad, layer.weight.sum(0).expand(50, 70), rtol=0.02, atol=0.02)
    with invariant():  # left as it is
        y = nn.Linear(4, 3).double()(torch.ones(2, 4, dtype=torch.float64))
    assert y.dtype == torch.float64


def test_what_cannot_be_read_is_refused():
    model = on_policy.model_of(0, {}, torch.float32)
    for sequences in ([], [[1]], [[1, 2], []]):
        with pytest.raises(ValueError, match="at least 2 tokens"):
            token_logprobs(model, sequences)
    with pytest.raises(ValueError, match="float32 or bfloat16, got"):
        token_logprobs(model.double(), [[1, 2]])
    dropping = on_policy.model_of(0, {"attention_dropout": 0.1}, torch.float32).train()
    with pytest.raises(ValueError, match="no dropout"):
        token_logprobs(dropping, [[1, 2, 3]])
