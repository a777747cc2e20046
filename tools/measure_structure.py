"""Measure how the package is built: sizes of classes, functions and files, lint exceptions, `Any`.

    python tools/measure_structure.py          # one line a figure, with its limit where it has one
    python tools/measure_structure.py --list   # and every place that a figure counts

A limit is the most that tests/test_measure_structure.py allows; a figure without one is an aim not yet reached.
Complexity is McCabe's: 1 for a function and 1 for each branch, loop, handler, `and`/`or`, comprehension and its
conditions. Triton kernels are left out of it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "seesay"
MOST_METHODS = 12
MOST_COMPLEXITY = 10
MOST_FILE_LINES = 450
MOST_LARGE_CLASSES = 29
MOST_COMPLEX_FUNCTIONS = 47
MOST_LARGE_FILES = 0
MOST_EXCEPTIONS = 49
MOST_ANYS = 10.2

_BRANCHES = (ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.Assert, ast.match_case)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, slots=True)
class Figure:
    """A measured figure. `places` are the lines it counts, largest first; empty for a sum."""

    name: str
    value: float
    limit: float | None = None
    places: tuple[str, ...] = ()


def measure(package: Path = PACKAGE) -> list[Figure]:
    """Return the figures of every Python file below `package`."""
    sources = {path: path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py"))}
    nodes = {path: list(ast.walk(ast.parse(source))) for path, source in sources.items()}
    lines = {path: len(source.splitlines()) for path, source in sources.items()}
    total = sum(lines.values())
    large = _places((num, f"{_short(path, package)} {num}") for path, num in lines.items() if num > MOST_FILE_LINES)
    classes = _places(_large_classes(nodes, package))
    functions = _places(_complex_functions(nodes, package))
    exceptions = tuple(
        f"{_short(path, package)}:{number} {found[0]}"
        for path, source in sources.items()
        for number, line in enumerate(source.splitlines(), start=1)
        if (found := re.search(r"# noqa.*", line))
    )
    anys = sum(isinstance(node, ast.Name) and node.id == "Any" for found in nodes.values() for node in found)
    return [
        Figure(f"classes with more than {MOST_METHODS} methods", len(classes), MOST_LARGE_CLASSES, classes),
        Figure(f"functions of a complexity over {MOST_COMPLEXITY}", len(functions), MOST_COMPLEX_FUNCTIONS, functions),
        Figure("lint exceptions (noqa)", len(exceptions), MOST_EXCEPTIONS, exceptions),
        Figure("Any per 1,000 lines", round(1000 * anys / total, 2), MOST_ANYS),
        Figure(f"files of more than {MOST_FILE_LINES} lines", len(large), MOST_LARGE_FILES, large),
        Figure("lines", total),
    ]


def complexity(function: ast.AST) -> int:
    """Return McCabe's complexity of a function; the functions and classes in it count for themselves."""
    return 1 + sum(_weight(node) for node in _own_nodes(function))


def _weight(node: ast.AST) -> int:
    if isinstance(node, ast.BoolOp):
        return len(node.values) - 1
    if isinstance(node, ast.comprehension):
        return 1 + len(node.ifs)
    return int(isinstance(node, _BRANCHES))


def _own_nodes(function: ast.AST) -> Iterator[ast.AST]:
    left = [function]
    while left:
        for child in ast.iter_child_nodes(left.pop()):
            if not isinstance(child, (*_FUNCTIONS, ast.ClassDef)):
                yield child
                left.append(child)


def _complex_functions(nodes: dict[Path, list[ast.AST]], package: Path) -> Iterator[tuple[int, str]]:
    for path, found in nodes.items():
        if path.is_relative_to(package / "kernels"):
            continue
        for node in found:
            if isinstance(node, _FUNCTIONS) and (value := complexity(node)) > MOST_COMPLEXITY:
                yield value, f"{_short(path, package)}:{node.lineno} {node.name} {value}"


def _large_classes(nodes: dict[Path, list[ast.AST]], package: Path) -> Iterator[tuple[int, str]]:
    for path, found in nodes.items():
        for node in found:
            if isinstance(node, ast.ClassDef):
                methods = sum(isinstance(member, _FUNCTIONS) and not _is_overload(member) for member in node.body)
                if methods > MOST_METHODS:
                    yield methods, f"{_short(path, package)}:{node.lineno} {node.name} {methods}"


def _is_overload(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in function.decorator_list)


def _places(found: Iterator[tuple[int, str]]) -> tuple[str, ...]:
    return tuple(place for _, place in sorted(found, key=lambda item: (-item[0], item[1])))


def _short(path: Path, package: Path) -> str:
    return path.relative_to(package.parent).as_posix()


def main() -> int:
    """Return 1 where a figure is above its limit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="name every place that a figure counts")
    listed = parser.parse_args().list
    figures = measure()
    for figure in figures:
        limit = "" if figure.limit is None else f"   (at most {figure.limit:g})"
        print(f"{figure.value:>8g}  {figure.name}{limit}")
        for place in figure.places if listed else ():
            print(f"            {place}")
    return int(any(figure.limit is not None and figure.value > figure.limit for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
