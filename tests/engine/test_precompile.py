"""Kernels are compiled ahead by a process of its own; a start calls all kernels that steps call. No GPU is needed: what
would run on one is followed without values, in processes that do nothing else."""

from __future__ import annotations

import importlib.util
import itertools
import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from adapter_folders import write_adapter
from quantized_folders import PACKED_FORMS, write_quantized

import seesay
from seesay.checkpoint import resolve_checkpoint
from seesay.config import EngineConfig
from seesay.engine.process.precompile import Precompile
from seesay.system.python import python_command

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs Triton")

TESTS = Path(__file__).parents[1]
SCRIPT = Path(__file__).with_name("rehearse_and_run.py")
CHILD = "seesay.engine.process.precompile_child"
HOPPER = {"capability": [9, 0], "shared_bytes": 227 << 10}
MODULES = "seesay.vl.modules.module_family.ModuleTextFamily"
FEW_KERNELS = {"eager_mode": True, "max_batch_size": 1, "max_prefill_token_num": 2, "max_step_ms": None}


def make_environment(cache: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (Path(seesay.__file__).parents[1], TESTS, TESTS / "support"))),
        "TRITON_CACHE_DIR": str(cache),
        "TRITON_INTERPRET": "0",
        "OMP_NUM_THREADS": "1",
    }


def is_running(precompile: Precompile) -> bool:
    return precompile.is_running


def test_steps_call_only_kernels_that_a_start_has_called(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Pictures with quantized weights and caches, experts of four bits, and modules of Transformers. What is late would
    be compiled while requests wait."""
    check_late(
        tmp_path,
        quantize(tiny_checkpoint, tmp_path, "gptq, in order of activations", "int4"),
        (str(tiny_checkpoint("gpt_oss_mxfp4")), {"session_len": 120}),
        (str(tiny_checkpoint("cohere2")), {"session_len": 120}),
        (str(tiny_checkpoint("llama")), {"session_len": 120, "custom_module_map": {"LlamaForCausalLM": MODULES}}),
    )


@pytest.mark.slow
def test_so_it_is_with_adapters_that_take_turns_and_pictures_whose_rows_see_each_other(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    llama = tiny_checkpoint("llama")
    modules = r".*(self_attn|mlp)\.\w+_proj"
    adapters = {name: str(write_adapter(llama, tmp_path / name, modules, seed=ord(name))) for name in "ab"}
    check_late(
        tmp_path,
        (str(llama), {"session_len": 120, "adapters": adapters, "max_adapters": 1}),
        (str(tiny_checkpoint("gemma3_vision")), {"session_len": 120}),
    )


@pytest.mark.slow
def test_so_it_is_with_the_default_options_a_sliding_window_and_other_formats(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    check_late(
        tmp_path,
        ("seesay-demo", {}),
        (str(tiny_checkpoint("mistral")), {"session_len": 120}),
        quantize(tiny_checkpoint, tmp_path, "pack-quantized, zero points", "int8"),
    )


def quantize(
    tiny_checkpoint: Callable[[str], Path], folder: Path, form: str, kv_format: str
) -> tuple[str, dict[str, Any]]:
    """Return a quantized model and its options. Formats look at the values of their tensors while they are loaded; a
    rehearsal has none."""
    path, _ = write_quantized(tiny_checkpoint("qwen2_5_vl"), folder / "model", PACKED_FORMS[form])
    return str(path), {"session_len": 400, "kv_cache_dtype": kv_format}


def check_late(folder: Path, *models: tuple[str, dict[str, Any]]) -> None:
    """One process for all models, as it takes as long to start as to look at one."""
    arguments = itertools.chain.from_iterable((path, json.dumps(options)) for path, options in models)
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments],
        env=make_environment(folder / "cache"),
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    reports = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(reports) == len(models)
    for (path, _), report in zip(models, reports, strict=True):
        assert report["start"] > 30, path
        assert report["late"] == [], path


def test_the_process_fills_the_cache_and_finds_it_filled(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    orders = {"folder": str(tiny_checkpoint("llama")), "engine": FEW_KERNELS, "gpu": HOPPER}

    def run() -> dict[str, Any]:
        command, _ = python_command(CHILD)
        with subprocess.Popen(
            command, env=make_environment(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(orders).encode() + b"\n")
            process.stdin.flush()
            report: dict[str, Any] = json.loads(process.stdout.readline())
        return report

    first = run()
    if "error" in first:
        pytest.skip(f"this Triton cannot compile without a GPU: {first['error']}")
    written = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cubin")}
    assert first["num_kernels"] == len(written) > 10
    assert run()["num_kernels"] == first["num_kernels"]
    assert written == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.cubin")}


def test_the_process_ends_with_its_parent(tmp_path: Path) -> None:
    orders = json.dumps({"folder": str(resolve_checkpoint("seesay-demo")), "engine": {}, "gpu": HOPPER})
    code = (
        "import subprocess, sys, time\n"
        f"child = subprocess.Popen([sys.executable, '-P', '-m', {CHILD!r}], stdin=subprocess.PIPE)\n"
        f"child.stdin.write({orders!r}.encode() + b'\\n'); child.stdin.flush()\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], env=make_environment(tmp_path), stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        parent.send_signal(signal.SIGKILL)
    deadline_s = time.monotonic() + 60
    while Path(f"/proc/{pid}/cmdline").exists() and CHILD in Path(f"/proc/{pid}/cmdline").read_text():
        assert time.monotonic() < deadline_s, "the process goes on without its parent"
        time.sleep(0.05)


def test_a_failure_costs_nothing_but_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """There is no such GPU. The start that follows notes that its kernels are cached; the next one believes it."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TRITON_INTERPRET", "0")
    (tmp_path / "cache").mkdir()
    folder, config = resolve_checkpoint("seesay-demo"), EngineConfig(device_type="cuda:99")
    first = Precompile(folder, config)
    assert is_running(first)
    with caplog.at_level(logging.WARNING, "seesay"):
        first.wait()
    assert "compiled one by one" in caplog.text and "cuda:99" in caplog.text
    assert not is_running(first)
    first.finish()
    assert not Precompile(folder, config).is_running
    other = Precompile(folder, replace(config, session_len=512))
    assert is_running(other)
    other.close()
    assert not is_running(other)


def test_no_process_for_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    precompile = Precompile(resolve_checkpoint("seesay-demo"), EngineConfig(device_type="cpu"))
    assert not precompile.is_running
    precompile.wait()
    precompile.finish()
    assert list(tmp_path.iterdir()) == []


def test_kernels_compiled_after_the_start_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    import triton

    from seesay.kernels.compile_log import CompileLog

    before = triton.knobs.compilation.listener
    triton.knobs.compilation.listener = None
    try:
        log = CompileLog()
        listen: Any = triton.knobs.compilation.listener

        def tell(module: str, *, cache_hit: bool) -> None:
            source = SimpleNamespace(fn=SimpleNamespace(__module__=module), name=f"{module}.kernel")
            listen(
                src=source, metadata={}, metadata_group={}, times=SimpleNamespace(total=250_000), cache_hit=cache_hit
            )

        with caplog.at_level(logging.INFO, "seesay"):
            tell("seesay.kernels.early", cache_hit=False)
            tell("seesay.kernels.early", cache_hit=True)
            assert caplog.records == []
            assert log.end_start() == 1
            tell("seesay.kernels.late", cache_hit=False)
            tell("seesay.kernels.loaded", cache_hit=True)
            tell("users.own", cache_hit=False)
    finally:
        triton.knobs.compilation.listener = before
    [late, loaded] = caplog.records
    assert late.levelno == logging.WARNING and "seesay.kernels.late.kernel was compiled" in late.getMessage()
    assert "0.25 s" in late.getMessage()
    assert loaded.levelno == logging.INFO and "seesay.kernels.loaded" in loaded.getMessage()
