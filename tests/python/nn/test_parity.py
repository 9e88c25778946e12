"""Layers beside PyTorch's: the same text, state, start, results, gradients, signatures and messages."""

import inspect
import re

import numpy as np
import pytest
import warptape as wt
from layer_table import LAYERS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.parity

ROWS = pytest.mark.parametrize("text, inputs", [row[:2] for row in LAYERS], ids=[row[0] for row in LAYERS])


def build(library, text):
    library.manual_seed(3)
    return eval("nn." + text, {"nn": library.nn, "tensor": library.tensor})


def arrays(inputs):
    """The inputs as NumPy arrays, equal for both libraries."""
    random = np.random.default_rng(5)
    made = []
    for spec in inputs:
        if isinstance(spec, tuple):
            made.append(random.standard_normal(spec).astype(np.float32))
        else:
            rand = lambda *shape: random.random(shape, dtype=np.float32)
            made.append(eval(spec, {"rand": rand, "tensor": torch.tensor}))
            if isinstance(made[-1], torch.Tensor):
                made[-1] = made[-1].numpy()
    return made


def same(ours, theirs, what):
    if theirs is None:
        assert ours is None, what
        return
    assert str(ours.dtype).split(".")[-1] == str(theirs.dtype).split(".")[-1], what
    assert tuple(ours.shape) == tuple(theirs.shape), what
    theirs = theirs.detach().numpy()
    scale = np.abs(theirs).max(initial=1.0)  # sums cancel: what counts is the error beside the largest value
    np.testing.assert_allclose(ours.detach().numpy(), theirs, rtol=2e-5, atol=2e-6 * scale, err_msg=what)


def run(library, text, inputs, training):
    module = build(library, text).train(training)
    tensors = [
        library.tensor(a.tolist(), dtype=getattr(library, str(a.dtype))).requires_grad_(a.dtype == np.float32)
        for a in arrays(inputs)
    ]
    out = module(*tensors)
    if out.requires_grad:
        (out * library.arange(1.0, out.numel() + 1).reshape(out.shape)).sum().backward()
    return module, tensors, out


@ROWS
@pytest.mark.parametrize("training", [True, False])
def test_layer(text, inputs, training):
    module, tensors, out = run(wt, text, inputs, training)
    reference, their_tensors, their_out = run(torch, text, inputs, training)
    same(out, their_out, "result")
    assert out.requires_grad == their_out.requires_grad
    for i, (ours, theirs) in enumerate(zip(tensors, their_tensors, strict=True)):
        same(ours.grad, theirs.grad, f"gradient of input {i}")
    theirs = dict(reference.named_parameters())
    for name, parameter in module.named_parameters():
        same(parameter.grad, theirs[name].grad, f"gradient of {name}")
    state, their_state = module.state_dict(), reference.state_dict()
    assert list(state) == list(their_state)
    for name in state:
        same(state[name], their_state[name], name)


@ROWS
def test_start_and_text(text, inputs):
    module, reference = build(wt, text), build(torch, text)
    assert repr(module) == repr(reference)
    ours, theirs = module.state_dict(), reference.state_dict()
    assert list(ours) == list(theirs)
    assert ours._metadata == theirs._metadata
    for name in ours:
        assert ours[name].tolist() == theirs[name].tolist()


def plain(signature):
    """Names, order, kinds and defaults, a function by its name; without annotations."""
    given = signature.parameters.values()
    return [(p.name, p.kind, getattr(p.default, "__name__", p.default)) for p in given]


CLASSES = sorted(
    n
    for n in wt.nn.__all__
    if isinstance(getattr(wt.nn, n), type)
    and n not in ("Parameter", "Buffer", "UninitializedParameter", "UninitializedBuffer")
)


@pytest.mark.parametrize("name", CLASSES)
def test_signatures_of_layers(name):
    ours, theirs = getattr(wt.nn, name), getattr(torch.nn, name)
    assert plain(inspect.signature(ours)) == plain(inspect.signature(theirs))


def arguments_of(function):
    """The names of a Python function's arguments; of a builtin, or of two functions behind one name, none."""
    try:
        names = list(inspect.signature(function).parameters)
    except ValueError:
        return []
    return [] if names[0] == "args" else [n for n in names if n != "out"]


DECLARED = {op[0]: [a[0] for a in op[2]] for op in wt._C._list_ops() if op[1] & 4}  # of nn.functional
PYTHON = sorted(
    n
    for n in DECLARED
    if arguments_of(getattr(torch.nn.functional, n, len)) and hasattr(torch.nn.functional, n)
)


@pytest.mark.parametrize("name", PYTHON)
def test_arguments_of_functions(name):
    assert DECLARED[name] == arguments_of(getattr(torch.nn.functional, name))


@pytest.mark.parametrize("name", [n for n in dir(torch.nn.init) if n.endswith("_") and not n.startswith("_")])
def test_signatures_of_init(name):
    assert plain(inspect.signature(getattr(wt.nn.init, name))) == plain(
        inspect.signature(getattr(torch.nn.init, name))
    )


METHODS = [n for n in dir(torch.nn.Module) if callable(getattr(torch.nn.Module, n)) and not n.startswith("_")]
NOT_OURS = {"compile", "ipu", "mtia", "xpu"}  # devices and a compiler that this runtime does not have


def test_methods_of_module():
    missing = [n for n in METHODS if n not in NOT_OURS and not hasattr(wt.nn.Module, n)]
    assert missing == []


@pytest.mark.parametrize("name", [n for n in METHODS if n not in {*NOT_OURS, "to", "forward"}])
def test_signatures_of_methods(name):
    ours, theirs = (plain(inspect.signature(getattr(m.nn.Module, name))) for m in (wt, torch))
    if name == "modules":
        ours = ours[:1] + [p for p in ours[1:] if p in theirs]
    assert ours == theirs


MESSAGES = {
    "unknown attribute": lambda nn, t: nn.Linear(1, 1).nothing,
    "number as module": lambda nn, t: setattr(nn.Sequential(nn.ReLU()), "0", 3),
    "number as buffer": lambda nn, t: setattr(nn.BatchNorm1d(1), "running_mean", 3),
    "missing and unexpected": lambda nn, t: nn.Linear(1, 1).load_state_dict(
        {"weight": t.ones(1, 1), "x": t.ones(1)}
    ),
    "shape": lambda nn, t: nn.Linear(1, 1).load_state_dict(nn.Linear(1, 2).state_dict()),
    "no tensor": lambda nn, t: nn.Linear(1, 1, bias=False).load_state_dict({"weight": 3}),
    "no mapping": lambda nn, t: nn.Linear(1, 1).load_state_dict(3),
    "parameter name": lambda nn, t: nn.Module().register_parameter("a.b", None),
    "buffer name": lambda nn, t: nn.Module().register_buffer("", None),
    "module name": lambda nn, t: nn.Module().add_module("a.b", None),
    "no module": lambda nn, t: nn.Module().add_module("a", 3),
    "taken name": lambda nn, t: nn.Linear(1, 1).register_buffer("weight", None),
    "path": lambda nn, t: nn.Linear(1, 1).get_submodule("a.b"),
    "path to a tensor": lambda nn, t: nn.Linear(1, 1).get_submodule("weight"),
    "cast": lambda nn, t: nn.Linear(1, 1).to(t.int64),
    "forward": lambda nn, t: nn.Module()(1),
    "mode": lambda nn, t: nn.Module().train(1),
    "index": lambda nn, t: nn.Sequential(nn.ReLU())[3],
    "dropout": lambda nn, t: nn.Dropout(2),
    "conv groups": lambda nn, t: nn.Conv2d(3, 4, 1, groups=2),
    "conv padding": lambda nn, t: nn.Conv2d(2, 2, 1, stride=2, padding="same"),
    "conv padding mode": lambda nn, t: nn.Conv2d(2, 2, 1, padding="none"),
    "batch norm rank": lambda nn, t: nn.BatchNorm2d(2)(t.ones(2, 2)),
    "group norm": lambda nn, t: nn.GroupNorm(2, 3),
    "embedding": lambda nn, t: nn.Embedding(3, 2, padding_idx=3),
    "unflatten": lambda nn, t: nn.Unflatten(0, (2, "a")),
    "init rank": lambda nn, t: nn.init.xavier_normal_(t.ones(2)),
    "init mode": lambda nn, t: nn.init.kaiming_normal_(t.ones(2, 2), mode="fan"),
    "init name": lambda nn, t: nn.init.calculate_gain("none"),
    "reduction": lambda nn, t: nn.HingeEmbeddingLoss(reduction="all")(t.ones(2), t.ones(2)),
    "triplet margin": lambda nn, t: nn.TripletMarginLoss(margin=0),
}


@pytest.mark.parametrize("case", MESSAGES)
def test_messages(case):
    caught = []
    for library in (wt, torch):
        with pytest.raises(Exception) as info:
            MESSAGES[case](library.nn, library)
        caught.append((type(info.value), str(info.value)))
    (ours, our_text), (theirs, their_text) = caught
    assert issubclass(ours, theirs)
    our_text = re.sub(r"^\w+: ", "", our_text)  # an op names itself first
    their_text = re.sub(r"^\w+: ", "", their_text)
    assert (
        our_text.replace("warptape.nn", "torch.nn")
        .replace("warptape", "torch")
        .startswith(their_text.rstrip("'")[:35])
    )


@pytest.mark.parametrize("legacy", [{"size_average": False}, {"reduce": False}, {"size_average": True}])
def test_deprecated_reductions(legacy):
    with pytest.warns(UserWarning, match="size_average and reduce args will be deprecated"):
        ours = wt.nn.MSELoss(**legacy)
    with pytest.warns(UserWarning, match="size_average"):
        assert ours.reduction == torch.nn.MSELoss(**legacy).reduction
