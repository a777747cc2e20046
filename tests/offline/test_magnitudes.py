"""Adapters with magnitudes (DoRA): answers are those of a model with the adapter merged in, in a batch with plain
adapters and without, whatever is cached, and whatever format the weights have."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import read_weights, write_adapter, write_folder
from asking import make_picture
from llm.eager_graphs import record_eagerly
from quantized_folders import FORMS, PACKED_FORMS, write_quantized
from safetensors.torch import load_file

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline

TEXTS: list[Any] = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
ALL = r".*(self_attn|mlp)\.\w+_proj"


def load(path: Path, adapters: Mapping[str, Path] | None = None, **options: Any) -> Pipeline:
    folders = {name: str(folder) for name, folder in (adapters or {}).items()}
    return pipeline(str(path), EngineConfig(**{"device_type": "cpu", "block_size": 4, "adapters": folders, **options}))


def ask(pipe: Pipeline, names: Any = None, prompts: list[Any] = TEXTS) -> list[list[int]]:
    answers = pipe(prompts, OPTIONS, adapter_name=names)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One without magnitudes, and some with them: of all layers, and of a part of what is computed together."""
    root = tmp_path_factory.mktemp("adapters")
    modules = {"plain": (ALL, False), "all": (ALL, True), "query": (r".*\.q_proj", True)}
    for seed, (name, (matching, use_dora)) in enumerate(modules.items()):
        merged = root / f"{name} merged"
        write_adapter(checkpoint, root / name, matching, seed=seed, merged=merged, use_dora=use_dora)
    return {name: root / name for name in modules}


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: dict[str, Path]) -> dict[str | None, list[list[int]]]:
    """The answers without an adapter, and with each merged in."""
    found: dict[str | None, list[list[int]]] = {}
    for name in (None, *adapters):
        with load(checkpoint if name is None else adapters[name].with_name(f"{name} merged")) as pipe:
            found[name] = ask(pipe)
    assert len({str(answers) for answers in found.values()}) == len(found)
    return found


def test_answers_are_those_of_merged_models(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    """Alone, from the cache, in one batch; prompts are computed in pieces, and sequences are preempted."""
    names = [name for name in expected for _ in TEXTS]
    together = [answer for name in expected for answer in expected[name]]
    with load(checkpoint, adapters, max_prefill_token_num=8, num_gpu_blocks=18, num_cpu_blocks=8) as pipe:
        for name in (*expected, *expected):
            assert ask(pipe, name) == expected[name], name
        assert ask(pipe, names, TEXTS * len(expected)) == together
        assert pipe.engine.stats().total_preemptions > 0


def test_they_come_and_go_in_slots_beside_graphs(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    """Graphs compute the steps without magnitudes alone."""
    names = [name for name in expected for _ in TEXTS]
    with load(checkpoint, adapters, max_adapters=2) as pipe:
        core: Any = pipe.engine.core
        sizes = record_eagerly(core._runner)
        for name in ("all", "query"):
            assert ask(pipe, name) == expected[name]
        assert not sizes
        assert ask(pipe, names, TEXTS * len(expected)) == [row for name in expected for row in expected[name]]
        assert ask(pipe, "plain") == expected["plain"]
        assert sizes


@pytest.mark.parametrize(
    ("name", "modules", "options"),
    [
        ("phi3", r".*(qkv_proj|gate_up_proj|o_proj)", {}),
        ("starcoder2", r".*(q_proj|o_proj|c_fc|c_proj)", {"tp": 2}),
        ("qwen2_5_vl", rf"model.{ALL}", {"tp": 2}),
        ("qwen2_moe", r".*(self_attn\.\w_proj|shared_expert.*)", {}),
    ],
)
def test_families(
    name: str,
    modules: str,
    options: dict[str, Any],
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Layers with biases, layers that are stored together, or divided among ranks: lengths are those of whole rows."""
    path = tiny_checkpoint(name)
    write_adapter(path, tmp_path / "adapter", modules, merged=tmp_path / "merged", use_dora=True)
    prompts = [*TEXTS[:2], *([("what is it?", make_picture(60, 50, 1))] if "vl" in name else [])]
    with load(tmp_path / "merged") as pipe:
        expected = ask(pipe, None, prompts)
    with load(path, {"own": tmp_path / "adapter"}, **options) as pipe:
        plain = ask(pipe, None, prompts)
        assert ask(pipe, "own", prompts) == expected != plain
        assert ask(pipe, [None, "own"], [prompts[0]] * 2) == [plain[0], expected[0]]


@pytest.mark.parametrize("form", ["awq, groups of 32", "gptq, in order of activations"])
def test_quantized_weights(form: str, checkpoint: Path, tmp_path: Path) -> None:
    """Answers are those of the weights multiplied out, with the adapter merged in."""
    quantized, plain = write_quantized(checkpoint, tmp_path, PACKED_FORMS[form])
    write_adapter(plain, tmp_path / "adapter", ALL, merged=tmp_path / "merged", use_dora=True)
    with load(tmp_path / "merged") as pipe:
        expected = ask(pipe)
    with load(quantized, {"own": tmp_path / "adapter"}) as pipe:
        assert ask(pipe, "own") == expected != ask(pipe)


@pytest.mark.parametrize("form", ["compressed-tensors, int8 channels", "fp8, blocks of 128", "fp8, tensors"])
def test_lengths_are_those_of_quantized_weights(form: str, checkpoint: Path, tmp_path: Path) -> None:
    """Activations are quantized as well: an adapter whose magnitudes are these lengths changes what one without
    magnitudes changes."""
    quantized, plain = write_quantized(checkpoint, tmp_path, FORMS[form])
    write_adapter(plain, tmp_path / "plain adapter", ALL, merged=tmp_path / "merged")
    tensors = load_file(tmp_path / "plain adapter" / "adapter_model.safetensors")
    for name, weight in read_weights(tmp_path / "merged").items():
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in tensors:
            tensors[f"{module}.lora_magnitude_vector"] = torch.linalg.vector_norm(weight.float(), dim=1)
    write_folder(tmp_path / "own", tensors, use_dora=True)
    with load(quantized, {"plain": tmp_path / "plain adapter", "own": tmp_path / "own"}) as pipe:
        expected = ask(pipe, "plain")
        assert ask(pipe, "own") == expected != ask(pipe)


def test_new_weights_have_new_lengths(checkpoint: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    """Those of an update, and of an engine that slept meanwhile."""
    with load(checkpoint, {"own": adapters["all"]}) as pipe:
        before = ask(pipe, "own")
        pipe.update_weights(adapters["query"].with_name("plain merged"))
        changed = ask(pipe, "own")
        pipe.sleep()
        pipe.wake_up()
        assert ask(pipe, "own") == changed
    with load(adapters["query"].with_name("plain merged"), {"own": adapters["all"]}) as pipe:
        assert ask(pipe, "own") == changed != before


@pytest.mark.parametrize(
    ("name", "modules"),
    [
        ("qwen2_5_vl", rf"visual\.(blocks|merger).*(qkv|proj|mlp\.\d)|model.{ALL}"),
        ("llava", r"(vision_tower.*(\w_proj|fc\d)|multi_modal_projector.*)"),
    ],
)
def test_towers(name: str, modules: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Also after the weights were read again."""
    path = tiny_checkpoint(name)
    write_adapter(path, tmp_path / "adapter", modules, merged=tmp_path / "merged", use_dora=True)
    prompts: list[Any] = [("what is it?", make_picture(60, 50, 1)), ("go on", make_picture(40, 70, 2))]
    with load(tmp_path / "merged") as pipe:
        expected = ask(pipe, None, prompts)
    with load(path, {"own": tmp_path / "adapter"}) as pipe:
        plain = ask(pipe, None, prompts)
        mixed = [answer for pair in zip(plain, expected, strict=True) for answer in pair]
        assert ask(pipe, [None, "own"] * 2, [each for each in prompts for _ in "ab"]) == mixed
        assert plain[0] != expected[0]
        pipe.sleep(level=2)
        pipe.wake_up()
        assert ask(pipe, "own", prompts) == expected
