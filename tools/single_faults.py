"""Finds the single faults that can be put into a module: for `tools.mutants`, which sees whether tests notice them."""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.FloorDiv, ast.FloorDiv: ast.Mult, ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.LShift: ast.RShift, ast.RShift: ast.LShift, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
_NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "reversed": "iter", "sorted": "list"}
_METHODS = {"popleft": "pop", "add": "discard", "discard": "add", "update": "difference_update", "setdefault": "get"}
_ANY_ORDER = {*_NAMES, "isinstance", "issubclass", "getattr", "setattr", "hasattr", "super"}
"""Calls whose arguments are not swapped: the fault is none, or no program gets past it."""
_NO_BEHAVIOUR = {"daemon", "name", "exc_info", "strict", "stacklevel", "slots", "frozen", "kw_only", "repr"}
"""Keyword arguments whose values are left alone."""


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in the module `path`: the bytes from `start` to `stop` of its source are `after` instead of `before`.
    `scope` is the qualified name of the class or function around it."""

    path: str
    scope: str
    line: int
    start: int
    stop: int
    before: str
    after: str
    code: str
    """The line of the source in which it begins."""

    def apply(self, source: bytes) -> bytes:
        """Return the source with the fault."""
        return source[: self.start] + self.after.encode() + source[self.stop :]

    @property
    def key(self) -> str:
        """Names the fault without its line, which other changes of the module move."""
        return f"{self.path} {self.scope}: {_flatten(self.before)} -> {_flatten(self.after)} in {self.code}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.scope}: {_flatten(self.before)} -> {_flatten(self.after)}"


def find_faults(source: bytes, path: str) -> list[Fault]:
    """Return all faults that can be put into a module, in the order of the source. `path` names it in the faults."""
    finder = _Finder(source, path)
    finder.visit(ast.parse(source))
    return sorted(finder.faults, key=lambda fault: (fault.start, fault.stop, fault.after))


def _flatten(text: str) -> str:
    """Return code in one line."""
    return " ".join(text.split())


class _Finder(ast.NodeVisitor):
    """Collects the faults of a module. What only people read is left out: annotations, docstrings, decorators, log
    messages, texts of errors, assertions."""

    def __init__(self, source: bytes, path: str) -> None:
        self.faults: list[Fault] = []
        self._source = source
        self._path = path
        self._scopes: list[str] = []
        self._starts = [0, *(match.end() for match in re.finditer(b"\n", source))]

    def visit(self, node: ast.AST) -> None:
        """Collect the faults of a node and of those below it."""
        if _is_silent(node):
            return
        for place, after in _find_changes(node, self._text):
            self._add(place, after)
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            self._scopes.append(node.name)
            for child in [*getattr(node, "args", ast.Module([], [])).__dict__.get("defaults", []), *node.body]:
                self.visit(child)
            self._scopes.pop()
            return
        if isinstance(node, ast.Raise):
            return
        for name, value in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        self.visit(child)

    def _add(self, node: ast.expr | ast.stmt, after: str) -> None:
        start, stop = self._range(node)
        before = self._source[start:stop].decode()
        if _flatten(before) != _flatten(after):
            scope = ".".join(self._scopes) or "<module>"
            code = self._source[self._starts[node.lineno - 1] :].partition(b"\n")[0].decode().strip()
            self.faults.append(Fault(self._path, scope, node.lineno, start, stop, before, after, code))

    def _range(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.lineno - 1] + node.col_offset, self._starts[node.end_lineno - 1] + node.end_col_offset

    def _text(self, node: ast.expr | ast.stmt) -> str:
        start, stop = self._range(node)
        return self._source[start:stop].decode()


def _is_silent(node: ast.AST) -> bool:
    """Whether nothing below a node is behaviour."""
    match node:
        case ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom() | ast.pattern():
            return True
        case ast.Expr(ast.Constant()) | ast.Call(ast.Attribute(ast.Name("logger" | "warnings"))):
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Name("logger" | "warnings")))):
            return True
        case ast.Expr(ast.Call(ast.Attribute(ast.Call(ast.Name("super")), "__init__"))):
            return True
        case ast.If(ast.Name("TYPE_CHECKING")) | ast.keyword(arg="daemon"):
            return True
        case ast.keyword(arg=name) if name in _NO_BEHAVIOUR:
            return True
    return False


Change = tuple[ast.expr | ast.stmt, str]
"""What is replaced, and by which text."""


def _find_changes(node: ast.AST, text: Callable[[ast.expr | ast.stmt], str]) -> Iterator[Change]:
    """The faults of one node, without those of the nodes below it."""
    match node:
        case ast.Compare(left, ops, comparators):
            for index, op in enumerate(ops):
                flipped = [*ops[:index], _COMPARISONS[type(op)](), *ops[index + 1 :]]
                yield node, f"({ast.unparse(ast.Compare(left, flipped, comparators))})"
        case ast.BoolOp(op, values):
            other = ast.And() if isinstance(op, ast.Or) else ast.Or()
            yield node, f"({ast.unparse(ast.BoolOp(other, values))})"
            for kept in (values[1:], values[:-1]):
                yield node, f"({ast.unparse(ast.BoolOp(op, kept) if len(kept) > 1 else kept[0])})"
        case ast.Constant(value):
            yield from ((node, each) for each in _change_constant(value))
        case ast.BinOp(left, op, right) if not _is_text_or_type(left, op, right):
            yield node, f"({ast.unparse(ast.BinOp(left, _OPERATORS[type(op)](), right))})"
        case ast.UnaryOp(ast.Not() | ast.USub(), operand) if not isinstance(operand, ast.Constant):
            yield node, f"({text(operand)})"
        case ast.Call():
            yield from _change_call(node)
        case ast.stmt():
            yield from _change_statement(node, text)
        case ast.IfExp(test):
            yield from _negate(test, text)
        case ast.comprehension(ifs=ifs):
            for test in ifs:
                yield from _negate(test, text)


def _is_text_or_type(left: ast.expr, op: ast.operator, right: ast.expr) -> bool:
    """Whether an operator joins texts, or types (`int | None`), or has no counterpart."""
    for side in (left, right):
        if isinstance(side, ast.JoinedStr) or (isinstance(side, ast.Constant) and isinstance(side.value, str)):
            return True
        is_type = re.fullmatch(r"(\w+\.)*([A-Z]\w*|None|int|str|float|bool|bytes)(\[.*\])?", ast.unparse(side))
        if isinstance(op, ast.BitOr) and is_type:
            return True
    return type(op) not in _OPERATORS


def _change_constant(value: object) -> list[str]:
    """Other values that a number or truth value may have by mistake."""
    if isinstance(value, bool):
        return [str(not value)]
    if isinstance(value, int):
        return [str(value + 1), *([str(value - 1)] if value > 0 else [])]
    return [str(value * 2)] if isinstance(value, float) and value else []


def _negate(test: ast.expr, text: Callable[[ast.expr | ast.stmt], str]) -> Iterator[Change]:
    """The negated condition, unless another fault of it is the same."""
    if not isinstance(test, ast.UnaryOp) and not (isinstance(test, ast.Compare) and len(test.ops) == 1):
        yield test, f"(not ({text(test)}))"


def _change_call(call: ast.Call) -> Iterator[Change]:
    match call.func:
        case ast.Name(name):
            if name in _NAMES and len(call.args) + (name not in ("min", "max")) > 1:
                yield call.func, _NAMES[name]
        case ast.Attribute(value, name):
            if name in _METHODS:
                yield call.func, f"{ast.unparse(value)}.{_METHODS[name]}"
        case _:
            name = ""
    first_two = call.args[:2]
    if len(first_two) == 2 and name not in _ANY_ORDER and not any(isinstance(each, ast.Starred) for each in first_two):
        swapped = copy.copy(call)
        swapped.args = [*reversed(first_two), *call.args[2:]]
        yield call, ast.unparse(swapped)


def _change_statement(node: ast.stmt, text: Callable[[ast.expr | ast.stmt], str]) -> Iterator[Change]:
    match node:
        case ast.Expr(ast.Call() | ast.Await()) | ast.Delete() | ast.Raise() | ast.Continue() | ast.Break():
            yield node, "pass"
        case ast.Assign(targets=[ast.Subscript()]):
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute()], value=value) if not isinstance(value, ast.Name):
            yield node, "pass"
        case ast.AugAssign(target, op, value):
            yield node, "pass"
            if type(op) in _OPERATORS:
                yield node, ast.unparse(ast.AugAssign(target, _OPERATORS[type(op)](), value))
        case ast.If(test) | ast.While(test):
            yield from _negate(test, text)
    if isinstance(node, ast.If) and not node.orelse and len(node.body) == 1 and isinstance(node.body[0], ast.Return):
        yield node.body[0], "pass"
    if isinstance(node, ast.While | ast.For) and node.body[0].lineno > node.lineno:
        last = node.body[-1]
        if not isinstance(last, ast.Return | ast.Raise | ast.Break | ast.Continue):
            yield last, f"{text(last)}\n{' ' * last.col_offset}break"
