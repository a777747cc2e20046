"""How long choosing the next tokens takes on the GPU: kernels beside sorting, what the host spends, what bytes allow.

    python benchmarks/sampling.py [--vocabulary 152064] [--plot FILE.png]

The logits are bfloat16, random with a steep tail as a trained model's, or flat as an untrained one's. `us` is the GPU's
time of one `choose_tokens`, `torch_us` that of the drawing alone by the torch implementation, which sorts, `floor_us`
one reading of the logits at the copy bandwidth. Prints one JSON line per case, medians.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np
import torch

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import BegunSequence, StepPlan
from seesay.llm.running import sampler
from seesay.llm.running.device_rows import DeviceRows, make_draws
from seesay.llm.running.logit_changes import start_counts
from seesay.llm.running.row_table import RowTable
from seesay.llm.running.sampler import choose_tokens
from seesay.llm.running.sampling_row import SamplingRow

CASES = {
    "greedy": SamplingParams(),
    "greedy, banned ids": SamplingParams(bad_token_ids=(3, 4)),
    "greedy, penalties": SamplingParams(repetition_penalty=1.1, presence_penalty=0.5, frequency_penalty=0.2),
    "greedy, logprobs": SamplingParams(logprobs=5),
    "temperature": SamplingParams(greedy=False, temperature=0.7),
    "top-k 50": SamplingParams(greedy=False, top_k=50),
    "top-p 0.9": SamplingParams(greedy=False, top_p=0.9),
    "top-k 50, top-p 0.9, temperature 0.7": SamplingParams(greedy=False, temperature=0.7, top_k=50, top_p=0.9),
}


def make_logits(num_rows: int, size: int, *, is_steep: bool) -> torch.Tensor:
    torch.manual_seed(num_rows)
    logits = torch.randn(num_rows, size, device="cuda")
    if is_steep:
        logits = 2.5 * logits + 1.6 * torch.empty_like(logits).exponential_()
    return logits.bfloat16()


def make_rows(count: int, params: SamplingParams, size: int) -> list[SamplingRow]:
    """Rows of 800 tokens, the last of 200 generated ones pending."""
    rng = np.random.default_rng(0)
    rows = []
    for i in range(count):
        token_ids = rng.integers(0, size, 799)
        counts = start_counts(token_ids[:600], params, size)
        rows.append(
            SamplingRow(seed=i, params=params, token_ids=token_ids, num_generated=200, pending=i, counts=counts)
        )
    return rows


def make_table(count: int, params: SamplingParams) -> tuple[DeviceRows, torch.Tensor, range]:
    """The arguments of `make_draws` for as many rows, of a table with their seeds and options."""
    plan = StepPlan(
        begun=tuple(
            BegunSequence(
                seq_id=i,
                token_ids=np.zeros(600, dtype=np.int64),
                num_prompt_tokens=600,
                positions=np.arange(600),
                next_position=600,
                params=params,
                seed=i,
            )
            for i in range(count)
        )
    )
    table, slots = RowTable(), np.arange(count)
    table.apply(plan)
    rows = DeviceRows(num_slots=count, max_blocks=1, scratch_block=0, device=torch.device("cuda"))
    rows.take(plan, table)
    rows.begin_step(slots, np.full(count, 800))
    return rows, torch.from_numpy(slots).cuda(), range(count)


def measure(run: Callable[[], object], repeats: int = 9) -> tuple[float, float]:
    """Microseconds that one call takes on the GPU, with all of it queued before it begins, and on the host."""
    run()
    gpu, host = [], []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        torch.cuda._sleep(4_000_000)  # type: ignore[no-untyped-call]
        start.record()
        begun = time.perf_counter()
        run()
        host.append((time.perf_counter() - begun) * 1e6)
        end.record()
        torch.cuda.synchronize()
        gpu.append(start.elapsed_time(end) * 1e3)
    return median(gpu), median(host)


def measure_torch(logits: torch.Tensor, params: SamplingParams) -> float:
    """Microseconds of the drawing alone, by sorting."""
    count, size = logits.shape
    points = np.linspace(1, (1 << sampler.POINT_BITS) - 1, count, dtype=np.int64)
    draws = torch.from_numpy(sampler.make_draws(range(count), points, [params] * count)).cuda()
    best, token_ids = logits.max(dim=-1)
    return measure(lambda: sampler.draw_tokens(logits, best, draws, token_ids, most=params.top_k or size), 3)[0]


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocabulary", type=int, default=152064)
    parser.add_argument("--copy-tb-per-s", type=float, default=4.3)
    add_plot_option(parser)
    options = parser.parse_args(argv)
    records: list[dict[str, Any]] = []
    for is_steep in (True, False):
        for count in (1, 64, 256):
            logits = make_logits(count, options.vocabulary, is_steep=is_steep)
            previous = torch.arange(count, device="cuda")
            for name, params in CASES.items():
                rows = dict(enumerate(make_rows(count, params, options.vocabulary)))
                if params.is_plainly_drawn:
                    table = make_table(count, params)
                    gpu_us, host_us = measure(lambda: choose_tokens(logits, {}, draws=make_draws(*table)))  # noqa: B023
                else:
                    gpu_us, host_us = measure(lambda: choose_tokens(logits, rows, previous=previous))  # noqa: B023
                line: dict[str, Any] = {"logits": "steep" if is_steep else "flat", "rows": count, "options": name}
                line |= {"us": round(gpu_us), "host_us": round(host_us)}
                line["floor_us"] = round(2e-6 * count * options.vocabulary / options.copy_tb_per_s, 1)
                if not params.greedy:
                    line["torch_us"] = round(measure_torch(logits, params))
                print(json.dumps(line), flush=True)
                records.append(line)
    if options.plot is not None:
        series = {"us": "GPU", "host_us": "host", "floor_us": "floor", "torch_us": "torch"}
        panels = [
            make_bars(
                f"{logits} logits, {num_rows} rows, us",
                [line for line in records if (line["logits"], line["rows"]) == (logits, num_rows)],
                "options",
                series,
            )
            for logits, num_rows in dict.fromkeys((line["logits"], line["rows"]) for line in records)
        ]
        save_plot(options.plot, "Choosing the next tokens", panels)


if __name__ == "__main__":
    main()
