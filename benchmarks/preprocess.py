"""Pictures per second on one core, from decoded pixels to the tower's input, beside Transformers' image processor.

    python benchmarks/preprocess.py [--only FAMILY ...] [--seconds 1.0] [--plot FILE.png]

For the families of `published_models.py`, with a published model's settings and pictures of several sizes. *ours*
settles a picture's size, resizes it and makes the tower's uint8 pixels or patches. The tower's device normalizes them;
where it is the CPU, the picture takes the time of *normalized*. *on_gpu* is the host's part where a GPU resizes.
*transformers* is the family's image processor of Transformers with its default backend, from a PIL image to normalized
tensors; where the model has only code beside its weights, the plain one of `tests/reference`. All take turns, picture
by picture. Times are processor time, the least of each way, so that they depend little on what else the machine does.

Prints a JSON line for each family and size, and at the end the architectures of which no model is there
(`not_measured`). `ratio` is how many times as many normalized pictures we make per second. Ends with status 1 if that
is below 1 for any size: seesay is never slower.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from published import Published, make_processor, open_family
from published_models import MODELS, list_others

from seesay.bench.plotting import add_plot_option, make_bars, save_plot
from seesay.encoders.towers.layers import PixelNormalizer
from seesay.encoders.towers.tiles import scale_whole
from seesay.values import DecodedMedia, Modality
from seesay.vl.family import Family, Features

SIZES: Mapping[str, tuple[int, int]] = {
    "photo 1024x768": (768, 1024),
    "page 1275x1650": (1650, 1275),
    "square 448x448": (448, 448),
    "panorama 2048x512": (512, 2048),
    "icon 64x64": (64, 64),
}
"""(height, width) in pixels."""


def draw_pixels(size: tuple[int, int], seed: int = 0) -> np.ndarray[Any, Any]:
    """Smooth colours with noise: uint8 [height, width, 3]."""
    height, width = size
    noise = np.random.default_rng(seed).integers(0, 120, (height, width, 3))
    slope = np.linspace(0, 120, height)[:, None, None] + np.linspace(0, 15, width)[:, None]
    return (noise + slope).astype(np.uint8)


def make_ours(family: Family, pixels: np.ndarray[Any, Any]) -> Callable[[], Features]:
    """Return what preprocesses a picture as the media frontend does."""
    media = DecodedMedia(modality=Modality.IMAGE, frames=pixels[None], digest=bytes(32))

    def run() -> Features:
        return family.preprocess(media, family.measure(Modality.IMAGE, media.size, {}))

    return run


def make_normalized(model: Published, family: Family, pixels: np.ndarray[Any, Any]) -> Callable[[], torch.Tensor]:
    """Return what preprocesses a picture, and normalizes it as a tower on the CPU does."""
    settings, run = (model.in_transformers or model).image_processor, make_ours(family, pixels)
    normalize = PixelNormalizer(mean=settings["image_mean"], std=settings["image_std"], rescale_factor=1 / 255)

    def run_and_normalize() -> torch.Tensor:
        features = run()
        made = torch.from_numpy(features["pixels"])
        if made.dim() == 2:  # patches, laid out as (channel, frame, y, x)
            return normalize(made.view(len(made), 3, -1), channel_dim=1)
        tiles = normalize(made, channel_dim=-1)
        return torch.cat((scale_whole(tiles, features["joined"]), tiles)) if "joined" in features else tiles

    return run_and_normalize


def make_theirs(model: Published, pixels: np.ndarray[Any, Any]) -> Callable[[], object]:
    """Return what preprocesses a picture as Transformers does."""
    process, image = make_processor(model), Image.fromarray(pixels)
    return lambda: process([image])


def time_in_turns(ways: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Return the least processor seconds of each way; each is called once before."""
    for way in ways:
        way()
    times: list[list[float]] = [[] for _ in ways]
    started = time.process_time()
    while len(times[0]) < 3 or time.process_time() - started < seconds:
        for way, own in zip(ways, times, strict=True):
            at = time.process_time()
            way()
            own.append(time.process_time() - at)
    return list(map(min, times))


def measure(name: str, model: Published, seconds: float, sizes: Mapping[str, tuple[int, int]]) -> list[dict[str, Any]]:
    """Print and return the figures of a family."""
    ours, on_gpu = open_family(model), open_family(model)
    on_gpu.resizes_on_device = True
    records = []
    for shown, size in sizes.items():
        pixels = draw_pixels(size)
        ways = {
            "ours": make_ours(ours, pixels),
            "normalized": make_normalized(model, ours, pixels),
            "on_gpu": make_ours(on_gpu, pixels),
            "transformers": make_theirs(model, pixels),
        }
        times = dict(zip(ways, time_in_turns(list(ways.values()), seconds), strict=True))
        record = {
            "family": name,
            "picture": shown,
            **{f"{way}_per_s": round(1 / spent, 1) for way, spent in times.items()},
            "ratio": round(times["transformers"] / times["normalized"], 2),
        }
        print(json.dumps(record), flush=True)
        records.append(record)
    return records


def main(argv: Sequence[str] | None = None) -> int:
    """Print the figures. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=MODELS, default=list(MODELS), metavar="FAMILY")
    parser.add_argument("--seconds", type=float, default=1.0, help="for each size of each family")
    add_plot_option(parser)
    options = parser.parse_args(argv)
    torch.set_num_threads(1)
    records = [record for name in options.only for record in measure(name, MODELS[name], options.seconds, SIZES)]
    slower = [f"{record['family']} ({record['picture']})" for record in records if record["ratio"] < 1]
    least = min(record["ratio"] for record in records)
    print(json.dumps({"least_ratio": least, "slower": slower, "not_measured": list_others()}))
    if options.plot is not None:
        series = {
            "normalized_per_s": "seesay",
            "ours_per_s": "seesay, not normalized",
            "transformers_per_s": "Transformers",
        }
        bars = [{**record, "name": f"{record['family']}, {record['picture']}"} for record in records]
        save_plot(options.plot, "Preprocessing on one core", [make_bars("pictures per second", bars, "name", series)])
    return bool(slower)


if __name__ == "__main__":
    raise SystemExit(main())
