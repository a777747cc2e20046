"""Runs seeds of the simulation: `python tests/simulation/run.py --seeds 200000 --workers 2`, or `--seed 17` alone."""

from __future__ import annotations

import argparse
import logging
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from simulation.world import simulate  # noqa: E402  (the path comes first)

CHUNK = 200


def run_seeds(first: int, stop: int) -> list[tuple[int, str]]:
    """Run seeds; return those that fail, with their tracebacks."""
    logging.getLogger("seesay").setLevel(logging.CRITICAL + 1)
    failed = []
    for seed in range(first, stop):
        try:
            simulate(seed)
        except Exception:
            failed.append((seed, traceback.format_exc()))
    return failed


def main() -> int:
    """Run the seeds that the command line names. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, help="run this one alone, with its log")
    options = parser.parse_args()
    if options.seed is not None:
        logging.basicConfig(level=logging.INFO)
        simulate(options.seed)
        return 0
    started_s, failed, num_done = time.monotonic(), list[tuple[int, str]](), 0
    stop = options.first + options.seeds
    with ProcessPoolExecutor(options.workers) as workers:
        starts = range(options.first, stop, CHUNK)
        for found in workers.map(run_seeds, starts, [min(start + CHUNK, stop) for start in starts]):
            num_done += CHUNK
            for seed, text in found:
                print(f"seed {seed}: python {Path(__file__).relative_to(ROOT)} --seed {seed}\n{text}", flush=True)
            failed += found
            if num_done % 10_000 == 0:
                print(f"{num_done} seeds, {len(failed)} failed, {time.monotonic() - started_s:.0f} s", flush=True)
    print(f"{options.seeds} seeds, {len(failed)} failed: {[seed for seed, _ in failed][:20]}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
