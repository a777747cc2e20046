"""What `seesay plan` says that GPUs hold, against what is loaded."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from quantized_folders import FORMS, PACKED_FORMS, set_config, write_quantized
from thread_ranks import run_ranks

from seesay.cli import main
from seesay.config import EngineConfig
from seesay.device.ranks import Place, Ranks, Stages
from seesay.engine.capacity import Capacity
from seesay.engine.opened_model import OpenedModel, open_model
from seesay.errors import ConfigError

CPU = torch.device("cpu")
GIB = 1 << 30
NAMES = ("llama", "qwen2_5_vl", "starcoder2", "qwen3_moe", "gemma3")


def load_bytes(model: OpenedModel, dtype: torch.dtype, ranks: Ranks | None, **options: bool) -> int:
    """The bytes of all weights of the first rank, vision tower included."""
    decoder = model.backbone.load_decoder(
        model.checkpoint, session_len=64, device=CPU, dtype=dtype, ranks=ranks, **options
    )
    tensors = list(decoder.weights.tensors())
    if model.family.modalities:
        tensors += model.family.build_encoder(CPU, dtype).weights.tensors()
    return sum(tensor.nbytes for tensor in tensors)


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_counted_as_they_are_loaded(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(dtype="bfloat16")
    model = open_model(tiny_checkpoint(name), config)
    capacity = Capacity(model, config)
    # Towers pad a few layers, which shows in so small ones.
    assert capacity.measure(1).weight_bytes == pytest.approx(load_bytes(model, torch.bfloat16, None), rel=0.05)
    loaded = run_ranks(2, lambda ranks: load_bytes(model, torch.bfloat16, ranks))
    assert capacity.measure(2).weight_bytes == pytest.approx(max(loaded), rel=0.05)
    assert capacity.measure(2).weight_bytes < capacity.measure(1).weight_bytes


def test_packed_weights_are_counted_and_experts_have_a_byte_for_each(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    quantized, _ = write_quantized(tiny_checkpoint("mixtral"), tmp_path, PACKED_FORMS["awq, groups of 32"])
    config = EngineConfig(dtype="bfloat16")
    model = open_model(quantized, config)
    expected = 0
    for name, stored in model.checkpoint.stored.items():
        is_of_expert = ".experts." in name and name.endswith(".qweight")
        expected += (
            stored.num_bytes * (2 if is_of_expert else 1) if stored.dtype == "I32" else math.prod(stored.shape) * 2
        )
    assert Capacity(model, config).measure(1).weight_bytes == pytest.approx(expected, rel=1e-3)


@pytest.mark.parametrize("form", ["fp8, blocks of 128", "compressed-tensors, channels"])
def test_fp8_numbers_are_planned_for_without_a_gpu(
    form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """Weights, and a KV cache that the checkpoint asks for."""
    quantized, _ = write_quantized(tiny_checkpoint("llama"), tmp_path, FORMS[form])
    scheme = {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    is_cached = "kv_cache_scheme" in FORMS[form].config
    if is_cached:
        set_config(quantized, quantization_config={**FORMS[form].config, "kv_cache_scheme": scheme})
    config = EngineConfig(dtype="bfloat16")
    plain, found = (
        Capacity(open_model(path, config), config).measure(1) for path in (tiny_checkpoint("llama"), quantized)
    )
    assert found.weight_bytes < plain.weight_bytes
    assert (found.kv_bytes_per_token < plain.kv_bytes_per_token) == is_cached


def test_numbers_of_gpus_that_are_no_powers_of_two_are_tried(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """Six heads of keys, which six GPUs share, and four do not."""
    assert main(["plan", str(tiny_checkpoint("bloom")), "--gpus", "6x24GB", "--session-len", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[3:8]] == [
        ["1", "1", "6"], ["2", "1", "3"], ["3", "1", "2"], ["6", "1", "1"], ["1", "2", "3"],
    ]  # fmt: skip
    assert "with --tp 6" in lines[-1]


@pytest.mark.parametrize("name", NAMES)
def test_stages_are_counted_as_they_are_loaded(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    config = EngineConfig(dtype="bfloat16")
    model = open_model(tiny_checkpoint(name), config)
    shares = Capacity(model, config).measure_stages(2)
    kv_bytes = Capacity(model, config).measure(1).kv_bytes_per_token
    assert sum(share.kv_bytes_per_token for share in shares) == kv_bytes > shares[0].kv_bytes_per_token
    for rank, share in enumerate(shares):
        decoder = model.backbone.load_decoder(
            model.checkpoint, session_len=64, device=CPU, dtype=torch.bfloat16, ranks=Stages(Place(rank, 2))
        )
        tensors = list(decoder.weights.tensors())
        if model.family.modalities and rank == 0:
            tensors += model.family.build_encoder(CPU, torch.bfloat16).weights.tensors()
        assert share.weight_bytes == pytest.approx(sum(tensor.nbytes for tensor in tensors), rel=0.05)


def test_tokens_follow_the_memory(tiny_checkpoint: Callable[[str], Path]) -> None:
    capacity = Capacity(open_model(tiny_checkpoint("llama"), EngineConfig()), EngineConfig())
    share = capacity.measure(1)
    tokens = share.count_tokens(80 * GIB, 0.8)
    more = share.count_tokens(81 * GIB, 0.8)
    assert (more - tokens) * share.kv_bytes_per_token == pytest.approx(0.8 * GIB, rel=1e-3)
    assert share.count_tokens(share.weight_bytes, 0.8) == 0


@pytest.mark.parametrize("tp", [1, 2])
def test_states_take_their_part(tp: int, tiny_checkpoint: Callable[[str], Path]) -> None:
    """As many as the engine makes: two for each sequence of a batch, but at most half of the cache."""
    tokens = []
    for max_batch_size in (1, 1001, 65536):
        config = EngineConfig(max_batch_size=max_batch_size, block_size=16)
        share = Capacity(open_model(tiny_checkpoint("qwen3_5_text"), config), config).measure(tp)
        assert share.state_bytes > 16 * share.kv_bytes_per_token
        tokens.append(share.count_tokens(5 * GIB // 4, 0.5))
    per_state = 0.5 * share.state_bytes / share.kv_bytes_per_token
    assert tokens[0] - tokens[1] == pytest.approx(2000 * per_state, abs=2)
    assert tokens[2] == pytest.approx(0.75 * tokens[0], rel=1e-2), "states have half of the cache's half"


def test_the_command(tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(tiny_checkpoint("llama")), "--gpus", "4x24GB", "--session-len", "128"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "KiB of keys and values per token" in lines[0]
    assert [line.split()[:3] for line in lines[3:6]] == [["1", "1", "4"], ["2", "1", "2"], ["4", "1", "1"]]
    assert lines[6].split()[:3] == ["1", "2", "2"], "two stages"
    assert "of 128 tokens" in lines[3] and "on each of 4 GPUs" in lines[-1] and "with --tp 4" in lines[-1]
    assert main(["plan", str(tiny_checkpoint("llama")), "--gpus", "0.5GB"]) == 0
    out = capsys.readouterr().out
    assert "does not fit" in out and "take more or larger GPUs" in out
    assert main(["plan", str(tiny_checkpoint("lfm2"))]) == 0
    assert "MiB of state per text" in capsys.readouterr().out


def test_what_cannot_be_planned_for_is_named(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    capacity = Capacity(open_model(tiny_checkpoint("llama"), EngineConfig()), EngineConfig())
    with pytest.raises(ConfigError, match="tp=7: "):
        capacity.measure(7)
    of_modules = open_model(tiny_checkpoint("opt"), EngineConfig())
    with pytest.raises(ConfigError, match="cannot be planned, as it is computed as modules of Transformers"):
        Capacity(of_modules, EngineConfig())
    for gpus in ("many", "8"):  # of what, GPUs or gigabytes?
        with pytest.raises(SystemExit):
            main(["plan", "--gpus", gpus])
        assert f"must be like 8x80GB or 24GB, got '{gpus}'" in capsys.readouterr().err


def test_options_of_the_engine_count(
    tiny_checkpoint: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """One number of GPUs, a vision encoder elsewhere, whole experts."""
    path = tiny_checkpoint("qwen2_5_vl")
    model = open_model(path, EngineConfig())
    sizes = [Capacity(model, EngineConfig(), has_tower=has_tower).num_parameters for has_tower in (True, False)]
    assert sizes[1] < sizes[0]
    assert main(["plan", str(path), "--gpus", "4x24GB", "--tp", "2", "--encoder-device", "cuda:3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[3:4]] == [["2", "1", "2"]] and not lines[4]
    assert main(["plan", str(path), "--gpus", "4x24GB", "--pp", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:3] for line in lines[3:4]] == [["1", "2", "2"]] and not lines[4]
    assert main(["plan", str(path), "--gpus", "24GB", "--pp", "2"]) == 1
    assert "tp=1 and pp=2 take 2 GPUs, got 1" in capsys.readouterr().err
    config = EngineConfig(dtype="bfloat16", tp=2, expert_parallel=True)
    for name in ("qwen3_moe", "gpt_oss"):
        mixture = open_model(tiny_checkpoint(name), config)
        loaded = run_ranks(2, partial(load_bytes, mixture, torch.bfloat16, expert_parallel=True))
        assert Capacity(mixture, config).measure(2).weight_bytes == pytest.approx(max(loaded), rel=0.05)
    with pytest.raises(ConfigError, match="this model has no experts"):
        Capacity(model, EngineConfig(expert_parallel=True)).measure(2)
