"""`seesay bench …`: measure an engine or a server."""

from __future__ import annotations

from seesay.commands.bench import bench_latency, bench_serve, bench_throughput
from seesay.commands.command import Command

COMMAND = Command(
    name="bench",
    summary="measure an engine, or any OpenAI-compatible server",
    children=(bench_throughput.COMMAND, bench_latency.COMMAND, bench_serve.COMMAND),
    examples="""\
  seesay bench throughput Qwen/Qwen2.5-VL-7B-Instruct --dataset-name random-image
  seesay bench latency Qwen/Qwen2.5-VL-7B-Instruct --concurrency 1 16 64
  seesay bench serve --base-url http://localhost:23333 --request-rate 8
""",
)
