"""CogVLM's prompts: pictures come first, and take padding's tokens, of which the last is computed as text. CogVLM2's
videos: frames with their seconds between them, or without."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from asking import make_message, make_picture, parse
from family_checks import (
    logits_equal_the_models,
    pixels_equal_the_processors,
    positions_equal_the_models,
    tokens_equal_the_processors,
)
from family_contract import VIDEO, draw_media, edit_json, load_beside_transformers, load_family, plan

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError
from seesay.processors.media.video.frame_sampling import FrameSampling
from seesay.values import MediaSize

PICTURE = make_picture(40, 90, 5)
NUM_ROWS = 3 * 3 + 2
LLAMA3 = "{% for message in messages %}{{ '<|start_header_id|>' + message['role'] }}{% endfor %}"


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[AsyncEngine]:
    """Of a folder as published, whose template is that of the text model."""
    source, target = tiny_checkpoint("cogvlm"), tmp_path_factory.mktemp("cogvlm") / "published"
    path = edit_json(source, target, "tokenizer_config.json", lambda data: data.update(chat_template=LLAMA3))
    (path / "chat_template.jinja").write_text(LLAMA3)
    with AsyncEngine(str(path), backend_config=EngineConfig(device_type="cpu", block_size=16)) as engine:
        yield engine


def spell(engine: AsyncEngine, text: str) -> list[int]:
    return list(engine.tokenizer.hf.encode(text, add_special_tokens=False))


@pytest.mark.parametrize("parts", [(PICTURE, "what is it?"), ("what is it?", PICTURE)])
def test_a_picture_stands_before_the_question(engine: AsyncEngine, parts: tuple[Any, ...]) -> None:
    [request] = parse([[make_message(*parts)]])
    config = engine.checkpoint.config
    expected = [config["bos_token_id"], *[config["pad_token_id"]] * NUM_ROWS]
    expected += spell(engine, "Question: what is it? Answer:")
    assert engine.tokenize(request).result(60).tolist() == expected


def test_a_conversation_goes_on_in_lines(engine: AsyncEngine) -> None:
    turns = [make_message("what?"), {"role": "assistant", "content": "a game"}, make_message("where?")]
    [request] = parse([turns])
    text = "Question: what? Answer: a game\nQuestion: where? Answer:"
    expected = [engine.checkpoint.config["bos_token_id"], *spell(engine, text)]
    assert engine.tokenize(request).result(60).tolist() == expected


@pytest.mark.parametrize("token", [-1, 288, "0", True])
def test_padding_outside_of_the_vocabulary_is_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, token: Any
) -> None:
    path = edit_json(
        tiny_checkpoint("cogvlm"), tmp_path / "other", "config.json", lambda data: data.update(pad_token_id=token)
    )
    with pytest.raises(CheckpointError, match="pad_token_id"):
        load_family(path)


def test_frames_of_any_shape_are_those_of_the_published_code(tiny_checkpoint: Callable[[str], Path]) -> None:
    """Their shorter side becomes 24; of a half pixel at either side of what is cut out, the even one stays."""
    loaded = load_beside_transformers(tiny_checkpoint("cogvlm2_video"), "cogvlm2_video")
    sizes = [(24, 25), (24, 27), (27, 24), (24, 24), (48, 48), (5, 6), (23, 24), (101, 37), (24, 90), (90, 24), (7, 31)]
    for size in sizes:
        pixels_equal_the_processors(loaded, [draw_media(VIDEO, 3, *size)])


def test_a_model_not_made_for_chats_has_frames_without_times(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Published, all rows between the first and the last one then have one position."""

    def change(config: dict[str, Any]) -> None:
        config["template_version"] = "base"

    path = edit_json(tiny_checkpoint("cogvlm2_video"), tmp_path / "base", "config.json", change)
    loaded = load_beside_transformers(path, "cogvlm2_video")
    for count in (1, 4):
        media = [draw_media(VIDEO, count, 40, 60)]
        planned = plan(loaded.family, VIDEO, media[0].size)
        assert planned.num_tokens == count * NUM_ROWS
        assert planned.expansion.takes_embedding.all()
        tokens_equal_the_processors(loaded, media)
        positions_equal_the_models(loaded, media)
        logits_equal_the_models(loaded, media)
    assert loaded.family.default_sampling == {"num_frames": 24}


@pytest.mark.parametrize(("duration_s", "rate"), [(1, 25), (7, 30), (24, 24), (9.6, 10)])
def test_frames_at_whole_seconds_have_their_published_numbers(
    tiny_checkpoint: Callable[[str], Path], duration_s: float, rate: int
) -> None:
    """Taken as in the published demonstration: the frame nearest to each second."""
    family, tokenizer = load_family(tiny_checkpoint("cogvlm2_video"))
    times = np.arange(int(duration_s * rate)) / rate
    seconds = range(round(times[-1]) + 1)
    chosen = tuple(float(times[np.abs(times - second).argmin()]) for second in seconds)
    size = MediaSize(num_frames=len(chosen), height=30, width=50, timestamps_s=chosen)
    expansion = plan(family, VIDEO, size).expansion
    expected = [piece for second in seconds for piece in ([-1] * NUM_ROWS, tokenizer.encode(str(second)))]
    found = np.where(expansion.takes_embedding, -1, expansion.token_ids)
    assert found.tolist() == [token for piece in expected for token in piece]


def test_a_video_is_seen_once_a_second_at_most_24_times(tiny_checkpoint: Callable[[str], Path]) -> None:
    family, _ = load_family(tiny_checkpoint("cogvlm2_video"))
    sampling = FrameSampling.checked(**family.default_sampling)
    assert len(sampling.indices(300, 30.0)) == 10
    assert len(sampling.indices(3000, 30.0)) == 24
    assert len(sampling.indices(20, 30.0)) == 2
