"""From requests to prompts and sampling options, on tiny random checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from asking import ask, make_message, make_picture, parse

from seesay.config import ChatTemplateConfig, EngineConfig
from seesay.engine.front.engine import AsyncEngine

CPU = EngineConfig(device_type="cpu", block_size=16)


def tokenize(engine: AsyncEngine, prompt: Any, **options: Any) -> list[int]:
    [request] = parse([prompt], **options)
    ids: list[int] = engine.tokenize(request).result(60).tolist()
    return ids


@pytest.mark.parametrize("template", (None, "vicuna", "chatml", "base"))
@pytest.mark.parametrize("name", ("llava", "internvl", "llama", "mistral", "qwen2"))
def test_a_prompt_begins_with_the_tokenizers_prefix_once(
    name: str, template: str | None, tiny_checkpoint: Callable[[str], Path]
) -> None:
    """Templates that write `<s>` (internvl, llama), that do not (llava, mistral, the built-in ones), and a tokenizer
    that has no prefix (qwen2): in conversations with and without pictures, and in raw prompts."""
    with AsyncEngine(str(tiny_checkpoint(name)), backend_config=CPU, chat_template_config=template) as engine:
        prompts: list[Any] = ["the game", [make_message("the game"), make_message("<s>", role="assistant")]]
        if engine.family.modalities:
            prompts += [("the game", make_picture(20, 30, 1)), [make_message(make_picture(20, 30, 1), "<s>")]]
        bos = engine.tokenizer.bos_token_id
        assert bos is not None or name == "qwen2"
        prefix = [] if bos is None or name == "qwen2" else [bos]
        for prompt in prompts:
            ids = tokenize(engine, prompt)
            assert ids[: len(prefix)] == prefix, prompt
            assert sum(token_id == bos for token_id in ids) == len(prefix), "what a user types is text"


def test_kept_tokens_stay_in_the_text_of_their_request_alone(tiny_checkpoint: Callable[[str], Path]) -> None:
    with AsyncEngine(str(tiny_checkpoint("qwen2")), backend_config=CPU) as engine:
        tokenizer = engine.tokenizer
        token = next(text for text, id in tokenizer.special_token_ids.items() if id != tokenizer.eos_token_id)
        bias = {tokenizer.special_token_ids[token]: 100.0}
        [request] = parse(["a"], logit_bias=bias, max_new_tokens=2, ignore_eos=True)
        plain, kept = ask(engine, [request, replace(request, kept_tokens=(token,))])
        assert (plain.text, kept.text) == ("", token * 2)


def test_pieces_that_spell_the_prefix(tiny_checkpoint: Callable[[str], Path]) -> None:
    config = ChatTemplateConfig("mine", user="<s><s>[", eoh="]")
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=CPU, chat_template_config=config) as engine:
        bos = engine.tokenizer.bos_token_id
        assert tokenize(engine, "a") == [bos, *engine.tokenizer.encode("[a]")]
