"""Models that run through Transformers' modules: what runs is probed and compared at start, what cannot says why.

The golden tests hold them against Transformers in all ways of computing (`enrolment.MODULES`).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from asking import ask, make_conversations, parse, run_transformers
from enrolment import MODULES
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel

from seesay.checkpoint import Checkpoint
from seesay.config import EngineConfig
from seesay.engine.core.loading.length_warning import warn_beyond_training
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.opened_model import open_model
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.modules.module_attention import AttentionShape, check_masks, take_window
from seesay.llm.models.modules.module_decoder import ModuleDecoder
from seesay.llm.models.modules.module_model import ModuleModel
from seesay.vl.modules.module_family import ModuleTextFamily
from seesay.vl.registry import find_family

CPU = torch.device("cpu")


def save(folder: Path, kind: str, model_class: str, **options: Any) -> Path:
    config = transformers.CONFIG_MAPPING[kind](**options)
    torch.manual_seed(0)
    getattr(transformers, model_class)(config).save_pretrained(folder)
    return folder


def load(folder: Path) -> ModuleDecoder:
    return ModuleDecoder(
        ModuleModel(Checkpoint.load(folder), ModuleTextFamily.auto_class), device=CPU, dtype=torch.float32
    )


SIZES = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


@pytest.mark.parametrize("name", MODULES)
def test_an_architecture_without_a_family_runs_through_its_modules(name: str) -> None:
    assert find_family(MODULES[name]) is ModuleTextFamily


def test_what_neither_we_nor_transformers_have_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"architecture 'Xx' is not supported; neither seesay .* nor") as caught:
        find_family("Xx")
    assert len(str(caught.value)) < 300 and "Baichuan" not in str(caught.value)
    with pytest.raises(CheckpointError, match="did you mean 'GPTNeoXForCausalLM'"):
        find_family("GPTNeoXForCausalLMX")


def test_modules_that_make_views_of_what_is_attended(tiny_checkpoint: Callable[[str], Path]) -> None:
    """It is dense, whatever torch's attention on the device returns: here that without a kernel."""
    config = EngineConfig(device_type="cpu", session_len=64)
    with sdpa_kernel(SDPBackend.MATH), AsyncEngine(str(tiny_checkpoint("jetmoe")), backend_config=config) as engine:
        [output] = ask(engine, parse(["the game is in the frame"], max_new_tokens=3))
    assert output.error is None, output.error


@pytest.mark.parametrize("name", ["opt", "gpt_neox"])
def test_a_text_length_that_is_set(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """Some have learned positions, and no rotary embedding that could be scaled."""
    path = tiny_checkpoint(name)
    config = EngineConfig(device_type="cpu", session_len=64)
    with AsyncEngine(str(path), backend_config=config) as engine:
        [output] = ask(engine, parse(["the game"], max_new_tokens=4, ignore_eos=True))
    assert output.error is None and len(output.token_ids) == 4


@pytest.mark.parametrize("name", ["gpt_neox", "gemma3"])
def test_a_length_beyond_the_training_is_told_without_advice_that_would_be_refused(
    name: str, tiny_checkpoint: Callable[[str], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """By Transformers' modules, and where layers of two kinds have rotary embeddings of their own."""
    opened = open_model(tiny_checkpoint(name), EngineConfig(device_type="cpu"))
    warn_beyond_training(EngineConfig(device_type="cpu", session_len=1 << 20), opened.backbone)
    [record] = caplog.records
    assert "seldom good; set with hf_overrides" in record.getMessage()


def test_a_configuration_of_a_much_larger_model_allocates_nothing(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """A part of it that is missing has the sizes of a published model: 2.6 GB of parameters."""
    folder = shutil.copytree(tiny_checkpoint("deepseek_v3"), tmp_path / "large")
    config = json.loads((folder / "config.json").read_text())
    for name in ("hidden_size", "intermediate_size", "num_hidden_layers"):
        del config[name]
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        CheckpointError, match=r"describes a model of [\d,]{11,} parameters, and the files have [\d,]+:"
    ):
        load(folder)


@pytest.mark.parametrize(
    ("kind", "model_class", "options", "message"),
    [
        ("bloom", "BloomForCausalLM", {"n_layer": 2, "n_head": 2}, "0 of 2 layers attend through Transformers' inter"),
        ("diffllama", "DiffLlamaForCausalLM", {"intermediate_size": 32}, "4 of 2 layers attend"),
        ("rwkv", "RwkvForCausalLM", {"attention_hidden_size": 32}, "keeps a state for each text"),
        ("bert", "BertLMHeadModel", {"intermediate_size": 32}, "BertSelfAttention lets tokens see later ones"),
        (
            "llama",
            "LlamaForCausalLM",
            {"intermediate_size": 32, "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
            "rope_type='dynamic' turns a text by the length of the longest one of a step",
        ),
    ],
)
def test_what_blocks_of_keys_and_values_cannot_do_says_why(
    kind: str, model_class: str, options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message):
        load(save(tmp_path, kind, model_class, **SIZES, **options))


@pytest.mark.parametrize(
    ("kind", "model_class", "options"),
    [
        (
            "dbrx",
            "DbrxForCausalLM",
            {
                "d_model": 32,
                "ffn_config": {"hidden_size": 32, "ffn_hidden_size": 16, "moe_num_experts": 4, "moe_top_k": 2},
                "attn_config": {"kv_n_heads": 1, "clip_qkv": 4.0, "rope_theta": 10000.0},
            },
        ),
        (
            "gemma4_text",
            "Gemma4ForCausalLM",
            {
                "head_dim": 16, "global_head_dim": 32, "num_key_value_heads": 1, "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"], "hidden_size_per_layer_input": 0,
                "attention_k_eq_v": True, "enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
                "intermediate_size": 32, "moe_intermediate_size": 16,
            },
        ),
        (
            "gemma3n_text",
            "Gemma3nForCausalLM",
            {
                "num_hidden_layers": 4, "head_dim": 16, "num_key_value_heads": 1, "sliding_window": 4,
                "layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 2,
                "vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8, "laurel_rank": 4,
                "intermediate_size": 32, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
            },
        ),
    ],
)  # fmt: skip
def test_modules_that_look_at_values_and_ids(
    kind: str, model_class: str, options: dict[str, Any], tmp_path: Path
) -> None:
    """They agree with their own model, which is compared when they are loaded."""
    decoder = load(save(tmp_path, kind, model_class, **{**SIZES, **options}))
    assert len(decoder.traits.kv_shapes) == decoder._model.config.num_hidden_layers


def test_a_probe_of_any_size_takes_no_memory(tmp_path: Path) -> None:
    """Weights of zeros have one element; and products, which would make copies of them, are not computed."""
    config = transformers.JetMoeConfig(
        hidden_size=1 << 16, intermediate_size=1 << 18, num_hidden_layers=2, num_key_value_heads=512
    )
    (tmp_path / "config.json").write_text(
        json.dumps({**config.to_dict(), "architectures": ["JetMoeForCausalLM"]}, default=str)
    )
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    probed = ModuleModel(Checkpoint.load(tmp_path), ModuleTextFamily.auto_class).probed
    assert probed.num_parameters > 1 << 39 and len(probed.shapes) == 2


def test_layers_with_other_states_are_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["JambaForCausalLM"], "model_type": "jamba"}))
    save_file({"x": torch.zeros(1)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="its layers are of type linear_attention, which have other states"):
        ModuleModel(Checkpoint.load(tmp_path), ModuleTextFamily.auto_class)


def test_a_hybrid_model_whose_layers_all_attend_runs(tmp_path: Path) -> None:
    """Saved by Transformers, which writes its infinite limit of the other layers as an object."""
    sizes = {**SIZES, "intermediate_size": 32, "shared_intermediate_size": 32, "mamba_n_heads": 2}
    folder = save(tmp_path, "granitemoehybrid", "GraniteMoeHybridForCausalLM", **sizes, layer_types=["attention"] * 2)
    assert '"__float__": "Infinity"' in (folder / "config.json").read_text()
    load(folder)  # which compares it with its own attention


def test_modules_that_mix_the_tokens_of_a_step_are_found(
    tiny_checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a convolution over the text would, which asks nothing of the interface for attention."""
    from transformers.models.gpt_neox.modeling_gpt_neox import GPTNeoXMLP

    compute = GPTNeoXMLP.forward
    monkeypatch.setattr(GPTNeoXMLP, "forward", lambda self, x: compute(self, x + 0.1 * x.roll(1, dims=1)))
    with pytest.raises(CheckpointError, match="look at other tokens beside attention, or at other positions"):
        load(tiny_checkpoint("gpt_neox"))


def test_masks_other_than_causal_ones_are_found() -> None:
    def causal(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return key <= query

    def windowed(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) & (query - key < 32)

    def with_prefix(_batch: Any, _head: Any, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (key <= query) | (key < 4)

    assert check_masks([causal, windowed], frozenset({None, 32})) == {None, 32}
    assert check_masks([windowed], frozenset({None, 32})) == {32}
    for masks, windows in (([causal, windowed], {None}), ([windowed], {None, 31}), ([with_prefix], {None, 32})):
        with pytest.raises(CheckpointError, match="a token sees others than those before it"):
            check_masks(masks, frozenset(windows))


def test_a_known_architecture_of_an_unknown_type_runs_without_the_code_beside_it(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As Kimi K2 is a DeepSeek-V3."""
    known, other = tiny_checkpoint("deepseek_v3"), tmp_path / "kimi"
    shutil.copytree(known, other)
    config = json.loads((other / "config.json").read_text())
    code = {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.DeepseekV3ForCausalLM"}
    (other / "config.json").write_text(json.dumps({**config, "model_type": "kimi_k2", "auto_map": code}))
    (other / "own.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    requests = parse(["the game is in the frame"], max_new_tokens=8, ignore_eos=True)
    answers = []
    for folder, may_run in ((known, False), (other, False), (other, True)):
        options = EngineConfig(device_type="cpu", trust_remote_code=may_run)
        with AsyncEngine(str(folder), backend_config=options) as engine:
            answers.append(list(ask(engine, requests)[0].token_ids))
    assert answers[0] == answers[1] == answers[2]


def test_a_layer_has_the_window_of_the_mask() -> None:
    plain = AttentionShape(
        num_heads=2, num_kv_heads=2, head_dim=8, value_dim=8, scale=1.0, window=None, soft_cap=None
    )  # fmt: skip
    windowed = replace(plain, window=32)
    assert take_window(plain, frozenset({32})) == windowed
    for masked in ({None}, {None, 32}, set()):
        assert take_window(plain, frozenset(masked)) == plain
        assert take_window(windowed, frozenset(masked)) == windowed
    with pytest.raises(CheckpointError, match=r"windows of \[32, 64\] tokens"):
        take_window(plain, frozenset({32, 64}))


def edit(folder: Path, target: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> Path:
    shutil.copytree(folder, target)
    tensors = load_file(target / "model.safetensors")
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    change(tensors)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def test_tensors_that_do_not_fit_are_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder, name = tiny_checkpoint("gpt_neox"), "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    faults: dict[str, tuple[Callable[[dict[str, torch.Tensor]], object], str]] = {
        "missing": (lambda t: t.pop(name), f"tensor '{name}' is missing"),
        "shape": (lambda t: t.update({name: t[name][:-1].contiguous()}), f"tensor '{name}' has another shape"),
        "unexpected": (lambda t: t.update({"gpt_neox.other.weight": torch.ones(3)}), "unexpected tensor"),
    }
    for fault, (change, message) in faults.items():
        with pytest.raises(CheckpointError, match=message):
            load(edit(folder, tmp_path / fault, change))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda t, name: t.pop(name), "tensor '{name}' is missing from the checkpoint"),
        (lambda t, name: t.update({name: t[name][:-1].contiguous()}), "tensor '{name}' has shape .* other experts"),
    ],
    ids=["missing", "shape"],
)
@pytest.mark.parametrize("part", ["0.down_proj", "1.gate_proj", "3.up_proj"])
def test_an_expert_that_does_not_fit_is_named(
    part: str, fault: Callable[..., object], message: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Transformers joins the experts of a layer, and names none of them."""
    name = f"model.layers.1.mlp.experts.{part}.weight"
    folder = edit(tiny_checkpoint("deepseek_v3"), tmp_path / "model", lambda tensors: fault(tensors, name))
    with pytest.raises(CheckpointError, match=f"model: {message.format(name=name)}"):
        load(folder)


def test_a_whole_expert_that_is_missing_is_named(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    def drop(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if ".experts.3." in name]:
            del tensors[name]

    with pytest.raises(
        CheckpointError, match=r"tensor 'model\.layers\.1\.mlp\.experts\.3\.down_proj\.weight' is missing"
    ):
        load(edit(tiny_checkpoint("deepseek_v3"), tmp_path / "model", drop))


def test_weights_that_are_not_finite_are_told(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    name = "gpt_neox.layers.1.mlp.dense_h_to_4h.weight"
    folder = edit(tiny_checkpoint("gpt_neox"), tmp_path / "nan", lambda tensors: tensors[name].fill_(torch.nan))
    with pytest.raises(
        CheckpointError, match=r"numbers that are not finite in a trial, in torch\.float32: look for dam"
    ):
        load(folder)


def test_pickled_weights_are_not_read(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    shutil.copytree(tiny_checkpoint("gpt_neox"), tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    (tmp_path / "model" / "model.safetensors").unlink()
    torch.save(tensors, tmp_path / "model" / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="safetensors"):
        load(tmp_path / "model")


def test_quantized_weights_lite_and_other_rotary_scalings_are_refused(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    from seesay import lite

    folder = tiny_checkpoint("gpt_neox")
    config = EngineConfig(device_type="cpu", quantization="int8")
    with pytest.raises(CheckpointError, match="runs through Transformers' modules, with plain weights only"):
        AsyncEngine(str(folder), backend_config=config)
    for option in ({"rope_scaling_factor": 2.0}, {"use_logn_attn": True}):
        with pytest.raises(ConfigError, match=r"rope_scaling_factor=2\.0: GPTNeoX|use_logn_attn=True: GPTNeoX"):
            AsyncEngine(str(folder), backend_config=EngineConfig(device_type="cpu", **option))
    (tmp_path / "text.txt").write_text("the game is in the frame " * 200)
    with pytest.raises(ConfigError, match="runs through Transformers' modules, which cannot be quantized here"):
        lite.auto_gptq(
            folder, tmp_path / "out", calib_dataset=str(tmp_path / "text.txt"), calib_seqlen=64, device="cpu"
        )


def test_weights_are_replaced_from_a_folder_and_restored(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = tiny_checkpoint("cohere2")
    other = edit(folder, tmp_path / "other", lambda t: [tensor.copy_(tensor.flip(0)) for tensor in t.values()])
    requests = parse(make_conversations("cohere2")[:1], max_new_tokens=8, ignore_eos=True)
    new = run_transformers(other, "cohere2", new_tokens=8)[0].answer
    with AsyncEngine(str(folder), backend_config=EngineConfig(device_type="cpu")) as engine:
        old = list(ask(engine, requests)[0].token_ids)
        assert old != new
        engine.update_weights(str(other))
        assert list(ask(engine, requests)[0].token_ids) == new
        engine.sleep(2)
        engine.wake_up()
        assert list(ask(engine, requests)[0].token_ids) == new
        engine.update_weights(str(folder))
        assert list(ask(engine, requests)[0].token_ids) == old
        with pytest.raises(CheckpointError, match="takes the weights of a whole folder, not single tensors"):
            engine.update_weights(list(load_file(folder / "model.safetensors").items())[:1])
        assert list(ask(engine, requests)[0].token_ids) == old
