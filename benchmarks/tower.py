"""The vision tower's time on the GPU beside its floor.

    python benchmarks/tower.py [MODEL_DIR] [--rounds 10] [--plot FILE.png]

Without MODEL_DIR the tower has the sizes of Qwen2.5-VL-7B and random weights, in bfloat16. *ms* is one call of the
tower on patches that are on the device, for a batch like others before but without a CUDA graph; *host_ms* is the part
of it in which the host queues work, *graph_ms* the call as a graph, *new_ms* a call for a batch of new sizes. The floor
is only the matrix products and the attention that the call cannot avoid, by cuBLAS and `scaled_dot_product_attention`
in CUDA graphs. Two more figures are of the worker that feeds the tower, with different pictures of 1024x1024 as they
were decoded: from submitting one until its embedding is there, and pictures per second of many. Prints one JSON line
per figure.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from triton.testing import do_bench_cudagraph

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.config import VisionConfig
from seesay.encoders.graphs import CALLS_BEFORE
from seesay.encoders.store import EmbeddingStore
from seesay.encoders.towers.layers import PixelNormalizer
from seesay.encoders.towers.packed_layout import Grid, PackedVisionConfig
from seesay.encoders.towers.packed_vit import PackedEncoder, PackedVisionTower
from seesay.encoders.towers.weights import finish_layers
from seesay.encoders.worker import EncoderWorker
from seesay.errors import RequestError
from seesay.values import DecodedMedia, MediaItem, Modality
from seesay.values.frame_chain import Patches, Resize, pack

DEVICE, DTYPE = torch.device("cuda"), torch.bfloat16
NUM_COPIES = 4
"""Weights take turns, so that the cache does not hold them."""
CONFIG = PackedVisionConfig(
    depth=32,
    hidden_size=1280,
    num_heads=16,
    intermediate_size=3420,
    out_hidden_size=3584,
    patch_dim=1176,
    merge_size=2,
    activation="silu",
    uses_rms_norm=True,
    window_size=4,
    full_attention_layers=frozenset((7, 15, 23, 31)),
)
BATCHES: dict[str, list[Grid]] = {
    "1036x1036": [(1, 74, 74)],
    "4 of 1036x1036": [(1, 74, 74)] * 4,
    "8 of 1036x1036": [(1, 74, 74)] * 8,
    "1036x1036, 504x672, 728x364, 448x448": [(1, 74, 74), (1, 36, 48), (1, 52, 26), (1, 32, 32)],
    "448x448": [(1, 32, 32)],
    "8 of 448x448": [(1, 32, 32)] * 8,
    "112x112": [(1, 8, 8)],
    "clip of 16 frames 448x448": [(8, 32, 32)],
}


def load_encoder(model_dir: Path | None) -> PackedEncoder:
    if model_dir is None:
        torch.manual_seed(0)
        with DEVICE:
            tower = PackedVisionTower(CONFIG).to(DTYPE).eval().requires_grad_(False)
        finish_layers(tower)
        return PackedEncoder(tower, PixelNormalizer(mean=(0.48,) * 3, std=(0.27,) * 3, rescale_factor=1 / 255))
    from seesay.checkpoint import Checkpoint
    from seesay.processors.text.tokenizer import Tokenizer
    from seesay.vl.registry import find_family

    checkpoint = Checkpoint.load(model_dir)
    encoder = find_family(checkpoint.architecture, checkpoint.tower_type)(
        checkpoint, Tokenizer.load(model_dir)
    ).build_encoder(DEVICE, DTYPE)
    assert isinstance(encoder, PackedEncoder), "only towers of the Qwen family are measured here"
    return encoder


def measure(run: Callable[[], object], rounds: int) -> tuple[float, float]:
    """Median milliseconds of a call until its result is there, and until the host is free again."""
    whole, host = [], []
    for index in range(rounds + 2):
        torch.cuda.synchronize()
        started_s = time.perf_counter()
        run()
        queued_s = time.perf_counter()
        torch.cuda.synchronize()
        if index >= 2:
            whole.append(1e3 * (time.perf_counter() - started_s))
            host.append(1e3 * (queued_s - started_s))
    return statistics.median(whole), statistics.median(host)


def measure_graph(run: Callable[[], object]) -> float:
    return float(do_bench_cudagraph(run, rep=30, return_mode="median"))


def measure_products(config: PackedVisionConfig, num_patches: int) -> float:
    """Milliseconds of all layers' matrix products."""
    size, inner = config.hidden_size, config.intermediate_size
    first = 2 * inner if config.uses_rms_norm else inner
    total = 0.0
    for out_features, in_features in ((3 * size, size), (size, size), (first, size), (size, inner)):
        x = torch.randn(num_patches, in_features, device=DEVICE, dtype=DTYPE)
        weights = torch.randn(NUM_COPIES, out_features, in_features, device=DEVICE, dtype=DTYPE) * 0.02
        total += measure_graph(partial(_multiply, x, weights)) / NUM_COPIES
    return config.depth * total


def _multiply(x: torch.Tensor, weights: torch.Tensor) -> None:
    for weight in weights:
        F.linear(x, weight)


def measure_attention(config: PackedVisionConfig, lengths: list[int]) -> float:
    """Milliseconds of one layer's attention within segments of these lengths, those of one length at once."""
    total = 0.0
    for length in sorted(set(lengths)):
        shape = (lengths.count(length), config.num_heads, length, config.head_dim)
        query, key, value = torch.randn(3, *shape, device=DEVICE, dtype=DTYPE)
        total += measure_graph(partial(F.scaled_dot_product_attention, query, key, value))
    return total


def measure_floor(config: PackedVisionConfig, grids: list[Grid]) -> float:
    frames = [h * w for t, h, w in grids for _ in range(t)]
    num_patches, num_full = sum(frames), config.depth
    floor = measure_products(config, num_patches)
    if config.window_size is not None:
        window = config.window_size**2 * config.merge_unit
        windows = [window] * (num_patches // window) + [num_patches % window] * (num_patches % window > 0)
        num_full = len(config.full_attention_layers)
        floor += (config.depth - num_full) * measure_attention(config, windows)
    return floor + num_full * measure_attention(config, frames)


def make_items(count: int) -> list[MediaItem]:
    """Random pictures of 1024 x 1024, to be resized to 1036 x 1036 on the GPU."""
    generator = np.random.default_rng(0)
    num_rows = 37 * 37
    items = []
    for _ in range(count):
        frames, digest = generator.integers(0, 256, (1, 1024, 1024, 3), dtype=np.uint8), generator.bytes(32)
        media = DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=digest)
        chain = (Resize((1036, 1036), "bicubic"), Patches((14, 14), (2, 2), 2))
        features = {"frames": media.frames, "chains": pack((chain,))}
        item = MediaItem(
            modality=Modality.IMAGE,
            span=(0, num_rows),
            slots=np.arange(num_rows),
            hash=digest,
            features={**features, "grid": (1, 74, 74)},
            num_units=74 * 74,
        )
        items.append(item)
    return items


class Worker:
    """An encoder's worker, and what it answered."""

    def __init__(self, encoder: PackedEncoder) -> None:
        self._answers: queue.SimpleQueue[RequestError | None] = queue.SimpleQueue()
        self._worker = EncoderWorker(
            encoder,
            EmbeddingStore(1 << 30),
            VisionConfig(),
            embedding_size=encoder.hidden_size,
            on_ready=lambda _key, _timing: self._answers.put(None),
            on_failed=lambda _key, error: self._answers.put(error),
        )

    def encode(self, items: list[MediaItem]) -> float:
        """Milliseconds until the embeddings of all items are there."""
        started_s = time.perf_counter()
        for item in items:
            self._worker.submit(item)
        for _ in items:
            if (error := self._answers.get()) is not None:
                raise error
        return 1e3 * (time.perf_counter() - started_s)

    def close(self) -> None:
        self._worker.close()


def measure_worker(encoder: PackedEncoder) -> None:
    worker, items = Worker(encoder), make_items(80)
    try:
        alone = [worker.encode([item]) for item in items[:16]]
        figure = {"worker": "one picture", "ms": round(statistics.median(alone[8:]), 2), "first_ms": round(alone[0], 2)}
        print(json.dumps(figure), flush=True)
        ms = worker.encode(items[16:])
        print(json.dumps({"worker": "64 pictures at once", "pictures_per_s": round(64e3 / ms, 1)}), flush=True)
    finally:
        worker.close()


@torch.inference_mode()
def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model_dir", nargs="?", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    add_plot_option(parser)
    args = parser.parse_args(argv)
    records = []
    encoder = load_encoder(args.model_dir)
    tower = encoder.tower
    for name, grids in BATCHES.items():
        num_patches = sum(t * h * w for t, h, w in grids)
        patches = torch.randn(num_patches, tower.config.patch_dim, device=DEVICE, dtype=DTYPE)
        compute = partial(tower.plan(tuple(grids), num_before=CALLS_BEFORE), patches)
        whole, host = measure(compute, args.rounds)
        figure = {
            "batch": name,
            "patches": num_patches,
            "ms": round(whole, 2),
            "host_ms": round(host, 2),
            "graph_ms": round(measure_graph(compute), 2),
            "new_ms": round(measure(partial(tower, patches, grids), args.rounds)[0], 2),
            "floor_ms": round(measure_floor(tower.config, grids), 2),
        }
        records.append(figure)
        print(json.dumps(figure), flush=True)
    measure_worker(encoder)
    if args.plot is not None:
        series = {f"{name}_ms": name for name in ("host", "graph", "new", "floor")}
        bars = make_bars("milliseconds of a call", records, "batch", {"ms": "call", **series})
        save_plot(args.plot, "The vision tower", [bars])


if __name__ == "__main__":
    main()
