"""What converted code calls: control flow by tensors as graph ops, all other control flow as Python's own."""

from __future__ import annotations

import functools
import operator
import types
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from warptape import core as wt
from warptape.compiler.higher_order_ops.cond import cond
from warptape.compiler.higher_order_ops.while_loop import while_loop
from warptape.core import Tensor
from warptape.core.pytree import tree_flatten, tree_leaves, tree_unflatten


class NotSupportedError(RuntimeError):
    """Control flow by a tensor that no graph can have.

    The text names file, line and function of the program.
    """


class _Undefined:
    """The value of a variable that has none."""

    def __repr__(self) -> str:
        return "not set"


UNDEFINED = _Undefined()
_NUMBER = "_stands_for_number"  # an attribute of tensors


def is_predicate(x: object) -> bool:
    """Whether control flow by a value becomes part of the graph.

    Args:
        x: the value; a tensor of one element does.
    """
    return isinstance(x, Tensor) and x.numel() == 1


def get(variable: Callable[[], Any]) -> Any:
    """The value of a variable.

    Args:
        variable: reads it.

    Returns:
        Its value; UNDEFINED where it is not bound.
    """
    try:
        return variable()
    except NameError:
        return UNDEFINED


class State:
    """The variables that statements bind.

    Args:
        names: of the variables.
        live: those of them that are read later.
        read: returns their values.
        write: assigns values to all of them.
    """

    def __init__(
        self,
        names: Sequence[str],
        live: Sequence[str],
        read: Callable[[], tuple[Any, ...]],
        write: Callable[[Sequence[Any]], None],
    ) -> None:
        self.names, self.live, self.read, self.write = names, live, read, write

    def live_values(self) -> dict[str, Any]:
        """The values of the variables that are read later.

        Returns:
            A dict by name.
        """
        values = dict(zip(self.names, self.read(), strict=True))
        return {name: values[name] for name in self.live}

    def update(self, values: dict[str, Any]) -> None:
        """Assigns new values to variables.

        Args:
            values: by name; other variables keep theirs.
        """
        self.write([values.get(n, old) for n, old in zip(self.names, self.read(), strict=True)])


class _Parts:
    """Values of variables as tensors and the rest: numbers become tensors, which may differ between runs."""

    def __init__(self, values: dict[str, Any], given: Sequence[Tensor] = ()) -> None:
        self.names = list(values)
        self.spec: Any = {}
        self.rest: dict[str, list[Any]] = {}
        self.tensors: list[Any] = []
        self.owners: list[str] = []  # the variable of each tensor
        self.numbers: list[bool] = []  # whether it stands for a number
        taken = [_base(x) for x in given]
        for name, value in values.items():
            leaves, self.spec[name] = tree_flatten(value)
            self.rest[name] = [None if isinstance(x, (Tensor, bool, int, float)) else x for x in leaves]
            for x in leaves:
                number = isinstance(x, (bool, int, float))
                if number:
                    x = wt.tensor(x)
                if isinstance(x, Tensor):
                    number = number or hasattr(x, _NUMBER)
                    # Neither what came in, a view, nor one tensor twice: results of control flow are new.
                    if x._base is not None or any(_base(x) is other for other in taken):
                        x = x.clone()
                    taken.append(x)
                    self.tensors.append(x)
                    self.owners.append(name)
                    self.numbers.append(number)
        self.kinds = [(x.dtype, tuple(x.shape)) for x in self.tensors]

    def filled(self, tensors: Sequence[Any]) -> dict[str, Any]:
        """The values with other tensors."""
        for x, number in zip(tensors, self.numbers, strict=True):
            if number:
                setattr(x, _NUMBER, True)
        left = iter(tensors)
        out = {}
        for name in self.names:
            count = self.owners.count(name)
            own = iter([next(left) for _ in range(count)])
            is_tensor = self._tensor_places(name)
            leaves = [next(own) if t else x for t, x in zip(is_tensor, self.rest[name], strict=True)]
            out[name] = tree_unflatten(leaves, self.spec[name])
        return out

    def _tensor_places(self, name: str) -> list[bool]:
        count, rest = self.owners.count(name), self.rest[name]
        if count == len(rest):
            return [True] * count
        return [x is None for x in rest]

    def difference(self, other: _Parts) -> str | None:
        """What keeps one graph from giving both, in words that end in what each has."""
        for name in self.names:
            here, there = self._kind_of(name), other._kind_of(name)
            if here != there:
                return f"'{name}' is {here} and {there}"
            for x, y in zip(self.rest[name], other.rest[name], strict=True):
                if x is not y and (type(x) is not type(y) or not bool(x == y)):
                    return f"'{name}' is {x!r} and {y!r}"
        return None

    def _kind_of(self, name: str) -> str:
        if any(x is UNDEFINED for x in self.rest[name]):
            return "not set"
        kinds = [k for k, owner in zip(self.kinds, self.owners, strict=True) if owner == name]
        text = ", ".join(f"{str(t).removeprefix('torch.')}{list(shape)}" for t, shape in kinds)
        if len(self.rest[name]) == 1:
            return text or "no tensor"
        return f"{self.spec[name]} of ({text})"


def _base(x: Tensor) -> Tensor:
    return x if x._base is None else x._base


def _reachable(state: State, *functions: Any) -> list[Tensor]:
    """The tensors that the variables and the functions' closures hold."""
    values = list(state.read())
    for f in functions:
        for cell in getattr(f, "__closure__", None) or ():
            values.append(_contents(cell))
    return [x for x in tree_leaves(values) if isinstance(x, Tensor)]


def _contents(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None  # of a variable that is not set


class Control:
    """The control flow of one function.

    Args:
        file, name: of the function, for errors.
        called: converts a function that it calls.
    """

    UNDEFINED, state, get = UNDEFINED, State, staticmethod(get)

    def __init__(self, file: str, name: str, called: Callable[[Any], Any]) -> None:
        self.file, self.name, self.called = file, name, called

    def refuse(self, line: int, why: str) -> NoReturn:
        """Refuses control flow that no graph can have.

        Args:
            line: in the file.
            why: what cannot be done.

        Raises:
            NotSupportedError: always.
        """
        raise NotSupportedError(f'{why}\n  File "{self.file}", line {line}, in {self.name}') from None

    def plain(self, test: Any, line: int, why: str) -> Any:
        """The test of a statement that only Python can run.

        Args:
            test: its value.
            line: of the statement.
            why: what the statement has that a graph cannot have.

        Raises:
            NotSupportedError: the test is a tensor.
        """
        if is_predicate(test):
            self.refuse(line, f"control flow by a tensor cannot have {why} in it")
        return test

    def not_(self, x: Any) -> Any:
        """`not x`, as an op where `x` is a tensor of one element.

        Args:
            x: any value.
        """
        return x.logical_not() if is_predicate(x) else not x

    def augmented(self, name: str, value: Any, other: Any) -> Any:
        """An augmented assignment, such as `value += other`.

        A tensor that stands for a number is not changed in place, as a number is not.

        Args:
            name: of the operator, as "add".
            value: of the variable.
            other: the right side.

        Returns:
            The variable's new value.
        """
        if not (isinstance(value, Tensor) and hasattr(value, _NUMBER)):
            return getattr(operator, f"i{name}")(value, other)
        out = getattr(operator, name if name not in ("or", "and") else f"{name}_")(value, other)
        if isinstance(out, Tensor) and out.dim() == 0:
            setattr(out, _NUMBER, True)
        return out

    def and_(self, left: Any, right: Callable[[], Any], line: int) -> Any:
        """`left and right()`, which runs `right` only if it decides.

        Args:
            left: the first value.
            right: returns the second.
            line: in the file.
        """
        return self.choose(left, right, lambda: left, line)

    def or_(self, left: Any, right: Callable[[], Any], line: int) -> Any:
        """`left or right()`, which runs `right` only if it decides.

        Args:
            left: the first value.
            right: returns the second.
            line: in the file.
        """
        return self.choose(left, lambda: left, right, line)

    def chained(self, left: Any, links: tuple[tuple[Any, Any], ...], line: int) -> Any:
        """A chain of comparisons, `left < a < b ..`.

        Args:
            left: the first value.
            links: for each comparison its function, and what returns its right side.
            line: in the file.
        """
        (compare, right), *rest = links
        middle = right()
        result = compare(left, middle)
        return self.and_(result, lambda: self.chained(middle, tuple(rest), line), line) if rest else result

    def choose(self, test: Any, yes: Callable[[], Any], no: Callable[[], Any], line: int) -> Any:
        """`yes() if test else no()`; both are recorded where the test is a tensor.

        Args:
            test: its value.
            yes, no: return the two values.
            line: in the file.
        """
        return self.if_return(test, yes, no, State((), (), tuple, lambda _: None), line)

    def if_return(self, test: Any, yes: Any, no: Any, state: State, line: int) -> Any:
        """An `if` both of whose arms return.

        Args:
            test: its value.
            yes, no: the arms.
            state: the variables that the arms bind.
            line: in the file.

        Returns:
            What the arm returned; of a tensor's test, the result of both in one graph.
        """
        if not is_predicate(test):
            return yes() if test else no()
        return self._cond(test, yes, no, state, lambda returned: {"the result": returned}, line)["the result"]

    def if_(self, test: Any, yes: Any, no: Any, state: State, line: int) -> None:
        """An `if` whose arms bind variables.

        Args:
            test: its value.
            yes, no: the arms.
            state: the variables that the arms bind.
            line: in the file.
        """
        if is_predicate(test):
            state.update(self._cond(test, yes, no, state, lambda _: state.live_values(), line))
        elif test:
            yes()
        else:
            no()

    def _cond(self, test: Tensor, yes: Any, no: Any, state: State, results: Any, line: int) -> dict[str, Any]:
        before, parts = state.read(), {}
        given = _reachable(state, yes, no)

        def arm(function: Callable[..., Any], name: str) -> Callable[[], Any]:
            def run() -> list[Tensor]:
                versions = [x._version for x in given]
                try:
                    parts[name] = _Parts(results(function()), given)
                finally:
                    state.write(before)
                if [x._version for x in given] != versions:
                    self.refuse(line, "an arm of an `if` by a tensor writes to a tensor in place")
                return parts[name].tensors

            return run

        try:
            out = cond(test, arm(yes, "yes"), arm(no, "no"))
        except NotSupportedError:
            raise
        except RuntimeError as error:
            self._explain(parts, line, error)
            raise
        self._explain(parts, line, None)
        return next(iter(parts.values())).filled(out)

    def _explain(self, parts: dict[str, _Parts], line: int, error: Exception | None) -> None:
        if len(parts) == 2 and (why := parts["yes"].difference(parts["no"])):
            self.refuse(line, f"the arms of an `if` by a tensor differ: {why}")
        if error is not None and str(error).startswith("cond:"):
            self.refuse(line, str(error))

    def while_(self, test: Callable[[], Any], body: Callable[[], None], state: State, line: int) -> None:
        """`while test(): body()`; from where the test gives a tensor on, it is a graph's loop.

        Args:
            test: returns the test's value.
            body: runs the statements.
            state: the variables that they bind.
            line: in the file.
        """
        while True:
            proceed = test()
            if is_predicate(proceed):
                return self._loop(test, body, state, line)
            if not proceed:
                return None
            body()

    def for_range(
        self,
        limits: tuple[Any, ...],
        body: Callable[..., Any],
        stopped: Callable[..., Any],
        state: State,
        line: int,
    ) -> None:
        """`for i in range(*limits): body(i)`, until `stopped()` is true.

        Args:
            limits: numbers or tensors; with a tensor among them it is a graph's loop.
            body: takes the counter.
            stopped: whether `break` or `return` was reached.
            state: the variables that the body binds.
            line: in the file.
        """
        if any(isinstance(x, Tensor) for x in limits):
            return self._count(limits, body, stopped, state, line)
        for i in range(*limits):
            stop = stopped()
            if is_predicate(stop):
                self.if_(stop, lambda: None, functools.partial(body, i), state, line)
            elif stop:
                break
            else:
                body(i)
        return None

    def _count(
        self,
        limits: tuple[Any, ...],
        body: Callable[..., Any],
        stopped: Callable[..., Any],
        state: State,
        line: int,
    ) -> None:
        start, stop, step = (0, *limits, 1) if len(limits) == 1 else (*limits, 1)[:3]
        if isinstance(step, Tensor) or step == 0:
            self.refuse(line, "range() by tensors needs a step that is a number other than 0")
        for x in (start, stop):
            if isinstance(x, Tensor) and (not is_predicate(x) or x.is_floating_point() or x.is_complex()):
                self.refuse(
                    line, f"range() takes integer tensors of one element, got {x.dtype}{list(x.shape)}"
                )
        counter = [wt.as_tensor(start).reshape(()).to(wt.int64)]
        end = stop.reshape(()) if isinstance(stop, Tensor) else stop

        def test() -> Any:
            more = counter[0] < end if step > 0 else counter[0] > end
            halt = stopped()
            return more & self.not_(halt) if isinstance(halt, Tensor) else more & (not halt)

        def turn() -> None:
            body(counter[0].clone())
            counter[0] = counter[0] + step

        def write(values: Sequence[Any]) -> None:
            counter[0] = values[0]
            state.write(values[1:])

        counted = State(
            ("range()", *state.names),
            ("range()", *state.live),
            lambda: (counter[0], *state.read()),
            write,
        )
        self._loop(test, turn, counted, line)

    def _loop(self, test: Callable[[], Any], body: Callable[[], None], state: State, line: int) -> None:
        # New tensors: code that also reads what they are made of must not take the one for the other.
        start = _Parts(state.live_values(), _reachable(state, body))
        for name, rest in start.rest.items():
            if any(x is UNDEFINED for x in rest):
                self.refuse(line, f"'{name}' must be set before a loop by a tensor, which may run no turn")
        before, after = state.read(), start

        def proceed(*tensors: Tensor) -> Any:
            state.update(start.filled(tensors))
            wanted = test()
            if not is_predicate(wanted):
                return wt.tensor(bool(wanted))
            return wanted.reshape(()).bool()

        def turn(*tensors: Tensor) -> Any:
            nonlocal after
            state.update(start.filled(tensors))
            given = [*tensors, *_reachable(state, body)]
            versions = [x._version for x in given]
            body()
            after = _Parts(state.live_values(), given)
            if [x._version for x in given] != versions:
                self.refuse(line, "a loop by a tensor writes to a tensor in place")
            if why := start.difference(after):
                self.refuse(line, f"a turn of a loop by a tensor changes a variable: {why}")
            return after.tensors

        try:
            out = while_loop(proceed, turn, start.tensors)
        except RuntimeError as error:
            state.write(before)
            if str(error).startswith("while_loop:"):
                self.refuse(line, str(error))
            raise
        state.update(start.filled(out))
