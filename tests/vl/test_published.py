"""Checkpoints as they lie on the hub answer as the same weights do in the layout that Transformers writes today."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from enrolment import CHECKPOINTS
from family_contract import draw_image
from PIL import Image
from published_layouts import LAYOUTS, publish, without_layout

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.vl.registry import list_families

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
    pytest.mark.filterwarnings("ignore:__array_wrap__ must accept:DeprecationWarning"),
]

CONFIG = EngineConfig(device_type="cpu", session_len=512, max_batch_size=2)


def answers(path: Path, *, with_picture: bool) -> list[tuple[int, list[int], list[float]]]:
    """Numbers of prompt tokens, greedy ids and their log probabilities: a question alone, and one with a picture."""
    generation = GenerationConfig(max_new_tokens=4, do_sample=False, logprobs=1, ignore_eos=True)
    prompts: list[Any] = ["Frame in the frame"]
    if with_picture:
        prompts.append(("what is it?", Image.fromarray(draw_image(40, 90).frames[0])))
    found = []
    with pipeline(str(path), backend_config=CONFIG) as pipe:
        for prompt in prompts:
            out = pipe(prompt, gen_config=generation)
            assert out.logprobs is not None
            chosen = [each[token] for each, token in zip(out.logprobs, out.token_ids, strict=True)]
            found.append((out.input_token_len, out.token_ids, chosen))
    return found


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_layouts_answer_alike(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tiny = without_layout(name, tiny_checkpoint(LAYOUTS[name].tiny), tmp_path / "tiny")
    path = publish(name, tiny, tmp_path / name)
    with_picture = bool({"vision_config", "visual"} & json.loads((path / "config.json").read_text()).keys())
    with caplog.at_level(logging.WARNING, logger="seesay"):
        found = answers(path, with_picture=with_picture)
    assert [record.message for record in caplog.records if record.name == "seesay"] == []
    for ours, expected in zip(found, answers(tiny, with_picture=with_picture), strict=True):
        assert ours[:2] == expected[:2]
        assert ours[2] == pytest.approx(expected[2], abs=1e-4)


def test_families_with_a_published_layout() -> None:
    architectures = {CHECKPOINTS[layout.tiny].architecture for layout in LAYOUTS.values()}
    families = {list_families()[each].__module__.rpartition(".")[2] for each in architectures}
    assert {
        "minicpmv",
        "phi3_v",
        "molmo",
        "cogvlm",
        "xcomposer2",
        "text",
        "llava",
        "llava_next",
        "llava_onevision",
        "idefics3",
        "internvl",
        "mono_internvl",
        "mini_gemini",
        "gemma3",
        "paligemma",
        "pixtral",
        "qwen",
        "qwen_vl",
        "qwen2_vl",
        "qwen2_5_vl",
        "smolvlm",
        "perception_lm",
        "fast_vlm",
        "glm4v",
        "deepseek_vl",
        "deepseek_vl_hybrid",
        "ovis2",
        "kimi_vl",
        "deepseek_vl2",
    } <= families
    models: tuple[str, ...] = ("Llama", "Mistral", "Phi3", "Qwen2", "Qwen3", "Gemma", "Gemma2", "Gemma3", "SmolLM3")
    models += ("Starcoder2", "Granite", "Olmo", "Olmo2", "Cohere", "Glm", "Glm4", "Falcon")
    assert {f"{model}ForCausalLM" for model in models} <= architectures


@pytest.mark.parametrize("where", ["generation_config.json", "config.json", "text_config"])
def test_every_eos_id_ends_an_answer(where: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = publish("llava-1.5-7b-hf", tiny_checkpoint("llava"), tmp_path / "eos")
    prompts = ["Frame in the frame"]
    with pipeline(str(path), backend_config=CONFIG) as pipe:
        free = GenerationConfig(max_new_tokens=6, do_sample=False, ignore_eos=True)
        ids = pipe(prompts, gen_config=free)[0].token_ids
    third = ids[2]
    assert third not in ids[:2]
    for file in ("generation_config.json", "config.json"):
        config = json.loads((path / file).read_text())
        config.pop("eos_token_id", None)
        config.get("text_config", {}).pop("eos_token_id", None)
        if file == where:
            config["eos_token_id"] = [287, third]
        elif file == "config.json" and where == "text_config":
            config["text_config"]["eos_token_id"] = [287, third]
        (path / file).write_text(json.dumps(config))
    with pipeline(str(path), backend_config=CONFIG) as pipe:
        out = pipe(prompts, gen_config=GenerationConfig(max_new_tokens=6, do_sample=False))[0]
    assert (out.token_ids, out.finish_reason) == (ids[:2], "stop")
