"""How many JSON Schemas compile, and whether their grammars allow valid instances and no invalid ones.

    python benchmarks/schemas.py FOLDER [--most 1200] [--seed 1] [--closed] [--lenient] [--draft 2020-12] [--plain]

FOLDER holds JSON files, in folders or not: an object with `schema` and `tests`, or a list of such, whose tests have
`data` and `valid` (maskbench and the JSON-Schema-Test-Suite have this form). A schema means what JSON Schema says, with
objects open; `--closed` closes them as answers do by default, `--lenient` leaves out what cannot be held. `--draft`: of
schemas that do not say theirs. Instances are written as answers are: in one line, with properties in their own order,
or, where that is not the grammar's, in another one; *in their own order* says how many needed none. Times are the
processor's, of writing a program and of compiling it. `--plain`: also of the compiler alone, given the schema as it is,
beside ours of the schemas that it takes itself: a busy machine changes both. Prints a JSON line per figure, and the
reasons of refusals with the number of schemas.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import re
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seesay.errors import RequestError
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.schemas.json_program import write_json

_PLACES = re.compile(r"schema at \S+?:(?= )|'[^']*'|\"[^\"]*\"|/\S*/|\d+")


@dataclass(slots=True)
class Figures:
    """times_ms: processor time of each compilation, also of refused ones; compiled_ms: of those that compile. pairs_ms:
    of the compiler alone, and ours."""

    times_ms: list[float] = field(default_factory=list)
    compiled_ms: list[float] = field(default_factory=list)
    pairs_ms: list[tuple[float, float]] = field(default_factory=list)
    num_schemas: int = 0
    num_compiled: int = 0
    num_valid: int = 0
    num_valid_accepted: int = 0
    num_in_own_order: int = 0
    num_invalid: int = 0
    num_invalid_accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[dict[str, Any]]:
        times = sorted(self.times_ms) or [0.0]
        yield {"figure": "schemas", "value": self.num_schemas}
        yield {"figure": "compiled", "value": self.num_compiled, "share": self.num_compiled / max(1, self.num_schemas)}
        yield {"figure": "valid accepted", "value": self.num_valid_accepted, "of": self.num_valid}
        yield {"figure": "valid accepted in their own order", "value": self.num_in_own_order, "of": self.num_valid}
        yield {"figure": "invalid accepted", "value": self.num_invalid_accepted, "of": self.num_invalid}
        for kind, found in (("", times), (" of those that compile", sorted(self.compiled_ms) or [0.0])):
            yield {"figure": f"compile ms p50{kind}", "value": round(statistics.median(found), 2)}
            yield {"figure": f"compile ms p99{kind}", "value": round(found[int(0.99 * (len(found) - 1))], 2)}
        yield {"figure": "compile ms longest", "value": round(times[-1], 2)}
        for share in (0.5, 0.99) if self.pairs_ms else ():
            alone, ours = (sorted(times)[int(share * (len(times) - 1))] for times in zip(*self.pairs_ms, strict=True))
            yield {"figure": f"compiler alone ms p{100 * share:.0f}", "value": round(alone, 2), "ours": round(ours, 2)}
        for reason, number in self.reasons.most_common(20):
            yield {"figure": "refused", "value": number, "reason": reason}
        for wrong in self.wrong[:40]:
            yield {"figure": "wrong in", "value": wrong}


def read_cases(folder: Path) -> list[tuple[str, Any, list[Any]]]:
    """Return (name, schema, tests) of all cases in the files."""
    cases = []
    for file in sorted(folder.rglob("*.json")):
        found = json.loads(file.read_text())
        for number, case in enumerate(found if isinstance(found, list) else [found]):
            if isinstance(case, dict) and "schema" in case:
                cases.append((f"{file.name}:{number}", case["schema"], case.get("tests", [])))
    return cases


def measure(cases: list[tuple[str, Any, list[Any]]], options: argparse.Namespace) -> Figures:
    table, figures = TokenTable([bytes([byte]) for byte in range(256)]), Figures()
    gc.freeze()
    for name, schema, tests in cases:
        figures.num_schemas += 1
        if options.draft and isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": options.draft, **schema}
        alone_ms = time_alone(table, schema) if options.plain else None
        gc.disable()  # as in the process that tries grammars
        started_s = time.process_time()
        try:
            written, _ = write_json(json.dumps(schema), is_open=not options.closed, is_lenient=options.lenient)
            compiled = compile_program(table, f"start: {written}", forces=False)
        except (RequestError, ValueError) as error:
            figures.reasons[_PLACES.sub("…", str(error))[:160]] += 1
            continue
        finally:
            figures.times_ms.append(1000 * (time.process_time() - started_s))
            gc.enable()
        figures.num_compiled += 1
        figures.compiled_ms.append(figures.times_ms[-1])
        if alone_ms is not None:
            figures.pairs_ms.append((alone_ms, figures.times_ms[-1]))
        for test in tests:
            count(figures, name, compiled, list(list_orders(schema)), test)
    return figures


def time_alone(table: TokenTable, schema: Any) -> float | None:
    """Return the compiler's time for a schema as it is; None for one that it does not take."""
    gc.disable()
    started_s = time.process_time()
    try:
        compile_program(table, f"start: %json {json.dumps(schema)}", forces=False)
        return 1000 * (time.process_time() - started_s)
    except ValueError:
        return None
    finally:
        gc.enable()


def list_orders(schema: Any) -> Iterator[list[str]]:
    """Yield the names of properties in their order, for each object in a schema."""
    stack = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, dict) and isinstance(value.get("properties"), dict):
            yield list(value["properties"])
        stack += value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def count(figures: Figures, name: str, matcher: Any, orders: list[list[str]], test: dict[str, Any]) -> None:
    data = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
    is_accepted = accepts(matcher.deep_copy(), data)
    if test["valid"]:
        figures.num_valid += 1
        figures.num_in_own_order += is_accepted
        is_accepted = is_accepted or Orders(matcher.deep_copy(), orders).accept(test["data"])
        figures.num_valid_accepted += is_accepted
        if not is_accepted:
            figures.wrong.append(f"{name}, refused: {data[:100].decode('utf-8', 'replace')}")
        return
    figures.num_invalid += 1
    figures.num_invalid_accepted += is_accepted
    if is_accepted:
        figures.wrong.insert(0, f"{name}, accepted: {data[:100].decode('utf-8', 'replace')}")


def accepts(matcher: Any, data: bytes) -> bool:
    return bool(matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting())


class Orders:
    """Looks for an order of properties in which a grammar accepts a value. Those of the schema are tried first."""

    def __init__(self, matcher: Any, orders: list[list[str]], max_steps: int = 20_000) -> None:
        self._matcher, self._orders, self._num_left = matcher, orders, max_steps

    def accept(self, value: Any) -> bool:
        return self._write(value, lambda: bool(self._matcher.is_accepting()))

    def _write(self, value: Any, then: Callable[[], bool]) -> bool:
        """Whether the value and what follows are accepted; else the matcher is where it was."""
        if isinstance(value, dict):
            return self._text("{", lambda: self._write_properties(value, self._sort(value), "", then))
        if isinstance(value, list):
            return self._text("[", lambda: self._write_items(value, 0, then))
        return self._text(json.dumps(value, ensure_ascii=False), then)

    def _sort(self, value: dict[str, Any]) -> tuple[str, ...]:
        order = max(self._orders, key=lambda names: len(value.keys() & set(names)), default=[])
        return (*(name for name in order if name in value), *(name for name in value if name not in order))

    def _write_properties(
        self, value: dict[str, Any], names: tuple[str, ...], comma: str, then: Callable[[], bool]
    ) -> bool:
        if not names:
            return self._text("}", then)
        return any(self._write_property(value, name, names, comma, then) for name in names)

    def _write_property(
        self, value: dict[str, Any], name: str, names: tuple[str, ...], comma: str, then: Callable[[], bool]
    ) -> bool:
        rest = tuple(other for other in names if other != name)
        return self._text(
            f"{comma}{json.dumps(name, ensure_ascii=False)}: ",
            lambda: self._write(value[name], lambda: self._write_properties(value, rest, ", ", then)),
        )

    def _write_items(self, value: list[Any], at: int, then: Callable[[], bool]) -> bool:
        if at == len(value):
            return self._text("]", then)
        return self._text(
            ", " if at else "", lambda: self._write(value[at], lambda: self._write_items(value, at + 1, then))
        )

    def _text(self, text: str, then: Callable[[], bool]) -> bool:
        self._num_left -= 1
        if self._num_left < 0:
            return False
        data = list(text.encode("utf-8", "surrogatepass"))
        num_taken = self._matcher.try_consume_tokens(data)
        if num_taken == len(data) and then():
            return True
        if num_taken:
            self._matcher.rollback(num_taken)
        return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, help="of the cases, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--closed", action="store_true")
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--draft")
    parser.add_argument("--plain", action="store_true")
    options = parser.parse_args()
    sys.setrecursionlimit(50_000)  # a value is a call inside of the one before
    cases = read_cases(options.folder)
    if options.most is not None and options.most < len(cases):
        cases = random.Random(options.seed).sample(cases, options.most)
    for line in measure(cases, options).lines():
        print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
