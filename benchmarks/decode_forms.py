"""Milliseconds per step of a decoder in several forms: as it is, through Transformers' modules, quantized.

    python benchmarks/decode_forms.py MODEL_DIR [--forms plain,modules,fp8] [--other NAME=MODEL_DIR]
        [--batches 1,8,64] [--tokens 256] [--device auto]

*plain* is the model as its family computes it, *modules* the same weights through Transformers' own modules, any other
form a value of `EngineConfig.quantization`; `--other` adds another folder, such as a checkpoint of the same sizes with
fewer bits. Each form is opened in turn. *start* is seconds from then to a first answer; *decode* takes prompts of
twelve words, each row its own, and is what each of the last tokens of an answer takes more, the best of two. *quotient*
is a form's time per step over that of *plain*. Tokens are drawn, so that rows differ: greedy answers of a model with
random weights soon have the same tokens, whose experts are the same few.

Prints a line `RESULT {JSON}` per figure.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from typing import Any

from h200 import open_pipeline, report, run

from seesay import GenerationConfig, Pipeline
from seesay.bench import workload

PROMPT_WORDS, SHORT_TOKENS = 12, 2
_MODULES = "seesay.vl.modules.module_family.ModuleTextFamily"


def make_options(model: str, form: str, *, architecture: str) -> dict[str, Any]:
    """Return the options of `open_pipeline` for a form of the model in the folder `model`."""
    if form == "plain":
        return {"model": model}
    if form == "modules":
        return {"model": model, "custom_module_map": {architecture: _MODULES}}
    return {"model": model, "quantization": form}


def read_architecture(model: str) -> str:
    from seesay.checkpoint import Checkpoint

    return Checkpoint.load_config(model).architecture


def measure_decode(pipe: Pipeline, batch: int, num_tokens: int) -> float:
    """Return the milliseconds per step of `batch` answers at once."""

    def time_s(num_output_tokens: int, seed: int) -> float:
        prompts = [text for text, _, _ in workload.text_requests(batch, PROMPT_WORDS, seed=seed)]
        fixed: dict[str, Any] = {"max_new_tokens": num_output_tokens, "min_new_tokens": num_output_tokens}
        configs = [
            GenerationConfig(do_sample=True, top_k=0, random_seed=row, ignore_eos=True, **fixed) for row in range(batch)
        ]
        started_s = time.perf_counter()
        answers = pipe(prompts, gen_config=configs)
        seconds = time.perf_counter() - started_s
        assert all(len(answer.token_ids) == num_output_tokens for answer in answers)
        return seconds

    short_s, long_s = (
        min(time_s(count, 100 * seed + count) for seed in (3, 4)) for count in (SHORT_TOKENS, SHORT_TOKENS + num_tokens)
    )
    return round(1e3 * (long_s - short_s) / num_tokens, 3)


def measure(forms: Mapping[str, Mapping[str, Any]], batches: Sequence[int], num_tokens: int, device: str) -> None:
    """Measure each form, by its options; the first one is what the others are divided by."""
    first: dict[int, float] = {}
    for form, options in forms.items():
        started_s = time.perf_counter()
        with open_pipeline(**options, device_type=device) as pipe:
            run(pipe, workload.text_requests(1, PROMPT_WORDS, 8, seed=1))
            report(what="start", form=form, seconds=round(time.perf_counter() - started_s, 1))
            for batch in batches:
                ms = measure_decode(pipe, batch, num_tokens)
                quotient = round(ms / first.setdefault(batch, ms), 3)
                report(what="decode", form=form, batch=batch, ms_per_step=ms, quotient=quotient)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--forms", default="plain,modules,fp8", help="with commas")
    parser.add_argument("--other", action="append", default=[], metavar="NAME=MODEL_DIR")
    parser.add_argument("--batches", default="1,8,64", help="with commas")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--device", default="auto")
    args = parser.parse_args(argv)
    architecture = read_architecture(args.model)
    names = args.forms.split(",")
    forms = {name: make_options(args.model, name, architecture=architecture) for name in names}
    forms |= {name: {"model": folder} for name, _, folder in (text.partition("=") for text in args.other)}
    measure(forms, [int(text) for text in args.batches.split(",")], args.tokens, args.device)


if __name__ == "__main__":
    main()
