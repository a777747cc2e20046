"""Layers with states and latent rows, on one GPU: random models of published shapes, written to a folder of their own.

    python benchmarks/states.py decode [--layers 32]     # Qwen3.5-9B, one sequence
    python benchmarks/states.py second [--layers 12]     # Qwen3.5-9B, two questions about one text of 16,384 tokens
    python benchmarks/states.py latent [--layers 6]      # DeepSeek-V2-Lite, 64 sequences, native and through modules

`decode` prints the milliseconds per token, and that divided by the time in which the bytes of a step (all weights but
the table of embeddings, the state and the keys and values) are read at `--terabytes` per second. `second` prints the
times to the first token of both questions, and their ratio: the median of three texts. `latent` prints the bytes of a
token in the cache, and those of its expanded keys and values, and the milliseconds per step of both ways.
Each takes about two minutes, and prints one JSON line; `latent` tells on stderr when it is through with a way.
`--width` divides all sizes, for a trial without a GPU.
"""

from __future__ import annotations

import argparse
import json
import queue
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from seesay.config import EngineConfig, GenerationConfig
from seesay.demo import CHECKPOINT
from seesay.engine.core.loop import EngineLoop
from seesay.engine.front.engine import AsyncEngine
from seesay.llm.memory.kv_cache import bytes_per_block
from seesay.llm.memory.state_cache import bytes_per_state
from seesay.llm.running.runner import ModelRunner
from seesay.values import GenerationRequest, OutputDelta

MODULES = {"DeepseekV2ForCausalLM": "seesay.vl.modules.module_family.ModuleTextFamily"}
SHORT, LONG = 16, 80
"""Tokens of the answers whose times are subtracted from each other."""
TEXT, BLOCK, CONTEXT = 16384, 64, 512


def write_delta_net(folder: Path, layers: int, width: int, device: str) -> None:
    """Write the decoder of a Qwen3.5-9B."""
    from transformers import Qwen3_5ForCausalLM, Qwen3_5TextConfig

    config = Qwen3_5TextConfig(
        vocab_size=248320 // width, hidden_size=4096 // width, intermediate_size=12288 // width,
        num_hidden_layers=layers, linear_num_key_heads=max(2, 16 // width), linear_num_value_heads=max(4, 32 // width),
        num_attention_heads=max(4, 16 // width), max_position_embeddings=2 * TEXT,
    )  # fmt: skip
    _save(Qwen3_5ForCausalLM, config, folder, device)


def write_latent(folder: Path, layers: int, width: int, device: str) -> None:
    """Write a DeepSeek-V2-Lite."""
    from transformers import DeepseekV2Config, DeepseekV2ForCausalLM

    config = DeepseekV2Config(
        vocab_size=102400 // width, hidden_size=2048 // width, intermediate_size=10944 // width,
        moe_intermediate_size=1408 // width, num_hidden_layers=layers, num_attention_heads=16, num_key_value_heads=16,
        n_routed_experts=64, num_experts_per_tok=6, n_shared_experts=2, first_k_dense_replace=1, n_group=1,
        topk_group=1, topk_method="greedy", routed_scaling_factor=1.0, kv_lora_rank=512, q_lora_rank=None,
        qk_rope_head_dim=64, qk_nope_head_dim=128, v_head_dim=128, head_dim=64, max_position_embeddings=4096,
    )  # fmt: skip
    _save(DeepseekV2ForCausalLM, config, folder, device)


def _save(model_class: Any, config: Any, folder: Path, device: str) -> None:
    """Save a random model, with the tokenizer of the built-in one: prompts are token ids."""
    from transformers import AutoTokenizer

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device(device):
            model = model_class(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(folder, max_shard_size="5GB")
    AutoTokenizer.from_pretrained(CHECKPOINT).save_pretrained(folder)


@contextmanager
def open_engine(folder: Path, **options: Any) -> Iterator[tuple[AsyncEngine, ModelRunner]]:
    """An engine whose core is a thread of this process, and its runner."""
    config = EngineConfig(**{"dtype": "bfloat16", "block_size": BLOCK, "engine_process": False, **options})
    with AsyncEngine(str(folder), backend_config=config) as engine:
        assert isinstance(engine.core, EngineLoop)
        yield engine, engine.core._runner


def ask(engine: AsyncEngine, prompts: Sequence[Sequence[int]], num_tokens: int) -> float:
    """Return the seconds in which all prompts have got so many tokens."""
    options = GenerationConfig(max_new_tokens=num_tokens, min_new_tokens=num_tokens, ignore_eos=True)
    arrived: queue.SimpleQueue[OutputDelta] = queue.SimpleQueue()
    started_s = time.perf_counter()
    engine.submit_batch([GenerationRequest(prompt=tuple(ids), gen_config=options) for ids in prompts], arrived.put)
    num_left = len(prompts)
    while num_left:
        delta = arrived.get(timeout=600)
        assert delta.error is None, delta.error
        num_left -= delta.finish_reason is not None
    return time.perf_counter() - started_s


def measure_step(engine: AsyncEngine, num_rows: int, num_tokens: int) -> float:
    """Return the seconds of a decode step of so many sequences, with prompts of so many tokens."""
    found = []
    for seed in range(4):
        prompts = [make_text(num_tokens, 100 * seed + row) for row in range(num_rows)]
        ask(engine, prompts, 1)  # computed, and found again
        short, long = ask(engine, prompts, SHORT), ask(engine, prompts, LONG)
        found.append((long - short) / (LONG - SHORT))
    return statistics.median(found[1:])


def make_text(num_tokens: int, seed: int) -> list[int]:
    token_ids: list[int] = np.random.default_rng(seed).integers(10, 900, num_tokens).tolist()
    return token_ids


def measure_decode(folder: Path, terabytes: float) -> dict[str, float]:
    with open_engine(folder, max_batch_size=4, session_len=4096) as (engine, runner):
        seconds = measure_step(engine, 1, CONTEXT)
        traits = runner.decoder.traits
        table = traits.vocab_size * traits.embedding_size * 2
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors")) - table
        state = bytes_per_state(traits.state_shapes, runner.dtype)
        num_bytes = weights + 2 * state + bytes_per_block(runner.kv_layouts) * CONTEXT // BLOCK
        floor_s = num_bytes / (terabytes * 1e12)
        return {
            "ms_per_token": seconds * 1e3,
            "gigabytes": num_bytes / 1e9,
            "state_mib": state / 2**20,
            "ms_at_full_speed": floor_s * 1e3,
            "ratio": seconds / floor_s,
        }


def measure_second(folder: Path, num_text: int) -> dict[str, float]:
    with open_engine(folder, max_batch_size=4, session_len=num_text + 512) as (engine, _):
        ask(engine, [make_text(num_text, 99)], 1)  # what the first long prompt costs once
        firsts, seconds = [], []
        for seed in range(3):
            text = make_text(num_text, seed)
            firsts.append(ask(engine, [text + make_text(40, 10 + seed)], 1))
            seconds.append(ask(engine, [text + make_text(40, 20 + seed)], 1))
        return {
            "first_ms": statistics.median(firsts) * 1e3,
            "second_ms": statistics.median(seconds) * 1e3,
            "ratio": statistics.median(second / first for first, second in zip(firsts, seconds, strict=True)),
        }


def measure_latent(folder: Path, num_rows: int) -> dict[str, float]:
    found: dict[str, float] = {}
    ways: dict[str, dict[str, Any]] = {
        "native": {},
        "fp8": {"kv_cache_dtype": "fp8"},
        "int8": {"kv_cache_dtype": "int8"},
        "modules": {"custom_module_map": MODULES},
    }
    for way, options in ways.items():
        with open_engine(folder, max_batch_size=num_rows, session_len=1024, **options) as (engine, runner):
            found[f"{way}_bytes_per_token"] = bytes_per_block(runner.kv_layouts) / BLOCK
            found[f"{way}_ms_per_step"] = measure_step(engine, num_rows, CONTEXT) * 1e3
        print(f"{way}: {found[f'{way}_ms_per_step']:.3f} ms per step", file=sys.stderr, flush=True)
    for way in ("native", "fp8", "int8"):
        found[f"{way}_bytes_ratio"] = found[f"{way}_bytes_per_token"] / found["modules_bytes_per_token"]
        found[f"{way}_speed_ratio"] = found["modules_ms_per_step"] / found[f"{way}_ms_per_step"]
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["decode", "second", "latent"])
    parser.add_argument("--layers", type=int, help="by default 32, 12 and 6")
    parser.add_argument("--terabytes", type=float, default=4.3, help="per second, that the device reads")
    parser.add_argument("--rows", type=int, default=64, help="sequences of `latent`")
    parser.add_argument("--text", type=int, default=TEXT, help="tokens of the text of `second`")
    parser.add_argument("--width", type=int, default=1)
    args = parser.parse_args(argv)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layers = args.layers or {"decode": 32, "second": 12, "latent": 6}[args.what]
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        (write_latent if args.what == "latent" else write_delta_net)(folder, layers, args.width, device)
        match args.what:
            case "decode":
                figures = measure_decode(folder, args.terabytes)
            case "second":
                figures = measure_second(folder, args.text)
            case _:
                figures = measure_latent(folder, args.rows)
    rounded = {name: round(value, 4) for name, value in figures.items()}
    print(json.dumps({"what": f"states {args.what}", "layers": layers, **rounded}))


if __name__ == "__main__":
    main()
