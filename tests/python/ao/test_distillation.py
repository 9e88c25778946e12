"""ao.distillation against its papers' formulas in float64, and the loop."""

import numpy as np
import pytest
import warptape as torch
from warptape import _C, ao, nn
from warptape.nn import functional as F


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def drawn(*shape, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape) * 3)


@pytest.mark.parametrize("temperature, alpha", [(1.0, 1.0), (4.0, 0.9), (2.5, 0.0), (3.0, 0.5)])
def test_soft_targets_are_hintons(temperature, alpha):
    s, t, y = drawn(6, 5), drawn(6, 5, seed=1), np.array([0, 4, 2, 2, 1, 3])
    p, q = softmax(t.numpy() / temperature), softmax(s.numpy() / temperature)
    soft = (p * np.log(p / q)).sum(1).mean()
    hard = -np.log(softmax(s.numpy())[np.arange(6), y]).mean()
    found = ao.kd_loss(s, t, torch.from_numpy(y), temperature=temperature, alpha=alpha)
    assert found.item() == pytest.approx(alpha * temperature**2 * soft + (1 - alpha) * hard, rel=1e-12)
    assert ao.kd_loss(s, t, temperature=temperature).item() == pytest.approx(temperature**2 * soft, rel=1e-12)


def test_the_gradient_is_hintons_and_goes_to_the_student_alone():
    s, t = drawn(4, 7).requires_grad_(), drawn(4, 7, seed=1).requires_grad_()
    ao.kd_loss(s, t, temperature=3.0).backward()
    exact = (
        3.0 * (softmax(s.detach().numpy() / 3) - softmax(t.detach().numpy() / 3)) / 4
    )  # T^2 / T, equation 2
    np.testing.assert_allclose(s.grad.numpy(), exact, rtol=1e-10, atol=1e-14)
    assert t.grad is None


def test_tokens_that_are_ignored_and_the_largest_logits():
    s, t = drawn(2, 3, 9), drawn(2, 3, 9, seed=1)
    y = torch.tensor([[1, -100, 3], [-100, 8, 0]])
    keep = y.numpy() != -100
    top = np.argsort(-t.numpy(), -1)[..., :4]
    p = softmax(np.take_along_axis(t.numpy(), top, -1) / 2)
    q = softmax(np.take_along_axis(s.numpy(), top, -1) / 2)
    soft = (p * np.log(p / q)).sum(-1)[keep].mean()
    hard = F.cross_entropy(s.flatten(0, 1), y.flatten()).item()
    exact = 0.7 * 4 * soft + 0.3 * hard
    for teacher, more in [(t, {"top_k": 4}), (tuple(t.topk(4, -1)), {})]:
        found = ao.kd_loss(s, teacher, y, temperature=2.0, alpha=0.7, **more)
        assert found.item() == pytest.approx(exact, rel=1e-12)


def test_hints_and_attention_maps():
    s, t = drawn(3, 4, 5, 2), drawn(3, 4, 5, 2, seed=1)
    exact = 0.5 * ((t - s).numpy() ** 2).sum((1, 2, 3)).mean()
    assert ao.hint_loss(s, t).item() == pytest.approx(exact, rel=1e-12)
    t = drawn(3, 6, 5, 2, seed=1)

    def q(x):
        m = (np.abs(x.numpy()) ** 2).sum(1).reshape(3, -1)
        return m / np.sqrt((m**2).sum(1, keepdims=True))

    exact = np.sqrt(((q(s) - q(t)) ** 2).sum(1)).mean()
    assert ao.attention_transfer_loss(s, t).item() == pytest.approx(exact, rel=1e-12)


def test_what_does_not_fit():
    s, t, y = drawn(4, 5), drawn(4, 5, seed=1), torch.zeros(4, dtype=torch.int64)
    for error, call in [
        (_C.ShapeError, lambda: ao.kd_loss(s, t[:, :4], y)),
        (_C.ShapeError, lambda: ao.kd_loss(s, t, y[:3])),
        (_C.ShapeError, lambda: ao.kd_loss(s, (t[:, :2], y.view(4, 1)), y)),
        (ValueError, lambda: ao.kd_loss(s, t, y, temperature=0)),
        (ValueError, lambda: ao.kd_loss(s, t, y, alpha=1.1)),
        (ValueError, lambda: ao.kd_loss(s, t, y, top_k=6)),
        (_C.ShapeError, lambda: ao.hint_loss(s, t[:, :4])),
        (_C.ShapeError, lambda: ao.attention_transfer_loss(s, t)),
    ]:
        with pytest.raises(error):
            call()


def net(width, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, width), nn.ReLU(), nn.Linear(width, 3))


def test_a_student_learns_from_its_teacher():
    teacher, student = net(64, 0), net(8, 1)
    x = torch.randn(256, 10)
    with torch.no_grad():
        y = teacher(x).argmax(1)
    regressor = nn.Linear(8, 64)
    hint = ao.Hint("1", "1", weight=0.01, regressor=regressor)
    optimizer = torch.optim.Adam([*student.parameters(), *regressor.parameters()], lr=0.02)
    batches = [(x[i : i + 64], y[i : i + 64]) for i in range(0, 256, 64)]
    before = [p.clone() for p in teacher.parameters()]
    first = regressor.weight.detach().clone()
    means = ao.distill(student, teacher, batches, optimizer, epochs=30, hints=[hint], temperature=2.0)
    assert len(means) == 30 and means[-1] < 0.5 * means[0]
    with torch.no_grad():
        assert (student(x).argmax(1) == y).float().mean() > 0.8
    assert all(torch.equal(a, b) for a, b in zip(before, teacher.parameters()))
    assert teacher.training and not teacher[1]._forward_hooks and not torch.equal(first, regressor.weight)
    with pytest.raises(ValueError, match="got none"):
        ao.distill(student, teacher, [], optimizer)
    with pytest.raises(ValueError, match="no module 'x'"):
        ao.distill(student, teacher, batches, optimizer, hints=[ao.Hint("x", "1")])
    assert not student[1]._forward_hooks
