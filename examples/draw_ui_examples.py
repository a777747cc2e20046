"""Draws the example pictures of the WebUI: `python examples/draw_ui_examples.py [FOLDER]`. Needs PyAV for the clip."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import av
from PIL import Image

from seesay.demo.scenes import CLIP_FPS, make_example, sample_scene

FOLDER = Path(__file__).parents[1] / "seesay" / "ui" / "examples"


def save_clip(frames: Sequence[Image.Image], path: Path) -> None:
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=int(CLIP_FPS))
        stream.width, stream.height = frames[0].size
        stream.pix_fmt = "yuv420p"
        stream.options = {"crf": "18", "preset": "veryslow", "tune": "animation"}
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_image(frame.convert("RGB"))))
        container.mux(stream.encode(None))


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    clip = make_example("motion", 1_000_002).clip
    first, second = make_example("compare", 1_000_002).images
    pictures = {
        "shapes": sample_scene(3).images[0],
        "chart": make_example("chart", 1_000_000).images[0],
        "first": first,
        "second": second,
        "motion": clip[2],
    }
    for name, picture in pictures.items():
        picture.save(folder / f"{name}.png", optimize=True)
    save_clip(clip, folder / "motion.mp4")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
