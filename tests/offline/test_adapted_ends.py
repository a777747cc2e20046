"""Adapters of the table of embeddings and of the head: whole matrices (`modules_to_save`), tokens, and factors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import ALPHA, RANK, read_weights, write_adapter, write_folder
from llm.eager_graphs import record_eagerly
from safetensors.torch import load_file, save_file

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.errors import CheckpointError

TEXTS: list[Any] = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
TABLE, HEAD = "model.embed_tokens", "lm_head"
KINDS = ("whole", "factors", "both", "shorter")


def load(path: Path, adapters: Mapping[str, Path] | None = None, **options: Any) -> Pipeline:
    folders = {name: str(folder) for name, folder in (adapters or {}).items()}
    return pipeline(str(path), EngineConfig(**{"device_type": "cpu", "block_size": 4, "adapters": folders, **options}))


def ask(pipe: Pipeline, names: Any = None, prompts: list[Any] = TEXTS) -> list[list[int]]:
    answers = pipe(prompts, OPTIONS, adapter_name=names)
    assert all(answer.finish_reason == "length" for answer in answers), answers
    return [answer.token_ids for answer in answers]


def write_ends(checkpoint: Path, folder: Path, kind: str, *, seed: int, ends: tuple[str, ...] = (TABLE, HEAD)) -> Path:
    """Write an adapter of attention and of both ends, and a checkpoint with it merged in. shorter: it has fewer tokens
    than the base model, and never answers with the others."""
    merged = folder.with_name(f"{folder.name} merged")
    write_adapter(checkpoint, folder, r".*\.q_proj", seed=seed, merged=merged)
    generator = torch.Generator().manual_seed(seed)
    tensors, weights = load_file(folder / "adapter_model.safetensors"), read_weights(merged)
    for module in ends:
        weight, own = weights[f"{module}.weight"], f"base_model.model.{module}"
        if kind != "factors":
            weight = weight + torch.randn(weight.shape, generator=generator) * 0.3 * weight.std()
            num_tokens = len(weight) - (7 if kind == "shorter" else 0)
            tensors[f"{own}.base_layer.weight" if kind == "both" else f"{own}.weight"] = weight[:num_tokens].clone()
            weight = weight[:num_tokens]
        if kind in ("factors", "both"):
            a = torch.randn(RANK, weight.shape[1], generator=generator) * 0.2
            b = torch.randn(len(weight), RANK, generator=generator) * 0.2
            names = ("lora_A.weight", "lora_B.weight") if module == HEAD else ("lora_embedding_B", "lora_embedding_A")
            factors = (a, b) if module == HEAD else (a.t(), b.t())
            tensors |= {f"{own}.{name}": each.contiguous() for name, each in zip(names, factors, strict=True)}
            weight = weight + ALPHA / RANK * b @ a
        weights[f"{module}.weight"] = weight.contiguous()
    write_folder(folder, tensors)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((merged / "config.json").read_text())
    (merged / "config.json").write_text(json.dumps({**config, "vocab_size": len(weights[f"{HEAD}.weight"])}))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("llama")


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("adapters")
    found = {kind: write_ends(checkpoint, root / kind, kind, seed=seed) for seed, kind in enumerate(KINDS)}
    found["layers"] = write_adapter(checkpoint, root / "layers", r".*\.q_proj", seed=9, merged=root / "layers merged")
    return found


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: dict[str, Path]) -> dict[str | None, list[list[int]]]:
    """The answers without an adapter, and with each merged in."""
    found: dict[str | None, list[list[int]]] = {}
    for name in (None, *adapters):
        with load(checkpoint if name is None else adapters[name].with_name(f"{name} merged")) as pipe:
            found[name] = ask(pipe)
    assert len({str(answers) for answers in found.values()}) == len(found)
    return found


@pytest.fixture(scope="module", params=[1, 2], ids=["alone", "ranks"])
def pipe(request: pytest.FixtureRequest, checkpoint: Path, adapters: dict[str, Path]) -> Iterator[Pipeline]:
    """Prompts are computed in pieces."""
    with load(checkpoint, adapters, tp=request.param, max_adapters=3, max_prefill_token_num=8) as pipe:
        yield pipe


def test_answers_are_those_of_merged_models(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    for name in (*expected, *expected):  # the second time from the cache
        assert ask(pipe, name) == expected[name], name


def test_one_batch_has_all_of_them(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    names = [name for _ in TEXTS for name in expected]
    prompts = [text for text in TEXTS for _ in expected]
    assert ask(pipe, names, prompts) == [expected[name][index] for index in range(len(TEXTS)) for name in expected]


def test_sleep_frees_them(
    pipe: Pipeline, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    core: Any = pipe.engine.core
    pipe.sleep()
    if hasattr(core, "_runner"):
        assert not core._runner.adapters.ends._there
    pipe.unload_adapter("both")
    pipe.wake_up()
    pipe.load_adapter("both", adapters["both"])
    for name in expected:
        assert ask(pipe, name) == expected[name], name


def test_steps_with_changed_ends_take_no_graphs(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    with load(checkpoint, adapters) as pipe:
        core: Any = pipe.engine.core
        sizes = record_eagerly(core._runner)
        assert ask(pipe, "layers") == expected["layers"]
        num_graphed = len(sizes)
        assert num_graphed > 5
        assert ask(pipe, "whole") == expected["whole"] and len(sizes) == num_graphed
        assert ask(pipe, None) == expected[None] and len(sizes) > num_graphed


def test_logits_and_logprobs_are_those_of_merged_models(checkpoint: Path, adapters: dict[str, Path]) -> None:
    """Of prompts, and of proposed tokens."""
    options = GenerationConfig(
        max_new_tokens=4, ignore_eos=True, temperature=0.0, output_logits="all", logprobs=2, prompt_logprobs=2
    )
    found = []
    with load(adapters["whole"].with_name("whole merged")) as pipe:
        found.append(pipe(TEXTS[1], options))
    with load(checkpoint, adapters) as pipe:
        plain, own = pipe(TEXTS[1:2] * 2, options, adapter_name=[None, "whole"])
    torch.testing.assert_close(own.logits, found[0].logits, atol=1e-3, rtol=1e-3)
    assert not torch.allclose(torch.as_tensor(plain.logits), torch.as_tensor(own.logits), atol=1e-1)


def test_a_matrix_that_is_the_base_models_takes_no_memory(checkpoint: Path, tmp_path: Path) -> None:
    """PEFT writes it beside the factors of an end."""
    write_ends(checkpoint, tmp_path / "own", "factors", seed=1)
    tensors = load_file(tmp_path / "own" / "adapter_model.safetensors")
    weights = read_weights(checkpoint)
    tensors |= {f"base_model.model.{module}.base_layer.weight": weights[f"{module}.weight"] for module in (TABLE, HEAD)}
    write_folder(tmp_path / "own", tensors)
    with load(tmp_path / "own merged") as pipe:
        expected = ask(pipe)
    with load(checkpoint, {"own": tmp_path / "own"}) as pipe:
        assert ask(pipe, "own") == expected
        core: Any = pipe.engine.core
        [ends] = core._runner.adapters.ends._there.values()
        assert ends.table.whole is None and ends.head.whole is None


def test_what_does_not_fit_is_refused(checkpoint: Path, tmp_path: Path) -> None:
    weights = read_weights(checkpoint)
    num_tokens, width = weights[f"{TABLE}.weight"].shape

    def check(tensors: dict[str, torch.Tensor], message: str) -> None:
        shutil.rmtree(tmp_path / "adapter", ignore_errors=True)
        write_folder(tmp_path / "adapter", {f"base_model.model.{name}": each for name, each in tensors.items()})
        with pytest.raises(CheckpointError, match=message):
            load(checkpoint, {"own": tmp_path / "adapter"})

    check({f"{TABLE}.weight": torch.ones(num_tokens + 1, width)}, rf"has {num_tokens + 1} tokens, the base model has")
    check({f"{HEAD}.weight": torch.ones(num_tokens, 5)}, "was made for another base model")
    check({f"{HEAD}.bias": torch.ones(num_tokens)}, "lm_head.bias' is not supported")
    check({"model.norm.weight": torch.ones(width)}, "must be a matrix")
    check({"model.layers.0.mlp.up_proj.weight": torch.ones(8, width)}, "it has the whole weight of 'model.layers.0")
    both = {f"{HEAD}.weight": torch.ones(9, width), f"{HEAD}.lora_A.weight": torch.ones(4, width)}
    check(both | {f"{HEAD}.lora_B.weight": torch.ones(8, 4)}, "the matrices of 'lm_head' are")
