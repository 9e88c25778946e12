"""state_dict and load_state_dict: contents, strictness, messages, hooks, copies and pickles."""

import copy
import io
import pickle
from collections import OrderedDict

import pytest
import warptape as wt
from warptape import nn


def net():
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 1, bias=False))


def equal(a, b):
    return a.keys() == b.keys() and all(wt.equal(a[k], b[k]) for k in a)


class Counter(nn.Module):
    """One with a state of its own kind."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count}

    def set_extra_state(self, state):
        self.count = state["count"]


def test_contents_and_order():
    state = net().state_dict()
    assert isinstance(state, OrderedDict)
    assert list(state) == [
        "0.weight",
        "0.bias",
        "1.weight",
        "1.bias",
        "1.running_mean",
        "1.running_var",
        "1.num_batches_tracked",
        "2.weight",
    ]
    assert state._metadata == {
        "": {"version": 1},
        "0": {"version": 1},
        "1": {"version": 2},
        "2": {"version": 1},
    }


def test_entries_share_storage_and_are_detached():
    model = net()
    state = model.state_dict()
    assert not any(t.requires_grad for t in state.values())
    state["0.weight"].fill_(7)
    assert model[0].weight.min().item() == 7
    assert model.state_dict(keep_vars=True)["0.weight"] is model[0].weight


def test_destination_and_prefix():
    home = OrderedDict()
    assert nn.Linear(1, 1).state_dict(destination=home, prefix="net.") is home
    assert list(home) == ["net.weight", "net.bias"]


def test_round_trip():
    source, target = net(), net()
    assert not equal(source.state_dict(), target.state_dict())
    result = target.load_state_dict(source.state_dict())
    assert repr(result) == "<All keys matched successfully>"
    assert equal(source.state_dict(), target.state_dict())
    target[0].weight.data.fill_(0)  # a copy, not the same storage
    assert not equal(source.state_dict(), target.state_dict())


def test_load_keeps_parameters_and_assign_takes_the_others():
    model, state = nn.Linear(2, 2), nn.Linear(2, 2).state_dict()
    weight = model.weight
    model.load_state_dict(state)
    assert model.weight is weight
    model.weight.requires_grad_(False)
    model.load_state_dict(state, assign=True)
    assert model.weight is not weight and isinstance(model.weight, nn.Parameter)
    assert not model.weight.requires_grad and model.bias.requires_grad
    state["weight"].fill_(3)
    assert model.weight.max().item() == 3


def test_a_load_does_not_change_what_it_is_given():
    """A flag of assign that stayed in the state_dict made later loads replace parameters."""
    state = net().state_dict()
    before = copy.deepcopy(state._metadata)
    net().load_state_dict(state, assign=True)
    assert state._metadata == before
    model = net()
    weight = model[0].weight
    model.load_state_dict(state)
    assert model[0].weight is weight


def test_assign_keeps_shared_parameters_shared():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.head = nn.Embedding(4, 3), nn.Sequential(nn.Linear(3, 4, bias=False))
            self.head[0].weight = self.table.weight
            self.again = self.table
            self.register_buffer("mean", wt.zeros(2))
            self.head.register_buffer("mean", self.mean)

    model = Tied()
    state = {name: wt.full_like(t, i) for i, (name, t) in enumerate(model.state_dict().items())}
    model.load_state_dict(state, assign=True)
    assert model.head[0].weight is model.table.weight is model.again.weight
    assert len(list(model.parameters())) == 1
    copied = Tied()
    copied.load_state_dict(state)
    assert equal(model.state_dict(), copied.state_dict())


def test_missing_and_unexpected():
    model, state = net(), net().state_dict()
    del state["0.bias"]
    state["1.extra"] = state["nowhere"] = wt.ones(1)
    with pytest.raises(RuntimeError) as caught:
        model.load_state_dict(state)
    assert str(caught.value) == (
        "Error(s) in loading state_dict for Sequential:\n"
        '\tMissing key(s) in state_dict: "0.bias". \n'
        '\tUnexpected key(s) in state_dict: "nowhere", "1.extra". '
    )
    result = model.load_state_dict(state, strict=False)
    assert result.missing_keys == ["0.bias"]
    assert result.unexpected_keys == ["nowhere", "1.extra"]
    assert "missing_keys=['0.bias']" in repr(result)


def test_shape_mismatch_is_an_error_without_strict_too():
    state = nn.Linear(2, 3).state_dict()
    with pytest.raises(RuntimeError) as caught:
        nn.Linear(2, 4).load_state_dict(state, strict=False)
    lines = str(caught.value).split("\n\t")
    assert lines[0] == "Error(s) in loading state_dict for Linear:"
    assert lines[1].startswith("size mismatch for weight: copying a param with shape ")
    assert "[3, 2]" in lines[1] and "[4, 2]" in lines[1]
    assert lines[2].startswith("size mismatch for bias")


def test_wrong_kinds():
    with pytest.raises(TypeError, match="Expected state_dict to be dict-like, got"):
        net().load_state_dict([1])
    with pytest.raises(RuntimeError, match='parameter named "weight", expected warptape'):
        nn.Linear(1, 1, bias=False).load_state_dict({"weight": 3})


def test_dtype_is_the_models():
    model = nn.Linear(2, 2).double()
    model.load_state_dict(nn.Linear(2, 2).state_dict())
    assert model.weight.dtype == wt.float64


def test_extra_state():
    source, target = nn.Sequential(Counter()), nn.Sequential(Counter())
    source[0].count = 5
    assert source.state_dict() == {"0._extra_state": {"count": 5}}
    target.load_state_dict(source.state_dict())
    assert target[0].count == 5
    with pytest.raises(RuntimeError, match=r'Missing key.*"0._extra_state"'):
        target.load_state_dict({})
    with pytest.raises(RuntimeError, match=r'Unexpected key.*"_extra_state"'):
        nn.Linear(1, 1).load_state_dict({**nn.Linear(1, 1).state_dict(), "_extra_state": 1})
    with pytest.raises(RuntimeError, match="should never be called"):
        nn.Module().get_extra_state()


def test_old_batch_norm_state_lacks_the_counter():
    model = nn.BatchNorm1d(2)
    model.num_batches_tracked.fill_(4)
    state = {k: v for k, v in nn.BatchNorm1d(2).state_dict().items() if k != "num_batches_tracked"}
    model.load_state_dict(state)
    assert model.num_batches_tracked.item() == 4


def test_hooks_on_state_dict():
    model, seen = nn.Sequential(nn.Linear(1, 1)), []
    model[0].register_state_dict_pre_hook(lambda m, prefix, keep: seen.append((prefix, keep)))

    def rename(module, state, prefix, metadata):
        state[prefix + "renamed"] = state.pop(prefix + "weight")

    handle = model[0].register_state_dict_post_hook(rename)
    assert list(model.state_dict()) == ["0.bias", "0.renamed"]
    assert seen == [("0.", False)]
    handle.remove()
    model[0].register_state_dict_post_hook(lambda *args: 3)
    with pytest.raises(RuntimeError, match="state_dict post-hook must return None"):
        model.state_dict()
    other = nn.Linear(1, 1)
    other._register_state_dict_hook(lambda *args: {"replaced": 1})
    assert other.state_dict() == {"replaced": 1}


def test_hooks_on_load():
    model = nn.Sequential(nn.Linear(1, 1))
    calls = []

    def rename(module, state, prefix, metadata, strict, missing, unexpected, errors):
        calls.append((module, prefix))
        state[prefix + "weight"] = state.pop(prefix + "old")

    model[0].register_load_state_dict_pre_hook(rename)
    model.register_load_state_dict_post_hook(lambda m, keys: keys.missing_keys.clear())
    given = {"0.old": wt.full((1, 1), 9.0)}
    result = model.load_state_dict(given)
    assert calls == [(model[0], "0.")]
    assert list(given) == ["0.old"]  # the caller's mapping stays as it was
    assert model[0].weight.item() == 9 and result.missing_keys == []
    model.register_load_state_dict_post_hook(lambda m, keys: 1)
    with pytest.raises(AssertionError, match="not expected to return new values"):
        model.load_state_dict(given)


def test_deepcopy_is_apart_and_alike():
    model = net()
    model[0].weight.requires_grad_(False)
    model[2].weight = model[2].weight
    twin = copy.deepcopy(model)
    assert equal(model.state_dict(), twin.state_dict())
    assert isinstance(twin[0].weight, nn.Parameter) and not twin[0].weight.requires_grad
    twin[0].weight.data.fill_(0)
    assert not wt.equal(model[0].weight, twin[0].weight)


def test_deepcopy_keeps_what_is_tied():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    twin = copy.deepcopy(model)
    assert twin[1].weight is twin[0].weight and twin[0].weight is not model[0].weight


def test_pickle():
    model = net().eval()
    twin = pickle.loads(pickle.dumps(model))
    assert equal(model.state_dict(), twin.state_dict())
    assert not twin.training and repr(twin) == repr(model)
    x = wt.ones(2, 2)
    assert wt.equal(model(x), twin(x))
    assert list(pickle.load(io.BytesIO(pickle.dumps(model.state_dict())))) == list(model.state_dict())


def test_pickle_of_parameters():
    parameter = nn.Parameter(wt.arange(3.0), requires_grad=False)
    twin = pickle.loads(pickle.dumps(parameter))
    assert isinstance(twin, nn.Parameter) and not twin.requires_grad
    assert twin.tolist() == [0, 1, 2]


def test_setstate_fills_in_what_old_pickles_lack():
    state = dict(nn.Linear(1, 1).__dict__)
    del state["_forward_hooks"], state["_load_state_dict_post_hooks"]
    module = nn.Linear.__new__(nn.Linear)
    module.__setstate__(state)
    module.register_forward_hook(lambda *args: None)
    assert module(wt.ones(1, 1)).shape == (1, 1)
