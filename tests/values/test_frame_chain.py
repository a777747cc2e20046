"""Chains of steps: as values, and run on a device as on the host. On a GPU the tests run as they are, elsewhere those
of kernels in Triton's interpreter: `kernels/test_interpreter.py` runs this file."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from family_contract import IMAGE, VIDEO, load_family, plan
from PIL import Image
from triton_cases import DEVICE, MARKS, runs_here

from seesay.encoders.device_chain import ChainRunner, compile_chains
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.host_chain import run_chains
from seesay.values import MediaSize
from seesay.values.frame_chain import (
    Chain,
    Crop,
    Library,
    Pad,
    Patches,
    Resize,
    Size,
    Split,
    Tiles,
    Transpose,
    crop_center,
    measure_peak,
    pack,
    pad_to,
    unpack,
)

pytestmark = MARKS
PATCHES = Patches((2, 3), (2, 1), 1)


def draw_chain(rng: random.Random, size: Size) -> Chain:
    """Steps of all kinds; the last one, and sometimes one before, gives patches of 2 x 3 pixels."""
    steps: list[Any] = []
    for _ in range(rng.randint(0, 5)):
        kind = rng.choice(["resize", "pad", "crop", "turn", "split", "emit"])
        height, width = size
        if kind == "resize":
            new = rng.choice([size, (height, rng.randint(1, 24)), (rng.randint(1, 24), rng.randint(1, 24))])
            library: Library = rng.choice(["torchvision", "pillow"])
            steps.append(Resize(new, rng.choice(["bilinear", "bicubic", "lanczos"]), library))
        elif kind == "pad":
            above, left = rng.randint(0, 5), rng.randint(0, 5)
            target = (height + above + rng.randint(0, 5), width + left + rng.randint(0, 5))
            steps.append(Pad(target, (above, left), (255, 7, rng.randint(0, 255))))
        elif kind == "crop":
            at = (rng.randrange(height), rng.randrange(width))
            steps.append(Crop((rng.randint(1, height), rng.randint(1, width)), at))
        elif kind == "turn":
            steps.append(Transpose())
        elif kind == "split":
            steps.append(Split((height // (2 - height % 2), width // (2 - width % 2))))
        else:
            steps += [Resize((8, 12), "bicubic"), PATCHES]
        size = steps[-1].measure((8, 12) if kind == "emit" else size)
    return (*steps, Resize((rng.randint(1, 3) * 4, rng.randint(1, 4) * 3), "bicubic"), PATCHES)


@runs_here
@pytest.mark.parametrize("seed", [*range(8), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(8, 16))])
def test_a_device_makes_of_a_chain_what_the_host_makes(seed: int) -> None:
    """Random steps, bit for bit."""
    rng = random.Random(seed)
    size = (rng.randint(1, 24), rng.randint(1, 24))
    count = rng.choice([1, 1, 3])
    frames = np.random.default_rng(seed).integers(0, 256, (count, *size, 3), dtype=np.uint8)
    chains = tuple(draw_chain(rng, size) for _ in range(rng.randint(1, 3)))
    program = compile_chains(unpack(pack(chains)), size, (1, 1))
    out = [
        torch.empty(piece.count(count), PATCHES.vector_size, dtype=torch.uint8, device=DEVICE)
        for piece in program.pieces
    ]
    runner = ChainRunner(DEVICE)
    runner.run(program, frames, runner.levels, out)
    assert np.array_equal(torch.cat(out).cpu().numpy(), run_chains(frames, chains)), chains


@runs_here
@pytest.mark.parametrize("resample", ["bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize(
    ("size", "new"), [((40, 60), (24, 33)), ((16, 20), (40, 60)), ((420, 4), (36, 9)), ((30, 9), (30, 6))]
)
def test_a_device_resizes_as_pillow_does(size: Size, new: Size, resample: Any) -> None:
    """Bit for bit; of a very thin picture the rows first."""
    frames = np.random.default_rng(1).integers(0, 256, (1, *size, 3), dtype=np.uint8)
    chains = ((Resize(new, resample, "pillow"), Patches((1, 1), (1, 1), 1)),)
    program = compile_chains(chains, size, (1, 1))
    out = [torch.empty(math.prod(new), 3, dtype=torch.uint8, device=DEVICE)]
    runner = ChainRunner(DEVICE)
    runner.run(program, frames, runner.levels, out)
    theirs = np.asarray(Image.fromarray(frames[0]).resize(new[::-1], Image.Resampling[resample.upper()]))
    assert np.array_equal(out[0].cpu().numpy().reshape(*new, 3), theirs)


@runs_here
def test_a_tower_does_not_see_what_lies_behind_the_last_patch_of_a_tile() -> None:
    frames = np.random.default_rng(0).integers(0, 256, (1, 31, 20, 3), dtype=np.uint8)
    chains = ((Resize((22, 33), "bicubic"), Tiles((11, 11))),)
    program = compile_chains(chains, (31, 20), (3, 2))
    out = [torch.empty(piece.count(1), 18, dtype=torch.uint8, device=DEVICE) for piece in program.pieces]
    runner = ChainRunner(DEVICE)
    runner.run(program, frames, runner.levels, out)
    tiles = run_chains(frames, chains)[:, :9, :10]
    seen = tiles.reshape(6, 3, 3, 5, 2, 3).transpose(0, 1, 3, 5, 2, 4).reshape(-1, 18)
    assert np.array_equal(out[0].cpu().numpy(), seen)


def test_chains_cross_to_other_processes() -> None:
    chains = (
        (
            Transpose(),
            Resize((3, 4), "lanczos", "pillow"),
            Pad((5, 5), (1, 0), (1, 2, 3)),
            Crop((4, 4), (0, 1)),
            Split((2, 2)),
        ),
        (Tiles((7, 8)), PATCHES),
    )
    crossed = msgspec.msgpack.decode(msgspec.msgpack.encode(pack(chains)))

    def tuples(value: Any) -> Any:
        return tuple(map(tuples, value)) if isinstance(value, list) else value

    assert unpack(tuples(crossed)) == chains and hash(unpack(tuples(crossed))) == hash(chains)


def test_the_peak_is_known_before_anything_is_allocated() -> None:
    """Between the two passes of a resizing, too, and with its table of weights."""
    resize = Resize((500, 300), "bicubic")
    assert measure_peak(((resize,),), (400, 100)) == 500 * 300
    assert measure_peak(((resize,),), (2000, 100)) == 2000 * 300
    assert measure_peak(((Transpose(), resize),), (100, 2000)) == 2000 * 300
    assert measure_peak(((Resize((1, 1), "bicubic"),),), (1, 10**6)) == 16 * 10**6
    assert measure_peak(((Resize((9, 9), "bicubic"), Pad((900, 900), (0, 0), (0, 0, 0))),), (9, 9)) == 900**2


def test_pieces_of_chains() -> None:
    assert pad_to((3, 4), (3, 4), (0, 0, 0)) == () and crop_center((3, 4), (3, 4)) == ()
    assert pad_to((3, 4), (8, 4), (9, 9, 9)) == (Pad((8, 4), (2, 0), (9, 9, 9)),)
    assert crop_center((5, 2), (3, 4)) == (Pad((5, 4), (0, 1), (0, 0, 0)), Crop((3, 4), (1, 0)))


@pytest.mark.parametrize("name", ["internvl", "llava", "idefics3", "gemma3_vision"])
def test_a_thin_picture_that_becomes_wide_is_refused(tiny_checkpoint: Callable[[str], Path], name: str) -> None:
    """Before it is decoded: between two steps it would take many times its own memory."""
    family, _ = load_family(tiny_checkpoint(name))
    size = MediaSize(num_frames=1, height=50_000_000, width=1)
    with pytest.raises(RequestError, match=r"1x50000000 pixels and 1 frames would take .* crop or pad") as raised:
        plan(family, IMAGE, size)
    assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE
    if VIDEO in family.modalities:
        frames = MediaSize(num_frames=700, height=500_000, width=1, timestamps_s=tuple(range(700)))
        with pytest.raises(RequestError, match="ask for fewer frames"):
            plan(family, VIDEO, frames)
    assert plan(family, IMAGE, MediaSize(num_frames=1, height=12_000, width=15_000)).peak_pixels >= 12_000 * 15_000
