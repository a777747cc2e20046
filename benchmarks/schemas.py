"""How many JSON Schemas compile, and whether their grammars allow valid instances and no invalid ones.

    python benchmarks/schemas.py FOLDER [--most 1200] [--seed 1] [--closed] [--lenient] [--draft 2020-12]

FOLDER holds JSON files, in folders or not: an object with `schema` and `tests`, or a list of such, whose tests have
`data` and `valid` (maskbench and the JSON-Schema-Test-Suite have this form). A schema means what JSON Schema says, with
objects open; `--closed` closes them as answers do by default, `--lenient` leaves out what cannot be held. `--draft`: of
schemas that do not say theirs. Instances are written as answers are: in one line. Prints a JSON line per figure, and
the reasons of refusals with the number of schemas.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from seesay.errors import RequestError
from seesay.grammars.compile import TokenTable, compile_program
from seesay.grammars.schemas.json_program import write_json

_PLACES = re.compile(r"schema at \S+?:(?= )|'[^']*'|\"[^\"]*\"|/\S*/|\d+")


@dataclass(slots=True)
class Figures:
    """times_ms: processor time of each compilation, also of refused ones."""

    times_ms: list[float] = field(default_factory=list)
    num_schemas: int = 0
    num_compiled: int = 0
    num_valid: int = 0
    num_valid_accepted: int = 0
    num_invalid: int = 0
    num_invalid_accepted: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[dict[str, Any]]:
        times = sorted(self.times_ms) or [0.0]
        yield {"figure": "schemas", "value": self.num_schemas}
        yield {"figure": "compiled", "value": self.num_compiled, "share": self.num_compiled / max(1, self.num_schemas)}
        yield {"figure": "valid accepted", "value": self.num_valid_accepted, "of": self.num_valid}
        yield {"figure": "invalid accepted", "value": self.num_invalid_accepted, "of": self.num_invalid}
        yield {"figure": "compile ms p50", "value": round(statistics.median(times), 2)}
        yield {"figure": "compile ms p99", "value": round(times[int(0.99 * (len(times) - 1))], 2)}
        yield {"figure": "compile ms longest", "value": round(times[-1], 2)}
        for reason, number in self.reasons.most_common(20):
            yield {"figure": "refused", "value": number, "reason": reason}
        for wrong in self.wrong[:20]:
            yield {"figure": "invalid accepted in", "value": wrong}


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
    for name, schema, tests in cases:
        figures.num_schemas += 1
        if options.draft and isinstance(schema, dict) and "$schema" not in schema:
            schema = {"$schema": options.draft, **schema}
        started_s = time.process_time()
        try:
            written, _ = write_json(json.dumps(schema), is_open=not options.closed, is_lenient=options.lenient)
            compiled = compile_program(table, f"start: {written}", forces=False)
        except (RequestError, ValueError) as error:
            figures.reasons[_PLACES.sub("…", str(error))[:160]] += 1
            continue
        finally:
            figures.times_ms.append(1000 * (time.process_time() - started_s))
        figures.num_compiled += 1
        for test in tests:
            count(figures, name, compiled.deep_copy(), test)
    return figures


def count(figures: Figures, name: str, matcher: Any, test: dict[str, Any]) -> None:
    data = json.dumps(test["data"], ensure_ascii=False).encode("utf-8", "surrogatepass")
    is_accepted = matcher.try_consume_tokens(list(data)) == len(data) and matcher.is_accepting()
    if test["valid"]:
        figures.num_valid += 1
        figures.num_valid_accepted += is_accepted
        return
    figures.num_invalid += 1
    figures.num_invalid_accepted += is_accepted
    if is_accepted:
        figures.wrong.append(f"{name}: {data[:100].decode('utf-8', 'replace')}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--most", type=int, help="of the cases, chosen at random")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--closed", action="store_true")
    parser.add_argument("--lenient", action="store_true")
    parser.add_argument("--draft")
    options = parser.parse_args()
    cases = read_cases(options.folder)
    if options.most is not None and options.most < len(cases):
        cases = random.Random(options.seed).sample(cases, options.most)
    for line in measure(cases, options).lines():
        print(json.dumps(line, ensure_ascii=False), flush=True)


if __name__ == "__main__":
    main()
