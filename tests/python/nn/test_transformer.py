"""Attention against its definition in NumPy, transformers against values of PyTorch and, where it is
installed, against itself."""

import copy
import itertools
import pickle
import warnings

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.nn import functional as F

E, H, N, T, S = 8, 2, 3, 5, 6
RANDOM = np.random.default_rng(3)
HIDDEN = RANDOM.random((T, S)) > 0.6
HIDDEN[:, 0] = False
EACH = RANDOM.random((N * H, T, S)) > 0.6
EACH[:, :, 0] = False
PADDING = np.arange(S) >= np.array([[S], [4], [2]])


def numbers(mask):
    return (mask * -2.5).astype(np.float32)


MASKS = {
    "none": {},
    "mask": {"attn_mask": HIDDEN},
    "mask of each head": {"attn_mask": EACH},
    "numbers": {"attn_mask": numbers(EACH)},
    "padding": {"key_padding_mask": PADDING},
    "both": {"attn_mask": HIDDEN, "key_padding_mask": PADDING},
    "both as numbers": {"attn_mask": numbers(HIDDEN), "key_padding_mask": numbers(PADDING)},
    "of two kinds": {"attn_mask": HIDDEN, "key_padding_mask": numbers(PADDING)},
}
KINDS = [
    {},
    {"batch_first": True},
    {"bias": False},
    {"add_bias_kv": True},
    {"add_zero_attn": True},
    {"kdim": 3, "vdim": 4},
    {"kdim": 3, "vdim": 4, "add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
]


def additive(mask):
    return np.where(mask, -np.inf, 0.0) if mask.dtype == bool else mask.astype(np.float64)


def definition(module, q, k, v, attn_mask=None, key_padding_mask=None):
    """softmax(Q K^T / sqrt(D) + masks) V of each head; inputs are [N, length, width]."""
    p = {name: x.detach().numpy().astype(np.float64) for name, x in module.named_parameters()}
    w = np.split(p["in_proj_weight"], 3) if "in_proj_weight" in p else [p[f"{n}_proj_weight"] for n in "qkv"]
    b = np.split(p.get("in_proj_bias", np.zeros(3 * E)), 3)
    q, k, v = (x @ weight.T + bias for x, weight, bias in zip((q, k, v), w, b, strict=True))
    mask = np.zeros((len(q), H, q.shape[1], k.shape[1]))
    if attn_mask is not None:
        attn_mask = additive(attn_mask)
        mask = mask + (attn_mask if attn_mask.ndim == 2 else attn_mask.reshape(mask.shape))
    if key_padding_mask is not None:
        mask = mask + additive(key_padding_mask)[:, None, None]
    for extra in [(p.get("bias_k"), p.get("bias_v"))] * ("bias_k" in p) + [(0, 0)] * module.add_zero_attn:
        k, v = (np.concatenate([x, np.zeros((len(x), 1, E)) + e], 1) for x, e in zip((k, v), extra))
        mask = np.pad(mask, [(0, 0)] * 3 + [(0, 1)])
    q, k, v = (x.reshape(len(x), -1, H, E // H).transpose(0, 2, 1, 3) for x in (q, k, v))
    scores = np.exp(q @ k.swapaxes(-1, -2) / np.sqrt(E // H) + mask)
    weights = scores / scores.sum(-1, keepdims=True)
    out = (weights @ v).transpose(0, 2, 1, 3).reshape(len(q), -1, E)
    return out @ p["out_proj.weight"].T + p.get("out_proj.bias", 0), weights


def inputs(kind):
    random = np.random.default_rng(1)
    widths = ((T, E), (S, kind.get("kdim", E)), (S, kind.get("vdim", E)))
    return [random.standard_normal((N, *size)).astype(np.float32) for size in widths]


def drawn(kind, library=wt):
    library.manual_seed(0)
    module = library.nn.MultiheadAttention(E, H, **kind)
    with library.no_grad():
        for i, p in enumerate(module.parameters()):  # biases start as zeros
            p.add_((library.arange(1.0, p.numel() + 1).reshape(p.shape) * (i + 1)).sin() * 0.3)
    return module


def call(library, module, arrays, masks, **how):
    """Result, weights and inputs of a module that takes its batch where it was told."""
    first = module.batch_first
    made = [library.tensor((a if first else a.swapaxes(0, 1)).tolist(), requires_grad=True) for a in arrays]
    masks = {name: library.tensor(mask.tolist()) for name, mask in masks.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return *module(*made, **masks, **how), made


@pytest.mark.parametrize("masks", MASKS)
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_attention_is_its_definition(kind, masks):
    module = drawn(kind)
    expected, probabilities = definition(module, *inputs(kind), **MASKS[masks])
    for need_weights, average in itertools.product((True, False), repeat=2):
        how = {"need_weights": need_weights, "average_attn_weights": average}
        out, weights, _ = call(wt, module, inputs(kind), MASKS[masks], **how)
        out = out if module.batch_first else out.transpose(0, 1)
        np.testing.assert_allclose(out.detach().numpy(), expected, atol=2e-5)
        if need_weights:
            wanted = probabilities.mean(1) if average else probabilities
            np.testing.assert_allclose(weights.detach().numpy(), wanted, atol=2e-5)
        else:
            assert weights is None


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_attention_without_a_batch(kind):
    module = drawn(kind)
    q, k, v = (wt.tensor(x[1].tolist()) for x in inputs(kind))
    expected, probabilities = definition(
        module, *(x[1:2] for x in inputs(kind)), attn_mask=HIDDEN, key_padding_mask=PADDING[1:2]
    )
    masks = {"attn_mask": wt.tensor(HIDDEN.tolist()), "key_padding_mask": wt.tensor(PADDING[1].tolist())}
    out, weights = module(q, k, v, **masks, average_attn_weights=False)
    np.testing.assert_allclose(out.detach().numpy(), expected[0], atol=2e-5)
    np.testing.assert_allclose(weights.detach().numpy(), probabilities[0], atol=2e-5)


def test_causal_hint_and_static_keys():
    module = drawn({"batch_first": True}).eval()
    x = wt.randn(2, T, E)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    masked = module(x, x, x, attn_mask=mask, need_weights=False)[0]
    hinted = module(x, x, x, attn_mask=mask, need_weights=False, is_causal=True)[0]
    np.testing.assert_allclose(hinted.detach().numpy(), masked.detach().numpy(), atol=1e-5)
    with pytest.raises(RuntimeError, match="Need attn_mask"):
        module(x, x, x, is_causal=True)
    keys, values = wt.randn(2 * H, 7, E // H), wt.randn(2 * H, 7, E // H)
    args = (module.in_proj_weight, module.in_proj_bias, None, None, False, 0.0)
    sequence = x.transpose(0, 1)
    out, weights = F.multi_head_attention_forward(
        sequence, sequence, sequence, E, H, *args, module.out_proj.weight, module.out_proj.bias,
        static_k=keys, static_v=values,
    )  # fmt: skip
    assert out.shape == (T, 2, E) and weights.shape == (2, T, 7)
    q = F.linear(x, module.in_proj_weight[:E], module.in_proj_bias[:E]).reshape(2, T, H, -1).transpose(1, 2)
    probabilities = wt.softmax(q @ keys.reshape(2, H, 7, -1).transpose(2, 3) / 2, -1)
    heads = (probabilities @ values.reshape(2, H, 7, -1)).transpose(1, 2).flatten(2)
    np.testing.assert_allclose(out.transpose(0, 1).tolist(), module.out_proj(heads).tolist(), atol=1e-5)


BAD = {
    "query of 4-D": (lambda m, x: m(x[None], x, x), AssertionError, "2D or batched 3D"),
    "keys of 2-D": (lambda m, x: m(x, x[0], x[0]), AssertionError, "expected `key` and `value` to be 3-D"),
    "width": (lambda m, x: m(x[..., :4], x, x), AssertionError, "embedding dimension of 8, but got 4"),
    "values": (lambda m, x: m(x, x, x[:4]), AssertionError, "does not match value shape"),
    "integers": (
        lambda m, x: m(x, x, x, attn_mask=wt.ones(5, 5).long()),
        AssertionError,
        "bool and floating",
    ),
    "mask": (lambda m, x: m(x, x, x, attn_mask=wt.ones(4, 5)), RuntimeError, "should be \\[5, 5\\]"),
    "padding": (
        lambda m, x: m(x, x, x, key_padding_mask=wt.ones(2, 5)),
        AssertionError,
        "Expected key_padded_mask.shape\\[0\\] to be 3, but got 2",
    ),
    "heads": (lambda m, x: nn.MultiheadAttention(8, 3), AssertionError, "must be divisible"),
    "no heads": (lambda m, x: nn.MultiheadAttention(8, 0), ValueError, "greater than 0"),
    "activation": (
        lambda m, x: nn.TransformerEncoderLayer(8, 2, activation="tanh"),
        RuntimeError,
        "relu/gelu",
    ),
    "batches": (lambda m, x: nn.Transformer(8, 2, 1, 1, 8)(x, x[:, :2]), RuntimeError, "batch number"),
    "features": (lambda m, x: nn.Transformer(8, 2, 1, 1, 8)(x, x[..., :4]), RuntimeError, "feature number"),
}


@pytest.mark.parametrize("case", BAD)
def test_refusals(case):
    function, kind, match = BAD[case]
    with pytest.raises(kind, match=match):
        function(nn.MultiheadAttention(E, H), wt.randn(T, N, E))


def constant(module):
    """The module with weights that depend on their names' order alone."""
    with wt.no_grad():
        for i, p in enumerate(module.parameters()):
            p.copy_((wt.arange(1.0, p.numel() + 1).reshape(p.shape) * (0.7 + 0.1 * i)).sin() * 0.4)
    return module


# Recorded from PyTorch 2.13: the first row of the result and the absolute sum of the first gradient.
GOLDEN = [
    ("encoder", {}, [-0.01712, 0.04146, -0.00474, 0.05046, -0.08394, 0.32957, -0.11524, 0.34803], 0.177602),
    (
        "encoder",
        {"norm_first": True, "batch_first": True},
        [0.01188, 0.06737, -0.09088, 0.10337, -0.23653, 0.17914, -0.07786, 0.14362],
        3.00364,
    ),
    (
        "transformer",
        {},
        [-0.04925, -0.10235, 0.33337, 0.55304, 0.44094, 0.34473, -0.32742, -0.27462],
        0.00293881,
    ),
    (
        "transformer",
        {"activation": "gelu", "norm_first": True},
        [0.11418, -0.94866, -0.03752, 0.3199, 0.18092, 0.01312, -0.53953, -0.26766],
        0.0610044,
    ),
]


def build(library, kind, setting):
    sizes = (E, H, 16, 0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "encoder":
            layer = library.nn.TransformerEncoderLayer(*sizes, **setting)
            return library.nn.TransformerEncoder(layer, 2, library.nn.LayerNorm(E))
        return library.nn.Transformer(E, H, 2, 1, 16, 0.0, **setting)


def run(library, module, kind, setting):
    """Result and gradients, for a batch with padding and a causal mask."""
    sizes = [(N, T, E), (N, 4, E)] if setting.get("batch_first") else [(T, N, E), (4, N, E)]
    x, y = (
        (library.arange(1.0, 1 + n * m * E).reshape(n, m, E) * 0.9).sin().requires_grad_()
        for n, m, _ in sizes
    )
    padding = library.tensor(PADDING[:, :T].tolist())
    causal = library.nn.Transformer.generate_square_subsequent_mask(4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "encoder":
            out = module(x, src_key_padding_mask=padding)
        else:
            out = module(x, y, tgt_mask=causal, memory_key_padding_mask=padding)
    (out * library.arange(1.0, out.numel() + 1).reshape(out.shape).cos()).sum().backward()
    return out, x.grad, [p.grad for p in module.parameters()]


@pytest.mark.parametrize("kind, setting, row, total", GOLDEN, ids=lambda v: str(v)[:40])
def test_values_of_pytorch(kind, setting, row, total):
    module = constant(build(wt, kind, setting))
    out, grad, _ = run(wt, module, kind, setting)
    np.testing.assert_allclose(out.flatten(0, 1)[0].tolist(), row, atol=2e-5)
    assert grad.abs().sum().item() == pytest.approx(total, rel=1e-3)


def test_causal_masks_are_found():
    layer = nn.TransformerEncoderLayer(E, H, 16, 0.0, batch_first=True)
    seen = []
    layer.register_forward_pre_hook(lambda m, a, k: seen.append(k["is_causal"]), with_kwargs=True)
    encoder = nn.TransformerEncoder(layer, 1)
    mask = nn.Transformer.generate_square_subsequent_mask(T)
    assert mask.tolist() == np.where(np.tri(T) > 0, 0.0, -np.inf).tolist()
    for given in (mask, mask * 0, wt.ones(T, T, dtype=wt.bool).triu(1), None):
        encoder(wt.randn(2, T, E), given)
    assert seen == [True, False, True, False]


def test_warnings():
    layer = nn.TransformerEncoderLayer(E, H, 16)
    with pytest.warns(UserWarning, match="use_nested_tensor is False because .*batch_first was not True"):
        encoder = nn.TransformerEncoder(layer, 1)
    with pytest.warns(UserWarning, match="mismatched src_key_padding_mask and mask is deprecated") as caught:
        encoder(wt.randn(T, N, E), wt.zeros(T, T), wt.tensor(PADDING[:, :T].tolist()))
    assert len(caught) == 1


def test_copies_and_pickles():
    layer = nn.TransformerEncoderLayer(E, H, 16, 0.0, "gelu")
    x = wt.randn(T, N, E)
    for again in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert again.activation is F.gelu and again(x).tolist() == layer(x).tolist()


# ---- beside PyTorch ----


def same(ours, theirs):
    if theirs is None:
        assert ours is None
        return
    theirs = theirs.detach().numpy()
    scale = np.abs(theirs).max(initial=1.0)
    np.testing.assert_allclose(ours.detach().numpy(), theirs, atol=1e-5 * scale)


@pytest.mark.parity
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_attention_beside_pytorch(kind):
    torch = pytest.importorskip("torch")
    modules = drawn(kind), drawn(kind, torch)
    assert list(modules[0].state_dict()) == list(modules[1].state_dict())
    for masks, need_weights in itertools.product(MASKS.values(), (True, False)):
        results = []
        for library, module in zip((wt, torch), modules, strict=True):
            out, weights, made = call(library, module, inputs(kind), masks, need_weights=need_weights)
            module.zero_grad()
            out.sin().sum().backward()
            grads = [x.grad for x in (*made, *module.parameters())]
            results.append([out, weights, *module.parameters(), *grads])
        for ours, theirs in zip(*results, strict=True):
            same(ours, theirs)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["encoder", "transformer"])
@pytest.mark.parametrize(
    "setting",
    [{}, {"batch_first": True}, {"norm_first": True}, {"activation": "gelu"}, {"bias": False}],
    ids=str,
)
def test_transformer_beside_pytorch(kind, setting):
    torch = pytest.importorskip("torch")
    found = []
    for library in (wt, torch):
        library.manual_seed(4)
        module = build(library, kind, setting)
        out, grad, grads = run(library, module, kind, setting)
        found.append((list(module.state_dict()), repr(module), [out, grad, *grads, *module.parameters()]))
    (keys, text, ours), (their_keys, their_text, theirs) = found
    assert keys == their_keys and text == their_text
    for a, b in zip(ours, theirs, strict=True):
        same(a, b)
