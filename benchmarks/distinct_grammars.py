"""Time per token of many answers at once that each follow a grammar of their own, beside the same answers without.

    python benchmarks/distinct_grammars.py MODEL_DIR [--rows 256] [--tokens 128] [--rounds 3] [--device auto]

Each row has another grammar: a third of them JSON Schemas, a third regular expressions, a third recursive ones. None
of them ends before the answer does. The first round of each kind warms up, and compiles the grammars. Each other one
asks for answers of `--tokens`, and for twice as many: the time per token is what each token more takes, without the
prompts. Prints a JSON line for each kind, with the median over the rounds of the milliseconds per token, and of the
seconds of the shorter answers as a whole, and one with the quotients of both.
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


def run_round(pipe: Pipeline, configs: Sequence[GenerationConfig]) -> float:
    """Return the seconds of a round. Raises AssertionError where an answer is short."""
    started_s = time.perf_counter()
    answers = pipe([PROMPT] * len(configs), gen_config=configs)
    seconds = time.perf_counter() - started_s
    for answer, config in zip(answers, configs, strict=True):
        assert len(answer.token_ids) == config.max_new_tokens, answer
    return seconds


def measure(pipe: Pipeline, *, rows: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    """Return the figures of answers without and with grammars, and the quotients."""
    lines: list[dict[str, Any]] = []
    for kind in ("plain", "grammars"):
        short, long = (make_configs(rows, count, has_grammars=kind == "grammars") for count in (tokens, 2 * tokens))
        first_s = run_round(pipe, short)
        found = [(run_round(pipe, short), run_round(pipe, long)) for _ in range(rounds)]
        per_token_s = statistics.median(long_s - short_s for short_s, long_s in found) / tokens
        line = {"kind": kind, "rows": rows, "first_round_s": round(first_s, 3)}
        line["seconds"] = round(statistics.median(short_s for short_s, _ in found), 4)
        lines.append(line | {"ms_per_token": round(1e3 * per_token_s, 4)})
    plain, grammars = lines
    quotients = {name: round(grammars[name] / plain[name], 4) for name in ("ms_per_token", "seconds")}
    return [*lines, {"kind": "quotient", "rows": rows} | quotients]


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
