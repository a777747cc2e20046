"""Media of a request on their way in: what is refused before a pixel is decoded, and what one request may take."""

from __future__ import annotations

import io
import queue
import struct
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from asking import ask, collect, make_picture, parse
from family_contract import load_family
from PIL import Image, ImageFile

from seesay.config import EngineConfig, GenerationConfig, MediaLimits, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError, ErrorCode, RequestError
from seesay.processors.media.load import load_image
from seesay.processors.media.video.video_file import VideoFile
from seesay.values import GenerationRequest, MediaPart, Modality
from seesay.vl.families.qwen2_5_vl import Qwen2_5VL
from seesay.vl.media.media_batch import MediaBatch
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.media.pixel_gate import PixelGate
from seesay.vl.prompts.prompt import TokenizedPrompt, build_input
from seesay.vl.utils import encode_image_base64

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO


def encode(image: Image.Image, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind)
    return buffer.getvalue()


def make_bomb(width: int, height: int) -> bytes:
    """A grey PNG of very many equal pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    packer = zlib.compressobj(9)
    rows = b"".join([*(packer.compress(bytes(1 + width // 8)) for _ in range(height)), packer.flush()])
    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(device_type="cpu", block_size=16, session_len=200)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        yield engine


@pytest.fixture
def make_front(engine: AsyncEngine) -> Iterator[Callable[..., MediaFrontend]]:
    made: list[MediaFrontend] = []

    def make(**limits: Any) -> MediaFrontend:
        made.append(MediaFrontend(engine.family, VisionConfig(), MediaLimits(**limits)))
        return made[-1]

    yield make
    for front in made:
        front.close()


@pytest.fixture
def no_decoding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever decodes a pixel fails."""

    def fail(*_: object) -> None:
        raise AssertionError("a pixel was decoded")

    monkeypatch.setattr(ImageFile.ImageFile, "load", fail)
    monkeypatch.setattr(VideoFile, "frames", fail)


def images(*sources: Any) -> list[MediaPart]:
    return [MediaPart(modality=IMAGE, source=source) for source in sources]


def refusal(front: MediaFrontend, media: list[MediaPart]) -> RequestError:
    with pytest.raises(RequestError) as raised:
        front.open(media)
    return raised.value


# --- before a pixel is decoded ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_a_huge_picture_in_a_small_file_is_not_decoded(
    make_front: Callable[..., MediaFrontend], no_decoding: None
) -> None:
    bomb = make_bomb(10_000, 10_000)
    assert len(bomb) < 30_000
    front = make_front(max_pixels=50_000_000)
    error = refusal(front, images(bomb))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and "10000x10000" in error.message


def test_too_long_contexts_are_refused_before_decoding(engine: AsyncEngine, no_decoding: None) -> None:
    """Both numbers are told: the prompt's tokens, text and media, and what there is room for."""
    pictures = [encode(make_picture(112, 112, seed)) for seed in range(3)]
    [refused] = ask(engine, parse([("what are these?", pictures)], max_new_tokens=3))
    assert isinstance(refused.error, RequestError) and refused.error.code is ErrorCode.CONTEXT_TOO_LONG
    request = parse([("what are these?", pictures)])[0]
    count = engine.count_tokens(request)
    assert count > 200 and str(count) in refused.error.message and "200" in refused.error.message
    assert engine.stats().total_step_tokens == 0


def test_each_item_is_checked_planned_and_preprocessed_once(
    engine: AsyncEngine, make_front: Callable[..., MediaFrontend], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the options of the request to the tower's input, and to the prompt that holds its place."""
    family = engine.family
    calls: list[str] = []

    def record(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def recorded(*args: Any) -> Any:
            calls.append(name)
            return call(*args)

        return recorded

    for name in ("resolve_options", "measure", "expand", "num_units", "media_key", "preprocess"):
        monkeypatch.setattr(family, name, record(name, getattr(family, name)))
    front = make_front()
    prepared = front.prepare(front.open(images(encode(make_picture(50, 31, 1)))))
    tokens = TokenizedPrompt(token_ids=np.asarray([5, 6]), ranges=((0, 1),))
    made = build_input(tokens, prepared, family=family, model_digest=bytes(32))
    assert len(made.token_ids) == 1 + prepared[0].plan.num_tokens
    assert calls == ["resolve_options", "media_key", "measure", "num_units", "expand", "preprocess"]


def test_a_header_that_tells_another_size_is_not_believed(make_front: Callable[..., MediaFrontend]) -> None:
    """A PNG may carry its orientation behind its pixels: tokens are those of the decoded picture."""
    upright = encode(make_picture(40, 90, 1))
    exif = Image.Exif()
    exif[0x0112] = 6
    body = exif.tobytes().removeprefix(b"Exif\0\0")
    chunk = struct.pack(">I", len(body)) + b"eXIf" + body + struct.pack(">I", zlib.crc32(b"eXIf" + body))
    end = upright.index(b"IEND") - 4
    turned = upright[:end] + chunk + upright[end:]
    front = make_front()
    opened = front.open(images(turned))
    [prepared] = front.prepare(opened)
    assert opened.items[0].size != prepared.size and (prepared.size.height, prepared.size.width) == (90, 40)
    [expected] = front.prepare(front.open(images(make_picture(40, 90, 1).rotate(270, expand=True))))
    assert prepared.key == expected.key and prepared.plan.measures == expected.plan.measures


def test_counted_tokens_are_those_of_the_prompt(engine: AsyncEngine) -> None:
    frames = [make_picture(30, 44, seed) for seed in range(4)]
    video = [{"type": "video", "video": frames, "fps": 2.0}, {"type": "text", "text": "what moves?"}]
    prompts = [
        "the frame in the game",
        ("what is it?", make_picture(50, 31, 1)),
        ("and these?", [encode(make_picture(20, 90, 2)), make_picture(40, 40, 3)]),
        [{"role": "user", "content": video}],
    ]
    requests = parse(prompts, max_new_tokens=1)
    requests.append(GenerationRequest(prompt=(5, 6, 7), gen_config=GenerationConfig(max_new_tokens=1)))
    for request, answer in zip(requests, ask(engine, requests), strict=True):
        assert answer.error is None
        assert engine.count_tokens(request) == answer.input_token_len


def test_counted_tokens_of_an_uneven_video(engine: AsyncEngine) -> None:
    """Most frames within one second, one after nine: a header tells 225 frames, and the video has 26."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="matroska") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = 32, 48, "yuv420p"
        for index in [*range(25), 225]:
            frame = av.VideoFrame.from_ndarray(np.full((32, 48, 3), index, np.uint8), format="rgb24")
            frame.pts, frame.time_base = index, Fraction(1, 25)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    for options in ({}, {"fps": 1}, {"num_frames": 20}, {"num_frames": 100}, {"fps": 4}):
        video = {"type": "video", "video": buffer.getvalue(), "max_pixels": 400, **options}
        [request] = parse([[{"role": "user", "content": [video, "what?"]}]], max_new_tokens=1)
        [answer] = ask(engine, [request])
        assert answer.error is None and engine.count_tokens(request) == answer.input_token_len, options
    [seen] = answer.media
    assert seen.num_frames == 26


def test_options_are_checked_before_anything_is_fetched(make_front: Callable[..., MediaFrontend]) -> None:
    part = MediaPart(modality=IMAGE, source="http://nowhere.invalid/x.png", options={"max_dynamic_patch": 2})
    assert "max_dynamic_patch" in refusal(make_front(), [part]).message


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_picture_that_was_loaded_is_the_one_of_its_file(
    make_front: Callable[..., MediaFrontend], tmp_path: Path, orientation: int
) -> None:
    """A path, an opened image and `load_image` of it: one content, turned upright once. The same for frames."""
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.jpg"
    make_picture(60, 90, 1).save(path, exif=exif)
    loaded = load_image(path)
    url = f"data:image/jpeg;base64,{encode_image_base64(path)}"
    sources = [path, str(path), path.read_bytes(), url, Image.open(path), loaded]
    sources += [encode_image_base64(loaded), encode_image_base64(Image.open(path))]
    front = make_front()
    prepared = front.prepare(front.open(images(*sources)))
    assert len({item.key for item in prepared}) == 1
    expected = (90, 60) if orientation > 4 else (60, 90)
    assert {(item.size.height, item.size.width) for item in prepared} == {expected}
    videos = [MediaPart(modality=VIDEO, source=[source] * 4) for source in (path, Image.open(path), loaded)]
    assert len({item.key for item in front.prepare(front.open(videos))}) == 1


def test_what_becomes_of_transparency(engine: AsyncEngine) -> None:
    """Decided by the item, else by the configuration, and part of every key that finds a picture again."""
    rgba = np.random.default_rng(0).integers(0, 256, (40, 60, 4), dtype=np.uint8)
    flat = {"drop": rgba[..., :3].copy(), "white": np.asarray(load_image(rgba))}
    for default in ("white", "drop"):
        front = MediaFrontend(engine.family, VisionConfig(transparency=default), MediaLimits())
        for source in (encode(Image.fromarray(rgba)), Image.fromarray(rgba), rgba):
            options: list[dict[str, Any]] = [{}, {"transparency": "white"}, {"transparency": "drop"}] * 2
            parts = [MediaPart(modality=IMAGE, source=source, options=chosen) for chosen in options]
            expected = [flat[chosen.get("transparency", default)] for chosen in options]
            keys = [item.key for item in front.prepare(front.open(images(*expected)))]
            # Alone, all in one call that shares what is equal, and as frames.
            assert [front.prepare(front.open([part]))[0].key for part in parts] == keys
            batch = MediaBatch()
            assert [item.key for item in front.prepare(front.open(parts), batch)] == keys
            for chosen, pixels in zip(options, expected):
                videos = [MediaPart(modality=VIDEO, source=[source] * 4, options=chosen)]
                videos += [MediaPart(modality=VIDEO, source=[pixels] * 4)]
                given, flattened = front.prepare(front.open(videos))
                assert given.key == flattened.key
        front.close()


def test_an_unknown_transparency_is_refused(make_front: Callable[..., MediaFrontend]) -> None:
    part = MediaPart(modality=IMAGE, source=b"", options={"transparency": ["white"]})
    error = refusal(make_front(), [part])
    assert error.param == "transparency" and "must be 'white' or 'drop'" in error.message
    with pytest.raises(ConfigError, match="transparency"):
        VisionConfig(transparency="black")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["qwen2_5_vl", "internvl"])
def test_default_sampling_follows_the_limits(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """A family's defaults are lowered to what is allowed; what a request asks for is refused."""
    front = MediaFrontend(load_family(tiny_checkpoint(name))[0], VisionConfig(), MediaLimits(max_frames=3))
    buffer = io.BytesIO()
    first, *others = (make_picture(48, 64, seed) for seed in range(40))
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=200)
    part = MediaPart(modality=VIDEO, source=buffer.getvalue())
    [prepared] = front.prepare(front.open([part]))
    assert prepared.size.num_frames in (2, 3)
    for options in ({"num_frames": 8}, {"max_frames": 8}, {"fps": 2.0, "max_frames": 8}):
        assert "MediaLimits.max_frames" in refusal(front, [replace(part, options=options)]).message
    front.close()


# --- what a request may take ------------------------------------------------------------------------------------------


def test_numbers_of_items_bytes_and_pixels(make_front: Callable[..., MediaFrontend], no_decoding: None) -> None:
    small = encode(make_picture(20, 20, 1))
    assert "2 pictures and videos, more than 1" in refusal(make_front(max_items=1), images(small, small)).message
    limit = 2 * len(small) + 10
    front = make_front(max_total_bytes=limit)
    front.open(images(small, small))
    error = refusal(front, images(small, small, small))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and "max_total_bytes" in error.message
    front = make_front(max_total_pixels=1000)
    front.open(images(small, small))
    assert "max_total_pixels" in refusal(front, images(small, small, small)).message
    frames = MediaPart(modality=VIDEO, source=np.zeros((3, 20, 20, 3), np.uint8))
    assert "max_total_pixels" in refusal(front, [frames]).message


@contextmanager
def slow_site(body: bytes, wait: Callable[[], object]) -> Iterator[str]:
    """A server on loopback that answers each request when `wait` has returned."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            wait()
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/picture.png"
    server.shutdown()
    server.server_close()


def test_one_deadline_for_all_media(make_front: Callable[..., MediaFrontend]) -> None:
    """Frames of a video are fetched one after the other: each is in time, all together are not."""
    asked: list[float] = []

    def wait() -> None:
        asked.append(time.monotonic())
        time.sleep(0.2)

    with slow_site(encode(make_picture(20, 20, 1)), wait) as url:
        front = make_front(allow_private_hosts=True, timeout_s=0.7)
        error = refusal(front, [MediaPart(modality=VIDEO, source=[url] * 6)])
        assert error.code is ErrorCode.MEDIA_UNREACHABLE and "within 0.7 s" in error.message
        assert len(asked) <= 4, "the fifth would begin when the time is over"


def test_pictures_are_fetched_at_the_same_time(make_front: Callable[..., MediaFrontend]) -> None:
    """None is answered before all of them were asked for."""
    barrier = threading.Barrier(6)
    with slow_site(encode(make_picture(20, 20, 1)), barrier.wait) as url:
        front = make_front(allow_private_hosts=True, timeout_s=60)
        counts = {item.num_tokens for item in front.open(images(*[url] * 6)).items}
        assert len(counts) == 1 and None not in counts


def test_slow_servers_hold_up_nobody_else(tiny_checkpoint: Callable[[str], Path]) -> None:
    """More slow requests than threads that decode, whose server answers when the others have their answers: text and
    pictures at hand pass them."""
    limits = MediaLimits(allow_private_hosts=True, timeout_s=60)
    config = EngineConfig(device_type="cpu", block_size=16)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    may_answer, num_slow = threading.Event(), 8
    asked = threading.Semaphore(0)

    def wait() -> None:
        asked.release()
        may_answer.wait()

    with (
        slow_site(encode(make_picture(20, 20, 1)), wait) as url,
        AsyncEngine(
            path, backend_config=config, media_limits=limits, vision_config=VisionConfig(thread_num=4)
        ) as engine,
    ):
        slow: queue.SimpleQueue[Any] = queue.SimpleQueue()
        engine.submit_batch(parse([("what?", url)] * num_slow, max_new_tokens=1), slow.put)
        for _ in range(num_slow):
            assert asked.acquire(timeout=60)
        answers = ask_only(engine, ["hello", ("what is it?", make_picture(30, 30, 1))])
        assert all(answer.finish_reason == "length" for answer in answers) and slow.empty()
        time.sleep(0.2)
        may_answer.set()
        finals = [slow.get(timeout=60) for _ in range(num_slow)]
        assert {delta.finish_reason for delta in finals} == {"length"}
        assert all(delta.timings.fetch_s >= 0.2 for delta in finals)


def ask_only(engine: AsyncEngine, prompts: list[Any]) -> list[Any]:
    """The final deltas, without waiting for other requests to be prepared."""
    finals: list[Any] = []
    is_done = threading.Event()

    def take(delta: Any) -> None:
        if delta.finish_reason:
            finals.append(delta)
            if len(finals) == len(prompts):
                is_done.set()

    engine.submit_batch(parse(prompts, max_new_tokens=1, ignore_eos=True), take)
    assert is_done.wait(60)
    return finals


def test_large_pictures_are_decoded_alone_and_in_order() -> None:
    gate = PixelGate(100)
    inside: list[int] = []
    seen: list[list[int]] = []
    order: list[int] = []
    lock = threading.Lock()
    all_wait = threading.Event()
    last_two = threading.Barrier(2)

    def decode(number: int, num_pixels: int | None) -> None:
        with gate.passing(num_pixels):
            with lock:
                inside.append(number)
                order.append(number)
                seen.append(sorted(inside))
            if number < 2:
                assert all_wait.wait(60)
            elif number > 4:
                last_two.wait(60)  # each waits until the other is inside, too
            with lock:
                inside.remove(number)

    threads = []
    for number, num_pixels in enumerate((40, 60, 1000, 30, None, 50, 50)):
        threads.append(threading.Thread(target=decode, args=(number, num_pixels)))
        threads[-1].start()
        while len(order) + len(gate._waiting) <= number or (number < 2 and number not in order):
            time.sleep(0.001)
    all_wait.set()
    for thread in threads:
        thread.join(60)
    assert not last_two.broken and not inside
    assert order == list(range(7)), "a large one is not passed for ever"
    assert [0, 1] in seen and [5, 6] in seen
    assert all(group == [number] for group in seen for number in (2, 4) if number in group)


def test_the_gate_opens_after_an_error() -> None:
    gate = PixelGate(10)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), gate.passing(10):
            raise ZeroDivisionError


# --- what is told about it --------------------------------------------------------------------------------------------


def test_reports_tell_sizes_and_caches(engine: AsyncEngine) -> None:
    first, second = make_picture(61, 47, 11), make_picture(28, 90, 12)
    [once] = ask(engine, parse([("what?", [first, second])], max_new_tokens=2))
    assert [report.is_cached for report in once.media] == [False, False]
    assert [(report.height, report.width) for report in once.media] == [(61, 47), (28, 90)]
    assert isinstance(engine.family, Qwen2_5VL)
    for report in once.media:
        patch = engine.family.settings[IMAGE].patch_size
        assert report.num_patches == report.resized_height * report.resized_width // patch**2
        assert report.num_tokens == report.num_patches // 4 and report.num_tiles == 1
    assert once.usage is not None
    assert once.usage.media_tokens == sum(report.num_tokens for report in once.media)
    third = make_picture(33, 33, 13)
    [again] = ask(engine, parse([("now?", [third, first])], max_new_tokens=2))
    assert [report.is_cached for report in again.media] == [False, True]
    same = collect(engine, parse([("now?", [third, first])], max_new_tokens=2))[0]
    assert [report.is_cached for report in same[-1].media] == [True, True]
    assert all(not delta.media for delta in same[:-1])


def test_reports_tell_which_frames_of_a_video_were_taken(engine: AsyncEngine) -> None:
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=10)
        stream.height, stream.width, stream.pix_fmt = 48, 64, "yuv420p"
        for number in range(40):
            shade = np.full((48, 64, 3), 6 * number, dtype=np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(shade, format="rgb24")))
        container.mux(stream.encode(None))
    video = {"type": "video", "video": buffer.getvalue(), "num_frames": 4}
    picture = {"type": "image", "image": make_picture(30, 30, 1)}
    for is_cached in (False, True):
        [answer] = ask(engine, parse([[{"role": "user", "content": [picture, video, "?"]}]], max_new_tokens=1))
        assert [report.is_cached for report in answer.media] == [is_cached, is_cached]
        assert answer.media[0].timestamps_s == () and answer.media[1].timestamps_s == pytest.approx((0, 1.3, 2.6, 3.9))


def test_salts_and_adapted_towers_have_keys_of_their_own(make_front: Callable[..., MediaFrontend]) -> None:
    """A salt that is spelled like the key of a tower is another one, and both together are a third."""
    front = make_front()
    salts = [{}, {"salt": "1f"}, {"tower_key": "1f"}, {"salt": "1f", "tower_key": "1f"}, {"tower_key": "2f"}]
    part = MediaPart(modality=IMAGE, source=make_picture(30, 40, 1))
    keys = [front.prepare(front.open([part], **salt))[0].key for salt in (*salts, *salts)]  # type: ignore[arg-type]
    assert len({*keys}) == len(salts) and keys[: len(salts)] == keys[len(salts) :]
