"""Run a model's own chat template in this process with bounds on time and memory: most templates take less time than a
fork for each request would.

Everything that lets a template make much from little is counted: loops, calls, output, and operations whose result is
longer than their operands. What a single operation may do is checked before it runs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, cast

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import pass_context
from jinja2.visitor import NodeTransformer

MOST_S = 5.0  # of processor time; 10,000 messages take 0.1 to 0.4 s
MOST_CHARACTERS = 32 << 20  # of one string, and items of one list
MOST_WRITTEN = 256 << 20  # characters in all
_LARGE = 1 << 16  # characters; smaller results are bounded by the time to make them
_LOOK_STEPS = 16
_MOST_BITS = 1 << 16
_MOST_WIDTH = 1 << 16
_PADDED = ("ljust", "rjust", "center", "zfill", "expandtabs", "to_bytes")
_WIDTH = re.compile(r"\d{6,}|\*")  # in a format


class TooMuch(SecurityError):
    """A template exceeds its bounds."""


class Budget:
    """The resources that one rendering has used."""

    def __init__(self) -> None:
        self._steps = self._written = 0
        self._end_s = time.thread_time() + MOST_S

    def step(self) -> None:
        """Count an iteration of a loop or a call."""
        self._steps += 1
        if self._steps % _LOOK_STEPS == 0 and time.thread_time() > self._end_s:
            raise TooMuch(f"rendering it takes more than {MOST_S:g} s")

    def write(self, size: int) -> None:
        """Count characters that are about to be made."""
        self._written += size
        if size > MOST_CHARACTERS or self._written > MOST_WRITTEN:
            raise TooMuch(f"it makes more than {MOST_CHARACTERS >> 20} Mi characters at once, or too many in total")

    def result(self, size: int) -> None:
        """Count the result of an operation if it is long."""
        if size > _LARGE:
            self.write(size)


class _Context(Context):
    """The variables and the budget of one rendering."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.budget = Budget()

    def derived(self, locals: dict[str, Any] | None = None) -> _Context:
        made = super().derived(locals)
        assert isinstance(made, _Context)
        made.budget = self.budget
        return made


_OPERATIONS: dict[type, str] = {
    nodes.Add: "_add", nodes.Mul: "_multiply", nodes.Pow: "_power", nodes.Mod: "_remainder",
}  # fmt: skip


class _Counting(NodeTransformer):
    """Wraps the counting filters below around loops, output and operations."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _filter("_counted", node.iter)
        return node

    def visit_Output(self, node: nodes.Output) -> nodes.Output:
        self.generic_visit(node)
        node.nodes = [
            _filter("_written", nodes.Const(one.data) if isinstance(one, nodes.TemplateData) else one)
            for one in node.nodes
        ]
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        return _filter("_joined", nodes.List(node.nodes))

    def generic_visit(self, node: nodes.Node, *args: Any, **kwargs: Any) -> nodes.Node:
        super().generic_visit(node, *args, **kwargs)
        name = _OPERATIONS.get(type(node))
        return _filter(name, node.left, node.right) if name and isinstance(node, nodes.BinExpr) else node


def _filter(name: str, value: nodes.Node, *args: nodes.Expr) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, value), name, list(args), [], None, None, lineno=value.lineno)


@pass_context
def _counted(context: _Context, values: Iterable[Any]) -> Iterator[Any]:
    step = context.budget.step
    for value in values:
        step()
        yield value


@pass_context
def _written(context: _Context, value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    context.budget.write(len(text))
    return text


@pass_context
def _joined(context: _Context, values: list[Any]) -> str:
    texts = [str(value) for value in values]
    context.budget.result(sum(map(len, texts)))
    return "".join(texts)


@pass_context
def _add(context: _Context, left: Any, right: Any) -> Any:
    if hasattr(left, "__len__") and hasattr(right, "__len__"):
        context.budget.result(len(left) + len(right))
    return left + right


@pass_context
def _multiply(context: _Context, left: Any, right: Any) -> Any:
    for one, other in ((left, right), (right, left)):
        if hasattr(one, "__len__") and isinstance(other, int):
            context.budget.result(len(one) * max(other, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _MOST_BITS:
        raise TooMuch(f"a product has more than {_MOST_BITS} bits")
    return left * right


@pass_context
def _power(context: _Context, left: Any, right: Any) -> Any:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > _MOST_BITS:
        raise TooMuch(f"a power has more than {_MOST_BITS} bits")
    return left**right


@pass_context
def _remainder(context: _Context, left: Any, right: Any) -> Any:
    if isinstance(left, str):
        _check_format(left)
    made = left % right
    context.budget.result(len(made) if isinstance(made, str) else 0)
    return made


_COUNTING: dict[str, Callable[..., Any]] = {
    "_counted": _counted, "_written": _written, "_joined": _joined, "_add": _add, "_multiply": _multiply,
    "_power": _power, "_remainder": _remainder,
}  # fmt: skip


def _check_format(text: str) -> None:
    if _WIDTH.search(text):
        raise TooMuch("a format has a width of 100,000 or more")


def _check_widths(values: Iterable[Any]) -> None:
    if any(isinstance(value, int) and abs(value) > _MOST_WIDTH for value in values):
        raise TooMuch(f"a width or count is more than {_MOST_WIDTH}")


def _check_replace(budget: Budget, text: Any, old: Any, new: Any) -> None:
    if all(isinstance(one, str) for one in (text, old, new)):
        budget.result(len(text) + text.count(old) * max(len(new) - len(old), 0))


def _check_join(budget: Budget, between: Any, values: Any) -> None:
    budget.result(len(str(between)) * len(values) + sum(len(value) for value in values if isinstance(value, str)))


_AMPLIFY = (
    "replace", "join", "format", "sum", "indent", "center", "wordwrap", "batch", "slice", "round", "tojson", "truncate",
)  # fmt: skip


class _Environment(ImmutableSandboxedEnvironment):
    """A sandbox that counts."""

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        counted = _Counting().visit(source)
        counted.set_environment(self)
        return super()._generate(counted, *args, **kwargs)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        assert isinstance(__context, _Context)
        __context.budget.step()
        # A method of a string or number may make too much from little.
        method = getattr(__obj, "__wrapped__", __obj)  # the sandbox wraps str.format
        owner, name = getattr(method, "__self__", None), getattr(method, "__name__", "")
        if isinstance(owner, (str, int, bytes)):
            if name in _PADDED:
                _check_widths((*args, *kwargs.values()))
            elif name == "replace" and len(args) >= 2:
                _check_replace(__context.budget, owner, *args[:2])
            elif name == "join" and args and hasattr(args[0], "__len__"):
                _check_join(__context.budget, owner, args[0])
            elif name in ("format", "format_map") and isinstance(owner, str):
                _check_format(owner)
        return super().call(__context, __obj, *args, **kwargs)


def bounded_environment(
    filters: Mapping[str, Callable[..., Any]], globals: Mapping[str, Any], **options: Any
) -> ImmutableSandboxedEnvironment:
    """Return a sandbox with these filters, globals and options of Jinja, whose templates have bounds.

    Rendering raises TooMuch.
    """
    environment = _Environment(**options)
    environment.context_class = _Context
    environment.filters.update(filters)
    environment.globals.update(globals)
    environment.globals.pop("lipsum", None)
    for name in _AMPLIFY:
        environment.filters[name] = _checked(name, environment.filters[name])
    environment.filters.update(_COUNTING)
    return environment


def _checked(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
    """Return the filter with a check of its arguments, which may make too much from little."""
    first = getattr(own, "jinja_pass_arg", None)  # the argument that Jinja passes before the value

    @pass_context
    def filter(context: _Context, value: Any, *args: Any, **kwargs: Any) -> Any:
        context.budget.step()
        if name == "replace" and len(args) >= 2:
            _check_replace(context.budget, str(value), *args[:2])
        elif name == "join" and hasattr(value, "__len__"):
            _check_join(context.budget, args[0] if args else kwargs.get("d", ""), value)
        elif name == "format":
            _check_format(str(value))
        elif name == "sum" and not isinstance((*args[1:2], kwargs.get("start", 0))[0], (int, float)):
            raise TooMuch("sum adds numbers only")
        elif name == "indent":
            widths = [one for one in (*args, *kwargs.values()) if isinstance(one, int)]
            context.budget.result((str(value).count("\n") + 1) * max(widths, default=4))
        else:
            _check_widths((*args, *kwargs.values()))
        given = {"context": context, "eval_context": context.eval_ctx, "environment": context.environment}
        called = own if first is None else partial(own, given[first.name])
        made = called(value, *args, **kwargs)
        context.budget.result(len(made) if isinstance(made, str) else 0)
        return made

    return filter
