"""Recurrent layers and packed sequences: recorded values, packed batches against single runs, refusals."""

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.nn.utils.rnn import (
    PackedSequence,
    invert_permutation,
    pack_padded_sequence,
    pack_sequence,
    pad_packed_sequence,
    pad_sequence,
    unpack_sequence,
    unpad_sequence,
)

MODES = ["LSTM", "GRU", "RNN"]
X = (wt.arange(12.0) / 10 - 0.5).reshape(3, 2, 2)

# From PyTorch 2.13 after manual_seed(3): the output on X, the packed output on X with lengths 2 and 3, and
# the last state of that.
RECORDED = {
    "LSTM(2, 2, 2, bidirectional=True)": (
        "0.146307 0.203557 0.041014 -0.137134 0.141406 0.210962 0.046515 -0.12812 0.221163 0.233198 0.047288 "
        "-0.106895 0.215303 0.240943 0.053469 -0.102283 0.256147 0.233243 0.045614 -0.066771 0.250556 "
        "0.238762 0.050543 -0.065241",
        "0.141406 0.210962 0.046515 -0.12812 0.146803 0.203035 0.04283 -0.11971 0.215303 0.240943 0.053469 "
        "-0.102283 0.222635 0.232084 0.039008 -0.071843 0.250556 0.238762 0.050543 -0.065241",
        "0.075615 -0.322144 0.160215 -0.242993 -0.019952 0.024514 0.00227 0.03496 0.590356 0.389545 0.75356 "
        "0.403501 0.106953 -0.2444 0.114345 -0.26071",
    ),
    "LSTM(2, 3, proj_size=2)": (
        "-0.048721 0.054593 -0.039827 0.049173 -0.047053 0.063489 -0.033323 0.055795 -0.026571 0.056714 "
        "-0.009889 0.047546",
        "-0.039827 0.049173 -0.048721 0.054593 -0.033323 0.055795 -0.047053 0.063489 -0.009889 0.047546",
        "0.373727 -0.129384 0.081554 0.171817 -0.363373 0.136867",
    ),
    "GRU(2, 2, bias=False)": (
        "-0.120685 -0.077948 -0.069263 -0.034856 -0.065652 -0.039028 0.032161 0.015301 0.114789 0.042204 "
        "0.238222 0.096099",
        "-0.069263 -0.034856 -0.120685 -0.077948 0.032161 0.015301 -0.065652 -0.039028 0.238222 0.096099",
        "-0.065652 -0.039028 0.238222 0.096099",
    ),
    "RNN(2, 2, nonlinearity='relu')": (
        "0.637942 1.391083 0.386165 1.196712 0.0 1.727043 0.0 1.368882 0.0 1.208815 0.0 0.891007",
        "0.386165 1.196712 0.637942 1.391083 0.0 1.368882 0.0 1.727043 0.0 0.891007",
        "0.0 1.727043 0.0 0.891007",
    ),
}
CELLS = {
    "LSTMCell(2, 2)": "-0.059544 -0.322105 0.01287 -0.274875",
    "GRUCell(2, 2)": "-0.503616 -0.493899 -0.480094 -0.440843",
    "RNNCell(2, 2)": "0.563497 0.883409 0.368049 0.832649",
}


def build(text):
    wt.manual_seed(3)
    return eval("nn." + text)


def last(states):
    return states if isinstance(states, wt.Tensor) else states[-1]


def equals(tensor, text):
    expected = np.array(text.split(), dtype=float)
    np.testing.assert_allclose(tensor.detach().numpy().reshape(-1), expected, rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("text", RECORDED)
def test_recorded(text):
    layer = build(text)
    whole, packed, state = RECORDED[text]
    equals(layer(X)[0], whole)
    output, states = layer(pack_padded_sequence(X, [2, 3], enforce_sorted=False))
    assert output.batch_sizes.tolist() == [2, 2, 1] and output.sorted_indices.tolist() == [1, 0]
    equals(output.data, packed)
    equals(last(states), state)
    assert repr(layer) == text.replace("2, 2, 2, b", "2, 2, num_layers=2, b").replace(
        ", nonlinearity='relu'", ""
    )


@pytest.mark.parametrize("text", CELLS)
def test_recorded_cells(text):
    cell = build(text)
    equals(last(cell(X[0])), CELLS[text])
    single = last(cell(X[0, 1]))
    assert single.shape == (2,)
    np.testing.assert_allclose(single.tolist(), last(cell(X[0]))[1].tolist(), rtol=1e-6)
    assert repr(cell) == text


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("bidirectional", [False, True])
def test_packed_equals_single_runs(mode, bidirectional):
    """With given states, and for the gradients: of the input, the states and every parameter."""
    lengths, d = [2, 5, 1, 5, 3], 2 if bidirectional else 1
    layer = getattr(nn, mode)(3, 4, 2, bidirectional=bidirectional, dtype=wt.float64)
    sequences = [wt.randn(n, 3, dtype=wt.float64, requires_grad=True) for n in lengths]
    states = [wt.randn(2 * d, 5, 4, dtype=wt.float64, requires_grad=True) for _ in range(2)]
    leaves = [*sequences, *states[: 1 + (mode == "LSTM")], *layer.parameters()]

    def given(b):
        chosen = [s if b is None else s[:, b] for s in states]
        return tuple(chosen) if mode == "LSTM" else chosen[0]

    def loss(outputs, hidden):
        weighted = sum((o * (i + 1)).square().sum() for i, o in enumerate(outputs))
        return weighted + sum(h.square().sum() * 3 for h in hidden)

    def flat(hidden):
        return [hidden] if isinstance(hidden, wt.Tensor) else list(hidden)

    packed, hidden = layer(pack_sequence(sequences, enforce_sorted=False), given(None))
    outputs = unpack_sequence(packed)
    got = wt.autograd.grad(loss(outputs, flat(hidden)), leaves)
    runs = [layer(s, given(b)) for b, s in enumerate(sequences)]
    single = [wt.stack(list(h), 1) for h in zip(*(flat(h) for _, h in runs), strict=True)]
    expected = wt.autograd.grad(loss([o for o, _ in runs], single), leaves)
    for ours, (theirs, _) in zip(outputs, runs, strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), rtol=1e-10, atol=1e-12)
    for a, b in zip(flat(hidden), single, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-10, atol=1e-12)
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_batch_first_and_lone_sequence(mode):
    layer = getattr(nn, mode)(2, 3, 2, bidirectional=True)
    output, states = layer(X)
    layer.batch_first = True
    turned, same_states = layer(X.transpose(0, 1))
    assert turned.shape == (2, 3, 6) and turned.transpose(0, 1).tolist() == output.tolist()
    assert last(same_states).tolist() == last(states).tolist() and last(states).shape == (4, 2, 3)
    lone, state = layer(X[:, 1])
    np.testing.assert_allclose(lone.tolist(), output[:, 1].tolist(), rtol=1e-5)
    np.testing.assert_allclose(last(state).tolist(), last(states)[:, 1].tolist(), rtol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_long_and_wide_layers(mode):
    """Sizes at which work is cut and joined: one run over all steps against one step at a time."""
    layer = getattr(nn, mode)(7, 300, dtype=wt.float64)
    x = wt.randn(4, 30, 7, dtype=wt.float64)
    for batch in (1, 5, 13, 30):
        whole, state = layer(x[:, :batch])[0], None
        for t in range(4):
            step, state = layer(x[t : t + 1, :batch], state)
            np.testing.assert_allclose(step[0].tolist(), whole[t].tolist(), rtol=1e-9, atol=1e-12)


def test_dropout_is_between_layers_and_in_training_only():
    layer = nn.LSTM(2, 8, 3, dropout=0.5)
    assert layer(X)[0].tolist() != layer(X)[0].tolist()
    layer.eval()
    assert layer(X)[0].tolist() == layer(X)[0].tolist()
    layer.train().dropout = 1.0  # the last layer sees zeros, and is not dropped itself
    output, (h, _) = layer(X)
    assert output[0, 0].tolist() == output[0, 1].tolist() and output[-1].abs().sum() > 0
    assert h[0].abs().sum() > 0
    with pytest.warns(UserWarning, match="non-zero dropout expects"):
        nn.GRU(2, 3, dropout=0.5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", [wt.float32, wt.bfloat16, wt.float16])
def test_threads_and_dtypes(mode, dtype):
    """The same bits for every number of threads; 16-bit layers give what float32 gives, rounded."""
    layer = getattr(nn, mode)(24, 48, 2, bidirectional=True).to(dtype)
    x = wt.randn(7, 33, 24).to(dtype)

    def run(layer, x):
        x = x.detach().requires_grad_()
        output = layer(x)[0]
        output.float().square().sum().backward()
        found = [output.detach(), x.grad, *(p.grad.clone() for p in layer.parameters())]
        layer.zero_grad()
        return [t.float().numpy() for t in found]

    before = wt.get_num_threads()
    try:
        wt.set_num_threads(1)
        one = run(layer, x)
        wt.set_num_threads(3)
        three = run(layer, x)
    finally:
        wt.set_num_threads(before)
    assert all((a == b).all() for a, b in zip(one, three, strict=True))
    for a, b in zip(one, run(layer.float(), x.float()), strict=True):
        np.testing.assert_allclose(a, b, rtol=0.02, atol=0.03 * np.abs(b).max())


def test_autocast_and_meta():
    layer = nn.LSTM(2, 3)
    with wt.autocast("cpu", dtype=wt.bfloat16):
        output, (h, c) = layer(X)
    assert {output.dtype, h.dtype, c.dtype} == {wt.bfloat16}
    output.float().sum().backward()
    assert layer.weight_hh_l0.grad.dtype == wt.float32
    output, (h, c) = nn.LSTM(2, 3, 2, device="meta")(wt.empty(5, 4, 2, device="meta"))
    assert output.shape == (5, 4, 3) and c.shape == (2, 4, 3) and output.device.type == "meta"


def test_parameters():
    layer = nn.LSTM(2, 4, 2, bidirectional=True, proj_size=3)
    names = ["weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0", "weight_hr_l0"]
    assert [n for n, _ in layer.named_parameters()][:6] == [*names, "weight_ih_l0_reverse"]
    assert [len(ws) for ws in layer.all_weights] == [5] * 4
    assert layer.all_weights[2][0] is layer.weight_ih_l1 and layer.weight_ih_l1.shape == (16, 6)
    assert layer.flatten_parameters() is None
    assert all(p.abs().max() <= 0.5 for p in layer.parameters())
    assert [n for n, _ in nn.GRU(2, 3, bias=False).named_parameters()] == names[:2]
    cell = nn.GRUCell(2, 3, bias=False)
    assert cell.bias_ih is None and repr(cell) == "GRUCell(2, 3, bias=False)"


@pytest.mark.parametrize(
    ("make", "kind", "match"),
    [
        (lambda: nn.LSTM(2, 3, dropout=2), ValueError, "dropout should be a number"),
        (lambda: nn.LSTM(2, 3, dropout=True), ValueError, "dropout should be a number"),
        (lambda: nn.LSTM(2, 3.0), TypeError, "hidden_size should be of type int, got: float"),
        (lambda: nn.LSTM(0, 3), ValueError, "input_size must be greater than zero"),
        (lambda: nn.GRU(2, 3, 0), ValueError, "num_layers must be greater than zero"),
        (lambda: nn.GRU(2, 3, bias=1), TypeError, "bias should be of type bool, got: int"),
        (lambda: nn.LSTM(2, 3, proj_size=3), ValueError, "proj_size has to be smaller"),
        (lambda: nn.LSTM(2, 3, proj_size=-1), ValueError, "proj_size should be a positive"),
        (lambda: nn.GRU(2, 3, proj_size=1), ValueError, "only supported for LSTM"),
        (lambda: nn.RNN(2, 3, nonlinearity="elu"), ValueError, "Unknown nonlinearity 'elu'"),
        (lambda: nn.RNNBase("NTM", 2, 3), ValueError, "Unrecognized RNN mode"),
        (lambda: nn.GRU(2, 3)(X[0, 0]), ValueError, "GRU: Expected input to be 2D or 3D, got 1D"),
        (lambda: nn.GRU(4, 3)(X), RuntimeError, "Expected 4, got 2"),
        (lambda: nn.GRU(2, 3)(X.double()), ValueError, "does not match weight dtype"),
        (lambda: nn.GRU(2, 3)(X, wt.zeros(1, 3, 3)), RuntimeError, r"\(1, 2, 3\), got \[1, 3, 3\]"),
        (lambda: nn.GRU(2, 3)(X, wt.zeros(2, 3)), RuntimeError, "batched 3-D input, hx should also be 3-D"),
        (lambda: nn.LSTM(2, 3)(X, (wt.zeros(1, 2, 3), wt.zeros(1, 2, 4))), RuntimeError, r"hidden\[1\] size"),
        (lambda: nn.LSTM(2, 3)(X[:, 0], (X, X)), RuntimeError, "unbatched 2-D input, hx and cx"),
        (lambda: nn.LSTM(2, 3)(X[:0]), RuntimeError, "sequence length to be larger than 0"),
        (lambda: nn.LSTMCell(2, 3)(X), ValueError, "LSTMCell: Expected input to be 1D or 2D, got 3D"),
        (lambda: nn.LSTMCell(3, 3)(X[0]), RuntimeError, "inconsistent input_size: got 2 expected 3"),
        (lambda: nn.GRUCell(2, 3)(X[0], wt.zeros(3, 3)), RuntimeError, "2 doesn't match hidden0"),
        (lambda: nn.RNNCell(2, 3, nonlinearity="elu")(X[0]), RuntimeError, "Unknown nonlinearity: elu"),
        (lambda: pack_padded_sequence(X, [2, 3]), RuntimeError, "sorted in decreasing order"),
        (lambda: pack_padded_sequence(X, [2, 0]), RuntimeError, "greater than 0"),
        (lambda: pack_padded_sequence(X, [2]), RuntimeError, r"but got 1 \(batch_size=2\)"),
        (lambda: pack_padded_sequence(X, [4, 2]), RuntimeError, "at most 3, .* got 4"),
        (lambda: pack_padded_sequence(X, [[2, 2]]), RuntimeError, "1D CPU int64 tensor"),
        (lambda: pack_padded_sequence(X[:0], [1, 1]), RuntimeError, "Cannot pack empty tensors"),
        (lambda: pad_packed_sequence(pack_padded_sequence(X, [3, 2]), total_length=2), ValueError, "being 3"),
        (lambda: pad_sequence([]), RuntimeError, "empty list"),
        (lambda: pad_sequence(3), RuntimeError, "Expected iterable"),
        (lambda: pad_sequence([X], padding_side="middle"), RuntimeError, "left or right, but got middle"),
    ],
)
def test_refusals(make, kind, match):
    with pytest.raises(kind, match=match):
        make()


def test_pack_and_pad():
    a, b, c = wt.tensor([1, 2, 3]), wt.tensor([4, 5]), wt.tensor([6])
    packed = pack_sequence([a, b, c])
    assert packed.data.tolist() == [1, 4, 6, 2, 5, 3] and packed.batch_sizes.tolist() == [3, 2, 1]
    assert packed.sorted_indices is None and packed.unsorted_indices is None
    padded, lengths = pad_packed_sequence(packed, batch_first=True, padding_value=-1, total_length=4)
    assert padded.tolist() == [[1, 2, 3, -1], [4, 5, -1, -1], [6, -1, -1, -1]]
    assert lengths.tolist() == [3, 2, 1]
    mixed = pack_sequence([c, a, b], enforce_sorted=False)
    assert mixed.data.tolist() == packed.data.tolist() and mixed.sorted_indices.tolist() == [1, 2, 0]
    assert mixed.unsorted_indices.tolist() == [2, 0, 1] == invert_permutation(mixed.sorted_indices).tolist()
    assert [s.tolist() for s in unpack_sequence(mixed)] == [[6], [1, 2, 3], [4, 5]]
    assert pad_packed_sequence(mixed)[0].tolist() == [[6, 1, 4], [0, 2, 5], [0, 3, 0]]
    assert pad_sequence([b, a]).tolist() == [[4, 1], [5, 2], [0, 3]]
    left = pad_sequence([b, a], batch_first=True, padding_value=9, padding_side="left")
    assert left.tolist() == [[9, 4, 5], [1, 2, 3]]
    assert [s.tolist() for s in unpad_sequence(pad_sequence([b, a]), wt.tensor([2, 3]))] == [
        [4, 5],
        [1, 2, 3],
    ]
    truncated = pack_padded_sequence(X, wt.tensor([2, 1]))
    assert truncated.data.tolist() == [*X[0].tolist(), X[1, 0].tolist()]


def test_packed_sequence_is_a_tuple_with_methods():
    packed = pack_sequence([X[:1, 0], X[:, 1]], enforce_sorted=False)
    data, sizes, order, back = packed
    assert (
        data is packed.data
        and sizes is packed.batch_sizes
        and (order.tolist(), back.tolist()) == ([1, 0],) * 2
    )
    assert packed.to(wt.float32) is packed and packed.cpu() is packed and not packed.is_cuda
    kinds = {"double": wt.float64, "half": wt.float16, "long": wt.int64, "int": wt.int32, "short": wt.int16}
    kinds |= {"char": wt.int8, "byte": wt.uint8, "float": wt.float32}
    for name, dtype in kinds.items():
        other = getattr(packed, name)()
        assert other.data.dtype == dtype and other.sorted_indices.dtype == wt.int64
        assert isinstance(other, PackedSequence)
    assert packed.to("meta").unsorted_indices.device.type == "meta"
    assert PackedSequence((data, sizes)).sorted_indices is None
