"""What is decoded of a video, and what is left of one that is damaged."""

from __future__ import annotations

import io
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import av
import numpy as np
import pytest

from seesay.config import MediaLimits
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.load import load_video
from seesay.processors.media.open import open_media
from seesay.processors.media.video import video_file
from seesay.processors.media.video.video_av import AvReader, list_packets
from seesay.values import Modality

if TYPE_CHECKING:
    from processors.conftest import Frames

NUM_FRAMES = 300
WANTED = [0, 100, 199, 299]


@pytest.fixture(scope="module")
def ramp() -> Frames:
    """300 frames of greys that only grow, so that a wrong frame shows."""
    greys = np.linspace(16, 235, NUM_FRAMES).astype(np.uint8)
    return np.broadcast_to(greys[:, None, None, None], (NUM_FRAMES, 32, 32, 3)).copy()


@pytest.fixture(params=["decord", "av"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "decord":
        monkeypatch.setattr(video_file, "has_pyav", lambda: False)
    return request.param


def greys(frames: np.ndarray) -> np.ndarray:
    return np.asarray(frames.mean(axis=(1, 2, 3)))


@pytest.mark.parametrize(
    ("codec", "options"),
    [
        ("libx264", {"g": "25"}),
        ("libx264", {"g": "25", "pixels": "yuv420p10le"}),
        ("libx264", {"g": "25", "x264-params": "open-gop=1:bframes=3"}),
        ("libx265", {"g": "25"}),  # open groups of pictures: frames before a key frame come after it
        ("libx265", {"g": "25", "pixels": "yuv420p10le"}),
        ("libsvtav1", {"g": "25"}),
    ],
    ids=str,
)
def test_every_backend_takes_the_same_frames(
    backend: str, encode_video: Callable[..., bytes], ramp: Frames, codec: str, options: dict[str, str]
) -> None:
    data = encode_video(ramp, codec=codec, **options)
    if backend == "decord" and codec == "libsvtav1":
        with pytest.raises(RequestError, match="cannot be decoded"):
            load_video(data)
        return
    video = load_video(data, num_frames=4)
    np.testing.assert_allclose(greys(video.frames), greys(ramp[WANTED]), atol=4)
    np.testing.assert_allclose(video.timestamps_s, np.array(WANTED) / 10, atol=0.01)


def count_decoded(data: bytes, kind: str, indices: list[int], monkeypatch: pytest.MonkeyPatch) -> int:
    """The frames that PyAV decodes to take `indices`."""
    decoded = 0
    real = av.open

    class Counted:
        """A container whose packets count what they decode."""

        def __init__(self, container: Any) -> None:
            self._container = container

        def __getattr__(self, name: str) -> Any:
            return getattr(self._container, name)

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *error: object) -> None:
            self._container.close()

        def demux(self, stream: Any) -> Any:
            return map(CountedPacket, self._container.demux(stream))

    class CountedPacket:
        def __init__(self, packet: Any) -> None:
            self._packet = packet

        def __getattr__(self, name: str) -> Any:
            return getattr(self._packet, name)

        def decode(self) -> Any:
            nonlocal decoded
            decoded += self._packet.size > 0
            return self._packet.decode()

    reader = AvReader(data, kind, list_packets(data, kind), max_pixels=1 << 20)
    monkeypatch.setattr(av, "open", lambda *args, **options: Counted(real(*args, **options)))
    reader.read(np.array(indices), (32, 32))
    monkeypatch.undo()
    assert list_packets(data, kind).plan_skips(np.array(indices))[1] <= decoded, "a decoder has a delay"
    return decoded


@pytest.mark.parametrize(
    ("kind", "container", "codec"),
    [
        ("mp4", "mov", "libx264"),
        ("matroska", "matroska", "libx264"),
        ("mpegts", "mpegts", "libx264"),
        ("flv", "flv", "libx264"),
        ("avi", "avi", "mpeg4"),
    ],
)
def test_only_groups_with_wanted_frames_are_decoded(
    encode_video: Callable[..., bytes], ramp: Frames, kind: str, container: str, codec: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Also in containers without an index: what lies between is read, and not decoded."""
    data = encode_video(ramp, kind=kind, codec=codec, g="20")
    assert count_decoded(data, container, [0, 145, 299], monkeypatch) <= 1 + 2 * 20 + 12, "each group, and a delay"
    video = load_video(data, num_frames=4)
    np.testing.assert_allclose(greys(video.frames), greys(ramp[WANTED]), atol=4)


def test_a_live_recording_without_an_index(ramp: Frames) -> None:
    """As browsers record: no duration, no cues."""

    class Pipe(io.RawIOBase):
        """A file that cannot be changed once it is written."""

        def __init__(self) -> None:
            self.written = io.BytesIO()

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            return self.written.write(bytes(data))

    pipe = Pipe()
    with av.open(pipe, "w", format="webm", options={"live": "1"}) as container:
        stream = container.add_stream("libvpx", rate=10, options={"g": "25"})
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        for frame in ramp:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode(None))
    video = load_video(pipe.written.getvalue(), num_frames=4)
    np.testing.assert_allclose(greys(video.frames), greys(ramp[WANTED]), atol=4)
    np.testing.assert_allclose(video.timestamps_s, np.array(WANTED) / 10, atol=0.01)


# --- damage ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def fast_start(ramp: Frames, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """An MP4 whose index comes first, as players of the web need it."""
    path = tmp_path_factory.mktemp("video") / "fast.mp4"
    with av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as container:
        stream = container.add_stream("libx264", rate=10, options={"g": "25"})
        stream.height, stream.width, stream.pix_fmt = 32, 32, "yuv420p"
        rng = np.random.default_rng(0)
        for frame in ramp:
            noisy = (frame + rng.integers(0, 12, frame.shape)).astype(np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(noisy, format="rgb24")))
        container.mux(stream.encode(None))
    return path.read_bytes()


def check_beginning(video: Any, ramp: Frames, share: float) -> None:
    """The frames are those that are shown at their times, from the beginning to about `share` of the video."""
    numbers = np.rint(np.array(video.timestamps_s) * 10).astype(int)
    assert numbers[0] == 0 and share - 0.15 <= numbers[-1] / NUM_FRAMES <= share + 0.05, numbers
    np.testing.assert_allclose(greys(video.frames), greys(ramp[numbers]) + 5.5, atol=6)
    assert video.frame_interval_s * len(video.frames) == pytest.approx(numbers[-1] / 10, abs=0.2)


@pytest.mark.parametrize("share", [0.5, 0.8, 0.97])
def test_a_video_that_is_cut_off_ends_there(fast_start: bytes, ramp: Frames, share: float) -> None:
    head = fast_start.index(b"mdat")
    data = fast_start[: head + int((len(fast_start) - head) * share)]
    for options in ({"num_frames": 6}, {"fps": 2.0}):
        check_beginning(load_video(data, **options), ramp, share)


def test_a_damaged_video_ends_where_it_is_damaged(fast_start: bytes, ramp: Frames, tmp_path: Path) -> None:
    damaged = bytearray(fast_start)
    head = fast_start.index(b"mdat")
    start = head + (len(fast_start) - head) // 2
    damaged[start:] = bytes(byte ^ 0x5A for byte in damaged[start:])
    path = tmp_path / "damaged.mp4"
    path.write_bytes(damaged)
    check_beginning(load_video(path, num_frames=6), ramp, 0.5)


def test_a_video_without_its_index_is_one_clear_error(video_bytes: bytes) -> None:
    """An MP4 that was cut off before the index at its end."""
    with pytest.raises(RequestError, match="damaged or cut off") as raised:
        load_video(video_bytes[: len(video_bytes) // 2])
    assert raised.value.code is ErrorCode.INVALID_MEDIA
    assert "Errno" not in raised.value.message and "<none>" not in raised.value.message


def test_random_damage_is_an_answer_or_an_error(encode_video: Callable[..., bytes], ramp: Frames) -> None:
    rng = np.random.default_rng(1)
    for kind, codec in (("mp4", "libx264"), ("matroska", "libx264"), ("mpegts", "mpeg2video"), ("avi", "mpeg4")):
        data = encode_video(ramp[::5], kind=kind, codec=codec, g="10")
        for _ in range(12):
            damaged = bytearray(data)
            for position in rng.integers(0, len(data), 3):
                damaged[position] = rng.integers(0, 256)
            try:
                video = load_video(bytes(damaged), num_frames=4)
            except RequestError as error:
                assert error.code in (ErrorCode.INVALID_MEDIA, ErrorCode.MEDIA_TOO_LARGE), error
            else:
                assert video.frames.shape[0] == len(video.timestamps_s) <= 4


# --- limits ----------------------------------------------------------------------------------------------------------


def write_growing(small: int, large: int) -> bytes:
    """An MPEG-TS whose header shows frames of side `small`; those of the second half have side `large`."""
    packets = []
    for side in (small, large):
        encoder = av.CodecContext.create("libx264", "w")
        encoder.width = encoder.height = side
        encoder.pix_fmt, encoder.time_base, encoder.framerate = "yuv420p", Fraction(1, 10), 10
        frames = [
            av.VideoFrame.from_ndarray(np.full((side, side, 3), 100, np.uint8), format="rgb24") for _ in range(20)
        ]
        packets += [packet for frame in [*frames, None] for packet in encoder.encode(frame)]
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.width = stream.height = small
        stream.pix_fmt = "yuv420p"
        for index, packet in enumerate(packets):
            packet.pts = packet.dts = index
            packet.time_base, packet.stream = Fraction(1, 10), stream
            container.mux(packet)
    return file.getvalue()


def test_frames_that_grow_in_the_middle_stay_within_the_limit() -> None:
    data = write_growing(64, 512)
    assert load_video(data, num_frames=40).frames.shape == (40, 64, 64, 3)
    assert len(load_video(data, num_frames=40, limits=MediaLimits(max_pixels=512 * 512 - 1)).frames) < 25


def test_what_must_be_decoded_is_limited(encode_video: Callable[..., bytes], ramp: Frames, backend: str) -> None:
    """A single key frame: its last frame takes all frames before it."""
    data = encode_video(ramp, g="1000", sc_threshold="0")
    limits = MediaLimits(max_decoded_pixels=NUM_FRAMES * 32 * 32 - 1)
    for options in ({"num_frames": 2}, {"video_start": 29.8}):
        with pytest.raises(RequestError, match="takes too long to decode") as raised:
            load_video(data, limits=limits, **options)
        assert raised.value.code is ErrorCode.MEDIA_TOO_LARGE
    assert len(load_video(data, limits=limits, num_frames=2, video_end=20).frames) == 2
    if backend == "av":
        assert len(load_video(encode_video(ramp, g="20"), limits=limits, num_frames=2).frames) == 2


def test_several_videos_share_what_may_be_decoded(encode_video: Callable[..., bytes], ramp: Frames) -> None:
    data = encode_video(ramp, g="1000", sc_threshold="0")
    allowance = Allowance(MediaLimits(max_decoded_pixels=3 * NUM_FRAMES * 32 * 32))
    videos = [open_media(Modality.VIDEO, data, {"num_frames": 2}, allowance) for _ in range(4)]
    for video in videos[:3]:
        assert video.size() == video.size() == video.decode().size, "paid for once"
    with pytest.raises(RequestError, match="takes too long to decode"):
        videos[3].size()
