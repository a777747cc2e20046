"""Time per token of many answers at once that each follow a grammar of their own, beside the same answers without.

    python benchmarks/distinct_grammars.py MODEL_DIR [--rows 256] [--tokens 128] [--rounds 3] [--device auto]

Each row has another grammar: a third of them JSON Schemas, a third regular expressions, a third recursive ones. None
of them ends before the answer does. The first round of each kind warms up, and compiles the grammars. Prints a JSON
line for each kind, with the median over the rounds of the milliseconds per step, in which each row gets a token, and
one with the quotient.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline

PROMPT = "Write down everything that you know about fruit."
_NEVER = 100_000
"""More items than an answer has tokens."""


def make_form(row: int) -> dict[str, Any]:
    """Return the `response_format` of a row."""
    if row % 3 == 0:
        fields = {
            f"name_{row}": {"type": "string"},
            "kind": {"enum": [f"kind_{row}", "other", "none"]},
            f"weight_{row}": {"type": "number", "minimum": 0, "maximum": 100 + row},
            "is_ripe": {"type": "boolean"},
            "seen": {"type": "string", "format": "date"},
        }
        items = {"type": "object", "properties": fields, "required": [*fields]}
        schema = {"type": "array", "items": items, "minItems": _NEVER}
        return {"type": "json_schema", "json_schema": {"name": f"fruit_{row}", "schema": schema}}
    if row % 3 == 1:
        return {"type": "regex", "regex": rf"(?:[A-Za-z ,;]{{1,60}} \({row}\)\.\n)*"}
    rules = ['root ::= (sum "\\n")*', 'sum ::= product (("+" | "-") product)*', 'product ::= atom ("*" atom)*']
    return {"type": "grammar", "grammar": "\n".join([*rules, f'atom ::= [0-9]+ | "x_{row}" | "(" sum ")"'])}


def make_configs(num_rows: int, num_tokens: int, *, has_grammars: bool) -> list[GenerationConfig]:
    fixed: dict[str, Any] = {"max_new_tokens": num_tokens, "min_new_tokens": num_tokens}
    fixed |= {"do_sample": True, "temperature": 1.0, "top_k": 0}
    return [
        GenerationConfig(response_format=make_form(row) if has_grammars else None, random_seed=row, **fixed)
        for row in range(num_rows)
    ]


def run_round(pipe: Pipeline, configs: Sequence[GenerationConfig]) -> tuple[float, int]:
    """Return (seconds, steps) of a round. Raises AssertionError where an answer is short."""
    before, started_s = pipe.engine.stats(), time.perf_counter()
    answers = pipe([PROMPT] * len(configs), gen_config=configs)
    seconds, after = time.perf_counter() - started_s, pipe.engine.stats()
    for answer, config in zip(answers, configs, strict=True):
        assert len(answer.token_ids) == config.max_new_tokens, answer
    steps = [sum(number for _, number in stats.step_sizes) for stats in (before, after)]
    return seconds, steps[1] - steps[0]


def measure(pipe: Pipeline, *, rows: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Return the figures of answers without and with grammars, and the quotient."""
    lines: list[dict[str, Any]] = []
    for kind in ("plain", "grammars"):
        configs = make_configs(rows, tokens, has_grammars=kind == "grammars")
        started_s = time.perf_counter()
        run_round(pipe, configs)
        first_s = time.perf_counter() - started_s
        found = [run_round(pipe, configs) for _ in range(rounds)]
        line = {"kind": kind, "rows": rows, "first_round_s": round(first_s, 3)}
        line["ms_per_step"] = round(statistics.median(1e3 * seconds / steps for seconds, steps in found), 4)
        line["ms_per_token"] = round(statistics.median(1e3 * seconds / tokens for seconds, _ in found), 4)
        lines.append(line | {"steps": statistics.median(steps for _, steps in found)})
    quotient = lines[1]["ms_per_token"] / lines[0]["ms_per_token"]
    return [*lines, {"kind": "quotient", "rows": rows, "ms_per_token": round(quotient, 4)}]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    config = EngineConfig(device_type=options.device, max_batch_size=options.rows)
    with pipeline(options.model, config) as pipe:
        for line in measure(pipe, rows=options.rows, tokens=options.tokens, rounds=options.rounds):
            print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
