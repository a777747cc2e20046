"""Time and steps of answers that follow a JSON Schema, beside plain ones, with and without jumps over forced text.

    python benchmarks/structured.py [--model MODEL_DIR] [--rows 1 64] [--rounds 3] [--device auto] [--letters 12]

A round asks for as many answers as there are rows, all at once: *plain* ones of a fixed length without a grammar,
*half* with every second answer an invoice that follows a schema, *all* with invoices alone; at temperature 1, with the
same seeds everywhere. The model is opened twice, without jumps (`jump_ahead=False`) and with them. Prints a JSON line
for each number of rows and kind: medians over the rounds of the seconds of a round, of its steps and tokens, and of the
tokens that took no step of their own.

Where text is forced, both cut it into tokens, but the model may cut it into more of them than the tokenizer does. So
the time of an answer is compared, not that of a token: `s_per_answer`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.demo import CHECKPOINT

KINDS = {"plain": 0, "half": 2, "all": 1}
"""One of so many answers follows the schema; 0: none."""
PLAIN_TOKENS = 100
PROMPT = "Write an invoice over some fruit."


def make_schema(num_letters: int) -> dict[str, Any]:
    """Return a schema of an invoice, whose texts have up to `num_letters` letters."""
    text = {"type": "string", "pattern": f"^[A-Za-z]{{1,{num_letters}}}$"}
    line = {
        "type": "object",
        "properties": {
            "description": text,
            "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
            "unit_price": {"type": "number", "minimum": 0, "maximum": 999, "multipleOf": 0.01},
        },
        "required": ["description", "quantity", "unit_price"],
    }
    fields = {
        "invoice_number": {"type": "integer", "minimum": 1, "maximum": 99999},
        "customer_name": text,
        "billing_address": {
            "type": "object",
            "properties": {"street": text, "city": text, "country_code": {"enum": ["DE", "FR", "NL"]}},
            "required": ["street", "city", "country_code"],
        },
        "line_items": {"type": "array", "items": line, "minItems": 2, "maxItems": 2},
        "payment_terms": {"enum": ["immediately", "within 14 days", "within 30 days"]},
        "is_paid": {"type": "boolean"},
    }
    return {"type": "object", "properties": fields, "required": list(fields)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """num_open: answers that follow the schema and are not complete."""

    seconds: float
    num_steps: int
    num_tokens: int
    num_jumped: int
    num_open: int


def make_configs(kind: str, num_rows: int, seed: int, schema: dict[str, Any]) -> list[GenerationConfig]:
    every = KINDS[kind]
    drawn: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0}
    form = {"type": "json_schema", "json_schema": {"name": "invoice", "schema": schema}}
    return [
        GenerationConfig(response_format=form, max_new_tokens=1024, random_seed=seed + row, **drawn)
        if every and row % every == 0
        else GenerationConfig(max_new_tokens=PLAIN_TOKENS, ignore_eos=True, random_seed=seed + row, **drawn)
        for row in range(num_rows)
    ]


def run_round(pipe: Pipeline, configs: Sequence[GenerationConfig]) -> Round:
    before, started_s = pipe.engine.stats(), time.perf_counter()
    answers = pipe([PROMPT] * len(configs), gen_config=configs)
    seconds, after = time.perf_counter() - started_s, pipe.engine.stats()
    follows = [config.response_format is not None for config in configs]
    for answer, has_form in zip(answers, follows, strict=True):
        assert answer.finish_reason in ("stop", "length"), answer
        if has_form and answer.finish_reason == "stop":
            json.loads(answer.text)
    steps = [sum(number for _, number in stats.step_sizes) for stats in (before, after)]
    return Round(
        seconds=seconds,
        num_steps=steps[1] - steps[0],
        num_tokens=sum(len(answer.token_ids) for answer in answers),
        num_jumped=after.total_jumped_tokens - before.total_jumped_tokens,
        num_open=sum(has_form and answer.finish_reason != "stop" for answer, has_form in zip(answers, follows)),
    )


def measure(
    model: str, *, jumps: bool, rows: Sequence[int], rounds: int, num_letters: int, device: str
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each number of rows and kind. The first round of each warms up."""
    schema = make_schema(num_letters)
    config = EngineConfig(device_type=device, jump_ahead=jumps, max_batch_size=max(rows))
    with pipeline(model, config) as pipe:
        for num_rows in rows:
            for kind in KINDS:
                found = [run_round(pipe, make_configs(kind, num_rows, 1000 * r, schema)) for r in range(rounds + 1)][1:]
                seconds = statistics.median(one.seconds for one in found)
                yield {
                    "rows": num_rows,
                    "kind": kind,
                    "jumps": jumps,
                    "s_per_answer": round(seconds / num_rows, 4),
                    "ms_per_step": round(statistics.median(1e3 * one.seconds / one.num_steps for one in found), 3),
                    "steps": statistics.median(one.num_steps for one in found),
                    "tokens": statistics.median(one.num_tokens for one in found),
                    "jumped_tokens": statistics.median(one.num_jumped for one in found),
                    "open_answers": sum(one.num_open for one in found),
                }


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=str(CHECKPOINT))
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--letters", type=int, default=12, help="letters of a text (default: 12)")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(argv)
    for jumps in (False, True):
        for figures in measure(
            given.model,
            jumps=jumps,
            rows=given.rows,
            rounds=given.rounds,
            num_letters=given.letters,
            device=given.device,
        ):
            print(json.dumps(figures), flush=True)


if __name__ == "__main__":
    main()
