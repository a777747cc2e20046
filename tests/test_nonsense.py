"""Checkpoints and options that are nonsense: each ends in one error that names what is wrong, within seconds."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pairs import parametrize_sweep

from seesay.config import EngineConfig, VisionConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import CheckpointError, ConfigError

CPU = EngineConfig(device_type="cpu", block_size=16)
NUMBERS: list[Any] = [0, -1, 10**9, 10**12, 10**30, 1.5, float("nan"), float("inf"), "x", True, [], [0], {"a": 1}]
FIELDS = {
    "llama": (
        "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "intermediate_size",
        "vocab_size", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters.rope_theta",
        "rope_parameters.rope_type", "rope_parameters", "layer_types", "hidden_act", "tie_word_embeddings",
        "architectures", "model_type", "dtype", "attention_bias", "mlp_bias",
    ),
    "mistral": ("sliding_window",),
    "phi3_longrope": (
        "rope_parameters.short_factor", "rope_parameters.long_factor", "original_max_position_embeddings",
        "rope_parameters.original_max_position_embeddings", "rope_parameters.factor",
        "rope_parameters.partial_rotary_factor",
    ),
    "qwen2_5_vl": (
        "vision_config.depth", "vision_config.hidden_size", "vision_config.num_heads", "vision_config.patch_size",
        "vision_config.temporal_patch_size", "vision_config.spatial_merge_size", "vision_config.window_size",
        "vision_config.fullatt_block_indexes", "vision_config.tokens_per_second", "vision_config.out_hidden_size",
        "vision_config.in_channels", "vision_config", "text_config", "text_config.hidden_size",
        "text_config.rope_parameters.mrope_section", "image_token_id", "vision_start_token_id",
    ),
    "qwen2_vl": ("vision_config.embed_dim", "vision_config.mlp_ratio"),
    "llava": (
        "vision_config.image_size", "vision_config.patch_size", "vision_config.num_hidden_layers",
        "vision_feature_layer", "vision_config.num_attention_heads", "vision_config.layer_norm_eps",
        "image_token_index", "image_token_id", "vision_feature_select_strategy", "projector_hidden_act",
    ),
    "llava_next": ("image_grid_pinpoints", "vision_config.image_size"),
    "llava_onevision": ("image_grid_pinpoints", "vision_aspect_ratio", "video_token_index", "vision_config.patch_size"),
    "internvl_chat": ("llm_config", "vision_config", "max_dynamic_patch", "select_layer", "vision_config.qkv_bias"),
    "mini_gemini": (
        "mm_vision_tower", "mm_vision_tower_aux", "image_size_aux", "image_grid", "image_global", "vision_config",
        "image_aspect_ratio", "mm_vision_select_layer",
    ),
    "mono_internvl": (
        "vision_config.model_type", "llm_config.architectures", "select_layer", "vision_config.patch_size",
    ),
    "llava_next_original": ("image_aspect_ratio", "image_grid_pinpoints", "mm_vision_tower", "vision_config"),
    "internvl": (
        "downsample_ratio", "vision_config.image_size", "vision_config.patch_size", "vision_config.hidden_size",
        "vision_config.norm_type", "vision_feature_layer", "image_token_id",
    ),
    "glm4v": (
        "vision_config.image_size", "vision_config.attention_bias", "vision_config.intermediate_size",
        "vision_config.hidden_act", "vision_config.patch_size", "text_config.rope_parameters.partial_rotary_factor",
        "text_config.rope_parameters.mrope_section", "video_token_id",
    ),
    "chatglm_4v": (
        "vision_config.image_size", "vision_config.patch_size", "vision_config.num_heads", "vision_config.hidden_size",
        "vision_config.num_positions", "vision_config.scaling_factor", "vision_config.in_channels", "vision_config",
        "vision_config.num_hidden_layers", "vision_config.hidden_act", "ffn_hidden_size",
    ),
    "cogvlm": (
        "vision_config", "vision_config.image_size", "vision_config.num_positions", "num_multi_query_heads",
        "pad_token_id", "vocab_size", "num_attention_heads", "intermediate_size", "template_version",
    ),
    "jamba": ("mamba_expand", "mamba_d_state", "mamba_d_conv", "mamba_dt_rank"),
    "bamba": ("mamba_n_heads", "mamba_d_head", "mamba_n_groups"),
    "qwen3_5": (
        "text_config.linear_num_key_heads", "text_config.linear_num_value_heads", "text_config.linear_key_head_dim",
        "text_config.linear_value_head_dim", "text_config.linear_conv_kernel_dim",
    ),
    "lfm2_vl": ("text_config.conv_L_cache",),
    "minicpmv4_6": ("insert_layer_id", "merger_times", "downsample_mode", "merge_kernel_size", "image_token_id"),
}  # fmt: skip
PROCESSOR_FIELDS = {
    "llava": ("size", "crop_size", "image_mean", "image_std", "resample", "rescale_factor", "do_resize"),
    "qwen2_5_vl": ("patch_size", "merge_size", "temporal_patch_size", "min_pixels", "max_pixels", "size", "image_std"),
    "internvl": ("size", "min_patches", "max_patches", "image_mean"),
    "llava_next": ("size", "crop_size", "image_grid_pinpoints", "image_processor_type"),
    "glm4v": ("size", "temporal_patch_size", "patch_size"),
}


def put(data: dict[str, Any], field: str, value: Any) -> None:
    *path, last = field.split(".")
    for name in path:
        data = data[name]
    data[last] = value


def copy_folder(source: Path, target: Path) -> Path:
    """The same files under other names, so that they are not written again."""
    target.mkdir()
    for file in filter(Path.is_file, source.iterdir()):
        os.link(file, target / file.name)
    return target


def replace(folder: Path, name: str, edit: Callable[[dict[str, Any]], None]) -> None:
    data = json.loads((folder / name).read_text())
    edit(data)
    (folder / name).unlink()
    (folder / name).write_text(json.dumps(data))


def load(folder: Path, config: EngineConfig = CPU) -> str | None:
    """What is wrong with a checkpoint; None when an engine could be made of it."""
    try:
        AsyncEngine(str(folder), backend_config=config).close()
    except (CheckpointError, ConfigError) as error:
        assert str(error)
        return str(error)
    return None


def test_one_probe_of_a_template_that_loops_ends_loading(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = copy_folder(tiny_checkpoint("llama"), tmp_path / "loops")
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    loop = "{% for i in range(99999) %}" * 3 + "{% endfor %}" * 3
    (folder / "chat_template.jinja").write_text("{% if messages %}" + loop + "{{ messages[0].content }}{% endif %}")
    assert "ran longer than" in (load(folder) or "")
    assert caplog.text.count("its chat template was stopped") == 1


@pytest.mark.parametrize(
    ("name", "file", "field", "value"),
    [
        ("qwen2_5_vl", "processor_config.json", "image_processor.min_pixels", "a"),
        ("llama", "generation_config.json", "temperature", -1),
        ("llama", "generation_config.json", "top_p", "half"),
        ("llama", "config.json", "dtype", 5),
        ("llama", "config.json", "num_experts", -1),
        ("llama", "config.json", "layer_types", ["nope"]),
        ("qwen2_5_vl", "config.json", "text_config.layer_types", ["nope"]),
        ("qwen2_5_vl", "config.json", "text_config.dtype", "int"),
    ],
)
def test_values_of_a_wrong_type_or_range_are_refused_where_they_are_read(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, name: str, file: str, field: str, value: Any
) -> None:
    folder = copy_folder(tiny_checkpoint(name), tmp_path / "wrong")
    if not (folder / file).exists():
        (folder / file).write_text("{}")
    replace(folder, file, lambda data: put(data, field, value))
    error = load(folder)
    assert error is not None and f"{file}: {field} must be " in error and "got" in error


def list_cases(fields: Mapping[str, Sequence[str]], values: Sequence[Any]) -> list[Any]:
    """Return (model, field, values) of all of them: two values of each field, each value with some field, and the other
    values as a slow test."""
    cases = []
    for index, (name, field) in enumerate((name, field) for name, own in fields.items() for field in own):
        few = [values[(2 * index + step) % len(values)] for step in (0, 1)]
        others = [value for value in values if not any(value is one for one in few)]
        cases.append(pytest.param(name, field, few, id=f"{name}-{field}-few"))
        cases.append(pytest.param(name, field, others, id=f"{name}-{field}-others", marks=pytest.mark.slow))
    return cases


@pytest.mark.parametrize(("name", "field", "values"), list_cases(FIELDS, [*NUMBERS, None]))
def test_nonsense_in_config_json(
    name: str, field: str, values: list[Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Every value either loads or is refused as the checkpoint's fault: nothing else is raised, and nothing hangs."""
    for index, value in enumerate(values):
        folder = copy_folder(tiny_checkpoint(name), tmp_path / str(index))
        replace(folder, "config.json", partial(put, field=field, value=value))
        load(folder)


@pytest.mark.parametrize(
    ("name", "field", "values"),
    [
        ("llama", "hidden_size", (10**9, -1, 0, "x", 1.5, True)),
        ("llama", "num_attention_heads", (0, -1, 10**9)),
        ("llama", "num_hidden_layers", (10**6, 0, -1)),
        ("llama", "vocab_size", (10**12, -5)),
        ("llama", "rms_norm_eps", (-1.0, float("nan"))),
        ("llama", "rope_parameters.rope_theta", (0, float("inf"))),
        ("qwen2_5_vl", "vision_config.depth", (10**6, -1)),
        ("llava", "vision_config.patch_size", (0, 10**9)),
        ("internvl", "downsample_ratio", (0, -1)),
        ("kimi_vl", "vision_config.patch_size", (0, {}, "x")),
        ("jamba", "mamba_expand", (0, -7)),
        ("qwen3_5", "text_config.linear_num_value_heads", (0, 10**9)),
        ("qwen3_5", "text_config.linear_value_head_dim", (0, -7)),
    ],
)
def test_the_field_is_named(
    name: str, field: str, values: tuple[Any, ...], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    for index, value in enumerate(values):
        folder = copy_folder(tiny_checkpoint(name), tmp_path / str(index))
        replace(folder, "config.json", partial(put, field=field, value=value))
        told = load(folder)
        assert told is not None and field.rpartition(".")[2] in told and "config.json" in told, (value, told)


@pytest.mark.parametrize(("name", "field"), [("cohere", "layer_norm_eps"), ("falcon", "layer_norm_epsilon")])
def test_no_epsilon(name: str, field: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Transformers takes null, of which no norm can be computed."""
    folder = copy_folder(tiny_checkpoint(name), tmp_path / "null")
    replace(folder, "config.json", partial(put, field=field, value=None))
    told = load(folder)
    assert told is not None and "the epsilon of the norms must be a number, got None" in told


@pytest.mark.parametrize("field", ("hidden_size", "intermediate_size", "vocab_size", "num_hidden_layers"))
def test_plausible_numbers_that_fit_no_tensor(
    field: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """No memory is taken for what the files do not hold."""
    folder = copy_folder(tiny_checkpoint("llama"), tmp_path / "large")
    replace(folder, "config.json", lambda data: put(data, field, 1000 if field == "num_hidden_layers" else 1 << 20))
    told = load(folder)
    assert told is not None and "tensor '" in told


@pytest.mark.parametrize(("name", "field", "values"), list_cases(PROCESSOR_FIELDS, NUMBERS))
def test_nonsense_in_processor_files(
    name: str, field: str, values: list[Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    for index, value in enumerate(values):
        folder = copy_folder(tiny_checkpoint(name), tmp_path / str(index))
        replace(folder, "processor_config.json", partial(put, field=f"image_processor.{field}", value=value))
        load(folder)


def test_null_in_processor_files_is_the_default(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """A family is made and prepares pictures as if the settings were left out."""
    from family_contract import load_family

    fields = ("merge_size", "temporal_patch_size", "size.shortest_edge", "size.longest_edge", "image_mean", "resample")
    pixels = {}
    for kind in ("null", "left out"):
        folder = copy_folder(tiny_checkpoint("qwen2_5_vl"), tmp_path / kind)

        def edit(data: dict[str, Any], kind: str = kind) -> None:
            for own in (data["image_processor"], data["video_processor"]):
                own["size"] = {}
                for field in fields:
                    put(own, field, None)
                    if kind == "left out":
                        del (own["size"] if "." in field else own)[field.rpartition(".")[2]]

        replace(folder, "processor_config.json", edit)
        family, _ = load_family(folder)
        pixels[kind] = [str(features) for features in family.small_inputs()], family.preprocessing
    assert pixels["null"] == pixels["left out"]


def test_names_of_tokens_that_are_no_texts(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from family_contract import load_family

    for index, value in enumerate((None, 5, ["[IMG_END]"])):
        folder = copy_folder(tiny_checkpoint("pixtral"), tmp_path / str(index))
        replace(folder, "processor_config.json", partial(put, field="image_end_token", value=value))
        if value is None:
            load_family(folder)
            continue
        with pytest.raises(CheckpointError, match="the tokenizer has no token"):
            load_family(folder)


@pytest.mark.parametrize("value", (*NUMBERS, [-5, 10**12], ["</s>"], None))
def test_nonsense_in_generation_config_json(value: Any, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """Ends of answers that are no tokens end nothing and ban nothing."""
    folder = copy_folder(tiny_checkpoint("llama"), tmp_path / "own")
    replace(folder, "generation_config.json", partial(put, field="eos_token_id", value=value))
    from asking import ask, parse

    with AsyncEngine(str(folder), backend_config=CPU) as engine:
        assert all(0 <= i < engine.vocab_size for i in engine._preparer.answers.eos_token_ids)
        for output in ask(engine, parse(["a", "b"], max_new_tokens=3, min_new_tokens=2)):
            assert output.error is None


JSON_FILES = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
    "model.safetensors.index.json", "processor_config.json", "special_tokens_map.json", "model.safetensors",
)  # fmt: skip


@parametrize_sweep(name=JSON_FILES, kind=("fifo", "zero", "folder", "huge", "empty", "binary", "deep", "loop"))
def test_files_that_are_none(name: str, kind: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copy_folder(tiny_checkpoint("qwen2_vl"), tmp_path / "own")
    file = folder / name
    file.unlink(missing_ok=True)
    if kind == "fifo":
        os.mkfifo(file)
    elif kind == "zero":
        file.symlink_to("/dev/zero")
    elif kind == "folder":
        file.mkdir()
    elif kind == "loop":
        file.symlink_to(file)
    elif kind == "huge":
        with file.open("wb") as stream:
            stream.write(b'{"a": "')
            stream.truncate(500 << 20)
    else:
        file.write_bytes({"empty": b"", "binary": bytes(range(128, 256)), "deep": b"[" * 100_000}[kind])
    told = load(folder)
    is_optional = name in ("chat_template.jinja", "special_tokens_map.json", "processor_config.json")
    assert told is not None or is_optional or kind in ("folder", "loop"), told
    if kind in ("fifo", "zero", "huge") and not (name == "model.safetensors" and kind != "huge"):
        assert told is not None and name in told, told


@pytest.mark.parametrize("value", (10**12, 10**30, -1, 1 << 40))
@pytest.mark.parametrize(
    "option",
    (
        "num_gpu_blocks", "num_cpu_blocks", "session_len", "max_batch_size", "max_prefill_token_num", "max_step_ms",
        "block_size",
    ),
)  # fmt: skip
def test_options_that_are_nonsense(option: str, value: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=option):
        options: dict[str, Any] = {option: value}
        AsyncEngine(str(tiny_checkpoint("llama")), backend_config=EngineConfig(device_type="cpu", **options))


@pytest.mark.parametrize("option", ("thread_num", "max_batch_size", "max_batch_tokens"))
def test_options_of_the_encoder_that_are_nonsense(option: str) -> None:
    for value in (0, -1, 10**30):
        options: dict[str, Any] = {option: value}
        with pytest.raises(ConfigError, match=option):
            VisionConfig(**options)


def test_overrides_that_are_nonsense(tiny_checkpoint: Callable[[str], Path]) -> None:
    for overrides in (
        {"hidden_size": 10**9},
        {"num_hidden_layers": 10**9},
        {"rope_parameters": 5},
        {"vocab_size": "x"},
    ):
        config = EngineConfig(device_type="cpu", hf_overrides=overrides)
        assert next(iter(overrides)) in (load(tiny_checkpoint("llama"), config) or "")


def test_a_tokenizer_that_is_nonsense(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """What the reader makes of damaged files is one error, panics of its own language included."""
    source = json.loads((tiny_checkpoint("llama") / "tokenizer.json").read_text())
    for index, (part, value) in enumerate(
        [("model", {}), ("model", {"type": "BPE", "vocab": {"a": -1}, "merges": []}), ("added_tokens", 5),
         ("added_tokens", [{"id": 10**12, "content": "x"}]), ("post_processor", {"type": "none"}), ("decoder", []),
         ("pre_tokenizer", {"type": "Split", "pattern": {"Regex": "("}, "behavior": "Isolated", "invert": False}),
         ("model", {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []})]
    ):  # fmt: skip
        folder = copy_folder(tiny_checkpoint("llama"), tmp_path / str(index))
        (folder / "tokenizer.json").unlink()
        (folder / "tokenizer.json").write_text(json.dumps(source | {part: value}))
        load(folder)
    shutil.rmtree(tmp_path)


@pytest.mark.parametrize(("temperature", "top_k"), ((float("inf"), float("inf")), (-1, float("nan")), (True, "x")))
def test_recommended_sampling_that_is_nonsense(temperature: Any, top_k: Any) -> None:
    """A server goes on with OpenAI's defaults: no request is refused for what the checkpoint says."""
    from types import SimpleNamespace

    from seesay.serving.requests.sampling import SamplingDefaults
    from seesay.serving.settings import ServerSettings

    recommended = {"temperature": temperature, "top_k": top_k, "top_p": 5, "min_p": -1, "repetition_penalty": 0}
    engine: Any = SimpleNamespace(session_len=100, checkpoint=SimpleNamespace(generation_config=recommended))
    config = SamplingDefaults(engine, ServerSettings()).make_config(max_new_tokens=None)
    assert (config.temperature, config.top_k, config.top_p, config.min_p, config.repetition_penalty) == (1, 0, 1, 0, 1)
