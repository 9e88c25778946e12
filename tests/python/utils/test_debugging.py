"""Finding faults: the op that first makes NaN, what holds a tensor, leaks, logs, the environment's report."""

import doctest
import gc
import os
import subprocess
import sys

import pytest
import warptape as torch
from warptape import _logging, nn
from warptape.utils import collect_env, debugging
from warptape.utils.debugging import detect_nan, find_leaks, holders, live_tensors


def test_the_first_op_that_makes_nan_is_named():
    """Neither ops before it nor those behind it, and on the line that called it."""

    def program():
        x = torch.tensor([4.0, -1.0, 9.0]).mul(2)
        return x.sqrt().sum()

    expected = r"Tensor.sqrt returned nan at 1 of 3 positions, first at \[1\], from inputs without nan"
    with pytest.raises(RuntimeError, match=expected), detect_nan():
        program()


def test_nan_that_came_in_is_told_from_nan_that_was_made():
    x = torch.tensor([float("nan"), 1.0])
    with pytest.raises(RuntimeError, match="from inputs that held nan already"), detect_nan():
        x + 1


def test_inf_counts_on_request_alone():
    with detect_nan():
        assert torch.zeros(2).log().tolist() == [-float("inf")] * 2
    with pytest.raises(RuntimeError, match="log returned nan or inf at 2 of 2"), detect_nan(inf=True):
        torch.zeros(2).log()


def test_modules_integers_and_results_in_tuples():
    model = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3))
    with detect_nan():
        model(torch.randn(2, 3)).sum().backward()
        assert torch.arange(3).sum().item() == 3
        torch.randn(4).max(0)
    with pytest.raises(RuntimeError, match="nan at"), detect_nan():
        torch.tensor([[1.0], [float("nan")]]).max(0)


def test_holders_name_variables_containers_modules_and_the_tape():
    x = torch.randn(4, 3)
    model = nn.Linear(3, 3)
    box = {"kept": [x]}
    loss = model(x).square().sum()
    lines = holders(x)
    assert any(
        line.startswith("local variable x of test_holders") and "test_debugging.py:" in line for line in lines
    )
    assert any("box['kept'][0]" in line for line in lines)
    assert any(line.startswith("LinearBackward0 saved it for backward") for line in lines)
    loss.backward()
    del box
    lines = holders(x)
    assert not any("kept" in line or "Backward" in line for line in lines)
    assert any("model._parameters['weight']" in line for line in holders(model.weight))
    assert any("gradient of a tensor of shape (3, 3)" in line for line in holders(model.weight.grad))
    view = x[1:]
    assert any("a view or alias of shape (3, 3)" in line for line in holders(x))
    del view


def test_leaks_are_what_is_new_and_alive():
    kept = []
    with find_leaks() as leaks:
        for i in range(3):
            y = torch.zeros(10 + i)
            if i == 1:
                kept.append(y)
        del y
    assert [tuple(t.shape) for t in leaks] == [(11,)]
    assert "(11,) torch.float32, 44 bytes" in leaks.report()
    assert "kept[0]" in leaks.report()


def test_live_tensors_are_sorted_by_bytes():
    """Among them one without a storage, and one that a lazy module will make."""
    others = torch.eye(3).to_sparse(), nn.LazyLinear(3).weight, torch.zeros(4, device="meta")
    assert holders(others[0])
    small, large = torch.zeros(2), torch.zeros(1 << 20)
    found = live_tensors()
    places = [id(t) for t in found]  # other tests' tensors are among them
    assert places.index(id(large)) < places.index(id(small))
    del small, found
    gc.collect()
    assert any(t is large for t in live_tensors())


def test_examples_in_the_docstrings():
    failures, tried = doctest.testmod(debugging)
    assert tried >= 6
    assert failures == 0


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
    )


COMPILED = """
import warptape as torch
f = torch.compile(lambda x: (x * 2).exp().sum())
for _ in range(4):
    f(torch.rand(100_000)).item()
"""


def test_logs_by_the_environment():
    done = run(COMPILED, WARPTAPE_LOGS="compiler")
    assert done.returncode == 0
    assert "warptape.compiler INFO" in done.stderr
    assert "program 0 of" in done.stderr
    assert run(COMPILED, WARPTAPE_LOGS="-compiler", RANK="3").stderr == ""
    loud = run(COMPILED, WARPTAPE_LOGS="+all", RANK="3").stderr
    assert loud.startswith("[rank3] ")
    assert "DEBUG" in loud
    wrong = run("import warptape", WARPTAPE_LOGS="compilr")
    assert wrong.returncode == 1
    assert "no part named compilr logs; expected compiler, distributed, serve or all" in wrong.stderr


def test_set_logs_changes_nothing_where_a_name_is_wrong():
    import logging

    before = logging.getLogger("warptape.serve").level
    with pytest.raises(ValueError, match="no part named nope logs"):
        _logging.set_logs(serve=logging.DEBUG, nope=logging.DEBUG)
    assert logging.getLogger("warptape.serve").level == before


def test_the_environments_report():
    info = collect_env.get_env_info()
    assert info.warptape_version == torch.__version__.split("+")[0]
    assert any(line.startswith("numpy==") for line in info.packages)
    text = collect_env.get_pretty_env_info()
    assert "libc version: " in text
    assert "built in" in text


def test_hooks_of_saved_tensors_may_raise():
    def unpack(_):
        raise LookupError("it is elsewhere")

    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: 0, unpack):
        y = x * x
    assert holders(x) and y.grad_fn is not None
