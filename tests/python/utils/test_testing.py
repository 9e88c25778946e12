"""torch.testing's comparisons, torch.hub's downloads, and small modules of names."""

from __future__ import annotations

import hashlib
import math
import warnings

import numpy as np
import pytest
import warptape as wt
from warptape import hub
from warptape.testing import assert_close, make_tensor

ONE = wt.tensor([1.0, 2.0, 3.0])
NAN = wt.tensor([math.nan])


@pytest.mark.parametrize(
    "a, b, options",
    [
        (ONE, ONE + 1e-6, {}),
        (ONE.double(), ONE.double() + 1e-8, {}),
        (ONE.half(), (ONE + 1e-3).half(), {}),
        (ONE, ONE + 0.5, {"rtol": 0, "atol": 0.5}),
        (ONE, ONE.double(), {"check_dtype": False}),
        (ONE.long(), ONE.long(), {}),
        (NAN, NAN, {"equal_nan": True}),
        (1.0, 1.0 + 1e-9, {}),
        ([ONE, 2], [ONE, 2], {}),
        ({"a": (ONE,), "b": None}, {"a": (ONE,), "b": None}, {}),
        (ONE, np.array([1.0, 2.0, 3.0], "f"), {}),
        (wt.tensor([math.inf]), wt.tensor([math.inf]), {}),
        (wt.tensor([2**53]), wt.tensor([2**53]), {}),
        (ONE * 1j, ONE * (1j + 1e-7), {}),
    ],
)
def test_close(a, b, options):
    assert_close(a, b, **options)


@pytest.mark.parametrize(
    "a, b, options, text",
    [
        (ONE, ONE + 1e-4, {}, r"Mismatched elements: 3 / 3 \(100.0%\)"),
        (
            ONE,
            wt.tensor([1.0, 2.5, 3.0]),
            {},
            r"absolute difference: 0.5 at index \(1,\) \(up to 1e-05 allowed\)",
        ),
        (ONE.double(), ONE.double() + 1e-5, {}, "Tensor-likes are not close"),
        (ONE, ONE[:2], {}, "'shape' do not match"),
        (ONE, ONE.double(), {}, "'dtype' do not match"),
        (wt.ones(2, 3), wt.ones(3, 2).mT, {"check_stride": True}, "stride"),
        (NAN, NAN, {}, "Tensor-likes are not close"),
        (NAN, wt.zeros(1), {"equal_nan": True}, "nan at index"),
        (ONE.long(), ONE.long() + 1, {}, "Tensor-likes are not equal"),
        (wt.tensor([2**53]), wt.tensor([2**53 + 1]), {}, "not equal"),
        (1.0, 1.1, {}, "Scalars are not close"),
        ([ONE], [ONE, ONE], {}, "length of the sequences mismatch: 1 != 2"),
        ({"a": ONE}, {"b": ONE}, {}, "keys of the mappings do not match"),
        ({"a": [ONE]}, {"a": [ONE + 1]}, {}, r"item \['a'\]\[0\]"),
        (ONE, ONE + 1, {"msg": "mine"}, "^mine$"),
        (ONE, ONE + 1, {"msg": lambda m: m[:6] + "!"}, "^Tensor!$"),
        (ONE + 1j, ONE + 2j, {}, r"Greatest absolute difference: 1.0 at index"),
        (None, ONE, {}, "None"),
    ],
)
def test_not_close(a, b, options, text):
    with pytest.raises((AssertionError, TypeError), match=text):
        assert_close(a, b, **options)


def test_refused_comparisons():
    with pytest.raises(ValueError, match="both specified or both left out"):
        assert_close(ONE, ONE, rtol=1.0)
    with pytest.raises(TypeError, match="No comparison pair"):
        assert_close(object(), ONE)
    with pytest.raises(TypeError, match="expected equal types"):
        assert_close(ONE, [1.0, 2.0, 3.0], allow_subclasses=False)


def test_make_tensor():
    x = make_tensor(3, 4, dtype=wt.float32, low=1, high=2, requires_grad=True)
    assert x.shape == (3, 4) and bool(((x >= 1) & (x < 2)).all()) and x.requires_grad
    assert not make_tensor((3, 4), dtype=wt.float64, noncontiguous=True).is_contiguous()
    assert make_tensor(50, dtype=wt.int8, low=0, high=2, exclude_zero=True).tolist() == [1] * 50
    assert make_tensor(9, dtype=wt.bool).dtype == wt.bool
    with pytest.raises(ValueError, match="expected low < high"):
        make_tensor(2, dtype=wt.float32, low=2, high=1)


def test_hub(tmp_path, monkeypatch):
    state = {"w": ONE}
    wt.save(state, tmp_path / "model.pt")
    digits = hashlib.sha256((tmp_path / "model.pt").read_bytes()).hexdigest()[:8]
    right, wrong = tmp_path / f"m-{digits}.pt", tmp_path / "m-00000000.pt"
    for path in (right, wrong):
        path.write_bytes((tmp_path / "model.pt").read_bytes())
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    assert hub.get_dir() == str(tmp_path / "home" / "hub")
    assert hub._get_torch_home() == str(tmp_path / "home")
    monkeypatch.delenv("TORCH_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert hub._get_torch_home() == str(tmp_path / "cache" / "torch")
    assert hub.get_dir() == str(tmp_path / "cache" / "torch" / "hub")
    monkeypatch.setenv("TORCH_HOME", str(tmp_path / "home"))
    load = hub.load_state_dict_from_url
    assert load(right.as_uri(), progress=False, check_hash=True)["w"].tolist() == ONE.tolist()
    right.unlink()
    assert load(right.as_uri(), progress=False)["w"].tolist() == ONE.tolist()  # from the cache
    with pytest.raises(RuntimeError, match=r'invalid hash value .expected "00000000", got'):
        load(wrong.as_uri(), progress=False, check_hash=True)
    kept = tmp_path / "home" / "hub" / "checkpoints"
    assert [p.name for p in kept.iterdir()] == [right.name]


def test_small_names():
    assert wt.cpu.is_available() and wt.cpu.device_count() == 1
    with open("/proc/cpuinfo") as file:
        assert wt.cpu._is_avx512_supported() == ("avx512dq" in file.read())
    with wt.cpu.stream(wt.cpu.current_stream()):
        wt.cpu.synchronize()
    assert wt.typename(ONE) == "torch.FloatTensor" and wt.typename(3) == "int"
    assert wt.is_signed(ONE) and not wt.ones(1, dtype=wt.uint8).is_signed() and wt.is_nonzero(ONE[0])
    with pytest.raises(RuntimeError):
        wt.is_nonzero(ONE)
    with pytest.warns(UserWarning, match="torch.range is deprecated"):
        assert wt.range(1, 2, 0.5).tolist() == [1.0, 1.5, 2.0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(RuntimeError, match="inconsistent with step sign"):
            wt.range(2, 1)
    x = ONE.clone()
    assert x.less_(2).tolist() == [1, 0, 0] and wt.arctan2(ONE, ONE).tolist() == wt.atan2(ONE, ONE).tolist()
    assert isinstance("cpu", wt.types.Device)
