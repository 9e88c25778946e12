"""ao.report: figures that can be computed by hand."""

import copy
import math
import xml.etree.ElementTree as ElementTree

import pytest
import warptape as torch
from warptape import ao, nn


def models():
    torch.manual_seed(0)
    reference = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    return copy.deepcopy(reference), reference


def test_bytes_loss_accuracy_and_the_worst_layer():
    model, reference = models()
    with torch.no_grad():
        model[2].weight.mul_(1.1)
    x = torch.randn(50, 4)
    y = reference(x).argmax(1)
    model.train()
    found = ao.report(model, reference, [(x[:30], y[:30]), (x[30:], y[30:])])
    assert found.bytes == (4 * 67, 4 * 67) and min(found.seconds) > 0
    assert found.accuracy[1] == 1.0
    loss = nn.functional.cross_entropy(model(x), y).item()
    assert found.loss[0] == pytest.approx(loss, rel=1e-5)
    assert [layer.name for layer in found.layers] == ["0", "1", "2"]
    assert found.layers[0].signal_to_noise == math.inf
    r, z = reference(x).double(), model(x).double()
    exact = 10 * math.log10(r.square().sum().item() / (z - r).square().sum().item())
    assert found.worst.name == "2" and found.worst.signal_to_noise == pytest.approx(exact, abs=1e-3)
    assert "the worst is 2" in str(found) and "268" in str(found)
    assert model.training and not model[0]._forward_hooks


def test_a_shrunk_model_has_layers_without_counterpart(tmp_path):
    model, reference = models()
    x = torch.randn(6, 4)
    ao.prune_channels(model, x, 0.5)
    small = ao.shrink(model, x)
    found = ao.report(small, reference, [(x, torch.randn(6, 3))])
    assert found.unmatched == ["0", "1"] and found.accuracy is None and found.bytes[0] < found.bytes[1]
    found.save(tmp_path / "r.svg")
    ElementTree.parse(tmp_path / "r.svg")
    assert "2" in str(found)
    with pytest.raises(ValueError, match="svg"):
        found.save(tmp_path / "r.bmp")


def test_bad_data():
    model, reference = models()
    with pytest.raises(ValueError, match="got none"):
        ao.report(model, reference, [])
    with pytest.raises(ValueError, match="NaN"):
        ao.report(model, reference, [(torch.full((2, 4), math.nan), torch.tensor([0, 1]))])
    assert model.training
