"""CogVLM's prompts: pictures come first, and take padding's tokens, of which the last is computed as text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asking import make_message, make_picture, parse
from family_contract import edit_json, load_family

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError

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
