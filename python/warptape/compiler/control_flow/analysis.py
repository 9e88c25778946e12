"""What the conversion of control flow asks of Python code: names bound and live, and where control goes.

After Moldovan et al., "AutoGraph: Imperative-style Coding with Graph-based Performance", MLSys 2019.
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterable, Iterator
from typing import Any

Statements = list[ast.stmt]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_ENDS = (ast.Return, ast.Raise, ast.Break, ast.Continue)
_LOOPS = (ast.For, ast.AsyncFor, ast.While)


def in_scope(nodes: Iterable[ast.AST], stop: tuple[type, ...] = ()) -> Iterator[ast.AST]:
    """The nodes that belong to the scope of `nodes`: scopes within, and nodes of types `stop`, are given but
    not entered."""
    for node in nodes:
        yield node
        if not isinstance(node, (*FUNCTIONS, ast.ClassDef, *_COMPREHENSIONS, *stop)):
            yield from in_scope(ast.iter_child_nodes(node), stop)


def read(node: ast.AST) -> set[str]:
    """The names that a statement or expression reads, in scopes within it as well.

    Args:
        node: of a syntax tree.
    """
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}


def bound(nodes: Iterable[ast.AST]) -> set[str]:
    """The names that statements bind in their scope.

    Args:
        nodes: of a syntax tree.
    """
    names: set[str] = set()
    for node in nodes:
        names |= {n.target.id for n in ast.walk(node) if isinstance(n, ast.NamedExpr)}
        for n in in_scope([node]):
            if isinstance(n, ast.Name) and isinstance(n.ctx, (ast.Store, ast.Del)):
                names.add(n.id)
            elif isinstance(n, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                names.add(n.name)
            elif isinstance(n, (ast.Import, ast.ImportFrom)):
                names |= {(a.asname or a.name).split(".")[0] for a in n.names}
            elif isinstance(n, ast.ExceptHandler) and n.name:
                names.add(n.name)
    return names


def captured(body: Statements) -> set[str]:
    """The names that functions within the statements read, which they may do at any time.

    Args:
        body: the statements.
    """
    return {
        name
        for s in body
        for n in ast.walk(s)
        if isinstance(n, (*FUNCTIONS, ast.ClassDef))
        for name in read(n)
    }


class Liveness:
    """Records on each `if` and loop the names that may be read after it (`live_out`), and on loops those that
    may be read where a turn begins (`live_in`)."""

    def __init__(self, body: Statements) -> None:
        self.always = captured(body)
        self.before(body, set(self.always), set())

    def before(self, body: Statements, after: set[str], jump: set[str]) -> set[str]:
        """The names that are live before statements.

        Args:
            body: the statements.
            after: the names that are live after them.
            jump: those that are live where `break` and `continue` go.
        """
        live = set(after)
        for s in reversed(body):
            live = self._statement(s, live, jump) | self.always
        return live

    def _statement(self, s: Any, after: set[str], jump: set[str]) -> set[str]:
        if isinstance(s, ast.If):
            s.live_out = set(after)  # type: ignore[attr-defined]
            return read(s.test) | self.before(s.body, after, jump) | self.before(s.orelse, after, jump)
        if isinstance(s, _LOOPS):
            return self._loop(s, after, jump)
        if isinstance(s, (ast.Return, ast.Raise)):
            return read(s) | (jump | after if isinstance(s, ast.Raise) else set())
        if isinstance(s, (ast.Break, ast.Continue)):
            return set(jump)
        if isinstance(s, (ast.With, ast.AsyncWith)):
            return self.before(s.body, after, jump) | set().union(*map(read, s.items))
        if isinstance(s, ast.Try):
            parts = [s.body, s.orelse, s.finalbody, *[h.body for h in s.handlers]]
            everything = after | jump | read(s)
            for part in parts:
                self.before(part, everything, everything)
            return everything
        if isinstance(s, ast.Assign):
            return after - {t.id for t in s.targets if isinstance(t, ast.Name)} | read(s)
        if isinstance(s, ast.AugAssign):
            return after | read(s) | bound([s])
        return after | read(s)

    def _loop(self, s: Any, after: set[str], jump: set[str]) -> set[str]:
        live = after | self.before(s.orelse, after, jump)
        if isinstance(s, ast.While):
            live |= read(s.test)
        targets = set() if isinstance(s, ast.While) else bound([s.target])
        for _ in range(2):  # what a turn needs of the one before
            live |= self.before(s.body, live, live | after) - targets
        s.live_in, s.live_out = live, set(after)
        return live if isinstance(s, ast.While) else live | read(s.iter)


def falls_through(body: Statements) -> bool:
    """Whether control may reach the end of statements.

    Args:
        body: the statements.
    """
    last = body[-1] if body else None
    if isinstance(last, ast.If):
        return falls_through(last.body) or falls_through(last.orelse)
    if isinstance(last, ast.With):
        return falls_through(last.body)
    return not isinstance(last, _ENDS)


def jumps(node: ast.AST) -> bool:
    """Whether a statement may return, or break or continue a loop around it.

    Args:
        node: the statement.
    """
    return any(isinstance(n, (ast.Break, ast.Continue)) for n in in_scope([node], _LOOPS)) or returns([node])


def returns(nodes: Iterable[ast.AST]) -> bool:
    """Whether one of the statements returns; functions within them do not count.

    Args:
        nodes: the statements.
    """
    return any(isinstance(n, ast.Return) for n in in_scope(nodes))


def jumps_last(body: Statements) -> Statements:
    """The same with what follows an `if` that jumps in its arms, so that each jump is an arm's end."""
    out: Statements = []
    for k, s in enumerate(body):
        out.append(s)
        if isinstance(s, ast.If):
            rest = body[k + 1 :] if jumps(s) else []
            both = falls_through(s.body) and falls_through(s.orelse)
            if rest and falls_through(s.orelse):
                s.orelse = s.orelse + (copy.deepcopy(rest) if both else rest)
            if rest and falls_through(s.body):
                s.body = s.body + rest
            s.body, s.orelse = jumps_last(s.body) or [ast.copy_location(ast.Pass(), s)], jumps_last(s.orelse)
            if rest:
                return out
        elif isinstance(s, (ast.With, *_LOOPS)):
            s.body = jumps_last(s.body)
        if isinstance(s, _ENDS):
            break
    return out


def replace_jumps(body: Statements, flag: str | None) -> bool:
    """Drops each `continue` at the end of a loop's body and makes each `break` there set `flag`, if there is
    one. Returns whether it did the latter."""
    last = body[-1] if body else None
    if isinstance(last, ast.Continue):
        body[-1] = ast.copy_location(ast.Pass(), last)
    elif isinstance(last, ast.Break) and flag:
        assign = ast.Assign([ast.Name(flag, ast.Store())], ast.Constant(True))
        body[-1] = ast.fix_missing_locations(ast.copy_location(assign, last))
        return True
    elif isinstance(last, ast.If):
        breaks = replace_jumps(last.body, flag)
        return replace_jumps(last.orelse, flag) or breaks
    return False


_HINDRANCES: dict[type, str] = {
    ast.Yield: "yield",
    ast.YieldFrom: "yield",
    ast.Await: "await",
    ast.Try: "try",
    ast.Raise: "raise",
    ast.Delete: "del",
    ast.Match: "match",
    ast.Global: "global",
    ast.Nonlocal: "nonlocal",
    ast.ClassDef: "a class",
    ast.Import: "import",
    ast.ImportFrom: "import",
    ast.AsyncFor: "async",
    ast.AsyncWith: "async",
    ast.NamedExpr: "an assignment expression",
}


# Methods of Python's containers, and functions, that change an object.
_CHANGING = frozenset(
    (
        "append",
        "appendleft",
        "extend",
        "extendleft",
        "insert",
        "pop",
        "popleft",
        "popitem",
        "remove",
        "discard",
        "clear",
        "update",
        "setdefault",
        "sort",
        "reverse",
        "rotate",
        "send",
        "throw",
        "close",
        "write",
        "writelines",
    )
)
_CHANGING_FUNCTIONS = frozenset(("setattr", "delattr", "next"))


def _changed_by(call: ast.Call, nodes: list[Any]) -> str | None:
    """The text of a call that changes a Python object, as the other outcome of a predicate must not."""
    f = call.func
    if isinstance(f, ast.Name):
        return ast.unparse(f) if f.id in _CHANGING_FUNCTIONS else None
    if not isinstance(f, ast.Attribute):
        return None
    # `add` is also an op: as a set's method its result is None and nobody takes it.
    alone = f.attr == "add" and any(isinstance(n, ast.Expr) and n.value is call for n in in_scope(nodes))
    return ast.unparse(f) if f.attr in _CHANGING or alone else None


def hindrance(nodes: list[Any], shared: set[str], may_return: bool) -> str | None:
    """What keeps statements from becoming a function of their own that is run for both outcomes of a
    predicate; None where nothing does. `shared` are names of other scopes, which must not be bound."""
    for n in in_scope(nodes):
        if type(n) in _HINDRANCES:
            return _HINDRANCES[type(n)]
        if isinstance(n, (ast.Attribute, ast.Subscript)) and not isinstance(n.ctx, ast.Load):
            return f"an assignment to {ast.unparse(n)}"
        containers = (ast.List, ast.Set, ast.Dict, ast.ListComp, ast.SetComp, ast.DictComp)
        if isinstance(n, ast.AugAssign) and isinstance(n.value, containers):
            return f"an object that is changed in place, {ast.unparse(n.target)},"
        if isinstance(n, ast.Call) and (changed := _changed_by(n, nodes)):
            return f"a call that changes an object, {changed},"
    for n in in_scope(nodes, _LOOPS):
        if isinstance(n, (ast.Break, ast.Continue)):
            return type(n).__name__.lower() + " here"
    if returns(nodes) and not may_return:
        return "return here"
    both = bound(nodes) & shared
    return f"an assignment to {min(both)}, which another scope shares," if both else None
