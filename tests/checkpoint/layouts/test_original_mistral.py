"""Mistral's own file layout: the same model as its Transformers form, whose files the test takes apart."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import ask, make_conversations, make_message, make_picture, parse, run_transformers
from oracles import load_oracle, load_text_oracle
from safetensors.torch import load_file, save_file
from tekken_files import encode_by_rule, make_tekken, write_tekken

from seesay import GenerationConfig
from seesay.checkpoint import Checkpoint
from seesay.checkpoint.layouts import original_mistral
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError
from seesay.lite.merging import merge
from seesay.lite.output import make_config, write_checkpoint

CONFIG = EngineConfig(device_type="cpu", block_size=16)
NEW_TOKENS = 8
PIXTRAL: dict[str, Any] = {
    "dim": 5120, "n_layers": 40, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32, "n_kv_heads": 8,
    "norm_eps": 1e-05, "rope_theta": 1000000000.0, "vocab_size": 131072,
    "vision_encoder": {
        "hidden_size": 1024, "num_channels": 3, "image_size": 1024, "patch_size": 16, "rope_theta": 10000.0,
        "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16, "image_token_id": 10,
        "adapter_bias": True,
    },
}  # fmt: skip
"""The params.json of Pixtral 12B."""
SMALL: dict[str, Any] = {
    **{name: value for name, value in PIXTRAL.items() if name != "vision_encoder"}, "hidden_dim": 32768,
    "vision_encoder": {
        "image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13, "intermediate_size": 4096,
        "num_hidden_layers": 24, "num_attention_heads": 16, "mm_projector_id": "patch_merge", "spatial_merge_size": 2,
        "hidden_size": 1024, "num_channels": 3, "image_size": 1540, "max_image_size": 1540, "patch_size": 14,
        "rope_theta": 10000.0, "add_pre_mm_projector_layer_norm": True, "adapter_bias": False,
    },
}  # fmt: skip
"""That of Mistral Small 3.1 24B."""
MINISTRAL: dict[str, Any] = {
    **{name: value for name, value in PIXTRAL.items() if name != "vision_encoder"}, "tied_embeddings": True,
    "max_position_embeddings": 262144, "llama_4_scaling": {"original_max_position_embeddings": 16384, "beta": 0.1},
    "yarn": {"original_max_position_embeddings": 16384, "factor": 16, "apply_scale": False, "beta": 32, "alpha": 1},
}  # fmt: skip
"""That of a Ministral 3, without its tower."""

NAMES = (
    (r"^(?:model\.)?(?:language_model\.)?(?:model\.)?(vision_tower|multi_modal_projector)\.", r"\1."),
    (r"^(?:model\.)?language_model\.(?:model\.)?", ""),
    (r"^model\.(?!language_model)", ""),
    (r"^lm_head\.", "output."),
    (r"^embed_tokens\.", "tok_embeddings."),
    (r"^vision_tower\.", "vision_encoder."),
    (r"^multi_modal_projector\.linear_1\.", "vision_language_adapter.w_in."),
    (r"^multi_modal_projector\.linear_2\.", "vision_language_adapter.w_out."),
    (r"^multi_modal_projector\.norm\.", "pre_mm_projector_norm."),
    (r"^multi_modal_projector\.patch_merger\.", "patch_merger."),
    (r"\.(?:self_attn|attention)\.([qkvo])_proj\.", r".attention.w\1."),
    (r"\.input_layernorm\.", ".attention_norm."),
    (r"\.post_attention_layernorm\.", ".ffn_norm."),
    (r"\.(?:mlp|feed_forward)\.gate_proj\.", ".feed_forward.w1."),
    (r"\.(?:mlp|feed_forward)\.down_proj\.", ".feed_forward.w2."),
    (r"\.(?:mlp|feed_forward)\.up_proj\.", ".feed_forward.w3."),
)


def name_as_mistral(name: str) -> str:
    for pattern, own in NAMES:
        name = re.sub(pattern, own, name)
    return name


def put_in_pairs(rows: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Rows x0, x1, …, y0, y1, … of each head as x0, y0, x1, y1, …"""
    heads = [torch.stack(head.chunk(2), dim=1).flatten(0, 1) for head in rows.chunk(num_heads)]
    return torch.cat(heads).contiguous()


def write_weights(source: Path, target: Path, config: dict[str, Any]) -> None:
    text = config.get("text_config", config)
    found = {}
    for name, tensor in load_file(source / "model.safetensors").items():
        own = name_as_mistral(name)
        if own.startswith("vision_encoder.") and own.endswith((".wq.weight", ".wk.weight")):
            tensor = put_in_pairs(tensor, config["vision_config"]["num_attention_heads"])
        elif own.endswith(".wq.weight"):
            tensor = put_in_pairs(tensor, text["num_attention_heads"])
        elif own.endswith(".wk.weight"):
            tensor = put_in_pairs(tensor, text["num_key_value_heads"])
        found[own] = tensor
    save_file(found, target / "consolidated.safetensors")


def make_params(config: dict[str, Any], processor: dict[str, Any]) -> dict[str, Any]:
    text = config.get("text_config", config)
    rotary = text.get("rope_parameters") or {}
    params: dict[str, Any] = {
        "dim": text["hidden_size"], "n_layers": text["num_hidden_layers"], "head_dim": text["head_dim"],
        "hidden_dim": text["intermediate_size"], "n_heads": text["num_attention_heads"],
        "n_kv_heads": text["num_key_value_heads"], "norm_eps": text["rms_norm_eps"], "vocab_size": text["vocab_size"],
        "rope_theta": rotary["rope_theta"], "max_position_embeddings": text["max_position_embeddings"],
        "sliding_window": text.get("sliding_window"), "tied_embeddings": config.get("tie_word_embeddings", False),
        "dtype": "float32", "model_type": "transformer",
    }  # fmt: skip
    if "llama_4_scaling_beta" in rotary:
        length = rotary["original_max_position_embeddings"]
        params["llama_4_scaling"] = {"original_max_position_embeddings": length, "beta": rotary["llama_4_scaling_beta"]}
        params["yarn"] = {
            "original_max_position_embeddings": length, "factor": rotary["factor"], "apply_scale": False,
            "beta": rotary["beta_fast"], "alpha": rotary["beta_slow"],
        }  # fmt: skip
    if (vision := config.get("vision_config")) is not None:
        names = (
            "hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_channels",
            "num_hidden_layers", "patch_size",
        )  # fmt: skip
        tower = {name: vision[name] for name in names}
        tower["rope_theta"] = vision["rope_parameters"]["rope_theta"]
        tower["image_token_id"] = config.get("image_token_index", config.get("image_token_id"))
        tower["max_image_size"] = processor["image_processor"]["size"]["longest_edge"]
        tower["adapter_bias"] = config["multimodal_projector_bias"]
        if config["model_type"] == "mistral3":
            tower |= {"mm_projector_id": "patch_merge", "add_pre_mm_projector_layer_norm": True}
            tower["spatial_merge_size"] = config["spatial_merge_size"]
        params["vision_encoder"] = tower
    return params


@pytest.fixture
def take_apart(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """`take_apart(name)`: a checkpoint that can be in Mistral's layout, in Transformers' and in Mistral's."""

    def write(name: str) -> tuple[Path, Path]:
        sibling = shutil.copytree(tiny_checkpoint(name), tmp_path / "sibling")
        config = json.loads((sibling / "config.json").read_text())
        if "vision_config" in config:  # what params.json cannot say
            config["vision_config"]["hidden_act"], config["vision_feature_layer"] = "silu", -1
            (sibling / "config.json").write_text(json.dumps(config))
        file = sibling / "processor_config.json"
        processor = json.loads(file.read_text()) if file.exists() else {}
        own = tmp_path / "own"
        own.mkdir()
        (own / "params.json").write_text(json.dumps(make_params(config, processor)))
        write_weights(sibling, own, config)
        for kept in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            if (sibling / kept).exists():
                shutil.copyfile(sibling / kept, own / kept)
        return sibling, own

    return write


@pytest.mark.parametrize("name", ["pixtral", "mistral3", "ministral3", "mistral"])
def test_answers_are_those_of_transformers(name: str, take_apart: Callable[..., tuple[Path, Path]]) -> None:
    """The weights, bit for bit; the tokens of prompts with pictures; greedy answers."""
    sibling, own = take_apart(name)
    checkpoint = Checkpoint.load(own)
    model, _ = (load_text_oracle if name == "mistral" else load_oracle)(sibling)
    expected = model.state_dict()
    assert checkpoint.tensor_names() == set(expected)
    for tensor, slices in checkpoint.slices(checkpoint.tensor_names(), "cpu"):
        assert torch.equal(slices.read(tuple(map(range, slices.shape))), expected[tensor]), tensor

    requests = parse(
        make_conversations(name), GenerationConfig(max_new_tokens=NEW_TOKENS, do_sample=False, ignore_eos=True)
    )
    with AsyncEngine(str(own), backend_config=CONFIG) as engine:
        found = ask(engine, requests)
    for answer, other in zip(found, run_transformers(sibling, name, new_tokens=NEW_TOKENS), strict=True):
        assert answer.error is None
        assert answer.input_token_len == len(other.input_ids)
        assert answer.token_ids == other.answer


def test_a_folder_of_mistrals_own_files_alone(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    """The tokenizer and the chat template are those of tekken.json."""
    _, own = take_apart("pixtral")
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (own / name).unlink(missing_ok=True)
    write_tekken(own, config={**make_tekken()["config"], "default_vocab_size": 288})
    params = json.loads((own / "params.json").read_text())
    params["vision_encoder"] |= {"image_token_id": 10, "image_break_token_id": 12, "image_end_token_id": 13}
    (own / "params.json").write_text(json.dumps(params))
    assert {file.name for file in own.iterdir()} == {"params.json", "consolidated.safetensors", "tekken.json"}
    with AsyncEngine(str(own), backend_config=CONFIG) as engine:
        [request] = parse(
            [[make_message(make_picture(16, 24, 1), "What?")]], GenerationConfig(max_new_tokens=4, ignore_eos=True)
        )
        ids = engine.tokenize(request).result(60).tolist()
        [answer] = ask(engine, [request])
    assert ids == [1, 3, 10, 10, 10, 12, 10, 10, 10, 13, *encode_by_rule("What?"), 4]
    assert answer.error is None and answer.generate_token_len == 4


def test_parts_of_rows_in_pairs(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    """As a rank reads them, or one weight of several."""
    _, own = take_apart("mistral")
    checkpoint = Checkpoint.load(own)
    name = "model.layers.0.self_attn.q_proj.weight"
    for _, slices in checkpoint.slices([name], "cpu"):
        rows, columns = slices.shape
        whole = slices.read((range(rows), range(columns)))
        for picks in (
            (range(3, 9), range(columns)),
            (range(0, rows, 2), range(5, columns)),
            (range(0), range(columns)),
        ):
            assert torch.equal(slices.read(picks), whole[list(picks[0])][:, list(picks[1])])


def test_a_copy_is_written_in_transformers_layout(take_apart: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    """As `seesay lite` does, with the settings of the processor."""
    _, own = take_apart("pixtral")
    source = Checkpoint.load(own)
    (tmp_path / "made").mkdir()
    write_checkpoint(tmp_path / "made", source, [], make_config(source, {"quant_method": "fp8"}), [])
    config = json.loads((tmp_path / "made" / "config.json").read_text())
    assert config == {**source.config, "quantization_config": {"quant_method": "fp8"}}
    (tmp_path / "made" / "config.json").write_text(json.dumps(dict(source.config)))
    found = Checkpoint.load(tmp_path / "made")
    assert found.stand_ins == {} and found.tensor_names() == source.tensor_names()
    assert found.read_json("processor_config.json") == source.stand_ins["processor_config.json"]
    state = load_file(tmp_path / "made" / "model.safetensors")
    for name, slices in source.slices(source.tensor_names(), "cpu"):
        assert torch.equal(slices.read(tuple(map(range, slices.shape))), state[name]), name


def test_several_files(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    _, own = take_apart("mistral")
    before = Checkpoint.load(own).tensor_names()
    state = load_file(own / "consolidated.safetensors")
    names = sorted(state)
    files = {name: f"consolidated-0000{1 + index % 2}-of-00002.safetensors" for index, name in enumerate(names)}
    for file in set(files.values()):
        save_file({name: state[name] for name in names if files[name] == file}, own / file)
    (own / "consolidated.safetensors").unlink()
    (own / "consolidated.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert Checkpoint.load(own).tensor_names() == before
    (own / "consolidated-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"consolidated-00002-of-00002\.safetensors: the shard is missing"):
        Checkpoint.load(own)


def read_params(params: Mapping[str, object]) -> dict[str, Any]:
    """The files that a params.json stands for."""
    return dict(original_mistral.read_params(params))


def test_published_pixtral() -> None:
    found = read_params(PIXTRAL)
    config, processor = found["config.json"], found["processor_config.json"]
    text, vision = config["text_config"], config["vision_config"]
    assert (config["architectures"], config["image_token_index"]) == (["LlavaForConditionalGeneration"], 10)
    assert (text["model_type"], text["rope_theta"], text["max_position_embeddings"]) == ("mistral", 1e9, 128_000)
    assert (vision["model_type"], vision["hidden_act"], vision["patch_size"]) == ("pixtral", "silu", 16)
    assert processor["image_processor"]["size"] == {"longest_edge": 1024}
    assert config["multimodal_projector_bias"] is True


def test_published_mistral_small() -> None:
    found = read_params(SMALL)
    config, processor = found["config.json"], found["processor_config.json"]
    assert (config["architectures"], config["spatial_merge_size"]) == (["Mistral3ForConditionalGeneration"], 2)
    assert config["multimodal_projector_bias"] is False
    assert processor["image_processor"]["size"] == {"longest_edge": 1540}
    assert (processor["image_break_token_id"], processor["image_end_token_id"]) == (12, 13)


def test_published_ministral() -> None:
    [config] = read_params(MINISTRAL).values()
    assert (config["architectures"], config["model_type"]) == (["Ministral3ForCausalLM"], "ministral3")
    assert config["tie_word_embeddings"] is True and "rope_theta" not in config
    assert config["rope_parameters"]["llama_4_scaling_beta"] == 0.1
    without = {**MINISTRAL, "llama_4_scaling": None}
    assert read_params(without)["config.json"]["model_type"] == "mistral"


def test_windows_of_layers_in_turn() -> None:
    text = {name: value for name, value in PIXTRAL.items() if name != "vision_encoder"}
    [config] = read_params({**text, "sliding_window": [None, 4096, 4096, 4096]}).values()
    assert (config["model_type"], config["sliding_window"]) == ("ministral", 4096)
    assert config["layer_types"][:5] == ["full_attention", *["sliding_attention"] * 3, "full_attention"]
    assert len(config["layer_types"]) == 40
    first = {name: value for name, value in text.items() if name != "rope_theta"}
    [config] = read_params({**first, "sliding_window": 4096}).values()
    assert (config["sliding_window"], config["rope_theta"]) == (4096, 1e4)


YARN = MINISTRAL["yarn"]
TOWER = SMALL["vision_encoder"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"moe": {"num_experts": 8}}, "moe: experts in Mistral's own layout are not supported"),
        ({"quantization": {"qformat_weight": "fp8_e4m3"}}, "quantization: quantized weights in Mistral's own layout"),
        ({"multimodal": {"whisper_model_args": {}}}, "multimodal: an encoder of sounds"),
        ({"dim": "large"}, "dim must be a positive integer, got 'large'"),
        ({"n_heads": None}, "n_heads must be a positive integer, got 'None'"),
        ({"activation": "gelu"}, "activation must be 'silu', got 'gelu'"),
        ({"model_type": "mamba"}, "model_type must be 'transformer', got 'mamba'"),
        ({"qk_nope_head_dim": 64}, "'qk_nope_head_dim' is not a field that is supported, got '64'"),
        ({"tied_embeddings": 1}, "tied_embeddings must be true or false, got '1'"),
        ({"sliding_window": "4096"}, "sliding_window must be a positive integer, got '4096'"),
        ({"sliding_window": [4096, -1]}, "sliding_window must be a positive integer, or a list"),
        ({"sliding_window": [4096, None, 4096]}, "whose length divides the number of layers"),
        ({"yarn": [], "llama_4_scaling": None}, r"yarn must be an object, got '\[\]'"),
        ({"yarn": {**YARN, "apply_scale": True}}, "yarn.apply_scale must be false, got 'True'"),
        ({"yarn": {**YARN, "factor": 0}}, "factor must be a number above 0, got '0'"),
        ({"yarn": {**YARN, "original_max_position_embeddings": 5}}, "must be that of yarn"),
        ({"yarn": None}, "llama_4_scaling without yarn"),
        ({"vision_encoder": 5}, "vision_encoder must be an object, got '5'"),
        ({"vision_encoder": {**TOWER, "hidden_size": 0}}, "vision_encoder: hidden_size must be a positive integer"),
        ({"vision_encoder": {**TOWER, "head_dim": 32}}, "head_dim=32 is not hidden_size divided by"),
        ({"vision_encoder": {**TOWER, "mm_projector_id": "mlp"}}, "mm_projector_id must be None, got 'mlp'"),
        ({"vision_encoder": {**TOWER, "mm_projector_id": None}}, "with spatial_merge_size=2 and .* is not supported"),
        ({"vision_encoder": {**TOWER, "image_token_id": -1}}, "image_token_id must be the id of a token, got '-1'"),
        ({"vision_encoder": {**TOWER, "depthwise": True}}, "'depthwise' is not a field that is supported"),
    ],
)  # fmt: skip
def test_what_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_params({**MINISTRAL, **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "params.json: not valid JSON"),
        ("[]", "params.json: must hold a JSON object"),
        ('{"dim": 1e999}', "params.json: "),
        ("{}", "params.json: dim must be a positive integer, got 'None'"),
    ],
)
def test_damaged_params(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "params.json").write_text(content)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.load(tmp_path)


def test_a_config_json_comes_first(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    """Most folders on the hub have both layouts."""
    sibling, own = take_apart("mistral")
    for file in own.iterdir():
        if file.name in ("params.json", "consolidated.safetensors"):
            file.replace(sibling / file.name)
    assert Checkpoint.load(sibling).stand_ins == {}
    with pytest.raises(CheckpointError, match=r"it has no config\.json, nor Mistral's params\.json"):
        Checkpoint.load(own)


def damage(own: Path, name: str, change: Callable[[torch.Tensor], torch.Tensor], target: str | None = None) -> None:
    state = load_file(own / "consolidated.safetensors")
    state[target or name] = change(state[name]).contiguous()
    save_file(state, own / "consolidated.safetensors")


def test_damaged_weights(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    _, own = take_apart("mistral")
    damage(own, "layers.1.attention.wk.weight", lambda rows: rows[:-1])
    with pytest.raises(
        CheckpointError, match=r"'layers\.1\.attention\.wk\.weight' has shape .*, which is not that of 2 heads"
    ):
        Checkpoint.load(own)
    damage(own, "layers.1.attention.wv.weight", torch.clone, "layers.1.attention.wk.weight")
    damage(own, "norm.weight", torch.clone, "model.norm.weight")
    with pytest.raises(CheckpointError, match=r"norm\.weight' is there under another name, too"):
        Checkpoint.load(own)


def test_weights_as_pickles_are_not_opened(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    _, own = take_apart("mistral")
    (own / "consolidated.safetensors").rename(own / "consolidated.00.pth")
    with pytest.raises(CheckpointError, match=r"the weights are pickles \(consolidated.00.pth\)"):
        Checkpoint.load(own)


def test_adapters_are_not_merged_into_this_layout(take_apart: Callable[..., tuple[Path, Path]], tmp_path: Path) -> None:
    _, own = take_apart("mistral")
    with pytest.raises(CheckpointError, match="adapters are not merged into a model in Mistral's own layout"):
        merge(own, tmp_path / "adapter", tmp_path / "merged")


def test_ids_of_the_breaks_between_lines(take_apart: Callable[..., tuple[Path, Path]]) -> None:
    """Those of params.json are those of the tokenizer."""
    _, own = take_apart("pixtral")
    params = json.loads((own / "params.json").read_text())
    params["vision_encoder"]["image_break_token_id"] = 3
    (own / "params.json").write_text(json.dumps(params))
    with pytest.raises(
        CheckpointError, match=r"image_break_token_id=3 of processor_config\.json is not the tokenizer's"
    ):
        AsyncEngine(str(own), backend_config=CONFIG)
