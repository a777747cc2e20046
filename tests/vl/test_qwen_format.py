"""The content format of qwen-vl-utils, beside the package: which frames are taken, their size and their rate."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from seesay.config import MediaLimits
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.open import DECODE_OPTIONS, open_media
from seesay.values import MediaPart, MediaSize, Modality
from seesay.vl.bases.dynamic_resolution import PatchSettings
from seesay.vl.prompts.conversation_parts import parse_messages

FRAME_SIZE = (240, 320)
# What qwen-vl-utils takes where nothing is said: patches of 14 pixels, two of which are merged in each direction.
SETTINGS = {"size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 768 * 28 * 28}, "patch_size": 14}


@pytest.fixture(scope="module")
def video(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight seconds at 25 frames per second; frame i is of one grey that grows with i."""
    path = tmp_path_factory.mktemp("qwen") / "video.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25, options={"g": "50"})
        stream.height, stream.width, stream.pix_fmt = *FRAME_SIZE, "yuv420p"
        for index in range(200):
            frame = np.full((*FRAME_SIZE, 3), 16 + index, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("frames")
    paths = [folder / f"{index}.png" for index in range(5)]
    for index, path in enumerate(paths):
        Image.new("RGB", FRAME_SIZE[::-1], (index * 40,) * 3).save(path)
    return [f"file://{path}" for path in paths]


def fetch_by_qwen(element: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, float]:
    """Frames [N, 3, H, W] as qwen-vl-utils resizes them, and how many there are per second."""
    qwen = pytest.importorskip("qwen_vl_utils.vision_process")
    monkeypatch.setattr(qwen, "get_video_reader_backend", lambda: "decord")
    frames, rate = qwen.fetch_video(element, return_video_sample_fps=True)
    return frames, rate


def check(element: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    expected, rate = fetch_by_qwen(element, monkeypatch)
    [message] = parse_messages([{"role": "user", "content": [{"type": "video", **element}]}])
    [part] = message.parts
    assert isinstance(part, MediaPart)
    known = DECODE_OPTIONS[Modality.VIDEO]
    chosen = {name: value for name, value in part.options.items() if name in known}
    opened = open_media(Modality.VIDEO, part.source, chosen, Allowance(MediaLimits()))
    size, decoded = opened.size(), opened.decode()
    assert size is not None and size.num_frames == len(decoded.frames)
    num_frames = len(decoded.frames) + len(decoded.frames) % 2  # an odd one is repeated, by our tower's patches
    assert num_frames == len(expected)
    greys = decoded.frames.mean(axis=(1, 2, 3))
    np.testing.assert_allclose(greys, expected.numpy().mean(axis=(1, 2, 3))[: len(greys)], atol=1)
    assert 1 / decoded.frame_interval_s == pytest.approx(rate, rel=0.01)
    settings = PatchSettings.read(SETTINGS, "here", processor="Qwen2VLVideoProcessor", default_size={})
    options = {name: value for name, value in part.options.items() if name not in known}
    assert settings.fit(MediaSize(num_frames=num_frames, height=size.height, width=size.width), options) == tuple(
        expected.shape[2:]
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"fps": 1.0},
        {"fps": 1.0, "max_pixels": 360 * 420},
        {"nframes": 7},
        {"nframes": 5, "min_pixels": 4 * 28 * 28, "max_pixels": 256 * 28 * 28},
        {"min_pixels": 16 * 28 * 28, "total_pixels": 400 * 28 * 28},
        {"fps": 4.0, "total_pixels": 20480 * 28 * 28},
        {"resized_height": 280, "resized_width": 420},
        {"video_start": 2.0, "video_end": 6.0},
        {"video_start": 1.0, "fps": 0.5, "min_frames": 2, "max_frames": 8},
    ],
    ids=str,
)
def test_a_file(video: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    check({"video": str(video), **options}, monkeypatch)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "options", [{}, {"sample_fps": 1.0}, {"sample_fps": 4, "resized_height": 420, "resized_width": 280}], ids=str
)
def test_frames(pictures: list[str], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for frames in (pictures, pictures[:4]):
        check({"video": frames, **options}, monkeypatch)
