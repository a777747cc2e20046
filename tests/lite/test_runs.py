"""A run that is interrupted goes on; one of other settings is refused; what is wrong is one error."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from lite.reading import TEXT
from llm import backbones
from quantized_folders import FORMS, write_quantized
from safetensors.torch import load_file

from seesay import cli, lite
from seesay.errors import CheckpointError, ConfigError
from seesay.lite.calibrating import STATISTICS_FILE, SUMMARY_FILE
from seesay.lite.calibration.dataset import open_dataset
from seesay.lite.progress import Progress

SMALL: dict[str, Any] = {"calib_samples": 4, "calib_seqlen": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    file = tmp_path_factory.mktemp("calibration") / "text.txt"
    file.write_text(TEXT)
    return str(file)


@pytest.fixture(scope="module")
def deep(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of six layers."""
    folder = tmp_path_factory.mktemp("deep") / "model"
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "vocab_size": 288}
    backbones.make_backbone("llama", folder, num_hidden_layers=6, **sizes)
    for file in tiny_checkpoint("llama").iterdir():
        if file.name.startswith(("tokenizer", "chat_template", "special")):
            shutil.copy(file, folder / file.name)
    return folder


@contextlib.contextmanager
def interrupted() -> Iterator[None]:
    """Interrupt the run inside with Ctrl-C, when two layers are done."""
    num_done = 0

    def advance(_: Progress) -> None:
        nonlocal num_done
        num_done += 1
        if num_done == 2:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt), pytest.MonkeyPatch.context() as patch:
        patch.setattr(Progress, "advance", advance)
        yield


def read_all(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize("quantize", [pytest.param(lite.auto_awq, marks=pytest.mark.slow), lite.auto_gptq, lite.fp8])
def test_an_interrupted_run_goes_on(
    quantize: Callable[..., Any], deep: Path, tmp_path: Path, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    options = {**SMALL, "calib_dataset": text}
    if quantize is not lite.fp8:
        options["w_group_size"] = 32
    quantize(deep, tmp_path / "whole", **options)
    parts = tmp_path / "out" / ".seesay-lite"
    with interrupted():
        quantize(deep, tmp_path / "out", **options)
    finished = {part.name: (part / "model.safetensors").stat().st_mtime_ns for part in parts.glob("part-*")}
    assert 2 <= len(finished) < 6
    assert f"{tmp_path / 'out'}: {len(finished)} layers are done; the same command goes on with them" in caplog.text
    assert not (tmp_path / "out" / "config.json").exists(), "it is no model yet"
    with pytest.raises(ConfigError, match=r"unfinished run with batch_size=1, this one has 2: repeat that run"):
        quantize(deep, tmp_path / "out", **options, batch_size=2)
    if quantize is not lite.fp8:
        other = {**options, "calib_dataset": write(tmp_path, "other.txt", TEXT[5:].encode()), "w_group_size": -1}
        message = r"batch_size=1, this one has 2; w_group_size=32, this one has -1: repeat"
        with pytest.raises(ConfigError, match=message):
            quantize(deep, tmp_path / "out", **other, batch_size=2)
        with pytest.raises(ConfigError, match=r"with other calibration prompts \(calib_dataset, .*\): repeat"):
            quantize(deep, tmp_path / "out", **{**other, "w_group_size": 32})
    with pytest.raises(ConfigError, match=r"unfinished run with batch_size=1"):  # before prompts are made, of which
        none = write(tmp_path, "one letter.txt", b"a")  # this set has none
        quantize(deep, tmp_path / "out", **{**options, "calib_dataset": none}, batch_size=2)
    watched = parts / "part-layer-001" / "model.safetensors"
    kept = os.open(watched, os.O_RDONLY)
    quantize(deep, tmp_path / "out", **options)
    assert os.fstat(kept).st_mtime_ns == finished["part-layer-001"], "a finished layer was written again"
    os.close(kept)
    assert read_all(tmp_path / "out") == read_all(tmp_path / "whole")


# the settings do not fit; a layer does not; layers do, and the result does not
@pytest.mark.parametrize("limit", [100, 10_000, 150_000])
def test_a_full_disk_is_one_error_and_the_run_goes_on(deep: Path, tmp_path: Path, text: str, limit: int) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))  # Python ignores its signal: writing fails
    try:
        with pytest.raises(ConfigError, match=r"work_dir='.*' cannot be written, the run may go on later: "):
            lite.fp8(deep, tmp_path / "out", **SMALL, calib_dataset=text)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not (tmp_path / "out" / "config.json").exists()
    lite.fp8(deep, tmp_path / "out", **SMALL, calib_dataset=text)
    assert (tmp_path / "out" / "config.json").exists()


def test_a_damaged_part_is_told_with_its_remedy(deep: Path, tmp_path: Path, text: str) -> None:
    lite.fp8(deep, tmp_path / "whole", **SMALL, calib_dataset=text)
    out = tmp_path / "out"
    with interrupted():
        lite.fp8(deep, out, **SMALL, calib_dataset=text)
    part = out / ".seesay-lite" / "part-layer-000"
    os.truncate(part / "model.safetensors", 1000)
    with pytest.raises(CheckpointError, match=rf"truncated .*: remove {part}, and the same command makes it again$"):
        lite.fp8(deep, out, **SMALL, calib_dataset=text)
    shutil.rmtree(part)
    lite.fp8(deep, out, **SMALL, calib_dataset=text)
    assert read_all(out) == read_all(tmp_path / "whole")


def test_two_runs_in_one_folder(deep: Path, tmp_path: Path, text: str) -> None:
    """The lock of a process that was killed is gone with it."""
    out = tmp_path / "out"
    code = "import sys, time; from pathlib import Path; from seesay.lite.work_folder import WorkFolder\n"
    code += "work = WorkFolder(Path(sys.argv[1]), {}); print('locked', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", code, str(out)], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "locked\n"
            with pytest.raises(ConfigError, match=r"work_dir='.*out' is used by another run: wait for it"):
                lite.fp8(deep, out, **SMALL, calib_dataset=text)
        finally:
            other.kill()
    lite.fp8(deep, out, **SMALL, calib_dataset=text)
    assert (out / "config.json").exists()


def test_a_log_has_one_line_of_a_short_run(
    deep: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for run, name in ((lite.fp8, "fp8"), (lite.calibrate, "calibrate")):
        run(deep, tmp_path / name, **SMALL, calib_dataset=text)
        lines = [line for line in capsys.readouterr().err.splitlines() if " layers" in line]
        assert len(lines) == 1 and lines[0].startswith(f"{name}: 6 of 6 layers, ")


def test_an_unfinished_run_without_a_layer_is_begun_anew(deep: Path, tmp_path: Path, text: str) -> None:
    hidden = tmp_path / "out" / ".seesay-lite"
    hidden.mkdir(parents=True)
    (hidden / "settings.json").write_text('{"batch_size": 7}')
    (hidden / "new-layer-000").mkdir()
    lite.fp8(deep, tmp_path / "out", **SMALL, calib_dataset=text)
    assert (tmp_path / "out" / "config.json").exists() and not hidden.exists()


def test_statistics(deep: Path, tmp_path: Path, text: str) -> None:
    summary = lite.calibrate(deep, tmp_path / "out", **SMALL, calib_dataset=Path(text))
    tensors = load_file(tmp_path / "out" / STATISTICS_FILE)
    assert json.loads((tmp_path / "out" / SUMMARY_FILE).read_text()) == summary
    assert len(summary["modules"]) == 6 * 7 and summary["tokens"] > 100
    modules = {name.rpartition(".")[0] for name in tensors}
    assert modules == set(summary["modules"])
    q, k = (tensors[f"model.layers.3.self_attn.{name}_proj.input_abs_max"] for name in "qk")
    assert torch.equal(q, k) and q.shape == (64,)
    for module in modules:
        assert (tensors[f"{module}.input_abs_mean"] <= tensors[f"{module}.input_abs_max"]).all()


def test_statistics_are_not_written_into_another_run(
    deep: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither is what cannot be written computed first."""
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"cannot be used|must be a folder"):
        lite.calibrate(deep, tmp_path / "file" / "out", **SMALL, calib_dataset=text)
    with pytest.raises(ConfigError, match=r"work_dir='/proc/no' cannot be used"):
        lite.calibrate(deep, "/proc/no", **SMALL, calib_dataset=text)
    assert "calibrate: " not in capsys.readouterr().err
    out = tmp_path / "out"
    with interrupted():
        lite.fp8(deep, out, **SMALL, calib_dataset=text)
    with pytest.raises(ConfigError, match=r"unfinished run with method='fp8', this one has 'calibrate'"):
        lite.calibrate(deep, out, **SMALL, calib_dataset=text)
    assert [file.name for file in out.iterdir()] == [".seesay-lite"]
    again = tmp_path / "again"
    with interrupted():
        lite.calibrate(deep, again, **SMALL, calib_dataset=text)
    lite.calibrate(deep, again, **SMALL, calib_dataset=text)
    assert sorted(file.name for file in again.iterdir()) == [SUMMARY_FILE, STATISTICS_FILE]


# --- data sets --------------------------------------------------------------------------------------------------------


def test_lines_of_text_and_messages(tmp_path: Path) -> None:
    file = tmp_path / "lines.jsonl"
    messages = [
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": "a.png"}}, {"type": "text", "text": "?"}],
        },
        {"role": "assistant", "content": "a game"},
    ]
    file.write_text("\n".join([json.dumps({"text": "one"}), "", json.dumps({"messages": messages})]))
    found = open_dataset(str(file))()
    assert found.texts == ("one",) and found.folder == tmp_path
    [conversation] = found.conversations
    question, answer = conversation.messages
    assert conversation.where == f"{file}:3"
    assert question.parts[0].source == str(tmp_path / "a.png")  # type: ignore[union-attr]
    assert answer.role == "assistant"


def test_a_folder(tmp_path: Path) -> None:
    for name, content in (("a.png", "x"), ("a.txt", "red"), ("b.JPG", "x"), ("c.txt", "long text"), ("d.md", "no")):
        (tmp_path / name).write_text(content)
    found = open_dataset(str(tmp_path))()
    assert found.texts == ("long text",)
    assert [[message.role for message in conversation.messages] for conversation in found.conversations] == [
        ["user", "assistant"], ["user"]
    ]  # fmt: skip


def test_pictures_with_one_name_and_other_suffixes_are_all_used(tmp_path: Path) -> None:
    for name in ("a.jpg", "a.png", "a.txt", "b.png"):
        (tmp_path / name).write_text("red")
    found = open_dataset(str(tmp_path))()
    assert [Path(conversation.where).name for conversation in found.conversations] == ["a.jpg", "a.png", "b.png"]
    assert [len(conversation.messages) for conversation in found.conversations] == [2, 2, 1] and not found.texts


def test_media_outside_of_the_folder_are_refused(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    from PIL import Image

    Image.new("RGB", (40, 40)).save(tmp_path / "secret.png")
    (tmp_path / "set").mkdir()
    for url in ("../secret.png", str(tmp_path / "secret.png"), f"file://{tmp_path}/secret.png"):
        content = [{"type": "image_url", "image_url": {"url": url}}]
        (tmp_path / "set" / "lines.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": content}]}))
        with pytest.raises(ConfigError, match=r"lines\.jsonl:1: .*the folder that local media may come from"):
            lite.auto_gptq(
                tiny_checkpoint("qwen2_5_vl"),
                tmp_path / "out",
                **SMALL,
                calib_dataset=str(tmp_path / "set"),
                w_group_size=32,
            )


def write(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


BAD_SETS: dict[str, tuple[Callable[[Path], str], str]] = {
    "nothing": (lambda d: str(d / "no.txt"), r"there is no such file or folder; pass 'built-in', a \.txt file"),
    "empty file": (lambda d: write(d, "a.txt", b""), r"has no text in it: pass 'built-in', a \.txt file"),
    "blank lines": (lambda d: write(d, "a.jsonl", b"\n \n"), "has no text in it"),
    "empty folder": (str, "has no text in it"),
    "not UTF-8": (lambda d: write(d, "a.txt", b"ab\xff"), "must be UTF-8 text, byte 2 is not"),
    "not JSON": (lambda d: write(d, "a.jsonl", b'{"text": "a"}\n{'), r"a\.jsonl:2: not valid JSON"),
    "no text": (lambda d: write(d, "a.jsonl", b'{"txt": 1}'), r"a\.jsonl:1: must be an object with a 'text' or"),
    "bad message": (lambda d: write(d, "a.jsonl", b'{"messages": [{"role": "x"}]}'), r"a\.jsonl:1: messages\[0\] has"),
    "half a pair": (
        lambda d: write(d, "a.jsonl", rb'{"text": "whole"}' + b"\n" + rb'{"text": "ab\ud800c"}'),
        r"a\.jsonl:2: 'text' is not valid Unicode, character 2 is half of a surrogate pair",
    ),
    "half a pair in a message": (
        lambda d: write(d, "a.jsonl", rb'{"messages": [{"role": "user", "content": "ab\ud800c"}]}'),
        r"a\.jsonl:1: .*surrogate",
    ),
    "deep": (lambda d: write(d, "a.jsonl", b"[" * 200_000), r"a\.jsonl:1: not valid JSON"),
    "long line": (lambda d: write(d, "a.jsonl", b"x" * (5 << 20)), "has a line of more than"),
    "other file": (lambda d: write(d, "a.csv", b"x"), r"must end in \.txt or \.jsonl"),
    "one letter": (lambda d: write(d, "a.txt", b"a"), "has no prompt of 2 to 64 tokens"),
}


@pytest.mark.parametrize("kind", BAD_SETS)
def test_what_is_wrong_with_a_data_set_is_one_error(
    kind: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    make, message = BAD_SETS[kind]
    (tmp_path / "set").mkdir()
    with pytest.raises(ConfigError, match=message):
        lite.auto_gptq(
            tiny_checkpoint("qwen3"), tmp_path / "out", **SMALL, calib_dataset=make(tmp_path / "set"), w_group_size=32
        )
    assert not (tmp_path / "out").exists()


def test_names_of_the_datasets_package(tmp_path: Path, tiny_checkpoint: Callable[[str], Path]) -> None:
    """LMDeploy's default is still there by name. Neither is the package here nor the hub."""
    options: dict[str, Any] = {"device": "cpu", "calib_seqlen": 64, "w_group_size": 32, "calib_dataset": "ptb"}
    with pytest.raises(ConfigError, match=r"calib_dataset='ptb'.*pass 'built-in', a \.txt file, a \.jsonl file"):
        lite.auto_gptq(tiny_checkpoint("llama"), tmp_path / "out", **options)


# --- models, folders and options --------------------------------------------------------------------------------------


def test_a_folder_that_is_not_empty(deep: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "thesis.doc").write_text("precious")
    with pytest.raises(ConfigError, match=r"must be a new or an empty folder, it has 'thesis\.doc' in it"):
        lite.fp8(deep, tmp_path, **SMALL)
    with pytest.raises(ConfigError, match="must be a folder, got the file"):
        lite.fp8(deep, tmp_path / "thesis.doc", **SMALL)
    with pytest.raises(ConfigError, match="must be a new or an empty folder"):
        lite.fp8(deep, deep, **SMALL)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.doc"]


def test_a_folder_that_cannot_be_written(deep: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="work_dir"):
        lite.fp8(deep, tmp_path / "file" / "out", **SMALL)


def test_a_folder_that_must_not_be_written_is_told_before_anything_is_computed(
    deep: Path, tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Root may write everywhere, so the answer of the system is replaced."""

    def access(path: Path, mode: int) -> bool:
        assert mode == os.W_OK | os.X_OK
        return path != tmp_path

    monkeypatch.setattr(os, "access", access)
    for run in (lite.fp8, lite.calibrate):
        with pytest.raises(ConfigError, match=f"cannot be used: {tmp_path} cannot be written"):
            run(deep, tmp_path / "new" / "out", **SMALL, calib_dataset=text)
    assert capsys.readouterr().err == ""


def test_a_model_that_is_quantized_already(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    quantized, _ = write_quantized(tiny_checkpoint("llama"), tmp_path / "made", FORMS["compressed-tensors, channels"])
    with pytest.raises(CheckpointError, match=r"is quantized already \(fp8\): give the plain model"):
        lite.auto_awq(quantized, tmp_path / "out", **SMALL, calib_dataset=text)
    with pytest.raises(CheckpointError, match="is quantized already"):  # which is told before that of the data set
        lite.auto_awq(quantized, tmp_path / "out", **SMALL, calib_dataset="none.txt")


@pytest.mark.parametrize(
    ("quantize", "options", "message"),
    [
        (
            lite.auto_awq,
            {},
            r"w_group_size=128: model\.layers\.0\.self_attn\.q_proj has 64 inputs, which it must divide",
        ),
        (lite.auto_awq, {"w_group_size": 48}, "w_group_size must be 32, 64, 128 or -1, got 48"),
        (lite.auto_awq, {"w_bits": 8}, "w_bits must be 4, which AWQ's format has, got 8"),
        (lite.auto_gptq, {"w_bits": 3}, "w_bits must be 4 or 8, got 3"),
        (lite.auto_gptq, {"damp_percent": 0}, "damp_percent must be above 0"),
        (lite.smooth_quant, {"quant_dtype": "int4"}, "quant_dtype must be 'int8' or 'fp8', got 'int4'"),
        (lite.fp8, {"calib_samples": 1}, r"calib_samples must be in \[2, 65536\], got 1"),
        (lite.fp8, {"calib_seqlen": 4096}, "calib_seqlen must be at most 256, the model's longest text, got 4096"),
        (lite.fp8, {"batch_size": "x"}, "batch_size must be"),
        (lite.auto_awq, {"calib_dataset": ""}, "calib_dataset must be the path of a file or folder, or a name, got ''"),
        (lite.fp8, {"vision": True}, "vision=True: .* has no vision tower"),
    ],
)
def test_options(
    quantize: Callable[..., Any], options: dict[str, Any], message: str, deep: Path, tmp_path: Path, text: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        quantize(deep, tmp_path / "out", **{**SMALL, "calib_dataset": text, **options})


@pytest.fixture
def hub(tmp_path: Path, deep: Path) -> Callable[..., dict[str, Any]]:
    """Makes a cache of the hub with the config.json of a model, and no weights. Returns the options that name it."""

    def make(**changes: Any) -> dict[str, Any]:
        config = json.loads((deep / "config.json").read_text()) | changes
        snapshot = tmp_path / "cache" / "models--nobody--has-this" / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        (snapshot / "config.json").write_text(json.dumps(config))
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("0" * 40)
        return {"model": "nobody/has-this", "download_dir": tmp_path / "cache"}

    return make


NEVER_READ: dict[str, Any] = {"work_dir": "/proc/no", "device": "cuda:7", "calib_dataset": "ptb"}
"""Options that are wrong, too."""


@pytest.mark.parametrize("quantize", [lite.auto_awq, lite.calibrate])
def test_the_model_is_looked_at_first(
    quantize: Callable[..., Any], tiny_checkpoint: Callable[[str], Path], tmp_path: Path, hub: Callable[..., Any]
) -> None:
    """What is wrong with it is told before anything is downloaded, loaded or complained about."""
    for model, message in (
        ("no-such-folder", "model path 'no-such-folder': no such folder"),
        (tmp_path / "none", "no such folder"),
        ("nobody/at-all", "is not in the local cache and the Hugging Face hub cannot be reached"),
    ):
        with pytest.raises(CheckpointError, match=message):
            quantize(model, **NEVER_READ)
    quantized, _ = write_quantized(tiny_checkpoint("llama"), tmp_path / "made", FORMS["compressed-tensors, channels"])
    with pytest.raises(CheckpointError, match=r"is quantized already \(fp8\): give the plain model"):
        quantize(quantized, **NEVER_READ)
    strange = tmp_path / "strange"
    shutil.copytree(tiny_checkpoint("llama"), strange)
    config = json.loads((strange / "config.json").read_text())
    (strange / "config.json").write_text(json.dumps({**config, "architectures": ["NoSuchModel"], "model_type": "no"}))
    with pytest.raises(CheckpointError, match="NoSuchModel"):
        quantize(strange, **NEVER_READ)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["NoSuchModel"], "model_type": "no"}, "NoSuchModel"),
        (
            {"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}},
            r"quantized already \(fp8\)",
        ),
    ],
)
def test_a_model_of_the_hub_is_looked_at_before_its_weights_are_downloaded(
    changes: dict[str, Any], message: str, hub: Callable[..., dict[str, Any]]
) -> None:
    with pytest.raises(CheckpointError, match=message):
        lite.auto_awq(**hub(**changes), **NEVER_READ)


@pytest.mark.parametrize(
    ("quantize", "options", "message"),
    [
        (lite.auto_gptq, {"work_dir": "."}, "work_dir='.*' must be a new or an empty folder"),
        (lite.auto_gptq, {"calib_dataset": "none.txt"}, "calib_dataset='none.txt': there is no such file"),
        (lite.auto_gptq, {"device": "cuda:7"}, "device_type='cuda:7'"),
        (lite.auto_gptq, {"w_bits": 3}, "w_bits must be 4 or 8, got 3"),
        (lite.calibrate, {"work_dir": "."}, "work_dir='.*' must be a new or an empty folder"),
        (lite.calibrate, {"calib_dataset": "none.txt"}, "calib_dataset='none.txt': there is no such file"),
    ],
)
def test_errors_of_options_come_before_a_download(
    quantize: Callable[..., Any],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
    text: str,
    hub: Callable[..., dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def download(*_: Any, **__: Any) -> Path:
        raise AssertionError("the weights are downloaded")

    monkeypatch.setattr("seesay.lite.opened.resolve_checkpoint", download)
    (tmp_path / "file").touch()
    given = {**SMALL, "work_dir": "out", "calib_dataset": text, **hub(), **options}
    with pytest.raises(ConfigError, match=message):
        quantize(**{**given, "work_dir": tmp_path / given["work_dir"]})


def test_numbers_that_are_not_finite(tiny_checkpoint: Callable[[str], Path], tmp_path: Path, text: str) -> None:
    from quantized_folders import edit_tensors

    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), folder)

    def spoil(tensors: dict[str, torch.Tensor]) -> None:
        tensors["model.layers.1.mlp.up_proj.weight"][3, 3] = torch.inf

    edit_tensors(folder, spoil)
    with pytest.raises(
        CheckpointError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight' has numbers that are not finite"
    ):
        lite.auto_gptq(folder, tmp_path / "out", **SMALL, calib_dataset=text, w_group_size=32)


# --- the command ------------------------------------------------------------------------------------------------------


def test_the_command(deep: Path, tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = f"lite auto_gptq {deep} --work-dir {tmp_path / 'out'} --calib-dataset {text} --calib-samples 4"
    words += " --calib-seqlen 64 --w-group-size 32 --desc-act --device cpu"
    assert cli.main(words.split()) == 0
    printed = capsys.readouterr()
    assert "perplexity of" in printed.out and f"written to {tmp_path / 'out'}" in printed.out
    lines = [line for line in printed.err.splitlines() if line.startswith("gptq: ")]
    assert len(lines) == 1 and lines[0].startswith("gptq: 6 of 6 layers, ") and "\r" not in printed.err, "no bar"
    settings = json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]
    assert settings["desc_act"] is True and settings["group_size"] == 32
    assert cli.main(words.split()) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_the_command_with_a_file_of_options(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    options = tmp_path / "options.yaml"
    options.write_text(f"work-dir: {tmp_path / 'out'}\ndevice: cpu\n")
    assert cli.main(["lite", "fp8", str(tiny_checkpoint("llama")), "--config", str(options)]) == 0
    assert "quantization_config" in json.loads((tmp_path / "out" / "config.json").read_text())


def test_import_paths_of_lmdeploy() -> None:
    from seesay.lite.apis.auto_awq import auto_awq
    from seesay.lite.apis.auto_gptq import auto_gptq
    from seesay.lite.apis.calibrate import calibrate
    from seesay.lite.apis.smooth_quant import smooth_quant

    found = (auto_awq, auto_gptq, calibrate, smooth_quant)
    assert found == (lite.auto_awq, lite.auto_gptq, lite.calibrate, lite.smooth_quant)


def test_the_builtin_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is calibrated with scenes, and answers as well as before."""
    monkeypatch.setattr("seesay.lite.api._SCORED_SCENES", 3)
    report = lite.auto_gptq(
        "seesay-demo", tmp_path / "out", calib_samples=22, calib_seqlen=512, batch_size=11, device="cpu"
    )
    assert report.perplexity is not None and report.scores is not None
    before, after = report.perplexity
    assert before < 1.5 and after < 1.2 * before, "of answers alone, which it knows almost by heart"
    assert report.scores[0].keys() == report.scores[1].keys() and len(report.scores[0]) == 8
    assert all(share >= 0.66 for share in report.scores[1].values())
    written = json.loads((tmp_path / "out" / "quantization_report.json").read_text())
    assert written["scores"]["after"] == report.scores[1]
    assert "arithmetic" in report.table()
