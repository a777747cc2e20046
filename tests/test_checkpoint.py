"""Model folders that are as they should be, and all the ways in which they are not."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from seesay.checkpoint import Checkpoint, find_stored_names, read_text, resolve_checkpoint
from seesay.errors import CheckpointError

CONFIG = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8, "num_attention_heads": 2}


def write_config(folder: Path, config: object = CONFIG) -> None:
    (folder / "config.json").write_text(json.dumps(config))


def write_index(folder: Path, weight_map: object) -> None:
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    write_config(tmp_path)
    save_file(
        {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(4, dtype=torch.int64)}, tmp_path / "model.safetensors"
    )
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Any:
    write_config(tmp_path)
    save_file({"a": torch.zeros(2)}, tmp_path / "one.safetensors")
    save_file({"b": torch.ones(3)}, tmp_path / "two.safetensors")
    write_index(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    return tmp_path


def rewrite_header(file: Path, change: Any) -> None:
    data = file.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    change(header)
    raw = json.dumps(header).encode()
    file.write_bytes(len(raw).to_bytes(8, "little") + raw + data[8 + length :])


def test_reads_what_is_there(folder: Any) -> None:
    (folder / "generation_config.json").write_text('{"eos_token_id": 7}')
    checkpoint = Checkpoint.load(folder)
    assert checkpoint.architecture == "LlamaForCausalLM"
    assert checkpoint.tensor_names() == {"a", "b"}
    assert checkpoint.find("a").shape == (2, 3)
    assert checkpoint.generation_config == {"eos_token_id": 7}
    assert checkpoint.read_json("config.json") == CONFIG
    assert checkpoint.read_json("no.json") is None
    read = {name: tensor.read((range(2), range(3))).tolist() for name, tensor in checkpoint.slices(["a"], "cpu")}
    assert read == {"a": [[0, 1, 2], [3, 4, 5]]}


def test_devices_that_safetensors_does_not_know_get_tensors_of_the_host(folder: Any) -> None:
    """PyTorch's name of any device that a package adds, before the package gives it one."""
    slices = Checkpoint.load(folder).slices(["a"], torch.device("privateuseone:0"))
    assert [tensor.read((range(2), range(3))).tolist() for _, tensor in slices] == [[[0, 1, 2], [3, 4, 5]]]


def test_reads_regions(folder: Any) -> None:
    save_file({"a": torch.arange(24).view(4, 3, 2), "s": torch.tensor([7.0])}, folder / "model.safetensors")
    whole = torch.arange(24).view(4, 3, 2)
    found = {}
    for name, tensor in Checkpoint.load(folder).slices(["a", "s"], "cpu"):
        found[name] = tensor
        if name == "s":
            assert tensor.read(()).item() == 7 and tensor.read((range(1),)).tolist() == [7]
            continue
        assert torch.equal(tensor.read((range(1, 3), range(3), range(1))), whole[1:3, :, :1])
        assert torch.equal(tensor.read((range(0, 4, 2), range(1, 3), range(2))), whole[::2, 1:])
        assert torch.equal(tensor.read((range(4), range(6))), whole.flatten(1))
        assert torch.equal(tensor.read((range(3, 4), range(1, 6, 2))), whole.flatten(1)[3:, 1::2])
        assert tensor.read((range(0), range(6))).shape == (0, 6)
    assert found.keys() == {"a", "s"}


def test_quantized_weights_are_refused(folder: Any) -> None:
    quantized = {"quantization_config": {"quant_method": "bnb"}}
    for config in (quantized, {"text_config": quantized}):
        write_config(folder, {**CONFIG, **config})
        with pytest.raises(CheckpointError, match=r"config\.json: quantization_config \(bnb\)"):
            Checkpoint.load(folder)
    write_config(folder, {**CONFIG, **quantized})
    Checkpoint.load(folder, {"quantization_config": None})


def test_missing_names_are_those_under_which_the_model_would_find_them() -> None:
    frontends = {"model.language_model.": "", "model.": "", "head.": "lm_head.", "": "", "row": "learned.row"}

    def name_of(stored: str) -> str | None:
        frontend = max((each for each in frontends if stored.startswith(each)), key=len)
        return frontends[frontend] + stored[len(frontend) :]

    stored = ["model.language_model.layers.0.a.weight", "head.weight"]
    assert find_stored_names("layers.0.b.weight", stored, name_of) == ["model.language_model.layers.0.b.weight"]
    assert find_stored_names("lm_head.bias", stored, name_of) == ["head.bias"]
    assert find_stored_names("norm.weight", stored, name_of)[0] == "norm.weight"
    assert find_stored_names("learned.row", stored, name_of)[0] == "row"
    assert find_stored_names("other.weight", stored, lambda name: None) == ["other.weight"]


def test_a_model_path_is_a_path() -> None:
    for wrong in (None, 5):
        with pytest.raises(TypeError, match="model_path must be the path of a folder or a hub id, got"):
            resolve_checkpoint(wrong)  # type: ignore[arg-type]
    with pytest.raises(CheckpointError, match="model path must not be empty"):
        resolve_checkpoint("")


def test_reads_shards(sharded: Any) -> None:
    checkpoint = Checkpoint.load(sharded)
    sums = {name: t.read((range(n),)).sum().item() for n, (name, t) in zip((2, 3), checkpoint.slices("ab", "cpu"))}
    assert sums == {"a": 0, "b": 3}


def test_overrides_are_merged_by_key(folder: Any) -> None:
    write_config(folder, CONFIG | {"rope_parameters": {"rope_type": "default", "rope_theta": 1.0}})
    checkpoint = Checkpoint.load(folder, {"rope_parameters": {"rope_theta": 5.0}, "num_hidden_layers": 3})
    assert checkpoint.config["rope_parameters"] == {"rope_type": "default", "rope_theta": 5.0}
    assert checkpoint.hf_config().num_hidden_layers == 3
    assert checkpoint.hf_config().rope_parameters["rope_theta"] == 5.0
    with pytest.raises(CheckpointError, match=r"hf_overrides.rope_parameters must be a dict, as in config.json, got 3"):
        Checkpoint.load(folder, {"rope_parameters": 3})


def test_digest_follows_config_names_and_data(folder: Any) -> None:
    first = Checkpoint.load(folder).revision_digest
    assert len(first) == 32 and first == Checkpoint.load(folder).revision_digest
    assert first != Checkpoint.load(folder, {"hidden_size": 16}).revision_digest
    save_file({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.int64)}, folder / "model.safetensors")
    assert first != Checkpoint.load(folder).revision_digest


def truncate(folder: Any) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-9])


def link(file: Path, target: Path) -> None:
    file.unlink()
    file.symlink_to(target)


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no config": (lambda f: (f / "config.json").unlink(), "no config.json"),
    "config is no JSON": (lambda f: (f / "config.json").write_text("{"), r"config.json: not valid JSON"),
    "config is no object": (lambda f: write_config(f, [1]), r"config.json: must hold a JSON object, got a list"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "no weights"),
    "truncated data": (truncate, r"model.safetensors: truncated: tensor '[ab]'"),
    "truncated header": (
        lambda f: (f / "model.safetensors").write_bytes((f / "model.safetensors").read_bytes()[:20]),
        "model.safetensors: truncated or not",
    ),
    "empty file": (lambda f: (f / "model.safetensors").write_bytes(b""), "truncated or not a safetensors file"),
    "header is no JSON": (
        lambda f: (f / "model.safetensors").write_bytes((4).to_bytes(8, "little") + b"abcdefgh"),
        "header is damaged",
    ),
    "unknown dtype": (
        lambda f: rewrite_header(f / "model.safetensors", lambda h: h["a"].update(dtype="X9")),
        "tensor 'a' has unknown dtype 'X9'",
    ),
    "shape and bytes differ": (
        lambda f: rewrite_header(f / "model.safetensors", lambda h: h["a"].update(shape=[2, 4])),
        "tensor 'a' .* does not fit its shape",
    ),
    "negative offset": (
        lambda f: rewrite_header(f / "model.safetensors", lambda h: h["a"].update(data_offsets=[-24, 0])),
        "entry of tensor 'a' is damaged",
    ),
    "overlapping tensors": (
        lambda f: rewrite_header(f / "model.safetensors", lambda h: h["b"].update(data_offsets=[8, 40])),
        "tensors 'b' and 'a' overlap",
    ),
    "a link to what cannot be read": (
        lambda f: link(f / "model.safetensors", Path("/proc/self/mem")),
        r"cannot read .*model.safetensors: .*Input/output error",
    ),
    "entry without offsets": (
        lambda f: rewrite_header(f / "model.safetensors", lambda h: h["a"].pop("data_offsets")),
        "entry of tensor 'a' is damaged",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_folders_are_refused_by_name(folder: Any, case: str) -> None:
    damage, message = BROKEN[case]
    damage(folder)
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.load(folder)


def test_pickles_are_refused(folder: Any) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'true'\ntR.")
    with pytest.raises(CheckpointError, match=r"pickles \(pytorch_model.bin\)"):
        Checkpoint.load(folder)


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "a/../../b", "..\\x", ""])
def test_an_index_may_not_leave_the_folder(sharded: Any, name: str) -> None:
    write_index(sharded, {"a": name})
    with pytest.raises(CheckpointError, match="points out of the folder"):
        Checkpoint.load(sharded)
    with pytest.raises(CheckpointError, match="points out of the folder"):
        write_index(sharded, {"a": "one.safetensors"})
        Checkpoint.load(sharded).read_json(name)


@pytest.mark.parametrize("name", ["x" * 300, "a/" + "y" * 256, "d/" * 3000 + "z", "nul\0", "half\ud800"])
def test_names_that_no_file_can_have_are_refused(sharded: Any, name: str) -> None:
    file = sharded / "model.safetensors.index.json"
    index = json.loads(file.read_text())
    index["weight_map"] = dict.fromkeys(index["weight_map"], name)
    file.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match="cannot be the name of a file") as raised:
        Checkpoint.load(sharded)
    assert len(str(raised.value)) < 400


def test_an_index_that_does_not_fit_is_refused(sharded: Any) -> None:
    write_index(sharded, {"a": "one.safetensors", "b": "three.safetensors"})
    with pytest.raises(CheckpointError, match=r"three.safetensors: the shard is missing"):
        Checkpoint.load(sharded)
    write_index(sharded, {"a": "two.safetensors", "b": "two.safetensors"})
    with pytest.raises(CheckpointError, match=r"two.safetensors: tensor 'a' is missing"):
        Checkpoint.load(sharded)
    write_index(sharded, {"a": 3})
    with pytest.raises(CheckpointError, match="'weight_map' must map"):
        Checkpoint.load(sharded)
    for file, folder in (("one.safetensors", "x"), ("two.safetensors", "y")):
        (sharded / folder).mkdir()
        shutil.copy(sharded / file, sharded / folder / "m.safetensors")
    write_index(sharded, {"a": "y/m.safetensors", "b": "x/m.safetensors"})
    with pytest.raises(CheckpointError, match=r"y/m.safetensors: tensor 'a' is missing"):
        Checkpoint.load(sharded)
    save_file({"a": torch.zeros(2)}, sharded / "two.safetensors")
    write_index(sharded, {"a": "one.safetensors", "b": "two.safetensors"})
    with pytest.raises(CheckpointError, match=r"tensor 'a' is also in one.safetensors"):
        Checkpoint.load(sharded)


def test_missing_tensors_are_named(folder: Any) -> None:
    with pytest.raises(CheckpointError, match="tensor 'c' is missing"):
        list(Checkpoint.load(folder).slices(["a", "c"], "cpu"))


def test_kinds_that_are_unknown_are_named(folder: Any) -> None:
    write_config(folder, {"model_type": "nonesuch", "auto_map": {"AutoConfig": "evil.Config"}})
    checkpoint = Checkpoint.load(folder)
    with pytest.raises(CheckpointError, match="model_type 'nonesuch' is unknown"):
        checkpoint.hf_config()
    with pytest.raises(CheckpointError, match="model_type 'nonesuch' is unknown"):
        _ = checkpoint.architecture
    write_config(folder, {"model_type": ["llama"]})
    with pytest.raises(CheckpointError, match=r"model_type \['llama'\] is unknown"):
        Checkpoint.load(folder).hf_config()
    for wrong in ("LlamaForCausalLM", [5], {"a": 1}):
        write_config(folder, {"model_type": "llama", "architectures": wrong})
        with pytest.raises(CheckpointError, match="architectures must be a list of names"):
            _ = Checkpoint.load(folder).architecture


@pytest.mark.parametrize("architectures", ({}, {"architectures": None}, {"architectures": []}))
def test_without_architectures_the_model_type_tells_the_class(folder: Any, architectures: dict[str, Any]) -> None:
    for model_type, expected in (
        ("qwen2", "Qwen2ForCausalLM"),
        ("gpt_neox", "GPTNeoXForCausalLM"),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("llava", "LlavaForConditionalGeneration"),
    ):
        write_config(folder, {"model_type": model_type, **architectures})
        assert Checkpoint.load(folder).architecture == expected


@pytest.mark.parametrize("field", ("rope_scaling", "rope_parameters"))
@pytest.mark.parametrize("key", ("type", "rope_type"))
def test_su_is_longrope(folder: Any, field: str, key: str) -> None:
    factors = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "original_max_position_embeddings": 40}
    config = {"model_type": "phi3", "max_position_embeddings": 400, **sizes, field: {key: "su", **factors}}
    write_config(folder, config)
    rotary = Checkpoint.load(folder).hf_config().rope_parameters
    assert (rotary["rope_type"], rotary["original_max_position_embeddings"]) == ("longrope", 40)
    assert Checkpoint.load(folder).config[field] == {key: "su", **factors}, "the file's own is kept as it is"


def test_resolves_folders_and_the_built_in_name(tmp_path: Path) -> None:
    assert resolve_checkpoint(tmp_path) == tmp_path
    assert resolve_checkpoint("seesay-demo").parts[-2:] == ("demo", "checkpoint")


@pytest.mark.parametrize("name", ["/no/such/folder", "./nowhere", "a/b/c", "word"])
def test_a_folder_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(CheckpointError, match=f"'{name}': no such folder"):
        resolve_checkpoint(name)


def test_a_file_is_no_folder(folder: Any) -> None:
    with pytest.raises(CheckpointError, match="is a file"):
        resolve_checkpoint(folder / "config.json")


def test_offline_the_id_and_the_way_out_are_named(tmp_path: Path) -> None:
    code = f"""
from seesay.checkpoint import resolve_checkpoint
from seesay.errors import CheckpointError
try:
    resolve_checkpoint("some/model", revision="v9", download_dir={str(tmp_path)!r})
except CheckpointError as error:
    print(error)
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[1]), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "'some/model' at revision 'v9'" in result.stdout
    assert "pass the path of its folder" in result.stdout


def test_an_id_that_is_none_is_named() -> None:
    with pytest.raises(CheckpointError, match="neither a folder nor a hub id"):
        resolve_checkpoint("bad id/x y")


def test_importing_it_does_not_import_torch() -> None:
    code = "import sys, seesay.checkpoint; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[1]
    )
    assert result.stdout.strip() == "[]"


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "config.json"
    folder.mkdir()
    num_open = len(list(Path("/dev/fd").iterdir()))
    for _ in range(3):
        with pytest.raises(CheckpointError, match=r"config\.json: not a regular file"):
            read_text(folder)
    assert len(list(Path("/dev/fd").iterdir())) == num_open
