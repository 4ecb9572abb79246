"""The box that chat templates run in: Jinja's sandbox, made to stop.

A template comes with a model's files, so it may be anything. Jinja's sandbox keeps it from files, internals and the
state of others; here its loops, calls and lists look at a clock, and what makes long texts is asked for its length
first. What one step of a template builds stays below ``MAX_TEXT``, so no step takes long.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import wraps
from typing import Any, cast

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.runtime
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_TEXT = 16 << 20  # characters of one text, entries of one list
MAX_BITS = 1 << 16  # of an integer
MAX_RANGE = 1_000_000  # turns of all loops over range() in one rendering

CLOCK = " clock"  # a variable's name that no template can write
WATCHED = " watched"  # filters of the same kind
JOINED = " joined"
BOUNDED = " bounded"


class RefusedError(Exception):
    """Raised by a template, or by a limit of its rendering."""


class Clock:
    """The time of one rendering."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._end = seconds, time.monotonic() + seconds

    def check(self) -> None:
        """Raise RefusedError when it is over."""
        if time.monotonic() > self._end:
            raise RefusedError(f"not rendered after {self._seconds} s")

    def watch(self, values: Iterable[Any]) -> Iterator[Any]:
        """The same values, a look at the clock before each."""
        for value in values:
            self.check()
            yield value


class Range:
    """``range`` for one rendering: all its loops together have a limit."""

    def __init__(self) -> None:
        self._left = MAX_RANGE

    def __call__(self, *arguments: int) -> range:
        numbers = range(*arguments)
        self._left -= len(numbers)
        if self._left < 0:
            raise RefusedError(f"loops of more than {MAX_RANGE} turns")
        return numbers


def checked_join(parts: Iterable[str]) -> str:
    """The parts in a row, unless they are too long together."""
    texts = list(parts)
    _check_length(sum(map(len, texts)))
    return "".join(texts)


def make_box() -> Box:
    """An environment for templates; it holds nothing of a rendering, so threads may share it."""
    box: Any = Box(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", Generation])
    box.finalize = bounded
    box.filters = {name: _sized(name, call) for name, call in box.filters.items() if name not in NOT_FOR_CHATS}
    box.filters |= {"tojson": to_json, WATCHED: _watched, JOINED: _joined, BOUNDED: bounded}
    box.globals.pop("lipsum", None)
    return cast("Box", box)


class Box(ImmutableSandboxedEnvironment):
    """Jinja's sandbox with limits of time and growth."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])
    concat = staticmethod(checked_join)  # what blocks and macros make

    def compiled(self, text: str) -> jinja2.Template:
        """The program of a template, with the limits built in. Raises jinja2.TemplateError."""
        tree = _Limits().visit(self.parse(text))
        return jinja2.Template.from_code(self, self.compile(tree), self.make_globals(None))

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        GROWTH[operator](left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Any, called: Any, /, *args: Any, **kwargs: Any) -> Any:
        context.resolve(CLOCK).check()
        owner = getattr(called, "__self__", None)
        if isinstance(owner, str):
            check_method(called.__name__, (owner, *args), kwargs)
        return super().call(context, called, *args, **kwargs)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """Jinja's guard of ``str.format``, behind a look at the lengths that it names."""
        call = super().wrap_str_format(value)
        if call is None:
            return None
        form = value.__self__

        @wraps(call)
        def checked(*given: Any, **named: Any) -> str:
            check_method("format", (form, *given), named)
            return call(*given, **named)

        return checked

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        is_hidden = attr.startswith("_") or attr in ("encode", "translate", "to_bytes")
        return not is_hidden and super().is_safe_attribute(obj, attr, value)


class _Limits:
    """Builds the limits into a template's program: loops and lists are watched, what makes texts is asked first."""

    def visit(self, node: Any) -> Any:
        for name, value in list(node.iter_fields()):
            setattr(node, name, self._visit_field(value))
        return self._limited(node)

    def _visit_field(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self._visit_field(one) for one in cast("list[Any]", value)]
        return self.visit(value) if isinstance(value, jinja2.nodes.Node) else value

    def _limited(self, node: Any) -> Any:
        if isinstance(node, jinja2.nodes.For):
            node.iter = _filtered(node.iter, WATCHED)
        elif isinstance(node, jinja2.nodes.Filter) and node.name in LAZY and node.node is not None:
            node.node = _filtered(node.node, WATCHED)
        elif isinstance(node, jinja2.nodes.Concat):
            return _filtered(jinja2.nodes.List(node.nodes, lineno=node.lineno), JOINED)
        elif isinstance(node, jinja2.nodes.List | jinja2.nodes.Tuple | jinja2.nodes.Dict):
            return node if getattr(node, "ctx", "load") != "load" else _filtered(node, BOUNDED)
        return node


def _filtered(node: Any, name: str) -> jinja2.nodes.Filter:
    return jinja2.nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


@jinja2.pass_context
def _watched(context: jinja2.runtime.Context, values: Any) -> Any:
    return values if values is None else context.resolve(CLOCK).watch(values)


def _joined(values: list[Any]) -> str:
    return checked_join([str(value) for value in bounded(values)])


# --- how long a text becomes

# Filters that go through a list of any length.
LAZY = frozenset(["map", "select", "reject", "selectattr", "rejectattr", "list", "sum", "unique", "groupby", "sort"])
# Filters that make web pages and tables, and have lengths of their own.
NOT_FOR_CHATS = frozenset(["urlize", "xmlattr", "wordwrap", "pprint", "urlencode", "filesizeformat", "forceescape"])
# Filters that make a text of whatever they get.
TEXTUAL = frozenset(
    ["capitalize", "center", "e", "escape", "format", "indent", "join", "lower", "replace", "safe", "string"]
) | {"striptags", "title", "trim", "truncate", "upper", "wordcount"}
NUMBER = re.compile(r"\d+")


def _sized(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """A filter whose arguments are looked at first."""
    has_context = hasattr(call, "jinja_pass_arg")

    @wraps(call)
    def checked(*given: Any, **named: Any) -> Any:
        arguments = given[1:] if has_context else given
        _check_numbers(arguments, named)
        if name in TEXTUAL and arguments:
            text = str(bounded(arguments[0])) if name != "join" else arguments[0]
            check_method(name, (text, *arguments[1:]), named)
        return call(*given, **named)

    return checked


def check_method(name: str, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> None:
    """Raise RefusedError for a method of a text, or a filter, whose result would be too long."""
    _check_numbers(arguments, named)
    text, others = arguments[0], [*arguments[1:], *named.values()]
    if name == "replace" and len(others) >= 2:
        old, new = str(bounded(others[0])), str(bounded(others[1]))
        _check_length(len(text) + text.count(old) * len(new))
    elif name in ("format", "format_map"):
        _check_format(text, others)
    elif name in ("indent", "expandtabs"):
        breaks = text.count("\n") + text.count("\t") + 1
        _check_length(len(text) + breaks * sum(map(_width, others)))
    elif name == "join":
        _check_join(arguments[0], others)


def _check_join(first: Any, others: list[Any]) -> None:
    """Of the method the first is what stands between, of the filter the list."""
    between, values = (first, others[0] if others else ()) if isinstance(first, str) else ("", first)
    gap = max([len(between), *(len(one) for one in others if isinstance(one, str))])
    if isinstance(values, str | list | tuple | dict):
        listed = cast("list[Any]", values)
        bounded(listed)
        _check_length(len(listed) * gap)
    elif gap > MAX_TEXT // MAX_RANGE:  # made as it is read: its length is not known
        raise RefusedError("join puts a long text between values that are not in a list")


def _check_format(form: str, values: Iterable[Any]) -> None:
    """Widths stand in the form, or among the values; a value may be named many times."""
    fields = form.count("%") + form.count("{")
    widths = sum(int(number[:9]) for number in NUMBER.findall(form))
    largest = max((max(_width(value), size(value)) for value in values), default=0)
    _check_length(len(form) + widths + fields * largest)


def _width(value: Any) -> int:
    return abs(value) if isinstance(value, int) else len(value) if isinstance(value, str) else 0


def _check_numbers(arguments: Iterable[Any], named: Mapping[str, Any]) -> None:
    for value in (*arguments, *named.values()):
        if isinstance(value, int) and value > MAX_TEXT:
            raise RefusedError(f"{value:,} is more than {MAX_TEXT:,}, the limit of a width or count")


def _check_length(length: int) -> None:
    if length > MAX_TEXT:
        raise RefusedError(f"a text or list of {length:,} is longer than {MAX_TEXT:,}, the limit of a prompt")


def bounded(value: Any) -> Any:
    """The value itself, unless it or all that it holds is longer than a prompt may be."""
    if isinstance(value, str):
        _check_length(len(value))
    elif isinstance(value, list | tuple | dict):
        size(value)
    return cast("Any", value)


def size(value: Any) -> int:
    """Characters and entries of a value, those of what it holds included; raises RefusedError beyond the limit."""
    total, waiting = 0, [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, str):
            total += len(one)
        elif isinstance(one, Mapping):
            waiting += [*one.keys(), *one.values()]  # pyright: ignore[reportUnknownArgumentType]
        elif isinstance(one, list | tuple):
            waiting += one
        total += 1
        _check_length(total + len(waiting))
    return total


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _check_length(len(cast("str", left)) + len(cast("str", right)))


def _check_product(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() + right.bit_length())
        return
    series, times = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(series, str | list | tuple) and isinstance(times, int):
        _check_length(size(series) * times)


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int):
        _check_bits(left.bit_length() * right)


def _check_remainder(left: Any, right: Any) -> None:
    if isinstance(left, str):
        values: Any = right
        if not isinstance(right, tuple):
            values = list(cast("Mapping[Any, Any]", right).values()) if isinstance(right, Mapping) else [right]
        _check_format(left, values)


def _check_bits(bits: int) -> None:
    if bits > MAX_BITS:
        raise RefusedError(f"a number of more than {MAX_BITS} bits")


GROWTH = {"+": _check_sum, "*": _check_product, "**": _check_power, "%": _check_remainder}


# --- what templates of chats expect


class Generation(jinja2.ext.Extension):
    """``{% generation %}`` marks the model's own words for training; here its body is all that matters."""

    tags = {"generation"}  # noqa: RUF012  the base class declares it

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(value: Any, indent: int | None = None, separators: Any = None, sort_keys: bool = False) -> str:
    """Plain JSON: Jinja's own filter would escape it for HTML."""
    gap = max(_width(indent), *(_width(one) for one in separators or ()), 1)
    _check_length(size(value) * gap)
    return json.dumps(value, ensure_ascii=False, indent=indent, separators=separators, sort_keys=sort_keys)
