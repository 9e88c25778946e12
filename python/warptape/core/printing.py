"""How tensors print: PyTorch's text."""

from __future__ import annotations

import math
from typing import Any

from .. import _C
from .tensor_class import Tensor

_options: dict[str, Any] = {
    "precision": 4,
    "threshold": 1000,
    "edgeitems": 3,
    "linewidth": 80,
    "sci_mode": None,
}


def set_options(
    precision: int | None = None,
    threshold: int | None = None,
    edgeitems: int | None = None,
    linewidth: int | None = None,
    profile: str | None = None,
    sci_mode: bool | None = None,
) -> None:
    """Changes the options given; a profile ('default', 'short', 'full') sets several.

    Args:
        precision: digits after the point.
        threshold: elements from which on a tensor is summarised.
        edgeitems: shown at each end then.
        linewidth: characters of a line.
        profile: a name.
        sci_mode: whether numbers are like 1e-3; None chooses.
    """
    profiles = {"default": (4, 1000, 3, 80), "short": (2, 1000, 2, 80), "full": (4, math.inf, 3, 80)}
    if profile is not None:
        values = profiles[profile]
        _options.update(zip(("precision", "threshold", "edgeitems", "linewidth"), values, strict=True))
    settings = {
        "precision": precision,
        "threshold": threshold,
        "edgeitems": edgeitems,
        "linewidth": linewidth,
    }
    _options.update({k: v for k, v in settings.items() if v is not None})
    _options["sci_mode"] = sci_mode


class _Options:
    """The options as attributes: `torch._tensor_str.PRINT_OPTS`."""

    def __getattr__(self, name: str) -> Any:
        if name not in _options:
            raise AttributeError(name)
        return _options[name]

    def __setattr__(self, name: str, value: object) -> None:
        _options[name] = value


PRINT_OPTS = _Options()


class _Formatter:
    """One width and notation for all elements that are shown."""

    def __init__(self, values: list[Any], floating: bool) -> None:
        self.floating, self.integral, self.scientific = floating, True, False
        self.width = 1
        if not floating:
            self.width = max([len(str(v)) for v in values], default=1)
            return
        finite = [v for v in values if math.isfinite(v)]
        nonzero = [abs(v) for v in finite if v != 0]
        precision = _options["precision"]
        self.integral = all(v == math.ceil(v) for v in finite)
        if nonzero:
            low, high = min(nonzero), max(nonzero)
            self.scientific = high / low > 1000.0 or high > 1e8 or (low < 1e-4 and not self.integral)
        if _options["sci_mode"] is not None:
            self.scientific = _options["sci_mode"]
        if self.integral and not self.scientific:
            # Whole numbers print as `3.`; PyTorch measures them without and pads by the dot.
            self.width = max([len(f"{v:.0f}") + 1 for v in finite if v != 0], default=2 if finite else 1)
        elif nonzero:
            spec = f".{precision}e" if self.scientific else f".{precision}f"
            self.width = max(len(f"{v:{spec}}") for v in finite if v != 0)

    def text(self, v: Any) -> str:
        if not self.floating:
            out = str(v)
        elif self.scientific:
            out = f"{v:.{_options['precision']}e}"
        elif self.integral:
            out = f"{v:.0f}" + ("." if math.isfinite(v) else "")
        else:
            out = f"{v:.{_options['precision']}f}"
        return out.rjust(self.width)


class _ComplexFormatter:
    """Two formatters, of the real and of the imaginary parts."""

    def __init__(self, values: list[complex]) -> None:
        self.parts = _Formatter([v.real for v in values], True), _Formatter([v.imag for v in values], True)
        self.width = self.parts[0].width + self.parts[1].width + 1

    def text(self, v: Any) -> str:
        imaginary = self.parts[1].text(v.imag).lstrip() + "j"
        return self.parts[0].text(v.real) + ("" if imaginary[0] == "-" else "+") + imaginary


def _shown(t: Tensor, summarize: bool) -> list[Any]:
    """The elements that are printed, flat."""
    edge = _options["edgeitems"]
    if t.ndim == 0:
        return [t.tolist()]
    n = t.shape[0]
    if summarize and n > 2 * edge:
        rows = [*range(edge), *range(n - edge, n)]
        return [v for i in rows for v in _shown(t[i], summarize)]
    if t.ndim == 1:
        return t.tolist()
    return [v for i in range(n) for v in _shown(t[i], summarize)]


def _vector(values: list[str], indent: int, formatter: _Formatter | _ComplexFormatter) -> str:
    per_line = max(1, (_options["linewidth"] - indent) // (formatter.width + 2))
    lines = [values[i : i + per_line] for i in range(0, len(values), per_line)] or [[]]
    return "[" + ("," + "\n" + " " * (indent + 1)).join(", ".join(line) for line in lines) + "]"


def _body(t: Tensor, indent: int, summarize: bool, f: _Formatter | _ComplexFormatter) -> str:
    if t.ndim == 0:
        return f.text(t.tolist())
    edge, n = _options["edgeitems"], t.shape[0]
    cut = summarize and n > 2 * edge
    if t.ndim == 1:
        values = [f.text(v) for v in (t[:edge].tolist() if cut else t.tolist())]
        if cut:
            values += [" ...", *(f.text(v) for v in t[n - edge :].tolist())]
        return _vector(values, indent, f)
    rows = [*range(edge), None, *range(n - edge, n)] if cut else list(range(n))
    parts = ["..." if i is None else _body(t[i], indent + 1, summarize, f) for i in rows]
    return "[" + ("," + "\n" * (t.ndim - 1) + " " * (indent + 1)).join(parts) + "]"


def _suffixes(t: Tensor) -> list[str]:
    out = []
    if t.device.type != "cpu":
        out.append(f"device='{t.device}'")
    if t.is_meta:
        out.append(f"size={tuple(t.shape)}")
    usual = (_C._get_default_dtype(), _C._get_default_dtype().to_complex(), _C.int64, _C.bool)
    if t.numel() == 0 and t.ndim != 1:
        out.append(f"size={tuple(t.shape)}")
    if t.dtype not in usual or ((t.numel() == 0 or t.is_meta) and t.dtype is not _C._get_default_dtype()):
        out.append(f"dtype={t.dtype!r}")
    if t.grad_fn is not None:
        out.append(f"grad_fn=<{t.grad_fn.name()}>")
    elif t.requires_grad:
        out.append("requires_grad=True")
    return out


def _with_suffixes(contents: str, suffixes: list[str], indent: int, new_line: bool = False) -> str:
    """Appends each, on the next line where it does not fit; the first one there anyway with `new_line`."""
    text = "tensor(" + contents
    last = len(contents) - contents.rfind("\n") + (indent if "\n" not in contents else 0) + 1
    for s in suffixes:
        if new_line or last + len(s) + 2 > _options["linewidth"]:
            text += ",\n" + " " * indent + s
            last, new_line = indent + len(s), False
        else:
            text += ", " + s
            last += len(s) + 2
    return text + ")"


def sparse_text(t: Tensor, places: dict[str, Tensor], values: Tensor) -> str:
    """The repr of a sparse tensor.

    Args:
        t: the tensor.
        places: index tensors by name.
        values: the elements.
    """
    indent = len("tensor(")
    lines = []
    for name, part in {**places, "values": values}.items():
        head = f"{name}=tensor("
        body = _tensor_str(part, indent + len(head)) if part.numel() else f"[], size={tuple(part.shape)}"
        lines.append(f"{head}{body})")
    suffixes = [f"size={tuple(t.shape)}", f"nnz={len(values)}", *_suffixes(values)]
    if t.dtype in (_C.int64, _C.bool):  # said of a dense tensor without elements, not of a sparse one
        suffixes = [s for s in suffixes if not s.startswith("dtype")]
    grad = [s for s in suffixes if s.startswith(("grad_fn", "requires_grad"))]
    rest = [s for s in dict.fromkeys(suffixes) if s not in grad]
    contents = (",\n" + " " * indent).join(lines)
    return _with_suffixes(contents, [*rest, f"layout={t.layout}", *grad], indent, new_line=t.is_sparse)


def _tensor_str(t: Tensor, indent: int) -> str:
    """The elements as text, whose further lines are indented."""
    plain = t.detach()
    summarize = plain.numel() > _options["threshold"]
    values = _shown(plain, summarize)
    formatter = (
        _ComplexFormatter(values) if plain.is_complex() else _Formatter(values, plain.is_floating_point())
    )
    return _body(plain, indent, summarize, formatter)


def _str(self: Tensor, *, tensor_contents: str | None = None) -> str:
    """A tensor's repr under PyTorch's name, for libraries that print by `torch._tensor_str`."""
    return tensor_text(self, tensor_contents)


def tensor_text(t: Tensor, contents: str | None = None) -> str:
    """The repr of a tensor.

    Args:
        t: any tensor.
        contents: in place of the elements.
    """
    if (inside := _C._wrapper(t)) is not None:
        kind, level, value, tangent = inside
        level = _C._level_number(level)
        if kind == "vmap":
            return f"BatchedTensor(lvl={level}, bdim=0, value={value!r})"
        return f"DualTensor(lvl={level}, primal={value!r}, tangent={tangent!r})"
    indent = len("tensor(")
    if contents is None:
        if t.is_meta:
            contents = "..."
        elif t.numel() == 0:
            contents = "[]"
        else:
            contents = _tensor_str(t, indent)
    return _with_suffixes(contents, _suffixes(t), indent)
