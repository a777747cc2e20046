"""Videos written with PyAV, read by both backends."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from pairs import parametrize_sweep
from PIL import Image

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, MissingExtraError, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.load import load_image, load_video
from seesay.processors.media.video import video_av, video_file
from seesay.processors.media.video.frame_sampling import FrameSampling
from seesay.processors.media.video.video_decord import DecordReader
from seesay.processors.media.video.video_file import VideoFile
from seesay.values import VideoFrames

if TYPE_CHECKING:
    from processors.conftest import Frames, Site

BACKENDS = ("decord", "av")
# kind, codec, whether decord reads it
CONTAINERS = [
    ("mp4", "libx264", True),
    ("mov", "mpeg4", True),
    ("matroska", "libx264", True),
    ("webm", "libvpx-vp9", True),
    ("avi", "mpeg4", True),
    ("mpegts", "mpeg2video", False),
    ("flv", "libx264", True),
    ("mp4", "libx265", True),
]


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Only this package reads videos. The tests write theirs with PyAV."""
    if request.param == "decord":
        monkeypatch.setattr(video_file, "has_pyav", lambda: False)
    else:
        monkeypatch.setitem(sys.modules, "decord", None)
    return request.param


def greys(frames: np.ndarray) -> np.ndarray:
    """The grey of each frame, away from the white corner."""
    return np.asarray(frames[:, -12:, -12:].mean(axis=(1, 2, 3)))


def check(video: Any, expected: np.ndarray, indices: list[int], fps: float, tolerance: float = 3) -> None:
    assert video.frames.dtype == np.uint8 and video.frames.shape[1:] == expected.shape[1:]
    np.testing.assert_allclose(greys(video.frames), greys(expected[indices]), atol=tolerance)
    np.testing.assert_allclose(video.timestamps_s, np.array(indices) / fps, atol=0.02)
    assert video.frames[:, :8, :8].min() > 235  # upright: the white corner is at the top left


def test_samples_by_fps(backend: Any, video_bytes: bytes, video_frames: Frames) -> None:
    # 30 frames in 3 s: 2 per second are 6.
    check(load_video(video_bytes), video_frames, [0, 6, 12, 17, 23, 29], 10)
    check(load_video(video_bytes, fps=1), video_frames, [0, 10, 19, 29], 10)
    assert len(load_video(video_bytes, fps=100).frames) == 30
    assert len(load_video(video_bytes, fps=100, max_frames=9).frames) == 8


def test_samples_by_number(backend: Any, video_bytes: bytes, video_frames: Frames) -> None:
    for count in (1, 2, 3, 7, 30):
        indices = np.rint(np.linspace(0, 29, count)).astype(int).tolist()
        check(load_video(video_bytes, num_frames=count), video_frames, indices, 10)
    assert len(load_video(video_bytes, num_frames=100).frames) == 30


def test_long_videos_are_jumped_through(backend: Any, encode_video: Callable[..., bytes], video_frames: Frames) -> None:
    frames = np.repeat(video_frames[:, :32, :32], 8, axis=0)
    for options in ({"g": "12"}, {"g": "48", "bf": "3"}, {"g": "300"}):
        video = load_video(encode_video(frames, **options), num_frames=5)
        np.testing.assert_allclose(greys(video.frames), greys(frames[[0, 60, 120, 179, 239]]), atol=3)


@pytest.mark.parametrize(("kind", "codec", "by_decord"), CONTAINERS)
def test_containers(
    backend: Any, encode_video: Callable[..., bytes], video_frames: Frames, kind: str, codec: str, by_decord: bool
) -> None:
    data = encode_video(video_frames, kind=kind, codec=codec)
    if backend == "decord" and not by_decord:
        assert "PyAV can" in refusal(data).message
        return
    video = load_video(data, num_frames=4)
    np.testing.assert_allclose(greys(video.frames), greys(video_frames[[0, 10, 19, 29]]), atol=8)
    np.testing.assert_allclose(video.timestamps_s, [0, 1, 1.9, 2.9], atol=0.11)


def test_backends_agree(video_bytes: bytes) -> None:
    readers: list[Any] = [
        video_av.AvReader(video_bytes, "mov", video_av.list_packets(video_bytes, "mov"), max_pixels=1 << 20),
        DecordReader(video_bytes, "mov"),
    ]
    assert readers[0].info == readers[1].info
    frames, others = (r.read(np.arange(0, 30, 4), (48, 64)) for r in readers)
    np.testing.assert_array_equal(frames, others)
    np.testing.assert_allclose(readers[0].times_s(), readers[1].times_s(), atol=1e-5)


def turn_track(data: bytes, matrix: list[int]) -> bytes:
    """The MP4 with its track header's matrix replaced, as a phone that was held so writes it."""
    start = data.index(b"tkhd") + 4 + 40
    return data[:start] + b"".join(int(v * 65536).to_bytes(4, "big", signed=True) for v in matrix) + data[start + 36 :]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_turned_videos_are_upright(
    backend: Any, encode_video: Callable[..., bytes], video_frames: Frames, turns: int
) -> None:
    matrices = {1: [0, 1, 0, -1, 0, 0, 48, 0], 2: [-1, 0, 0, 0, -1, 0, 64, 48], 3: [0, -1, 0, 1, 0, 0, 0, 64]}
    # The matrix turns clockwise, so what was stored is the upright video turned the other way.
    stored = np.ascontiguousarray(np.rot90(video_frames, turns, axes=(1, 2)))
    data = turn_track(encode_video(stored), [*matrices[turns], 16384])
    check(load_video(data, num_frames=3), video_frames, [0, 14, 29], 10)


def test_the_rate_of_the_file_is_kept(backend: Any, video_bytes: bytes) -> None:
    video = load_video(video_bytes, num_frames=3)
    assert video.source_fps == pytest.approx(10)
    assert load_video(video, num_frames=2).source_fps == video.source_fps


def test_sources(backend: Any, video_bytes: bytes, video_frames: Frames, tmp_path: Path, site: Site) -> None:
    path = tmp_path / "video.mp4"
    path.write_bytes(video_bytes)
    limits = MediaLimits(allow_private_hosts=True)
    text = base64.b64encode(video_bytes).decode()
    for source in (
        path,
        str(path),
        video_bytes,
        text,
        f"data:video/mp4;base64,{text}",
        site.serve("/c.mp4", video_bytes),
    ):
        check(load_video(source, num_frames=2, limits=limits), video_frames, [0, 29], 10)


def test_large_videos_are_scaled_down(backend: Any, video_bytes: bytes) -> None:
    video = load_video(video_bytes, num_frames=10, limits=MediaLimits(max_clip_pixels=10 * 24 * 32))
    assert video.frames.shape == (10, 24, 32, 3)


def refusal(source: object, **limits: Any) -> RequestError:
    with pytest.raises(RequestError) as raised:
        load_video(source, limits=MediaLimits(**limits))
    return raised.value


def test_limits(backend: Any, video_bytes: bytes) -> None:
    for limits, name in (({"max_pixels": 48 * 64 - 1}, "max_pixels"), ({"max_duration_s": 2.5}, "max_duration_s")):
        error = refusal(video_bytes, **limits)
        assert error.code is ErrorCode.MEDIA_TOO_LARGE and name in error.message
    assert len(load_video(video_bytes, fps=30, limits=MediaLimits(max_frames=7)).frames) == 6


def test_limits_hold_before_decoding(monkeypatch: pytest.MonkeyPatch, video_bytes: bytes) -> None:
    import decord

    for module, reader in ((decord, "VideoReader"), (video_av, "AvReader")):
        monkeypatch.setattr(module, reader, lambda *_, **__: pytest.fail("was decoded"))
    for limits in ({"max_pixels": 100}, {"max_duration_s": 1}):
        assert refusal(video_bytes, **limits).code is ErrorCode.MEDIA_TOO_LARGE


def test_broken_videos(backend: Any, video_bytes: bytes) -> None:
    for data in (video_bytes[: len(video_bytes) // 2], video_bytes[:40], b"\x1a\x45\xdf\xa3" + bytes(100)):
        assert refusal(data).code is ErrorCode.INVALID_MEDIA


def test_a_video_that_is_cut_off_in_its_middle(
    backend: Any, encode_video: Callable[..., bytes], video_frames: Frames
) -> None:
    """The header promises more frames than there are: as many come as can be read, or the reason why not."""
    data = encode_video(video_frames, kind="matroska", g="5")
    for share in (0.3, 0.6, 0.9):
        try:
            frames = load_video(data[: int(len(data) * share)], num_frames=3).frames
        except RequestError as error:
            assert error.code is ErrorCode.INVALID_MEDIA
        else:
            assert frames.shape == (3, 48, 64, 3)


def test_playlists_and_other_files_are_refused(encode: Callable[..., bytes], picture: Frames) -> None:
    playlist = b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n"
    for data in (playlist, b"ffconcat version 1.0\nfile /etc/passwd\n", b"", encode(picture), b"text"):
        error = refusal(data)
        assert error.code is ErrorCode.INVALID_MEDIA and "known kind" in error.message


def test_decord_sees_no_video_where_pyav_is(monkeypatch: pytest.MonkeyPatch, video_bytes: bytes) -> None:
    """Damaged files crash decord, and the process with it."""
    import decord

    monkeypatch.setattr(decord, "VideoReader", lambda *_, **__: pytest.fail("decord was asked"))
    assert len(load_video(video_bytes, num_frames=2).frames) == 2
    damaged = bytearray(video_bytes)
    damaged[50:400] = bytes(350)
    assert refusal(bytes(damaged)).code is ErrorCode.INVALID_MEDIA


def test_decord_alone(monkeypatch: pytest.MonkeyPatch, video_bytes: bytes, video_frames: Frames) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    check(load_video(video_bytes, num_frames=2), video_frames, [0, 29], 10)
    assert refusal(video_bytes, max_pixels=100).code is ErrorCode.MEDIA_TOO_LARGE


def test_neither_backend(monkeypatch: pytest.MonkeyPatch, video_bytes: bytes) -> None:
    monkeypatch.setitem(sys.modules, "decord", None)
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingExtraError, match=r"\[video\]"):
        load_video(video_bytes)


def test_given_frames(video_frames: Frames, encode: Callable[..., bytes], tmp_path: Path) -> None:
    path = tmp_path / "frame.png"
    path.write_bytes(encode(video_frames[4]))
    mixed = [video_frames[0], Image.fromarray(video_frames[1]), encode(video_frames[2]), video_frames[3], str(path)]
    for source in (mixed, tuple(mixed), video_frames[:5]):
        video = load_video(source)
        np.testing.assert_array_equal(video.frames, video_frames[:5])
        assert video.timestamps_s == (0.0, 0.5, 1.0, 1.5, 2.0)
    video = load_video(video_frames, num_frames=3, limits=MediaLimits(max_frames=3))
    np.testing.assert_array_equal(video.frames, video_frames[[0, 14, 29]])
    assert load_video(video_frames[:3], fps=10).timestamps_s == (0.0, 0.1, 0.2)
    assert load_video(load_video(video_frames[:3], fps=10)).timestamps_s == (0.0, 0.1, 0.2)


def test_fewer_of_the_given_frames(video_frames: Frames) -> None:
    cases: tuple[tuple[dict[str, Any], list[int]], ...] = (
        ({"max_frames": 3}, [0, 14, 29]),
        ({"max_frames": 100}, list(range(30))),
        ({"sample_fps": 10, "video_start": 1, "video_end": 1.5}, list(range(10, 16))),
        ({"sample_fps": 10, "video_end": 0.25, "num_frames": 2}, [0, 2]),
    )
    for options, taken in cases:
        loaded = load_video(video_frames, **options)
        np.testing.assert_array_equal(loaded.frames, video_frames[taken])
        rate = options.get("sample_fps", 2.0)
        assert loaded.timestamps_s == tuple(np.array(taken) / rate)
    again = load_video(load_video(video_frames, fps=10), video_start=2)
    assert again.timestamps_s == tuple(np.arange(20, 30) / 10)
    assert again.frame_interval_s == pytest.approx(0.1)
    assert again.source_fps == 10 and load_video(again, num_frames=2).source_fps == 10
    wrong: tuple[tuple[dict[str, Any], str], ...] = (
        ({"fps": 1, "sample_fps": 1}, "sample_fps"),
        ({"video_start": 15}, "video_start"),
    )
    with pytest.raises(RequestError, match="30 frames and 1 times"):
        load_video(VideoFrames(frames=video_frames, timestamps_s=(0.0,), frame_interval_s=1.0))
    for options, param in wrong:
        with pytest.raises(RequestError) as raised:
            load_video(video_frames, **options)
        assert raised.value.param == param


def test_a_part_of_a_video(backend: Any, video_bytes: bytes, video_frames: Frames) -> None:
    """Times are those of the whole video."""
    check(load_video(video_bytes, video_start=1, video_end=2, num_frames=3), video_frames, [10, 15, 20], 10)
    check(load_video(video_bytes, video_start=1.2), video_frames, [12, 18, 23, 29], 10)
    assert size_of(video_bytes, video_start=1.2) == (4, 48, 64)
    with pytest.raises(RequestError, match=r"last one is shown at 2\.9 s"):
        load_video(video_bytes, video_start=3)
    with pytest.raises(RequestError, match="one by one: use fps"):
        load_video(video_bytes, sample_fps=3)


def test_given_frames_that_are_refused(video_frames: Frames) -> None:
    assert "empty" in refusal([]).message
    assert refusal(list(video_frames), max_frames=20).code is ErrorCode.MEDIA_TOO_LARGE
    assert refusal(list(video_frames), max_clip_pixels=100).code is ErrorCode.MEDIA_TOO_LARGE
    assert "frame 1 is 32x48" in refusal([video_frames[0], video_frames[1][:, :32]]).message
    assert refusal(video_frames[:2, :0]).code is ErrorCode.INVALID_MEDIA
    assert refusal([video_frames[0].astype(float)]).code is ErrorCode.INVALID_MEDIA


def test_gif(encode: Callable[..., bytes], video_frames: Frames) -> None:
    images = [Image.fromarray(frame) for frame in video_frames[:10]]
    data = encode(images[0], "GIF", save_all=True, append_images=images[1:], duration=100)
    video = load_video(data, num_frames=3)
    np.testing.assert_allclose(greys(video.frames), greys(video_frames[[0, 4, 9]]), atol=4)
    assert load_image(data).size == (64, 48)


def size_of(data: bytes, limits: MediaLimits = MediaLimits(), **options: Any) -> tuple[int, int, int]:  # noqa: B008
    """(frames, height, width) as PyAV tells them before anything is decoded, whatever reads the video."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(video_file, "has_pyav", lambda: True)
        size = VideoFile(data, FrameSampling.checked(**options), allowance=Allowance(limits), name="it").size()
    assert size is not None
    return size.num_frames, size.height, size.width


SAMPLINGS = ({"num_frames": 5}, {"fps": 1}, {"fps": 2.0}, {"max_frames": 4}, {"fps": 8.0}, {"num_frames": 500})
UNEVEN = {
    "fast_then_slow": [i * 40 for i in range(60)] + [2400 + i * 520 for i in range(20)],
    "slow_then_fast": [i * 520 for i in range(20)] + [10400 + i * 40 for i in range(60)],
    "one_long": [i * 40 for i in range(30)] + [9000],
    "bursts": [second * 1000 + i * 40 for second in range(8) for i in range(5)],
}


# --- headers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "codec", "_"), CONTAINERS, ids=str)
def test_sizes_are_read_without_decoding(
    encode_video: Callable[..., bytes], video_frames: Frames, kind: str, codec: str, _: bool
) -> None:
    data = encode_video(video_frames, kind=kind, codec=codec)
    for options in SAMPLINGS:
        assert size_of(data, **options) == load_video(data, **options).frames.shape[:3], options


@parametrize_sweep(container=CONTAINERS, pattern=UNEVEN)
def test_frames_of_uneven_rates_are_counted(
    backend: Any, encode_video: Callable[..., bytes], video_frames: Frames, container: tuple[Any, ...], pattern: str
) -> None:
    """Headers tell the rate that most frames have, or the shortest step. What is counted before decoding is what
    comes, and seconds are those of the video."""
    kind, codec, *_ = container
    times_ms = UNEVEN[pattern]
    frames = np.resize(video_frames[:, :32, :32], (len(times_ms), 32, 32, 3))
    data = encode_video(frames, kind=kind, codec=codec, times_ms=times_ms)
    if backend == "decord" and kind == "mpegts":
        return
    for options in SAMPLINGS:
        video = load_video(data, **options)
        assert size_of(data, **options) == video.frames.shape[:3], options
        duration_s = video.frame_interval_s * len(video.frames)
        assert times_ms[-1] / 1000 - 0.1 <= duration_s <= times_ms[-1] / 1000 * (1 + 2 / len(times_ms)) + 0.6
    assert len(load_video(data).frames) == min(len(times_ms), times_ms[-1] // 1000 * 2) // 2 * 2


def test_sizes_follow_the_limits(video_bytes: bytes) -> None:
    limits = MediaLimits(max_clip_pixels=10 * 24 * 32)
    assert size_of(video_bytes, limits=limits, num_frames=10)[1:] == (24, 32)
    for tight in (MediaLimits(max_duration_s=2), MediaLimits(max_pixels=1000)):
        with pytest.raises(RequestError) as raised:
            size_of(video_bytes, limits=tight)
        assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE


def test_without_a_header_reader_decoding_tells(video_bytes: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "av", None)
    assert VideoFile(video_bytes, FrameSampling.checked(), allowance=Allowance(MediaLimits()), name="it").size() is None
    assert len(load_video(video_bytes, num_frames=3).frames) == 3
