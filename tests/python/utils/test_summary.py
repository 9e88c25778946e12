"""warptape.utils.summary: numbers counted by hand, a model that is left as it was."""

from __future__ import annotations

import pytest
import warptape as torch
from tensor_models import train_gpt
from warptape import nn
from warptape.nn.modules import _hooks
from warptape.utils import summary


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(8 * 16, 10))
        self.unused = nn.Linear(2, 2)
        self.conv.weight.requires_grad_(False)

    def forward(self, x, twice=False):
        x = self.norm(self.conv(x)).relu()
        return {"logits": self.head(x), "again": [self.head(x)] if twice else []}


def test_numbers():
    found = summary(Net(), input_size=(2, 3, 4, 4))
    rows = {row.name: row for row in found.rows}
    assert list(rows) == ["", "conv", "norm", "head", "head.0", "head.1", "head.2", "unused"]
    conv, head = 2 * 2 * 8 * 16 * 27, 2 * 2 * 128 * 10
    assert rows["conv"].flops == conv and rows["head"].flops == rows["head.2"].flops == head
    assert found.flops == conv + head and rows["norm"].flops == 0
    assert rows["conv"].parameters == 8 * 27 + 8 and rows["conv"].trainable == 8
    assert rows["head"].parameters == 1290 and rows["head"].depth == 1 and rows["head.2"].depth == 2
    assert found.parameters == 224 + 16 + 1290 + 6 and found.trainable == found.parameters - 216
    assert rows["conv"].output_shapes == [(2, 8, 4, 4)] and rows["conv"].output_bytes == 4 * 2 * 8 * 16
    assert rows[""].output_shapes == [(2, 10)] and rows["unused"].output_shapes is None
    assert found.parameter_bytes == 4 * found.parameters and found.buffer_bytes == 2 * 8 * 4 + 8
    assert found.activation_bytes == 4 * (256 + 256 + 256 + 256 + 20)  # conv, norm, flatten, dropout, linear
    twice = summary(Net(), torch.ones(2, 3, 4, 4), twice=True)
    rows = {row.name: row for row in twice.rows}
    assert rows["head.2"].calls == 2 and rows["head"].flops == 2 * head
    assert rows[""].output_shapes == [(2, 10), (2, 10)] and rows["head"].output_bytes == 2 * 80


def test_table():
    lines = str(summary(Net(), input_size=(2, 3, 4, 4), depth=1)).splitlines()
    assert [line.split() for line in lines[:6]] == [
        ["module", "output", "parameters", "mult-adds", "MB", "out"],
        ["Net", "[2,", "10]", "1,536", "9,472", "0.00"],
        ["conv:", "Conv2d", "[2,", "8,", "4,", "4]", "224", "6,912", "0.00"],
        ["norm:", "BatchNorm2d", "[2,", "8,", "4,", "4]", "16", "-", "0.00"],
        ["head:", "Sequential", "[2,", "10]", "1,290", "2,560", "0.00"],
        ["unused:", "Linear", "not", "run", "6", "-", "0.00"],
    ]
    assert lines[6] == "parameters: 1,536 (1,320 trainable, 216 not)"
    assert lines[7] == "mult-adds of a forward pass: 9,472 (18,944 FLOP)"
    everything = str(summary(Net(), input_size=(2, 3, 4, 4), depth=None))
    assert len(everything.splitlines()) == len(lines) + 3 and "    2: Linear" in everything


def test_shared_parameters_count_once_and_tokens_are_inputs():
    model = train_gpt.GPT(2, 2, 32, 16)
    found = summary(model, input_size=(3, 16), dtypes=torch.long)
    assert found.parameters == sum(p.numel() for p in model.parameters())
    assert found.rows[0].output_shapes == [(3, 16, train_gpt.VOCABULARY)]
    head = next(row for row in found.rows if row.name == "head")
    assert head.parameters == train_gpt.VOCABULARY * 32 and head.flops == 2 * 48 * 32 * train_gpt.VOCABULARY


def state(model):
    return (
        {name: t.clone() for name, t in model.state_dict().items()},
        [m.training for m in model.modules()],
        [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()],
        _hooks._global._has_hooks(),
    )


class Broken(Net):
    def forward(self, x):
        super().forward(x)
        raise KeyError("planted")


@pytest.mark.parametrize("kind", [Net, Broken])
def test_the_model_is_left_as_it_was(kind):
    model = kind()
    model.head.eval()
    before, random = state(model), torch.get_rng_state()
    for _ in range(2):
        if kind is Broken:
            with pytest.raises(KeyError, match="planted"):
                summary(model, torch.ones(2, 3, 4, 4))
        else:
            summary(model, torch.ones(2, 3, 4, 4))
    after = state(model)
    assert all(torch.equal(t, after[0][name]) for name, t in before[0].items())
    assert before[1:] == after[1:] and torch.equal(random, torch.get_rng_state())
    assert torch.is_grad_enabled() and torch._C._torch_function_modes() == []
    assert not after[3]


def test_meta_device():
    with torch.device("meta"):
        model = Net()
    on_meta, real = (summary(m, input_size=[(2, 3, 4, 4)], depth=None) for m in (model, Net()))
    assert str(on_meta) == str(real) and model.conv.weight.is_meta


def test_what_is_refused():
    with pytest.raises(TypeError, match="expected a Module, got int"):
        summary(3, input_size=(1,))
    for wrong in ({}, {"input_size": (1, 2)}):
        with pytest.raises(ValueError, match="give one of the two"):
            summary(nn.Linear(2, 2), *([torch.ones(1, 2)] if wrong else []), **wrong)
    with pytest.raises(ValueError, match="a dtype for each of 1 inputs, got 2"):
        summary(nn.Linear(2, 2), input_size=(1, 2), dtypes=[torch.float32, torch.float64])
    with pytest.raises(ValueError, match="lazy parameters"):
        summary(nn.LazyLinear(2), input_size=(1, 2))
