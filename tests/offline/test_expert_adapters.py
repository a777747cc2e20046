"""Adapters of experts and routers answer as in PEFT, whether their factors are those of one parameter of all experts or
of each expert's layers, and merge as by its `merge_and_unload`."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from adapter_folders import read_weights, write_adapter, write_folder
from pairs import mark_after
from peft_answers import answer, randomize
from transformers import AutoModelForCausalLM, AutoTokenizer

from seesay import EngineConfig, GenerationConfig, lite, pipeline
from seesay.errors import CheckpointError

TEXTS = ["the game is in the frame", "what is it? the thing of the other", "go on"]
NUM_TOKENS = 8
SAMPLING = GenerationConfig(max_new_tokens=NUM_TOKENS, ignore_eos=True, temperature=0.0)
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
TARGETS: dict[str, dict[str, Any]] = {
    "experts": {"r": 4, "lora_alpha": 8, "target_modules": [], "target_parameters": EXPERTS},
    "down": {"r": 3, "lora_alpha": 8, "target_modules": ["q_proj"], "target_parameters": EXPERTS[1:]},
    "router": {
        "r": 5,
        "lora_alpha": 8,
        "target_modules": ["v_proj"],
        "target_parameters": ["mlp.gate.weight", *EXPERTS],
        "rank_pattern": {r".*\.gate_up_proj": 6},
    },
}


def load(path: Path, adapters: dict[str, Path], **options: Any) -> Any:
    folders = {name: str(folder) for name, folder in adapters.items()}
    config = {"device_type": "cpu", "dtype": "float32", "block_size": 4, "adapters": folders, **options}
    return pipeline(str(path), EngineConfig(**config))


def ask(pipe: Any, names: list[str | None]) -> list[list[int]]:
    chosen = [name for name in names for _ in TEXTS]
    answers = pipe(TEXTS * len(names), SAMPLING, adapter_name=chosen, do_preprocess=False)
    return [each.token_ids for each in answers]


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The following rank_pattern keys did not match:RuntimeWarning")
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_parameters_of_all_experts_are_adapted_as_by_peft(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    peft = pytest.importorskip("peft", reason="PEFT is not here")
    path = tiny_checkpoint(family)
    tokenizer = AutoTokenizer.from_pretrained(path)
    prompts = [tokenizer(text, return_tensors="pt")["input_ids"] for text in TEXTS]
    expected: dict[str | None, list[list[int]]] = {}
    weights: dict[str, dict[str, torch.Tensor]] = {}
    for name, options in TARGETS.items():
        if family == "gpt_oss" and name == "router":
            continue
        base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        expected[None] = [answer(base, prompt, NUM_TOKENS) for prompt in prompts]
        model: Any = peft.get_peft_model(base, peft.LoraConfig(**options)).eval()
        randomize(model, 0.3, seed=len(expected))
        model.save_pretrained(tmp_path / name)
        expected[name] = [answer(model, prompt, NUM_TOKENS) for prompt in prompts]
        weights[name] = model.merge_and_unload().state_dict()
    adapters = {name: tmp_path / name for name in expected if name is not None}
    with load(path, adapters, max_adapters=2) as pipe:
        alone = {name: ask(pipe, [name]) for name in expected}
        mixed = ask(pipe, [*expected])
    assert alone == expected
    assert mixed == [each for name in expected for each in expected[name]]
    for name, folder in adapters.items():
        out = lite.merge(str(path), str(folder), str(tmp_path / f"{name} merged"))
        found = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).state_dict()
        assert found.keys() == weights[name].keys()
        for own, weight in weights[name].items():
            torch.testing.assert_close(found[own], weight, rtol=1e-4, atol=1e-5, msg=f"{name}: {own}")


PER_EXPERT = {
    "mixtral": r".*(experts\.\d+\.(w1|w2)|block_sparse_moe\.gate)",
    "qwen3_moe": r".*(experts\.[02]\.(gate_proj|up_proj|down_proj)|q_proj|mlp\.gate)",
}


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("expert_parallel", [False, True])
@pytest.mark.parametrize("family", mark_after(1, reversed(PER_EXPERT)))
def test_ranks_have_their_slices_of_the_adapters_of_experts(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, family: str, expert_parallel: bool
) -> None:
    """Of every expert, or all of some experts."""
    path, folders = tiny_checkpoint(family), {"one": tmp_path / "one", "all": tmp_path / "all"}
    write_adapter(path, folders["one"], PER_EXPERT[family])
    peft = pytest.importorskip("peft", reason="PEFT is not here")
    base = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model: Any = peft.get_peft_model(base, peft.LoraConfig(**TARGETS["experts"])).eval()
    randomize(model, 0.3, seed=1)
    model.save_pretrained(folders["all"])
    names: list[str | None] = [None, "one", "all"]
    with load(path, folders) as pipe:
        expected = ask(pipe, names)
    plain = expected[: len(TEXTS)]
    assert plain != expected[len(TEXTS) : 2 * len(TEXTS)] and plain != expected[2 * len(TEXTS) :]
    with load(path, folders, tp=2, expert_parallel=expert_parallel) as pipe:
        assert ask(pipe, names) == expected
        assert ask(pipe, ["all"]) == expected[2 * len(TEXTS) :]


@pytest.mark.parametrize("family", PER_EXPERT)
def test_layers_of_experts_are_adapted_one_by_one(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, family: str
) -> None:
    path, folder = tiny_checkpoint(family), tmp_path / "adapter"
    write_adapter(path, folder, PER_EXPERT[family], merged=tmp_path / "expected")
    with load(tmp_path / "expected", {}) as pipe:
        expected = ask(pipe, [None])
    with load(path, {"a": folder, "b": folder}, max_prefill_token_num=8) as pipe:
        plain = ask(pipe, [None])
        assert plain != expected == ask(pipe, ["a"])
        assert ask(pipe, [None, "a", None, "b"]) == [*plain, *expected, *plain, *expected]
    found, merged = read_weights(lite.merge(path, folder, tmp_path / "out")), read_weights(tmp_path / "expected")
    assert found.keys() == merged.keys()
    for name, weight in merged.items():
        torch.testing.assert_close(found[name], weight, msg=name)


def test_experts_come_and_go_and_sleep(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe")
    folders = {
        name: write_adapter(
            path, tmp_path / name, rf".*experts\.\d+\.{module}", seed=seed, merged=tmp_path / f"{name} in"
        )
        for seed, (name, module) in enumerate({"up": "up_proj", "down": "down_proj"}.items())
    }
    expected = {}
    for name in folders:
        with load(tmp_path / f"{name} in", {}) as pipe:
            expected[name] = ask(pipe, [name and None])
    with load(path, {}, max_adapters=1, max_adapter_rank=8) as pipe:
        plain = ask(pipe, [None])
        for _ in range(2):
            for name, folder in folders.items():
                pipe.load_adapter(name, str(folder))
            assert ask(pipe, ["up", None, "down"]) == [*expected["up"], *plain, *expected["down"]]
            pipe.sleep()
            pipe.wake_up()
            assert ask(pipe, ["down", "up"]) == [*expected["down"], *expected["up"]]
            for name in folders:
                pipe.unload_adapter(name)
        assert ask(pipe, [None]) == plain


def test_what_is_wrong_with_adapters_of_experts(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe")
    weights = {name: weight for name, weight in read_weights(path).items() if name.endswith("down_proj.weight")}
    first = min(name for name in weights if ".experts.0." in name)
    (hidden, inner), own = weights[first].shape, f"base_model.model.{first.removesuffix('.weight')}"
    experts = own.removesuffix(".0.down_proj")
    count = sum(f"base_model.model.{name}".startswith(f"{experts}.") for name in weights)

    def factors(module: str, rank: int, *, width: int = inner, outputs: int = hidden) -> dict[str, torch.Tensor]:
        return {
            f"{module}.lora_A.weight": torch.ones(rank, width),
            f"{module}.lora_B.weight": torch.ones(outputs, rank),
        }

    def write(tensors: dict[str, torch.Tensor], **fields: Any) -> Path:
        write_folder(tmp_path / "a", tensors)
        file = tmp_path / "a" / "adapter_config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | fields))
        return tmp_path / "a"

    down: dict[str, Any] = {"target_parameters": ["experts.down_proj"]}
    wrong: dict[str, tuple[dict[str, torch.Tensor], dict[str, Any]]] = {
        "have 15 components, not a multiple of the rank 4": (factors(experts, 15), down),
        "'mlp.experts.bias' is not supported": (factors(experts, 4), {"target_parameters": ["mlp.experts.bias"]}),
        "target_parameters: it has nothing for 'experts.gate_up_proj'": (
            factors(own, 4),
            {"target_parameters": ["experts.gate_up_proj"]},
        ),
        "must be a list of names, got 'all'": (factors(experts, 4), {"target_parameters": "all"}),
        r"has 3 inputs and \d+ outputs, the layer has": (factors(experts, 4 * count, width=3), down),
        f"experts.{count}.down_proj' belongs to no layer": (factors(experts, 4 * (count + 1)), down),
        "are for the same weights|there are two adapters of": (factors(experts, 4 * count) | factors(own, 4), down),
        r"has a magnitude \(DoRA\), which is not supported for experts": (
            factors(own, 4) | {f"{own}.lora_magnitude_vector": torch.ones(hidden)},
            {"use_dora": True},
        ),
    }
    for message, (tensors, fields) in wrong.items():
        with pytest.raises(CheckpointError, match=message):
            load(path, {"a": write(tensors, **fields)})
