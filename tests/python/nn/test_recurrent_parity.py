"""Recurrent layers and packed sequences beside PyTorch's, for drawn settings."""

import inspect

import numpy as np
import pytest
import warptape as wt

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

MODES = ["LSTM", "GRU", "RNN"]


def flat(found):
    if found is None or hasattr(found, "shape"):
        return [found]
    return [t for part in found for t in flat(part)]


def close(ours, theirs):
    for a, b in zip(flat(ours), flat(theirs), strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            assert str(a.dtype) == str(b.dtype)
            np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-9, atol=1e-11)


def settings(mode, random):
    drawn = {"num_layers": int(random.integers(1, 4)), "bias": bool(random.integers(2))}
    drawn |= {"batch_first": bool(random.integers(2)), "bidirectional": bool(random.integers(2))}
    if mode == "LSTM" and random.integers(2):
        drawn["proj_size"] = 3
    if mode == "RNN":
        drawn["nonlinearity"] = ["tanh", "relu"][random.integers(2)]
    return drawn


def run(library, mode, options, x, states, lengths):
    """Text, state, the results and all gradients."""
    library.manual_seed(5)
    layer = getattr(library.nn, mode)(6, 5, dtype=library.float64, **options)
    x = library.from_numpy(x).requires_grad_()
    hx = [library.from_numpy(s).requires_grad_() for s in states]
    given = None if not hx else tuple(hx) if mode == "LSTM" else hx[0]
    fed = x
    if lengths is not None:
        pack = library.nn.utils.rnn.pack_padded_sequence
        fed = pack(x, library.tensor(lengths), options["batch_first"], enforce_sorted=False)
    result = layer(fed, given)
    sum((t * t).sum() for t in flat(result) if t is not None and t.requires_grad).backward()
    grads = [x.grad, *(h.grad for h in hx), *(p.grad for p in layer.parameters())]
    return repr(layer), layer.state_dict(), result, grads


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(12))
def test_layer(mode, seed):
    random = np.random.default_rng(seed)
    options = settings(mode, random)
    t, b, d = int(random.integers(1, 6)), int(random.integers(1, 5)), 1 + options["bidirectional"]
    s = options["num_layers"] * d
    shape, states, lengths = [b, t, 6] if options["batch_first"] else [t, b, 6], [], None
    kind = seed % 3  # padded, packed, without a batch
    if random.integers(2):
        states = [random.standard_normal((s, b, options.get("proj_size", 5)))]
        states += [random.standard_normal((s, b, 5))] if mode == "LSTM" else []
    if kind == 1:
        lengths = random.integers(1, t + 1, b).tolist()
        lengths[random.integers(b)] = t
    if kind == 2:
        shape, states = [t, 6], [h[:, 0].copy() for h in states]
    x = random.standard_normal(shape)
    (text, state, result, grads), (their_text, their_state, their_result, their_grads) = (
        run(library, mode, options, x, states, lengths) for library in (wt, torch)
    )
    assert text == their_text and list(state) == list(their_state)
    close(list(state.values()), list(their_state.values()))
    close(result, their_result)
    close(grads, their_grads)


@pytest.mark.parametrize(
    "text", ["LSTMCell(6, 5)", "GRUCell(6, 5, False)", "RNNCell(6, 5, nonlinearity='relu')"]
)
@pytest.mark.parametrize("batch", [(), (4,)])
def test_cell(text, batch):
    random = np.random.default_rng(1)
    x, h, c = (random.standard_normal((*batch, n)).astype(np.float32) for n in (6, 5, 5))

    def found(library):
        library.manual_seed(5)
        cell = eval(f"nn.{text}", {"nn": library.nn}).double()
        tensors = [library.from_numpy(v).double().requires_grad_() for v in (x, h, c)]
        hx = tuple(tensors[1:]) if "LSTM" in text else tensors[1]
        out, without = cell(tensors[0], hx), cell(tensors[0])
        sum((t * t).sum() for t in flat([out, without])).backward()
        return [repr(cell)], [out, without, *(t.grad for t in tensors), *(p.grad for p in cell.parameters())]

    (ours, tensors), (theirs, their_tensors) = found(wt), found(torch)
    assert ours == theirs
    close(tensors, their_tensors)


@pytest.mark.parametrize("name", wt.nn.utils.rnn.__all__)
def test_signatures(name):
    ours, theirs = (inspect.signature(getattr(m.nn.utils.rnn, name)) for m in (wt, torch))
    listed = [[(p.name, p.default, p.kind) for p in s.parameters.values()] for s in (ours, theirs)]
    assert listed[0] == listed[1]


@pytest.mark.parametrize("batch_first", [False, True])
def test_packing(batch_first):
    random = np.random.default_rng(2)
    x, lengths = random.standard_normal((4, 4, 2)), [2, 4, 1, 4]

    def found(library):
        rnn, value = library.nn.utils.rnn, library.from_numpy(x).requires_grad_()
        packed = rnn.pack_padded_sequence(value, lengths, batch_first, enforce_sorted=False)
        padded, back = rnn.pad_packed_sequence(packed, batch_first, -2.0, 6)
        each = rnn.unpack_sequence(packed)
        joined = rnn.pad_sequence(each, batch_first, 3.0, "left")
        ((padded**2).sum() + (joined**3).sum()).backward()
        return [*packed, padded, back, *each, joined, value.grad]

    close(found(wt), found(torch))
