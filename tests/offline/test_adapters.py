"""LoRA adapters: answers are those of a model with the adapter merged in, in a batch of many, whatever is cached."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import RANK, read_weights, write_adapter, write_folder
from asking import loop_of, make_picture
from llm.eager_graphs import record_eagerly
from safetensors.torch import load_file
from waiting import wait_until

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.decoder import ModelInput

TEXTS: list[Any] = ["the game is in the frame", "what is it? the thing of the other", "go on"]
OPTIONS = GenerationConfig(max_new_tokens=8, ignore_eos=True, temperature=0.0)
ALL = r".*(self_attn|mlp)\.\w+_proj"


def load(path: Path, *, adapters: Mapping[str, Path] | None = None, **options: Any) -> Pipeline:
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
    folder = tmp_path_factory.mktemp("adapters")
    modules = {"all": ALL, "query": r".*\.q_proj", "down": r".*layers\.1\.mlp\.down_proj"}
    for seed, (name, matching) in enumerate(modules.items()):
        write_adapter(checkpoint, folder / name, matching, seed=seed, merged=folder / f"{name} merged")
    return {name: folder / name for name in modules}


@pytest.fixture(scope="module")
def expected(checkpoint: Path, adapters: dict[str, Path]) -> dict[str | None, list[list[int]]]:
    """The answers without an adapter, and with each merged in."""
    found: dict[str | None, list[list[int]]] = {}
    for name in (None, *adapters):
        with load(checkpoint if name is None else adapters[name].with_name(f"{name} merged")) as pipe:
            found[name] = ask(pipe)
    assert len({str(answers) for answers in found.values()}) == len(found)
    return found


@pytest.fixture(scope="module", params=[False, True], ids=["here", "process"])
def pipe(request: pytest.FixtureRequest, checkpoint: Path, adapters: dict[str, Path]) -> Iterator[Pipeline]:
    """Prompts are computed in pieces."""
    with load(checkpoint, adapters=adapters, engine_process=request.param, max_prefill_token_num=8) as pipe:
        yield pipe


def test_answers_are_those_of_merged_models(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    for name in (*expected, *expected):  # the second time from the cache
        assert ask(pipe, name) == expected[name], name


def test_one_batch_has_all_of_them(pipe: Pipeline, expected: dict[str | None, list[list[int]]]) -> None:
    names = [name for name in expected for _ in TEXTS]
    assert ask(pipe, names, TEXTS * len(expected)) == [answer for name in expected for answer in expected[name]]


def test_preempted_sequences_keep_their_adapters(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    names = [name for name in expected for _ in TEXTS]
    with load(checkpoint, adapters=adapters, num_gpu_blocks=18, num_cpu_blocks=8) as pipe:
        found = ask(pipe, names, TEXTS * len(expected))
        assert found == [answer for name in expected for answer in expected[name]]
        assert pipe.engine.stats().total_preemptions > 0


@pytest.mark.parametrize("max_adapters", [1, 2])
def test_sequences_of_more_adapters_than_slots_wait(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]], max_adapters: int
) -> None:
    names = [name for _ in range(3) for name in expected for _ in TEXTS]
    with load(checkpoint, adapters=adapters, max_adapters=max_adapters) as pipe:
        found = ask(pipe, names, TEXTS * len(expected) * 3)
        assert found == [answer for name in expected for answer in expected[name]] * 3


def test_decode_steps_with_adapters_take_graphs(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    """Graphs go on while adapters change in the slots that they read."""
    names = [name for name in expected for _ in TEXTS]
    with load(checkpoint, adapters=adapters, max_adapters=2) as pipe:
        core: Any = pipe.engine.core
        sizes = record_eagerly(core._runner)
        for _ in range(2):
            assert ask(pipe, names, TEXTS * len(expected)) == [row for name in expected for row in expected[name]]
            assert ask(pipe, None) == expected[None]
        assert len(sizes) > 20


def test_ranks_beyond_the_slots_are_refused(checkpoint: Path, adapters: dict[str, Path]) -> None:
    with pytest.raises(CheckpointError, match="its rank is 20, the slots of this engine take up to 16"):
        load(checkpoint, adapters={"own": _widen(adapters["query"], 20)}, max_adapter_rank=3)


def _widen(folder: Path, rank: int) -> Path:
    """Write an adapter that says the same with more components."""
    tensors = {
        name: torch.nn.functional.pad(tensor, (0, 0, 0, rank - RANK) if "lora_A" in name else (0, rank - RANK))
        for name, tensor in load_file(folder / "adapter_model.safetensors").items()
    }
    write_folder(folder.with_name(f"{folder.name} {rank}"), tensors, rank=rank)
    return folder.with_name(f"{folder.name} {rank}")


@pytest.mark.parametrize("rank", [16, 17, 200])
def test_ranks_of_one_batch_may_differ(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]], rank: int
) -> None:
    with load(checkpoint, adapters={**adapters, "wide": _widen(adapters["all"], rank)}) as pipe:
        names = ["wide", "query", None]
        found = ask(pipe, names, [TEXTS[0]] * 3)
        assert found == [expected["all"][0], expected["query"][0], expected[None][0]]


def test_equal_content_is_one_adapter(
    checkpoint: Path, adapters: dict[str, Path], expected: dict[str | None, list[list[int]]]
) -> None:
    """The keys and values of one are those of the other, and of no other adapter."""
    names = {"first": adapters["all"], "second": adapters["all"], "other": adapters["query"]}
    with load(checkpoint, adapters=names) as pipe:
        for name, is_cached in (("first", False), ("second", True), ("other", False), (None, False)):
            answer = pipe(TEXTS[1], OPTIONS, adapter_name=name)
            assert answer.token_ids == expected[{"first": "all", "second": "all", "other": "query"}.get(name or "")][1]
            assert (answer.usage.cached_tokens > 0) == is_cached, name


def test_an_engine_that_is_started_again_finds_them(
    checkpoint: Path,
    adapters: dict[str, Path],
    expected: dict[str | None, list[list[int]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also from another working directory than that of its first start."""
    monkeypatch.chdir(adapters["all"].parent)
    with load(checkpoint, adapters={"own": Path("all")}, engine_process=True) as pipe:
        core: Any = pipe.engine.core
        first = core.pid
        monkeypatch.chdir(tmp_path)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: core.pid not in (None, first))
        assert ask(pipe, "own") == expected["all"]


def test_an_unknown_name_is_refused(pipe: Pipeline) -> None:
    answer = pipe(TEXTS[0], adapter_name="nobody")
    assert answer.finish_reason == "error" and "adapter_name='nobody' is not loaded" in answer.text


def test_names_for_another_number_of_prompts(pipe: Pipeline) -> None:
    with pytest.raises(ValueError, match="adapter_name: 2 for 3 prompts"):
        pipe(TEXTS, adapter_name=["all", None])
    with pytest.raises(TypeError, match="adapter_name must be a name"):
        pipe(TEXTS[:1], adapter_name=[3])  # type: ignore[list-item]


def _as_in_transformers(name: str) -> str:
    return name.replace("language_model.model.", "model.language_model.")


@pytest.mark.parametrize(
    ("name", "modules", "spell", "options"),
    [
        ("phi3", r".*(qkv_proj|gate_up_proj|o_proj)", str, {}),
        ("bloom", r".*(query_key_value|dense_4h_to_h|dense_h_to_4h)", str, {}),
        ("cohere", ALL, str, {}),
        ("starcoder2", r".*(q_proj|c_fc|c_proj)", str, {"tp": 2}),
        ("mixtral", r".*self_attn\.\w_proj", str, {}),
        ("qwen2_moe", r".*(self_attn\.\w_proj|shared_expert.*)", str, {}),
        ("llava", rf"language_model.{ALL}", _as_in_transformers, {}),
        ("qwen2_5_vl", rf"model.{ALL}", lambda name: name.replace("model.", "model.language_model."), {"tp": 2}),
        ("qwen2_5_vl", rf"model.{ALL}", str, {"kv_cache_dtype": "int8"}),
    ],
)
def test_families(
    name: str,
    modules: str,
    spell: Callable[[str], str],
    options: dict[str, Any],
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Layers that are stored together, in another order, or in slices; names as checkpoints and Transformers have."""
    path = tiny_checkpoint(name)
    folder = write_adapter(path, tmp_path / "adapter", modules, merged=tmp_path / "merged", spell=spell)
    sees = name in ("llava", "qwen2_5_vl")
    prompts = [*TEXTS[:2], *([("what is it?", make_picture(60, 50, 1))] if sees else [])]
    with load(tmp_path / "merged", **{**options, "tp": 1}) as pipe:
        expected = ask(pipe, None, prompts)
    with load(path, adapters={"own": folder}, **options) as pipe:
        plain = ask(pipe, None, prompts)
        assert ask(pipe, "own", prompts) == expected != plain
        assert ask(pipe, None, prompts) == plain


def test_an_adapter_of_a_quantized_model(checkpoint: Path, adapters: dict[str, Path]) -> None:
    """Its sums are those of layers with the quantized weights: close to the merged model's."""
    with load(checkpoint, adapters=adapters, quantization="int8") as pipe:
        plain, adapted = ask(pipe, None), ask(pipe, "all")
        assert ask(pipe, ["all", None], [TEXTS[0]] * 2) == [adapted[0], plain[0]] and adapted != plain


def test_what_does_not_fit_is_refused(checkpoint: Path, tmp_path: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    def check(tensors: dict[str, torch.Tensor], message: str, path: Path = checkpoint) -> None:
        write_folder(tmp_path / "adapter", tensors)
        with pytest.raises(CheckpointError, match=message):
            load(path, adapters={"own": tmp_path / "adapter"})

    def make(module: str, num_inputs: int = 64, num_outputs: int = 64) -> dict[str, torch.Tensor]:
        name = f"base_model.model.{module}"
        return {f"{name}.lora_A.weight": torch.ones(4, num_inputs), f"{name}.lora_B.weight": torch.ones(num_outputs, 4)}

    layer = "model.layers.0.self_attn"
    check(make(f"{layer}.q_proj", 32), r"q_proj' has 32 inputs and 64 outputs, the layer has 64 and \d+")
    check(make("model.layers.9.self_attn.q_proj"), "'model.layers.9.self_attn.q_proj' belongs to no layer")
    expert = "model.layers.1.mlp.experts.2.gate_proj"
    check(make(expert, num_outputs=31), f"'{expert}' has 64 inputs and 31 outputs", tiny_checkpoint("qwen3_moe"))
    check(make("model.layers.1.mlp.gate"), "mlp.gate' has 64 inputs and 64 outputs", tiny_checkpoint("qwen3_moe"))
    check(make("vision_model.layers.0.fc1"), "belongs to no layer of the language model")
    large = {name: 3e38 * tensor for name, tensor in make(f"{layer}.q_proj").items()}
    check(large, "times its scale, its factors are too large for float32: see lora_alpha")
    with pytest.raises(CheckpointError, match="no such folder"):
        load(checkpoint, adapters={"own": tmp_path / "nowhere"})
    for path in (tiny_checkpoint("cogvlm"), tiny_checkpoint("gpt_neox")):
        name = next(name for name in read_weights(path) if name.endswith((".dense.weight", "c_proj.weight")))
        write_folder(tmp_path / "adapter", make(name.removesuffix(".weight")))
        with pytest.raises(ConfigError, match="adapters: "):
            load(path, adapters={"own": tmp_path / "adapter"})


def test_padding_of_a_step_is_among_the_tokens_without_adapter(checkpoint: Path, adapters: dict[str, Path]) -> None:
    """Kernels that add an adapter and compute a gate in one pass write all rows."""
    name, path = next(iter(adapters.items()))
    seen: list[ModelInput] = []
    with load(checkpoint, adapters={name: path}, max_batch_size=3, max_prefill_token_num=64) as pipe:
        runner: Any = loop_of(pipe.engine)._runner
        runner.warm_up()  # as on a GPU
        decoder, forward = runner.decoder, runner.decoder.forward

        def compute(inputs: ModelInput, *args: Any) -> torch.Tensor:
            seen.append(inputs)
            found: torch.Tensor = forward(inputs, *args)
            return found

        decoder.forward = compute
        ask(pipe, [name, None, name])
    adapted = [inputs for inputs in seen if inputs.adapters is not None]
    assert any(not inputs.is_valid.all() for inputs in adapted if inputs.is_valid is not None), "nothing is filled up"
    for inputs in adapted:
        assert inputs.adapters is not None
        assert sorted(inputs.adapters.tokens.tolist()) == [*range(len(inputs.input_ids))]
        assert int(inputs.adapters.tiles[:, 2].sum()) == len(inputs.input_ids)
