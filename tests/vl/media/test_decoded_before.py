"""Pictures and videos that came before: what is still done for them, and that nothing else changes."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import ask, make_picture, parse
from family_contract import load_family
from PIL import Image

from seesay.config import EngineConfig, MediaLimits, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.processors.media.open import OpenedMedia
from seesay.processors.media.picture import Picture
from seesay.processors.media.video.video_file import VideoFile
from seesay.values import DecodedMedia, MediaPart, MediaSize, Modality
from seesay.vl.family import Family
from seesay.vl.media.decoded_before import SeenContents, SeenMedia
from seesay.vl.media.media_frontend import MediaFrontend
from seesay.vl.media.media_items import PreparedMedia

IMAGE, VIDEO = Modality.IMAGE, Modality.VIDEO


def encode_picture(seed: int, kind: str = "PNG") -> bytes:
    buffer = io.BytesIO()
    make_picture(40, 60, seed).save(buffer, kind)
    return buffer.getvalue()


def encode_video(num_frames: int) -> bytes:
    buffer = io.BytesIO()
    first, *others = (make_picture(48, 64, seed) for seed in range(num_frames))
    first.save(buffer, "GIF", save_all=True, append_images=others, duration=100)
    return buffer.getvalue()


@pytest.fixture(scope="module")
def family(tiny_checkpoint: Callable[[str], Path]) -> Family:
    return load_family(tiny_checkpoint("qwen2_5_vl"))[0]


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[Modality]:
    """What was decoded, in order."""
    seen: list[Modality] = []
    for kind in (Picture, VideoFile):

        def count(opened: OpenedMedia, decode: Callable[[Any], DecodedMedia] = kind.decode) -> DecodedMedia:
            seen.append(opened.modality)
            return decode(opened)

        monkeypatch.setattr(kind, "decode", count)
    return seen


@pytest.fixture
def make_front(family: Family) -> Iterator[Callable[..., MediaFrontend]]:
    made: list[MediaFrontend] = []

    def make(cache_bytes: int = 0, limits: MediaLimits | None = None, **options: Any) -> MediaFrontend:
        config = VisionConfig(feature_cache_bytes=cache_bytes)
        made.append(MediaFrontend(family, config, limits or MediaLimits(), **options))
        return made[-1]

    yield make
    for front in made:
        front.close()


def prepare(front: MediaFrontend, *sources: Any, modality: Modality = IMAGE, **options: Any) -> Sequence[PreparedMedia]:
    parts = [MediaPart(modality=modality, source=source, options=options) for source in sources]
    return front.prepare(front.open(parts))


def assert_equal(ours: PreparedMedia, expected: PreparedMedia) -> None:
    assert (ours.modality, ours.key, ours.size) == (expected.modality, expected.key, expected.size)
    assert len(ours.features) == len(expected.features) and set(ours.features) == set(expected.features)
    for name, value in expected.features.items():
        assert name in ours.features
        found = ours.features[name]
        assert found == value if isinstance(value, tuple) else np.array_equal(found, value), name


@pytest.mark.parametrize("modality", [IMAGE, VIDEO])
@pytest.mark.parametrize("on_device", [False, True])
def test_what_is_encoded_is_decoded_only_on_demand(
    make_front: Callable[..., MediaFrontend],
    decoded: list[Modality],
    family: Family,
    modality: Modality,
    on_device: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All that a prompt is built of is there without a pixel; should the tower ask after all, it gets what it got."""
    monkeypatch.setattr(family, "resizes_on_device", on_device)
    content = encode_picture(1) if modality is IMAGE else encode_video(6)
    embedded: set[bytes] = set()
    front = make_front(is_encoded=lambda key: key in embedded)
    [first] = prepare(front, content, modality=modality)
    embedded.add(first.key)
    [again] = prepare(front, content, modality=modality)
    assert again.key == first.key
    assert again.plan.expansion.token_ids.tolist() == first.plan.expansion.token_ids.tolist()
    assert (again.plan.measures, again.plan.num_units) == (first.plan.measures, first.plan.num_units)
    assert again.features.get("seconds_per_grid") == first.features.get("seconds_per_grid")
    assert not any(isinstance(value, np.ndarray) for value in again.features.values())
    assert decoded == [modality] and again.was_recalled and not first.was_recalled
    assert again.load_features is not None and first.load_features is not None
    assert_equal(replace(again, features=again.load_features()), first)
    assert decoded == [modality] * 2


def test_other_bytes_options_and_pixels_are_no_acquaintances(
    make_front: Callable[..., MediaFrontend], decoded: list[Modality]
) -> None:
    front = make_front(is_encoded=lambda _key: True)
    [png] = prepare(front, encode_picture(1))
    [bmp] = prepare(front, encode_picture(1, "BMP"))
    assert png.key == bmp.key and len(decoded) == 2, "equal pixels in another file: known once they are decoded"
    [smaller] = prepare(front, encode_picture(1), max_pixels=2000)
    [other] = prepare(front, encode_picture(2))
    assert len({png.key, smaller.key, other.key}) == 3 and len(decoded) == 4
    prepare(front, make_picture(40, 60, 1))
    prepare(front, make_picture(40, 60, 1))
    assert len(decoded) == 6, "pixels may have been changed in place"
    videos = [prepare(front, encode_video(8), modality=VIDEO, num_frames=count)[0] for count in (4, 6)]
    assert videos[0].size.num_frames == 4 and videos[1].size.num_frames == 6 and len(decoded) == 8


@pytest.mark.parametrize(("on_device", "num_kept"), [(False, 2), (True, 1)])
def test_features_stand_in_for_an_embedding_that_left(
    make_front: Callable[..., MediaFrontend],
    decoded: list[Modality],
    family: Family,
    on_device: bool,
    num_kept: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Frames for a GPU are kept only where they save decoding."""
    monkeypatch.setattr(family, "resizes_on_device", on_device)
    front = make_front(cache_bytes=1 << 20)
    [first] = prepare(front, encode_picture(1))
    [again] = prepare(front, encode_picture(1))
    assert decoded == [IMAGE] and again.features is first.features
    stats = front.stats()
    assert (stats.total_feature_hits, stats.total_feature_misses, stats.num_features) == (1, 1, 1)
    prepare(front, make_picture(30, 30, 5))
    assert front.stats().num_features == num_kept


def test_limits_hold_for_what_is_known(make_front: Callable[..., MediaFrontend], decoded: list[Modality]) -> None:
    front = make_front(limits=MediaLimits(max_total_pixels=5000), is_encoded=lambda _key: True)
    content = encode_picture(1)
    prepare(front, content, content)
    with pytest.raises(RequestError, match="max_total_pixels"):
        prepare(front, content, content, content)
    assert len(decoded) <= 2


def test_the_contents_asked_for_last_are_remembered() -> None:
    def see(number: int) -> SeenMedia:
        size = MediaSize(num_frames=1, height=number, width=1)
        return SeenMedia.of(bytes([number]), size, {"grid": (1, 2, 2), "pixels": np.zeros(3)})

    contents = SeenContents(2)
    contents.put(b"1", see(1))
    contents.put(b"2", see(2))
    assert contents.get(b"1") == see(1)
    contents.put(b"3", see(3))
    assert contents.get(b"2") is None and contents.get(b"1") == see(1) and contents.get(b"3") == see(3)
    assert see(1).told == {"grid": (1, 2, 2)}


@pytest.mark.parametrize("embedding_bytes", [0, 1 << 20])
def test_answers_are_the_same(
    tiny_checkpoint: Callable[[str], Path], decoded: list[Modality], embedding_bytes: int
) -> None:
    """Asked anew about pictures seen before, with their embeddings there and gone."""
    pictures = [Image.open(io.BytesIO(encode_picture(seed))) for seed in range(2)]
    questions = [("what is it?", pictures[0]), ("and these?", pictures)]
    encoded = [("what is it?", encode_picture(0)), ("and these?", [encode_picture(0), encode_picture(1)])]
    config = EngineConfig(device_type="cpu", block_size=16, session_len=400, enable_prefix_caching=False)
    caches = VisionConfig(embedding_cache_bytes=embedding_bytes, feature_cache_bytes=0)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config, vision_config=caches) as engine:
        expected = [answer.token_ids for answer in ask(engine, parse(questions, max_new_tokens=6))]
        for _ in range(2):
            assert [answer.token_ids for answer in ask(engine, parse(encoded, max_new_tokens=6))] == expected
            num_decoded = len(decoded)
        assert [answer.token_ids for answer in ask(engine, parse(encoded, max_new_tokens=6))] == expected
        assert len(decoded) - num_decoded == (0 if embedding_bytes else 3)
