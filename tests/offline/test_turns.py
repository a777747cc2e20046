"""A turn of a conversation computes its own tokens only: all earlier ones, pictures included, come from the cache."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import seesay.demo
from seesay import GenerationConfig, Pipeline
from seesay.config import EngineConfig
from seesay.demo.scenes import sample_scene

BLOCK = 16
GREEDY = GenerationConfig(max_new_tokens=48)
FIRST, SECOND = sample_scene(seed=0).images[0], sample_scene(seed=3).images[0]

pytestmark = pytest.mark.skipif(
    not (Path(seesay.demo.__file__).parent / "checkpoint" / "config.json").is_file(),
    reason="the built-in checkpoint is not here",
)


@pytest.fixture(scope="module")
def pipe() -> Iterator[Pipeline]:
    with Pipeline("seesay-demo", EngineConfig(device_type="cpu", block_size=BLOCK)) as pipe:
        yield pipe


def test_each_turn_computes_its_new_tokens(pipe: Pipeline) -> None:
    session = pipe.session()
    turns = [("describe this image", FIRST), "how many shapes are there?", ("and this image?", SECOND), "thank you"]
    num_known = 0
    for turn in turns:
        before = pipe.engine.stats()
        pipe.chat(turn, session, GREEDY)
        response, after = session.response, pipe.engine.stats()
        assert response.finish_reason == "stop" and response.usage is not None
        num_prompt = response.input_token_len
        # What is known of a turn are its prompt and its answer but for the last token; blocks are found when full.
        assert num_known - BLOCK < response.usage.cached_tokens <= num_known or not num_known
        num_steps = after.total_step_tokens - before.total_step_tokens
        num_answer = response.usage.completion_tokens
        assert num_prompt - response.usage.cached_tokens <= num_steps
        assert num_steps <= num_prompt - response.usage.cached_tokens + num_answer + 1
        num_new_pictures = 1 if isinstance(turn, tuple) else 0
        assert after.total_encoder_items - before.total_encoder_items == num_new_pictures
        num_known = num_prompt + num_answer - 1
    assert after.num_used_kv_blocks == 0


def test_a_stopped_turn_is_continued_and_an_ended_session_is_over(pipe: Pipeline) -> None:
    session = pipe.session()
    stream = pipe.chat(
        ("describe this image", FIRST),
        session,
        GenerationConfig(max_new_tokens=400, ignore_eos=True),
        stream_response=True,
    )
    text = next(stream).text
    pipe.stop_session(session)
    text += "".join(piece.text for piece in stream)
    assert session.response.text == text and session.history[0][1] == text
    pipe.chat("how many shapes are there?", session, GREEDY)
    usage = session.response.usage
    assert len(session.history) == 2 and usage is not None and usage.cached_tokens > 0
    pipe.end_session(session)
    assert not session.history and not session.messages
    with pytest.raises(ValueError, match="is closed"):
        pipe.chat("again", session)
