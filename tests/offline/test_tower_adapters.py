"""LoRA adapters of vision towers and projectors: answers are those of a model with the adapter merged in, pictures of
many adapters in one batch, and no embedding is another adapter's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import write_adapter, write_folder
from asking import make_picture

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.errors import CheckpointError

OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
PICTURES = [make_picture(60, 50, 1), make_picture(40, 70, 2)]
PROMPTS: list[Any] = [("what is it?", PICTURES[0]), ("go on", PICTURES), ("the game", PICTURES[1]), "is in the frame"]
LANGUAGE = r".*(self_attn|mlp)\.[qkvogud]\w*_proj"
TOWERS = {
    "qwen2_5_vl": r"visual\.(blocks|merger).*(qkv|proj|mlp\.\d)",
    "llava": r"(vision_tower.*(\w_proj|fc\d)|multi_modal_projector.*)",
    "internvl_chat": r"(vision_model.*(qkv|proj|fc\d)|mlp1\.[13])",
}


def load(path: Path, adapters: Mapping[str, Path] | None = None, **options: Any) -> Pipeline:
    folders = {name: str(folder) for name, folder in (adapters or {}).items()}
    return pipeline(str(path), EngineConfig(**{"device_type": "cpu", "block_size": 4, "adapters": folders, **options}))


def ask(pipe: Pipeline, names: Any = None, prompts: list[Any] = PROMPTS) -> list[list[int]]:
    answers = pipe(prompts, OPTIONS, adapter_name=names)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


def count_encoded(pipe: Pipeline) -> int:
    return pipe.engine.stats().total_encoder_items


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of the tower, of another tower, of both tower and language model, of the language model."""
    root = tmp_path_factory.mktemp("adapters")
    tower = TOWERS["qwen2_5_vl"]
    modules = {"tower": tower, "other": tower, "both": rf"{tower}|model.{LANGUAGE}", "language": rf"model.{LANGUAGE}"}
    for seed, (name, matching) in enumerate(modules.items()):
        write_adapter(checkpoint, root / name, matching, seed=seed, merged=root / f"{name} merged")
    return {name: root / name for name in modules}


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: dict[str, Path]) -> dict[str | None, list[list[int]]]:
    """The answers without an adapter, and with each merged in."""
    found: dict[str | None, list[list[int]]] = {}
    for name in (None, *adapters):
        with load(checkpoint if name is None else adapters[name].with_name(f"{name} merged")) as pipe:
            found[name] = ask(pipe)
    for index in range(3):  # the prompts with pictures
        assert len({str(answers[index]) for answers in found.values()}) == len(found)
    assert found["tower"][3] == found[None][3]
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["here", "process"])
def pipe(request: pytest.FixtureRequest, checkpoint: Path, adapters: dict[str, Path]) -> Iterator[Pipeline]:
    """Prompts are computed in pieces."""
    with load(checkpoint, adapters, engine_process=request.param, max_prefill_token_num=8) as pipe:
        yield pipe


def test_answers_are_those_of_merged_models(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    for name in (*expected, *expected):  # the second time from the cache
        assert ask(pipe, name) == expected[name], name


def test_one_batch_has_all_of_them(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    names = [name for _ in PROMPTS for name in expected]
    prompts = [prompt for prompt in PROMPTS for _ in expected]
    assert ask(pipe, names, prompts) == [expected[name][index] for index in range(len(PROMPTS)) for name in expected]


def test_preempted_sequences_keep_their_pictures(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = [name for name in expected for _ in PROMPTS]
    with load(checkpoint, adapters, num_gpu_blocks=48, num_cpu_blocks=8) as pipe:
        for _ in range(
            5
        ):  # a busy machine prepares the pictures one after another, and all have room; then they are known
            found = ask(pipe, names, PROMPTS * len(expected))
            assert found == [answer for name in expected for answer in expected[name]]
            if pipe.engine.stats().total_preemptions:
                return
    pytest.fail("nothing was preempted")


def test_embeddings_are_shared_by_what_the_tower_has(checkpoint: Path, adapters: dict[str, Path]) -> None:
    """Two adapters of equal content share them, and so do the base model and adapters of the language model."""
    names = {"first": adapters["tower"], "second": adapters["tower"], **adapters}
    with load(checkpoint, names) as pipe:
        prompt = [PROMPTS[0]]
        for name, is_new in (
            (None, True),
            ("language", False),
            ("first", True),
            ("second", False),
            ("tower", False),
            ("other", True),
            ("both", True),
            ("other", False),
            (None, False),
        ):
            before = count_encoded(pipe)
            ask(pipe, name, prompt)
            assert count_encoded(pipe) - before == is_new, name


def test_equal_towers_of_other_language_models_share_embeddings(checkpoint: Path, tmp_path: Path) -> None:
    for name, language_seed in (("a", 1), ("b", 2)):
        tower = write_adapter(checkpoint, tmp_path / "tower", TOWERS["qwen2_5_vl"], seed=7)
        own = write_adapter(checkpoint, tmp_path / "language", rf"model.{LANGUAGE}", seed=language_seed)
        join(tmp_path / name, tower, own)
    with load(checkpoint, {name: tmp_path / name for name in "ab"}) as pipe:
        first = ask(pipe, "a", PROMPTS[:1])
        before = count_encoded(pipe)
        assert ask(pipe, "b", PROMPTS[:1]) != first and count_encoded(pipe) == before


def join(folder: Path, *parts: Path) -> None:
    from safetensors.torch import load_file

    tensors = [load_file(part / "adapter_model.safetensors") for part in parts]
    write_folder(folder, {name: tensor for each in tensors for name, tensor in each.items()})


def test_a_name_with_another_tower_shares_no_embedding(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    with load(checkpoint, max_adapters=1) as pipe:
        for name in ("tower", "other", "both", "tower"):
            pipe.load_adapter("own", adapters[name])
            assert ask(pipe, "own") == expected[name], name
            pipe.unload_adapter("own")
        assert ask(pipe) == expected[None]


@pytest.mark.parametrize("name", ["llava", "internvl_chat"])
def test_families(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Also in ranks, of which the first alone has the tower."""
    path = tiny_checkpoint(name)
    folder = write_adapter(path, tmp_path / "adapter", rf"{TOWERS[name]}|{LANGUAGE}", merged=tmp_path / "merged")
    with load(tmp_path / "merged") as pipe:
        expected = ask(pipe)
    for tp in (1, 2):
        with load(path, {"own": folder}, tp=tp) as pipe:
            plain = ask(pipe)
            assert ask(pipe, ["own", None] * 4, [each for each in PROMPTS for _ in "ab"]) == [
                answer for pair in zip(expected, plain, strict=True) for answer in pair
            ]
            assert plain[0] != expected[0]


def test_what_does_not_fit_is_refused(checkpoint: Path, tmp_path: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    def check(module: str, sizes: tuple[int, int], message: str, path: Path = checkpoint, **options: Any) -> None:
        own = f"base_model.model.{module}"
        tensors = {f"{own}.lora_A.weight": torch.ones(4, sizes[0]), f"{own}.lora_B.weight": torch.ones(sizes[1], 4)}
        write_folder(tmp_path / "adapter", tensors)
        with pytest.raises(CheckpointError, match=message):
            load(path, {"own": tmp_path / "adapter"}, **options)

    check("visual.blocks.0.attn.qkv", (8, 8), "qkv' has 8 inputs and 8 outputs, the layer has")
    check("visual.blocks.77.attn.qkv", (8, 8), "blocks.77.attn.qkv' cannot have an adapter here: only linear layers")
    check("visual.blocks.0.norm1", (8, 8), "norm1' cannot have an adapter here")
    check("audio.layers.0.fc", (8, 8), "belongs to no layer of the language model or the vision tower")
    check("visual.blocks.0.attn.qkv", (8, 8), "there is no vision tower", disable_vision_encoder=True)
    check("visual.blocks.0.attn.qkv", (8, 8), "there is no vision tower", tiny_checkpoint("llama"))
