"""Functions whose `if`, `while`, `for .. in range()`, `and`, `or`, `not` and ternaries work by tensors as
ops of graphs.

The code is rewritten as AutoGraph does it (Moldovan et al., MLSys 2019): the arms of an `if` and the body of
a loop become functions of their own, and what was the statement becomes a call that decides, when it runs,
whether the predicate is a tensor. By anything else it runs as Python does.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import inspect
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from warptape.nn import Module

from . import analysis
from .analysis import Statements
from .runtime import Control, NotSupportedError

_NOT_CONVERTED = {"warptape", "torch", "numpy", *sys.stdlib_module_names} - {"__main__"}
_PLAIN_CALLS = {"super", "locals", "globals", "vars", "eval", "exec", "dir"}  # those that look at the frame
_CONTROL = "_control"
_OPERATORS: dict[type[ast.operator], str] = {  # operator.iadd ..
    ast.Add: "add",
    ast.Sub: "sub",
    ast.Mult: "mul",
    ast.MatMult: "matmul",
    ast.Div: "truediv",
    ast.FloorDiv: "floordiv",
    ast.Mod: "mod",
    ast.Pow: "pow",
    ast.LShift: "lshift",
    ast.RShift: "rshift",
    ast.BitOr: "or",
    ast.BitXor: "xor",
    ast.BitAnd: "and",
}
_codes: dict[Any, types.CodeType] = {}  # converted, by file and code


def convert(fn: Callable[..., Any]) -> Callable[..., Any]:
    """What does what `fn` does and can be recorded as a graph where its control flow goes by tensors.

    Functions, methods and modules that it calls are converted as well, if they are neither warptape's nor the
    standard library's. Both arms of an `if` by a tensor run when a graph is recorded, so they must leave all
    alone but local variables; these must have the same dtypes and shapes after both. Numbers that they set
    become tensors. A loop by a tensor keeps dtypes and shapes of the variables that it changes.

    Args:
        fn: a function, a method, or a module.

    Raises:
        NotSupportedError: a function without Python source, a lambda, or a coroutine; when it runs, control
            flow by a tensor that has no graph, with file and line.
        TypeError: `fn` is none of these.
    """
    if isinstance(fn, Module):
        return functools.wraps(type(fn).forward)(functools.partial(_call_module, fn))
    if isinstance(fn, types.MethodType):
        return types.MethodType(convert(fn.__func__), fn.__self__)
    if not isinstance(fn, types.FunctionType):
        raise TypeError(f"convert: expected a Python function, method or module, got {type(fn).__name__}")
    if _CONTROL in fn.__code__.co_freevars:
        return fn
    key = fn.__code__.co_filename, fn.__code__
    if key not in _codes:
        _codes[key] = _converted_code(fn)
    code = _codes[key]
    cells = dict(zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True))
    control = Control(fn.__code__.co_filename, fn.__qualname__, called)
    cells[_CONTROL] = types.CellType(control)
    closure = tuple(cells[name] for name in code.co_freevars)
    converted = types.FunctionType(code, fn.__globals__, fn.__name__, fn.__defaults__, closure)
    converted.__kwdefaults__ = fn.__kwdefaults__
    return functools.update_wrapper(converted, fn)


def called(f: Callable[..., Any]) -> Any:
    """What converted code calls instead of `f`."""
    if isinstance(f, Module):
        return functools.partial(_call_module, f)
    function = f.__func__ if isinstance(f, types.MethodType) else f
    if not isinstance(function, types.FunctionType) or not _is_user_code(function):
        return f
    try:
        return convert(f)
    except NotSupportedError:
        return f


def _is_user_code(fn: types.FunctionType) -> bool:
    return str(fn.__globals__.get("__name__", "")).split(".")[0] not in _NOT_CONVERTED


def _call_module(module: Module, /, *args: Any, **kwargs: Any) -> Any:
    with _forwards(module):
        return module(*args, **kwargs)


@contextlib.contextmanager
def _forwards(module: Module) -> Iterator[None]:
    """While it is entered, the forward of the module and of those within are converted."""
    changed = []
    try:
        for m in module.modules():
            forward = m.forward
            if "forward" not in m.__dict__ and (new := called(forward)) is not forward:
                m.__dict__["forward"] = new
                changed.append(m)
        yield
    finally:
        for m in changed:
            del m.__dict__["forward"]


def _converted_code(fn: types.FunctionType) -> types.CodeType:
    tree = _definition(fn)
    cls = fn.__qualname__.split(".")[-2:-1]
    _Rewriter(cls[0] if cls and cls[0] != "<locals>" else None).function(tree)
    factory = ast.parse(f"def factory({', '.join([*fn.__code__.co_freevars, _CONTROL])}): pass")
    factory.body[0].body = [tree]  # type: ignore[attr-defined]
    ast.fix_missing_locations(factory)
    code = compile(factory, fn.__code__.co_filename, "exec", dont_inherit=True, flags=_future_flags(fn))
    for _ in range(2):  # the factory, and in it the function
        name = "factory" if code.co_name == "<module>" else fn.__code__.co_name
        code = next(c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name)
    return code


def _future_flags(fn: types.FunctionType) -> int:
    import __future__

    return fn.__code__.co_flags & __future__.annotations.compiler_flag


def _definition(fn: types.FunctionType) -> ast.FunctionDef:
    """The `def` of a function, with the lines of its file, without decorators, annotations and defaults."""
    code = fn.__code__
    where = f'\n  File "{code.co_filename}", line {code.co_firstlineno}, in {fn.__qualname__}'
    try:
        source = inspect.getsource(code)
        indented = source[:1].isspace()
        tree = ast.parse("if 1:\n" + source if indented else source)
    except (OSError, TypeError, SyntaxError) as error:
        raise NotSupportedError(f"the source of {fn.__qualname__} is not to be had: {error}{where}") from None
    node: Any = tree.body[0].body[0] if indented else tree.body[0]  # type: ignore[attr-defined]
    if not isinstance(node, ast.FunctionDef) or node.name != code.co_name:
        raise NotSupportedError(f"only functions that are written as `def` can be converted{where}")
    ast.increment_lineno(node, code.co_firstlineno - (2 if indented else 1))
    node.decorator_list, node.returns = [], None
    a = node.args
    for arg in [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]:
        arg.annotation = None
    a.defaults = [ast.Constant(None) for _ in a.defaults]
    a.kw_defaults = [d and ast.Constant(None) for d in a.kw_defaults]
    return node


def _statements(text: str, at: ast.AST) -> Statements:
    """The statements of a text, at the line of a node."""
    out = ast.parse(textwrap.dedent(text)).body
    for s in out:
        for n in ast.walk(s):
            ast.copy_location(n, at)
    return out


def _expression(text: str, at: ast.expr, **parts: ast.expr) -> ast.expr:
    """The expression of a text, in which names of `parts` stand for expressions."""

    class Fill(ast.NodeTransformer):
        def visit_Name(self, node: ast.Name) -> ast.expr:
            return parts.get(node.id, node)

    tree = ast.parse(text, mode="eval").body
    for n in ast.walk(tree):
        ast.copy_location(n, at)
    return Fill().visit(tree)


def _nonlocal(names: list[str]) -> str:
    return f"nonlocal {', '.join(names)}" if names else "pass"


class _Rewriter(ast.NodeTransformer):
    """Rewrites one function. `cls` is the class that it is defined in."""

    def __init__(self, cls: str | None) -> None:
        self.cls = cls
        self.count = 0
        self.shared: set[str] = set()  # names that this function shares with others, by global and nonlocal
        self.moved: set[str] = set()  # names bound in arms and bodies that became functions
        self.first: str | None = None  # parameter
        self.depth = 0

    # Functions

    def function(self, node: ast.FunctionDef) -> None:
        outer = self.shared, self.moved, self.first
        declared = [n for n in ast.walk(node) if isinstance(n, (ast.Global, ast.Nonlocal))]
        self.shared, self.moved = {name for n in declared for name in n.names}, set()
        if self.depth == 0 and (args := [*node.args.posonlyargs, *node.args.args]):
            self.first = args[0].arg
        self.depth += 1
        body = analysis.jumps_last(node.body)
        if analysis.falls_through(body):
            end = ast.copy_location(ast.Return(ast.copy_location(ast.Constant(None), body[-1])), body[-1])
            body = analysis.jumps_last([*body, end])
        body = self._without_breaks(body)
        analysis.Liveness(body)
        node.body = self._all(body)
        if self.moved:  # they are this function's own, wherever they are bound
            node.body[:0] = _statements(f"if 0: {' = '.join(sorted(self.moved))} = None", node)
        self.depth -= 1
        self.shared, self.moved, self.first = outer

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.FunctionDef:
        self.function(node)
        return node

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        return node

    visit_AsyncFunctionDef = visit_ClassDef  # type: ignore[assignment]

    def _all(self, body: Statements) -> Statements:
        out: Statements = []
        for s in body:
            new: Any = self.visit(s)
            out += new if isinstance(new, list) else [new]
        return out

    def _without_breaks(self, body: Statements) -> Statements:
        """Loops whose `break` sets a variable that ends them."""
        out: Statements = []
        for s in body:
            for part in ("body", "orelse", "finalbody"):
                if getattr(s, part, None) and not isinstance(s, (*analysis.FUNCTIONS, ast.ClassDef)):
                    setattr(s, part, self._without_breaks(getattr(s, part)))
            if isinstance(s, (ast.While, ast.For)) and not s.orelse:
                own = isinstance(s, ast.While) or self._is_range(s)
                flag = f"_break_{self._number()}" if own else None
                if analysis.replace_jumps(s.body, flag) and flag:
                    s.flag = flag  # type: ignore[union-attr]
                    out += _statements(f"{flag} = False", s)
                    if isinstance(s, ast.While):
                        text = f"{_CONTROL}.and_({_CONTROL}.not_({flag}), lambda: test, {s.lineno})"
                        s.test = _expression(text, s.test, test=s.test)
            out.append(s)
        return out

    @staticmethod
    def _is_range(s: ast.For) -> bool:
        call = s.iter
        return (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == "range"
            and not call.keywords
            and not any(isinstance(a, ast.Starred) for a in call.args)
            and isinstance(s.target, ast.Name)
        )

    def _number(self) -> int:
        self.count += 1
        return self.count

    # Statements

    def _state(self, k: int, names: set[str], live: set[str], at: ast.AST) -> Statements:
        """Statements that make `_state_k` of variables."""
        self.moved |= names
        listed = sorted(names)
        reads = "".join(f"{_CONTROL}.get(lambda: {n}), " for n in listed)
        unset = "".join(f"\n    if {n} is {_CONTROL}.UNDEFINED: del {n}" for n in listed)
        assign = f"{', '.join(listed)}, = _values" if listed else "pass"
        state = f"{listed}, {sorted(names & live)}, lambda: ({reads}), _write_{k}"
        text = f"""def _write_{k}(_values):\n    {_nonlocal(listed)}\n    {assign}{unset}
_state_{k} = {_CONTROL}.state({state})"""
        return _statements(text, at)

    def _defined(self, text: str, names: set[str], body: Statements, at: ast.AST) -> Statements:
        """A function of the statements, which bind variables of the function around it."""
        out: Any = _statements(f"def {text}:\n    {_nonlocal(sorted(names))}", at)
        out[0].body += body
        return out

    def visit_If(self, node: Any) -> Any:
        may_return = analysis.returns([node]) and not analysis.falls_through([node])
        why = analysis.hindrance([*node.body, *node.orelse], self.shared, may_return)
        names = analysis.bound([*node.body, *node.orelse])
        test = self.visit(node.test)
        body, orelse = self._all(node.body), self._all(node.orelse)
        if why:
            return self._plain(node, test, why, body, orelse)
        k = self._number()
        out = self._state(k, names, node.live_out, node)
        out += self._defined(f"_yes_{k}()", names, body, node)
        out += self._defined(f"_no_{k}()", names, orelse, node)
        name = "if_return" if may_return else "if_"
        call = f"{_CONTROL}.{name}(test, _yes_{k}, _no_{k}, _state_{k}, {node.lineno})"
        value = _expression(call, node.test, test=test)
        last = ast.Return(value) if may_return else ast.Expr(value)
        return [*out, ast.copy_location(last, node)]

    def _plain(self, node: Any, test: ast.expr, why: str, body: Statements, orelse: Statements) -> Any:
        text = f"{_CONTROL}.plain(test, {node.lineno}, {why!r})"
        node.test, node.body, node.orelse = _expression(text, node.test, test=test), body, orelse
        return node

    def visit_While(self, node: Any) -> Any:
        why = "else" if node.orelse else analysis.hindrance([node.test, *node.body], self.shared, False)
        names = analysis.bound(node.body)
        test, body = self.visit(node.test), self._all(node.body)
        if why:
            return self._plain(node, test, why, body, self._all(node.orelse))
        k = self._number()
        out = self._state(k, names, node.live_in | node.live_out, node)
        returned = ast.copy_location(ast.Return(test), node.test)
        out += self._defined(f"_test_{k}()", set(), [returned], node)
        out += self._defined(f"_body_{k}()", names, body, node)
        call = f"{_CONTROL}.while_(_test_{k}, _body_{k}, _state_{k}, {node.lineno})"
        return out + _statements(call, node)

    def visit_For(self, node: Any) -> Any:
        why = "else" if node.orelse else analysis.hindrance(node.body, self.shared, False)
        names = analysis.bound([node.target, *node.body])
        if why or not self._is_range(node) or names & self.shared:
            return self.generic_visit(node)
        limits = ast.copy_location(ast.Tuple([self.visit(a) for a in node.iter.args], ast.Load()), node.iter)
        body = self._all(node.body)
        k = self._number()
        live = node.live_in | node.live_out
        out = self._state(k, names, live - {node.target.id} | node.live_out & {node.target.id}, node)
        turn = _statements(f"{node.target.id} = _turn", node) + body
        out += self._defined(f"_body_{k}(_turn)", names, turn, node)
        flag = getattr(node, "flag", "False")
        text = f"{_CONTROL}.for_range(limits, _body_{k}, lambda: {flag}, _state_{k}, {node.lineno})"
        call = _expression(text, node.iter, limits=limits)
        return [*out, ast.copy_location(ast.Expr(call), node)]

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        """Names that became nonlocal cannot be annotated."""
        if node.value is None:
            return ast.copy_location(ast.Pass(), node)
        return ast.copy_location(ast.Assign([self.visit(node.target)], self.visit(node.value)), node)

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.stmt:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        text = f"{_CONTROL}.augmented({_OPERATORS[type(node.op)]!r}, {node.target.id}, other)"
        value = _expression(text, node.value, other=node.value)
        return ast.copy_location(ast.Assign([node.target], value), node)

    # Expressions

    def _movable(self, *nodes: ast.expr) -> bool:
        kinds = (ast.NamedExpr, ast.Yield, ast.YieldFrom, ast.Await)
        return not any(isinstance(n, kinds) for node in nodes for n in ast.walk(node))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.expr:
        movable = self._movable(*node.values[1:])
        values = [self.visit(v) for v in node.values]
        if not movable:
            node.values = values
            return node
        name = "and_" if isinstance(node.op, ast.And) else "or_"
        text = f"{_CONTROL}.{name}(left, lambda: right, {node.lineno})"
        out = values[0]
        for v in values[1:]:
            out = _expression(text, node, left=out, right=v)
        return out

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.op, ast.Not):
            return _expression(f"{_CONTROL}.not_(value)", node, value=node.operand)
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.expr:
        movable = self._movable(node.body, node.orelse)
        self.generic_visit(node)
        if not movable:
            return node
        text = f"{_CONTROL}.choose(test, lambda: yes, lambda: no, {node.lineno})"
        return _expression(text, node, test=node.test, yes=node.body, no=node.orelse)

    def visit_Compare(self, node: ast.Compare) -> ast.expr:
        self.generic_visit(node)
        if len(node.ops) == 1 or not self._movable(*node.comparators):
            return node
        links: list[ast.expr] = []
        for op, right in zip(node.ops, node.comparators, strict=True):
            link: Any = _expression("(lambda _a, _b: _a < _b, lambda: right)", node, right=right)
            link.elts[0].body.ops = [op]
            links.append(link)
        parts = ast.copy_location(ast.Tuple(links, ast.Load()), node)
        text = f"{_CONTROL}.chained(left, links, {node.lineno})"
        return _expression(text, node, left=node.left, links=parts)

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in _PLAIN_CALLS:
            if node.func.id == "super" and not node.args and self.first:
                node.args = [ast.Name("__class__", ast.Load()), ast.Name(self.first, ast.Load())]
                for a in node.args:
                    ast.copy_location(a, node)
            return node
        if isinstance(node.func, ast.Attribute) and isinstance(node.func.value, ast.Name):
            if node.func.value.id == _CONTROL:
                return node  # of the loops that were given a flag
        node.func = _expression(f"{_CONTROL}.called(f)", node.func, f=node.func)
        return node

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        """Private names as the class has them, since the rewritten function is compiled outside of it."""
        self.generic_visit(node)
        if self.cls and node.attr.startswith("__") and not node.attr.endswith("__"):
            node.attr = f"_{self.cls.lstrip('_')}{node.attr}"
        return node
