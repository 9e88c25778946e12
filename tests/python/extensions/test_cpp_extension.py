"""Extensions in C++: what `<torch/extension.h>` has, built by utils.cpp_extension; one module for all."""

from __future__ import annotations

import gc
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import warptape as torch
from warptape.utils import cmake_prefix_path, cpp_extension

HERE = Path(__file__).resolve().parent
pytestmark = [
    pytest.mark.skipif(shutil.which(os.environ.get("CXX", "c++")) is None, reason="no C++ compiler"),
    pytest.mark.skipif(not (HERE / "ops.cpp").exists(), reason="without the source of the extension"),
]
pytest.importorskip("pybind11")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("extension")


@pytest.fixture(scope="module")
def ext(folder):
    return cpp_extension.load(
        "testext",
        str(HERE / "ops.cpp"),
        extra_cflags=["-O0", "-Wall", "-Werror"],
        build_directory=str(folder),
    )


def cell_in_python(x, w, b, h, c):
    i, o, g = torch.nn.functional.linear(torch.cat([h, x], 1), w, b).chunk(3, 1)
    c = c + torch.nn.functional.elu(g) * torch.sigmoid(i)
    return torch.tanh(c) * torch.sigmoid(o), c


def cell_inputs():
    torch.manual_seed(0)
    sizes = [(3, 7), (12, 11), (1, 12), (3, 4), (3, 4)]
    return [torch.randn(*s, dtype=torch.float64, requires_grad=True) for s in sizes]


@pytest.mark.parametrize("through_the_op", [False, True])
def test_a_recurrent_cell_has_the_gradients_of_autograd(ext, through_the_op):
    step = torch.ops.testext.cell if through_the_op else ext.cell
    inputs = cell_inputs()
    found, wanted = step(*inputs), cell_in_python(*inputs)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)
    weights = [torch.randn_like(a.detach()) for a in found]
    torch.testing.assert_close(
        torch.autograd.grad(found, inputs, weights), torch.autograd.grad(wanted, inputs, weights)
    )
    assert found[0].grad_fn.name() == "CellBackward"
    assert torch.autograd.gradcheck(step, inputs)
    assert not step(*[t.detach() for t in inputs])[0].requires_grad


def test_what_a_function_saved_is_checked_and_freed(ext):
    inputs = cell_inputs()
    h, c = ext.cell(*inputs)
    with torch.no_grad():
        inputs[1].mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()
    h, c = ext.cell(*cell_inputs())
    h.sum().backward()
    with pytest.raises(RuntimeError, match="second time"):
        c.sum().backward()


def test_roi_align(ext):
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64)
    rois = torch.tensor([[0, 0.5, 1, 6, 7], [1, 2, 0, 7, 5], [1, 0, 0, 4, 4]], dtype=torch.float64)
    found = ext.roi_forward(x, rois, 2, 3, 0.9)
    torch.testing.assert_close(found, torch.ops.torchvision.roi_align(x, rois, 0.9, 2, 3, 1, False))
    y = x.clone().requires_grad_()
    grad = torch.randn_like(found)
    torch.ops.torchvision.roi_align(y, rois, 0.9, 2, 3, 1, False).backward(grad)
    torch.testing.assert_close(ext.roi_backward(grad, rois, [*x.shape], 0.9), y.grad)
    half = ext.roi_forward(x.half(), rois.half(), 2, 3, 0.9)
    torch.testing.assert_close(half, found.half(), rtol=1e-2, atol=1e-2)
    with pytest.raises(RuntimeError, match=r"expected \[N, C, H, W\] and \[K, 5\]"):
        ext.roi_forward(x[0], rois, 2, 3, 0.9)
    with pytest.raises(NotImplementedError, match=r"\"roi_forward\" not implemented for 'Long'"):
        ext.roi_forward(x.long(), rois.long(), 2, 3, 0.9)


def test_functions_in_place_with_lists_and_with_several_outputs(ext):
    leaf = torch.ones(3, requires_grad=True)
    x = leaf * 1
    version = x._version
    y = ext.doubled(x)
    assert y is x and x._version > version and x.tolist() == [2.0] * 3
    y.sum().backward()
    assert leaf.grad.tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="leaf Variable"):
        ext.doubled(leaf)

    a, b, bias = (torch.arange(3.0).add(k).requires_grad_() for k in range(3))
    total, largest, same = ext.parts([a, b], 2.0, bias)
    assert total.tolist() == [4.0, 9.0, 14.0] and largest.item() == 2 and not largest.requires_grad
    assert same is not a and same.tolist() == a.tolist()
    (total.sum() + 3 * same.sum()).backward()
    assert (a.grad[0], b.grad[0], bias.grad[0]) == (5.0, 2.0, 1.0)
    assert ext.parts([a], 1.0, None)[0].tolist() == a.tolist()
    with pytest.raises(
        RuntimeError, match=r"WrongCountBackward returned an incorrect number .*expected 1, got 2"
    ):
        ext.wrong_count(torch.ones(1, requires_grad=True)).backward()


def test_a_backward_pass_from_cpp(ext):
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    accumulated, returned, recording = ext.gradient(x)
    assert accumulated.tolist() == returned.tolist() == [2.0, 4.0] and recording
    assert x.grad.tolist() == [2.0, 4.0]


def test_tensors_made_and_indexed(ext):
    ones, blob, columns, rows, filled, steps, formula, where, places, norm, double = ext.made(
        torch.ones(1, dtype=torch.float64)
    )
    want = np.arange(1, 7, dtype="float32").reshape(2, 3)
    assert ones.dtype == torch.float64 and ones.tolist() == [1, 1]
    np.testing.assert_array_equal(blob.numpy(), want)
    np.testing.assert_array_equal(columns.numpy(), want[:, ::2])
    np.testing.assert_array_equal(rows.numpy(), want[::-1])
    assert filled.tolist() == [[1, 2], [5, 5]] and filled.dtype == torch.int64
    assert steps.tolist() == [0, 2, 4] and steps.dtype == torch.int64
    np.testing.assert_allclose(formula.numpy(), (1 / want + 2 - want) * want, rtol=1e-6)
    np.testing.assert_array_equal(where.numpy(), np.where(want > 3, want, 0))
    assert places.tolist() == [2, 2] and norm.item() == pytest.approx(np.linalg.norm(want))
    np.testing.assert_array_equal(double.numpy(), want.astype("float64"))


def test_every_op_of_the_headers_is_found(ext):
    folder = Path(cpp_extension.include_paths()[0]) / "ATen" / "ops"
    text = "".join((folder / name).read_text() for name in ("methods.inc", "functions.inc"))
    names = {*re.findall(r'wtx::call\w*(?:<[^(]*>)?\("(\w+)"', text)}
    assert len(names) > 800 and [n for n in names if not ext.is_op(n)] == [] and not ext.is_op("no_such_op")


def test_foreign_memory_is_freed_with_its_tensor(ext):
    x = ext.with_deleter()
    view = x[1:]
    del x
    gc.collect()
    assert view.tolist() == [4.0] and not ext.was_freed()
    del view
    gc.collect()
    assert ext.was_freed()


def test_objects_of_python_and_cpp(ext):
    x = torch.ones(2, 3, requires_grad=True)
    said = ext.described(x, None, torch.bfloat16, torch.device("cpu"), 2.5, [4, 5])
    assert said == "[2, 3][3, 1]Floatcpu1610BFloat16cpu2.5[4, 5]"
    assert ext.described(x.t(), x, torch.int64, "meta", 3, []).startswith("[3, 2][1, 3]Floatcpu06")
    assert ext.undefined() is None
    for wrong in (3, None, np.ones(2)):
        with pytest.raises(TypeError, match="incompatible function arguments"):
            ext.described(wrong, None, torch.float32, "cpu", 1, [])
    assert ext.threads_sum(1000) == 499500 and ext.threads_sum(0) == 0


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_narrow_floats_round_as_the_runtime(ext, dtype):
    """On floats of all exponents: ties, subnormal halves, infinities and NaN among them."""
    bits = np.random.default_rng(0).integers(0, 2**32, 20000, dtype=np.uint32)
    bits[::2] &= 0xFFFFF000  # few bits behind those that stay
    bits[1::4] = (bits[1::4] & 0x8FFFFFFF) | 0x30000000  # around the smallest half
    x = torch.from_numpy(bits.view(np.float32).copy())
    narrow, wide, mixed = ext.narrowed(x, dtype)
    assert torch.equal(narrow.isnan(), x.isnan()) and torch.equal(wide.isnan(), x.isnan())
    numbers = ~x.isnan()
    want = x[numbers].to(dtype)
    assert torch.equal(narrow[numbers].view(torch.int16), want.view(torch.int16))
    assert torch.equal(wide[numbers], want.float())
    sums = want + 1
    torch.testing.assert_close(mixed[numbers], sums * sums - 3, rtol=0, atol=0, equal_nan=True)


def test_errors_are_the_exceptions_of_their_kind(ext):
    for kind, error, text in (
        ("index", IndexError, "an index"),
        ("value", ValueError, "a value"),
        ("type", TypeError, "a type"),
        ("missing", NotImplementedError, "no kernel"),
        ("thread", RuntimeError, "in a thread"),
        ("shapes", torch.ShapeError, "mm"),
        ("undefined", RuntimeError, "undefined"),
        ("dtype", RuntimeError, "expected scalar type Double but found Float"),
        ("dispatch", NotImplementedError, "\"dispatched\" not implemented for 'Int'"),
    ):
        with pytest.raises(error, match=text):
            ext.raise_error(kind)
    with pytest.warns(UserWarning, match="kind is warning"):
        ext.raise_error("warning")


def test_ops_that_an_extension_registers(ext):
    ops = torch.ops.testext
    x = torch.arange(6.0).view(2, 3)
    assert ops.shifted(x).tolist() == [[6.0, 8.0, 10.0]]
    assert ops.shifted(x, 1.0, mode="down", dims=[1]).tolist() == [[0.0], [9.0]]
    assert str(ops.shifted.default._schema).startswith(
        'testext::shifted(Tensor x, float by=1.5, *, str mode="up"'
    )
    assert ops.shifted_twice(x).tolist() == [[5.0 + 7.0 + 9.0 + 6.0]]
    assert ops.several([x, x], None)[1:] == (0, [0.5, 2.0]) and ops.several([x, x], x)[1] == 1
    assert ops.over(x).tolist() == (x + 1).tolist() and ops.over(x, x).tolist() == (2 * x).tolist()
    assert ops.over.overloads() == ["one", "two"] and ops.over.two(x, x).tolist() == (2 * x).tolist()
    assert ops.plain(x, 3).tolist() == (3 * x).tolist()
    version = x._version
    assert ops.fill_(x, 4) is None and x.tolist() == [[4.0] * 3] * 2 and x._version > version
    with pytest.raises(RuntimeError, match="missing value for argument 'x'"):
        ops.shifted()
    with pytest.raises(RuntimeError, match="Unknown keyword argument 'z'"):
        ops.shifted(x, z=1)
    with pytest.raises(RuntimeError, match=r"Expected a value of type .float. for argument .by."):
        ops.shifted(x, "much")
    with pytest.raises(NotImplementedError, match="no function for meta; give one by register_fake"):
        ops.shifted(x.to("meta"))


def test_python_completes_an_op_of_an_extension(ext):
    torch.library.register_fake("testext::plain", lambda x, n: torch.empty_like(x))
    torch.library.register_fake("testext::over.two", lambda x, y: torch.empty_like(x))
    torch.library.register_autograd("testext::over.two", lambda ctx, g: (g, g))
    x = torch.ones(2, 3, requires_grad=True)
    torch.ops.testext.over.two(x, 2 * x).sum().backward()
    assert x.grad.tolist() == [[3.0] * 3] * 2
    tests = torch.library.opcheck(torch.ops.testext.over.two, (x, torch.ones(2, 3)))
    assert set(tests.values()) == {"SUCCESS"} and len(tests) == 4
    compiled = torch.compile(lambda x: torch.ops.testext.plain(x + 1, 3) * 2)
    assert compiled(x).tolist() == [[12.0] * 3] * 2


def test_a_list_of_numbers(ext):
    xs = [torch.tensor([1]) for _ in range(4)]
    assert [x.tolist() for x in ext.added(xs)] == [[2], [3], [1.5], [1 + 1j]]


def test_what_is_built_is_kept_until_something_differs(folder, ext, capfd):
    options = {"extra_cflags": ["-O0", "-Wall", "-Werror"], "build_directory": str(folder), "verbose": True}
    capfd.readouterr()
    again = cpp_extension.load("testext", str(HERE / "ops.cpp"), **options)
    assert again.__name__ == ext.__name__ and capfd.readouterr().out == ""
    small = folder / "small"
    small.mkdir()
    text = 'extern "C" int answer() { return 41; }'
    options = {"build_directory": str(small), "is_python_module": False, "no_implicit_headers": True}
    first = cpp_extension.load_inline("small", text, **options)
    second = cpp_extension.load_inline("small", text.replace("41", "42"), **options)
    import ctypes

    assert first != second and (ctypes.CDLL(first).answer(), ctypes.CDLL(second).answer()) == (41, 42)


def test_a_compiler_that_fails_or_is_missing(tmp_path, monkeypatch):
    options = {"build_directory": str(tmp_path), "no_implicit_headers": True}
    with pytest.raises(RuntimeError, match=r"(?s)Error building extension 'wrong'.*undeclared.? was not"):
        cpp_extension.load_inline("wrong", "int f() { return undeclared; }", **options)
    with pytest.raises(TypeError, match="flags are a list of strings"):
        cpp_extension.load_inline("wrong", "", extra_cflags="-O2", **options)
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RuntimeError, match=r"no C\+\+ compiler 'no-such-compiler': install one .*CXX"):
        cpp_extension.load_inline("wrong", "int f();", **options)
    monkeypatch.setitem(sys.modules, "pybind11", None)
    with pytest.raises(ImportError, match="pip install pybind11"):
        cpp_extension.include_paths()
    monkeypatch.setitem(sys.modules, "setuptools", None)
    with pytest.raises(ImportError, match="pip install setuptools"):
        cpp_extension._setuptools("setuptools")
    assert cpp_extension.get_compiler_abi_compatibility_and_version("no-such-compiler") == (False, (0, 0, 0))
    assert cpp_extension.get_compiler_abi_compatibility_and_version("c++")[0]


OLD = """
#include <torch/extension.h>
TORCH_LIBRARY(oldext, m) { m.def("op(Tensor x) -> Tensor"); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}
"""


def test_an_extension_of_another_version_is_refused(tmp_path):
    (tmp_path / "warptape").mkdir()
    (tmp_path / "warptape" / "version.h").write_text(
        '#define WARPTAPE_VERSION "0.0.1"\n#define WARPTAPE_INTERFACE "1"\n'
    )
    options = {
        "extra_cflags": ["-O0"],
        "extra_include_paths": [str(tmp_path)],
        "build_directory": str(tmp_path),
    }
    text = rf"oldext\.so was built for warptape 0\.0\.1, and this is warptape {torch.__version__}: build"
    with pytest.raises(ImportError, match=text):
        cpp_extension.load_inline("oldext", OLD, no_implicit_headers=True, **options)
    with pytest.raises(AttributeError, match=rf"no torch\.ops\.oldext\.op yet; .*{text}"):
        torch.ops.oldext.op
    code = f"import warptape as torch; torch.ops.load_library({str(tmp_path / 'oldext.so')!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1 and "ImportError: " in done.stderr and "0.0.1" in done.stderr


def test_an_extension_of_another_state_of_the_interface_is_refused(tmp_path):
    (tmp_path / "warptape").mkdir()
    version = f'#define WARPTAPE_VERSION "{torch.__version__}"\n#define WARPTAPE_INTERFACE "12ab"\n'
    (tmp_path / "warptape" / "version.h").write_text(version)
    options = {
        "extra_cflags": ["-O0"],
        "extra_include_paths": [str(tmp_path)],
        "build_directory": str(tmp_path),
    }
    source = "#include <torch/library.h>\nTORCH_LIBRARY(stateext, m) {}\n"
    text = rf"built for warptape {torch.__version__} \(interface 12ab\), and .* \(interface \w{{8}}\): build"
    with pytest.raises(ImportError, match=text):
        cpp_extension.load_inline(
            "stateext", source, no_implicit_headers=True, is_python_module=False, **options
        )


CMAKE = """
cmake_minimum_required(VERSION 3.22)
project(found LANGUAGES CXX)
find_package(warptape {version} REQUIRED)
find_package(Torch REQUIRED)
list(GET TORCH_INCLUDE_DIRS 0 include)
if(NOT TARGET torch OR NOT EXISTS "${{include}}/torch/torch.h")
  message(FATAL_ERROR "no Torch")
endif()
add_library(found SHARED found.cpp)
target_link_libraries(found PRIVATE warptape::warptape)
"""


FOUND = """
#include <torch/library.h>
TORCH_LIBRARY(cmakeext, m) {
  m.def("one(Tensor x) -> Tensor", [](at::Tensor x) { return x + 1; });
}
"""


@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_cmake_finds_the_package(tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(version=torch.__version__))
    (tmp_path / "found.cpp").write_text(FOUND)

    def cmake(*arguments):
        return subprocess.run(["cmake", *arguments], cwd=tmp_path, capture_output=True, text=True)

    done = cmake("-S", ".", "-B", "build", f"-DCMAKE_PREFIX_PATH={cmake_prefix_path}")
    assert done.returncode == 0, done.stderr
    done = cmake("--build", "build")
    assert done.returncode == 0, done.stdout + done.stderr
    torch.ops.load_library(tmp_path / "build" / "libfound.so")
    assert torch.ops.cmakeext.one(torch.zeros(2)).tolist() == [1.0, 1.0]
    (tmp_path / "CMakeLists.txt").write_text(CMAKE.format(version="99.0"))
    assert "99.0" in cmake("-S", ".", "-B", "other", f"-DCMAKE_PREFIX_PATH={cmake_prefix_path}").stderr


def test_a_program_without_python(tmp_path):
    source = """
#include <torch/types.h>
#include <cstdio>
int main() { std::printf("%s", at::full({2}, 3).sum().item<float>() == 6 ? "six" : "other"); }
"""
    (tmp_path / "six.cpp").write_text(source)
    options = {"build_directory": str(tmp_path), "is_standalone": True, "extra_cflags": ["-O0"]}
    path = cpp_extension.load("program", str(tmp_path / "six.cpp"), **options)
    assert subprocess.run([path], capture_output=True, text=True).stdout == "six"
