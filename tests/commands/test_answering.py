"""Answers of a model in this process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from live_server import make_data_url

from seesay import IMAGE_TOKEN, EngineConfig, GenerationConfig
from seesay.commands.chat.answering import LocalModel
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.offline.pipeline import Pipeline


def test_what_is_typed_is_text(tiny_checkpoint: Callable[[str], Path]) -> None:
    """`<IMAGE_TOKEN>` moves no picture, and its characters are tokens; a wrong picture raises."""
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config) as engine:
        model = LocalModel(Pipeline.from_engine(engine), GenerationConfig(max_new_tokens=2))

        def count(typed: str, url: str) -> int:
            parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": typed}]
            pieces = list(model.answer([{"role": "user", "content": parts}]))
            assert pieces[-1].counts is not None and pieces[-1].is_cut
            return pieces[-1].counts.prompt_tokens

        url = make_data_url()
        extra = len(engine.tokenizer.encode(IMAGE_TOKEN))
        assert count(f"a\n{IMAGE_TOKEN}\nb", url) == count("a\n\nb", url) + extra
        count(f"{IMAGE_TOKEN}{IMAGE_TOKEN}", url)
        with pytest.raises(RequestError):
            count("a", "data:image/png;base64,AAAA")
