"""`pipe.embed`: equal to the hidden states of Transformers, however the prompt is computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import make_message, make_picture
from oracles import load_oracle
from processing import process

from seesay import Pipeline
from seesay.checkpoint import Checkpoint
from seesay.checkpoint.pooling import read_pooling
from seesay.config import EngineConfig
from seesay.engine.opened_model import open_model
from seesay.errors import ConfigError, RequestError

PICTURE = make_picture(40, 60, 80)
CONVERSATIONS = [[make_message("the game is in the frame " * 3)], [make_message("what ", PICTURE, " is it?")]]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def pipe(checkpoint: Path) -> Iterator[Pipeline]:
    """Prompts are computed in pieces of 7 tokens, and steps are planned ahead."""
    config = EngineConfig(device_type="cpu", block_size=4, max_prefill_token_num=7, async_scheduling=True)
    with Pipeline(str(checkpoint), config) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def expected(checkpoint: Path) -> list[np.ndarray]:
    """Transformers' last hidden states, float32 [tokens, hidden], of each conversation."""
    model, processor = load_oracle(checkpoint)
    states = []
    for messages in CONVERSATIONS:
        text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        images = [part["image"] for m in messages for part in m["content"] if part["type"] == "image"]
        with torch.inference_mode():
            output = model(**process(processor, text, images=images), output_hidden_states=True)
        states.append(output.hidden_states[-1][0].float().numpy())
    return states


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_hidden_states_of_transformers(pipe: Pipeline, expected: list[np.ndarray], pooling: Any) -> None:
    pool: dict[str, Callable[[np.ndarray], np.ndarray]] = {"mean": lambda s: s.mean(axis=0), "last": lambda s: s[-1]}
    wanted = [pool[pooling](states) for states in expected]
    for _ in range(2):  # the second time, the last state comes from behind cached blocks
        found = pipe.embed(CONVERSATIONS, pooling=pooling, do_preprocess=True)
        assert found.dtype == np.float32 and found.shape == (2, wanted[0].size)
        np.testing.assert_allclose(found, wanted, atol=2e-5, rtol=1e-4)
    alone = pipe.embed(CONVERSATIONS[1], pooling=pooling, do_preprocess=True)
    np.testing.assert_allclose(alone, wanted[1], atol=2e-5, rtol=1e-4)


def test_the_last_state_takes_prefixes_from_the_cache(pipe: Pipeline) -> None:
    pipe.reset_caches()
    text = "the game is in the frame " * 4
    pipe.embed(text, pooling="last")
    hits = pipe.engine.stats().total_prefix_hit_tokens
    last = pipe.embed(text, pooling="last")
    assert pipe.engine.stats().total_prefix_hit_tokens > hits
    pipe.embed(text, pooling="mean")
    pipe.reset_caches()
    np.testing.assert_allclose(last, pipe.embed(text, pooling="last"), atol=1e-6)


def test_dimensions_are_cut_and_scaled(pipe: Pipeline) -> None:
    whole = pipe.embed("the game")
    cut = pipe.embed("the game", dimensions=8)
    np.testing.assert_allclose(cut, whole[:8] / np.linalg.norm(whole[:8]), rtol=1e-5)
    np.testing.assert_allclose(pipe.embed("the game", dimensions=8, normalize=False), whole[:8], rtol=1e-5)
    np.testing.assert_allclose(pipe.embed("the game", normalize=True), whole / np.linalg.norm(whole), rtol=1e-5)


@pytest.mark.parametrize(
    ("config", "pooling"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True}, "last"),
        ({"pooling_mode": "lasttoken", "word_embedding_dimension": 64}, "last"),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}, "mean"),
        ({"pooling_mode": "cls"}, None),
        ({"pooling_mode_cls_token": True}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": True}, None),
        ({"pooling_mode": 5}, None),
        ({}, None),
    ],
)
def test_the_folder_says_how_states_are_pooled(
    checkpoint: Path, tmp_path: Path, config: dict[str, Any], pooling: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = shutil.copytree(checkpoint, tmp_path / "pooled")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert read_pooling(Checkpoint.load(path)) == pooling
    assert ("which is not supported" in caplog.text) is (pooling is None)
    assert open_model(path, EngineConfig()).pooling == (pooling or "mean")


def test_the_folders_pooling_is_the_default(pipe: Pipeline, checkpoint: Path, tmp_path: Path) -> None:
    path = shutil.copytree(checkpoint, tmp_path / "pooled")
    (path / "1_Pooling").mkdir()
    (path / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    with Pipeline(str(path), EngineConfig(device_type="cpu", block_size=4, engine_process=False)) as own:
        np.testing.assert_allclose(own.embed("the game"), pipe.embed("the game", pooling="last"), atol=1e-5)
        np.testing.assert_allclose(own.embed("the game", pooling="mean"), pipe.embed("the game"), atol=1e-5)


def test_raw_text_is_the_default(pipe: Pipeline) -> None:
    ids = pipe.tokenizer.encode("the game", add_special_tokens=True)
    assert not np.allclose(pipe.embed("the game"), pipe.embed("the game", do_preprocess=True))
    raw = pipe.embed(["the game", "the game in"])
    assert raw.shape[0] == 2 and len(ids) > 0
    np.testing.assert_allclose(raw[0], pipe.embed("the game"), atol=1e-6)
    assert pipe.embed([]).size == 0


def test_what_is_wrong_is_named(pipe: Pipeline) -> None:
    size = pipe.engine.embedding_size("mean")
    with pytest.raises(ConfigError, match="pooling must be 'mean', 'last' or 'tokens', got 'max'"):
        pipe.embed("a", pooling="max")  # type: ignore[call-overload]
    for dimensions in (0, size + 1):
        with pytest.raises(RequestError, match=rf"dimensions must be in \[1, {size}\]"):
            pipe.embed("a", dimensions=dimensions)
    for wrong in ("a", 2.5, True):
        with pytest.raises(ConfigError, match=f"dimensions must be a positive integer, got {wrong!r}"):
            pipe.embed("a", dimensions=wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="normalize must be True, False or None, got 'x'"):
        pipe.embed("a", normalize="x")  # type: ignore[call-overload]
    with pytest.raises(RequestError, match="tokens"):
        pipe.embed(["a", "game " * 100_000])
    with pytest.raises(TypeError, match="odd"):
        pipe.embed("a", odd=1)
