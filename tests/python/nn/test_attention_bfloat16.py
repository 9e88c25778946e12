"""Attention in bfloat16, forward and backward, against float32 on the same values: with AMX tiles where the
processor has them, and without (WARPTAPE_AMX=0)."""

import random

import pytest
import warptape as torch
import warptape.nn.functional as F


def draw(seed):
    """q, k, v, keywords: heads that share keys, sizes that blocks of 16, 32 and 128 cut, masks, scales."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    shared, repeats = rng.choice([1, 2, 3]), rng.choice([1, 1, 2])
    queries, keys = rng.choice([5, 16, 33, 64, 130]), rng.choice([5, 31, 64, 128, 129, 300])
    size, value_size = rng.choice([8, 16, 33, 64, 128]), rng.choice([8, 16, 40, 64])
    how = {"enable_gqa": repeats > 1}
    kind = rng.choice(["none", "causal", "bool", "float"])
    if kind == "causal":
        how["is_causal"] = True
        keys = queries
    elif kind == "bool":
        how["attn_mask"] = torch.rand(queries, keys) < 0.8
        how["attn_mask"][0] = False  # a query that sees nothing
    elif kind == "float":
        how["attn_mask"] = torch.randn(queries, keys).bfloat16()
    if rng.random() < 0.4:
        how["scale"] = rng.choice([0.5, -0.2, 1.0])
    q = torch.randn(2, shared * repeats, queries, size).bfloat16()
    k = torch.randn(2, shared, keys, size).bfloat16()
    v = torch.randn(2, shared, keys, value_size).bfloat16()
    return q, k, v, how


def attend(q, k, v, how, dtype):
    leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
    how = {**how}
    if "attn_mask" in how and how["attn_mask"].dtype != torch.bool:
        how["attn_mask"] = how["attn_mask"].to(dtype)
    y = F.scaled_dot_product_attention(*leaves, **how)
    torch.manual_seed(0)
    y.backward(torch.randn(*y.shape).bfloat16().to(dtype))
    return [y.detach(), *(t.grad for t in leaves)]


@pytest.mark.parametrize("seed", range(60))
def test_as_float32(seed):
    q, k, v, how = draw(seed)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(attend(q, k, v, how, torch.bfloat16))
    finally:
        torch.set_num_threads(before)
    for one, three, exact in zip(*results, attend(q, k, v, how, torch.float32)):
        assert torch.equal(one, three)
        torch.testing.assert_close(one.float(), exact, rtol=2**-6, atol=0.015 * float(exact.abs().max()))
