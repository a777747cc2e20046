"""Compiles every kernel of the package for one compute capability, or for AMD's gfx942, on a machine without a GPU:

    python compile_all.py 89 bfloat16 [once]
    python compile_all.py gfx942 bfloat16 [once]

The package's own functions are called as for a GPU of that kind, but with tensors of the CPU, and what they would
launch is only compiled: with `once`, each kernel for its first call alone. Prints JSON: "shared_bytes", what each
kernel takes at most; "problems", what does not compile or not fit; "unused", the kernels that nobody called. Or else
"unavailable", why Triton cannot do this here.
"""

from __future__ import annotations

import importlib
import json
import math
import pkgutil
import re
import resource
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np
import torch
import triton
import triton.language as tl
from torch import empty, float64, int32, int64
from triton.runtime.jit import JITFunction

from seesay.kernels.absent_gpu import Gpu, Launches, absent_gpu, name_kernel
from seesay.llm.memory.kv_layout import KVFormat, KVLayout, LayerCache
from seesay.llm.plans.window import Chunk, Window
from seesay.values.frame_chain import Patches

SHARED_BYTES = {80: 163 << 10, 89: 99 << 10, 90: 163 << 10}  # 9.0 has 227 KiB, but 8.0 takes its tiles
"""Most shared memory of a block, by compute capability (CUDA C++ Programming Guide, "Technical Specifications")."""
AMD_SHARED_BYTES = {"gfx942": 64 << 10}
"""Most local data share of a work group, by architecture (AMD CDNA 3 Instruction Set Architecture, "LDS")."""
NUM_THREADS = 2
MAX_CPU_S = 400
"""Processor time of this process, three to four times what it takes."""


@contextmanager
def pretend_gpu(kind: str) -> Iterator[Launches]:
    """Inside, all tensors seem to be on a GPU of this kind, and kernels that are launched begin to compile."""
    with ThreadPoolExecutor(NUM_THREADS) as threads, absent_gpu(make_gpu(kind), threads) as launches:
        yield launches


def make_gpu(kind: str) -> Gpu:
    """Return the GPU of a compute capability, such as '89', or of AMD's architecture, such as 'gfx942'."""
    if kind in AMD_SHARED_BYTES:
        return Gpu((9, 4), AMD_SHARED_BYTES[kind], kind)  # the capability that PyTorch says of it
    return Gpu((int(kind) // 10, int(kind) % 10), SHARED_BYTES[int(kind)])


@contextmanager
def first_launches() -> Iterator[None]:
    """Inside, of the launches of each kernel all but the first are left out."""
    launch, launched = JITFunction.run, set[str]()

    def run(self: Any, *args: Any, **options: Any) -> None:
        if name_kernel(self) not in launched:
            launched.add(name_kernel(self))
            launch(self, *args, **options)

    with mock.patch.object(JITFunction, "run", run):
        yield


@triton.jit
def _add_one_kernel(x_ptr):  # type: ignore[no-untyped-def]  # Triton compiles annotations, too
    tl.store(x_ptr, tl.load(x_ptr) + 1)


def try_triton(kind: str) -> None:
    """Raises where Triton cannot compile for such a GPU, or not in this way."""
    with pretend_gpu(kind) as launches:
        _add_one_kernel[(1,)](empty(1))
        [(_, kernel)] = launches.kernels
        assert kernel.result().metadata.shared == 0


# --- the calls: Qwen2.5-VL-7B, and heads of other sizes --------------------------------------------------------------

HEADS, KV_HEADS, HIDDEN, INNER, VOCABULARY = 28, 4, 3584, 18944, 152064
TOWER_HEADS, TOWER_DIM, TOWER_HIDDEN = 16, 80, 1280


def call_rows(dtype: torch.dtype) -> None:
    from seesay.kernels import rotary, token_kernels
    from seesay.llm.ops.triton_ops import TritonOps

    x, weight = empty(40, HIDDEN, dtype=dtype), empty(HIDDEN, dtype=dtype)
    token_kernels.norm(x, None, weight, 1e-6)
    token_kernels.norm(x, x, weight, 1e-6)
    token_kernels.norm(x, x, weight, 1e-6, other=x)
    token_kernels.norm(empty(40, HEADS, 128, dtype=dtype), None, empty(128, dtype=dtype), 1e-6)
    token_kernels.act_and_mul(empty(40, 2 * INNER, dtype=dtype), "silu")
    token_kernels.scatter(x, empty(8, dtype=int64), empty(8, HIDDEN, dtype=dtype))
    positions, axes, frequencies = empty(3, 40, dtype=int64), empty(128, dtype=int64), empty(128)
    stretches, exponents = empty(40, dtype=float64), empty(128, dtype=float64)
    for scaling in ((None, None, None), (frequencies, None, stretches), (None, exponents, stretches)):
        rotary.make_rotary_tables(positions, axes, frequencies, *scaling, scale=1.0, dtype=dtype)
    for dim in (64, 128, 256):
        qkv, slots = empty(40, HEADS + 2 * KV_HEADS, dim, dtype=dtype), empty(40, dtype=int64)
        angles, weight = empty(40, 1, dim, dtype=dtype), empty(dim, dtype=dtype)
        norms = (weight, weight, 1e-6) if dim == 128 else None
        write = TritonOps().rotate_and_write
        write(qkv, angles, angles, make_cache(dim, dtype), slots, norms)
        write(qkv, angles, angles, make_cache(dim, dtype), slots, norms, empty(len(qkv), dtype=torch.float32))


def make_cache(dim: int, dtype: torch.dtype, block_size: int = 64, format: KVFormat = "plain") -> LayerCache:
    layout = KVLayout(format=format, dtype=dtype, block_size=block_size, num_kv_heads=KV_HEADS, head_dim=dim)
    return LayerCache.zeros(layout, 4, torch.device("cpu"))


def call_attention(dtype: torch.dtype) -> None:
    few, large, many = [1] * 8 + [32], [1] * 8 + [8192], [1] * 128
    for dim, lengths in ((128, few), (128, large), (128, many), (256, few)):
        attend(lengths, dim, dtype)
    attend(few, 64, dtype, block_size=16, window=4096, soft_cap=50.0, sinks=empty(HEADS, dtype=dtype))
    attend(few, 128, dtype, window=Chunk(8192))
    attend(few, 128, dtype, slopes=empty(HEADS))
    attend(few, 64, dtype, slopes=empty(HEADS, dtype=torch.bfloat16))
    attend(few, 256, dtype, has_runs=True)
    attend(few, 256, dtype, window=1024, has_runs=True)


def call_quantized_kv(dtype: torch.dtype) -> None:
    from seesay.llm.ops.triton_ops import TritonOps

    formats: tuple[KVFormat, ...] = ("int8", "int4", "fp8")
    for format in formats:
        for rotated in (128, 64):
            qkv, angles = empty(40, HEADS + 2 * KV_HEADS, 128, dtype=dtype), empty(40, 1, rotated, dtype=dtype)
            cache, slots, faults = make_cache(128, dtype, format=format), empty(40, dtype=int64), empty(40)
            TritonOps().rotate_and_write(qkv, angles, angles, cache, slots, None, faults)
        for lengths in ([1] * 8 + [32], [1] * 128, [8192]):
            attend(lengths, 128, dtype, format=format)
        attend([32], 128, dtype, format=format, has_runs=True)
        attend([1, 32], 256, dtype, format=format)
        attend([1, 32], 128, dtype, format=format, slopes=empty(HEADS))
        attend([1, 32], 80, dtype, block_size=16, window=4096, soft_cap=50.0, format=format)


def call_wide_attention(dtype: torch.dtype) -> None:
    attend([32], 128, dtype)
    attend([1] * 8 + [32], 256, dtype)


def attend(
    lengths: list[int],
    dim: int,
    dtype: torch.dtype,
    *,
    block_size: int = 64,
    window: Window | None = None,
    soft_cap: float | None = None,
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    format: KVFormat = "plain",
    has_runs: bool = False,
    ops: Any = None,
) -> None:
    """Rows of `lengths` new tokens behind 100 others. has_runs: the layout says which see each other. ops: by default
    those of Triton."""
    from seesay.llm.ops import RowLayout
    from seesay.llm.ops.triton_ops import TritonOps

    layout = RowLayout(
        cu_seqlens_q=np.cumsum([0, *lengths]),
        kv_lens=np.array(lengths) + 100,
        block_table=np.zeros((len(lengths), 1024), dtype=np.int64),
        block_size=block_size,
        num_decode=lengths.count(1),
        runs=np.zeros((2, sum(lengths)), dtype=np.int64) if has_runs else None,
    )
    ops, query = ops or TritonOps(), empty(sum(lengths), HEADS, dim, dtype=dtype)
    plan = ops.plan_attention(layout, windows=frozenset([window]), device=query.device, dtype=dtype)
    cache = make_cache(dim, dtype, block_size, format)
    ops.attend(query, cache, plan, scale=dim**-0.5, window=window, soft_cap=soft_cap, sinks=sinks, slopes=slopes)


def call_fixed_attention(dtype: torch.dtype) -> None:
    """The attention of the deterministic mode."""
    from seesay.llm.ops.deterministic_triton_ops import DeterministicTritonOps

    ops = DeterministicTritonOps()
    for lengths in ([1] * 8 + [32], [1] * 128):
        attend(lengths, 128, dtype, ops=ops)
    attend(
        [1] * 8 + [32], 256, dtype, block_size=16, window=4096, soft_cap=50.0, sinks=empty(HEADS, dtype=dtype), ops=ops
    )
    attend([1, 32], 64, dtype, slopes=empty(HEADS), window=Chunk(8192), has_runs=True, ops=ops)
    formats: tuple[KVFormat, ...] = ("int8", "int4", "fp8")
    for format in formats:
        attend([1, 32], 128, dtype, format=format, ops=ops)


def call_fixed_products(dtype: torch.dtype) -> None:
    from seesay.kernels.fixed_matmul import add_product, multiply

    weight, bias = empty(INNER, HIDDEN, dtype=dtype), empty(INNER, dtype=dtype)
    for num_rows in (1, 16, 64, 100, 300, 4096):
        x, out = empty(num_rows, HIDDEN, dtype=dtype), empty(num_rows, INNER, dtype=dtype)
        multiply(x, weight, bias)
        add_product(out, x, weight=weight)
    if dtype.itemsize == 2:
        for kind in (torch.int8, torch.float8_e4m3fn):
            multiply(x[:8], empty(INNER, HIDDEN, dtype=kind), bias, scale=empty(INNER))
            multiply(x, empty(INNER, HIDDEN, dtype=kind), bias, scale=empty(INNER))


def call_gemv(dtype: torch.dtype) -> None:
    """With as many rows as the decoder gives it on this GPU."""
    from seesay.device.linear.matmul import max_fused_rows
    from seesay.kernels.few_rows.few_row_matmul import multiply

    qkv_size, norm = (HEADS + 2 * KV_HEADS) * 128, (empty(HIDDEN, dtype=dtype), 1e-6)
    for num_rows in (1, 8, 32):
        if num_rows > max_fused_rows(torch.device("cuda"), dtype):
            continue
        x, inner = empty(num_rows, HIDDEN, dtype=dtype), empty(num_rows, INNER, dtype=dtype)
        multiply(x, empty(qkv_size, HIDDEN, dtype=dtype), empty(qkv_size, dtype=dtype), norm=norm)
        multiply(x, empty(2 * INNER, HIDDEN, dtype=dtype), None, norm=norm, activation="silu")
        multiply(inner, empty(HIDDEN, INNER, dtype=dtype), None, add_to=x)
        multiply(x, empty(VOCABULARY, HIDDEN, dtype=dtype), None)


def call_fp8(dtype: torch.dtype) -> None:
    """Rows in FP8, and few rows with weights in FP8."""
    from seesay.device.linear.matmul import max_fused_rows
    from seesay.kernels.few_rows.few_row_matmul import multiply
    from seesay.kernels.quantize import quantize_activation, quantize_norm, quantize_rows

    fp8, norm = torch.float8_e4m3fn, (empty(HIDDEN, dtype=dtype), 1e-6)
    for kind, largest, group_size in ((fp8, 448.0, None), (fp8, 448.0, 128), (torch.int8, 127.0, None)):
        to: Any = {"dtype": kind, "largest": largest, "group_size": group_size}
        x = empty(300, HIDDEN, dtype=dtype)
        quantize_rows(empty(300, INNER, dtype=dtype), **to)
        quantize_norm(x, x, norm[0], 1e-6, **to)
        quantize_activation(empty(300, 2 * INNER, dtype=dtype), "silu", **to)
    for num_rows in (1, 8, 32):
        if num_rows > max_fused_rows(torch.device("cuda"), dtype):
            continue
        x, inner = empty(num_rows, HIDDEN, dtype=dtype), empty(num_rows, INNER, dtype=dtype)
        gate_up, down = empty(2 * INNER, HIDDEN, dtype=fp8), empty(HIDDEN, INNER, dtype=fp8)
        multiply(x, gate_up, None, scale=empty(2 * INNER), norm=norm, activation="silu")
        multiply(inner, down, empty(HIDDEN, dtype=dtype), scale=empty(HIDDEN), add_to=x)
        multiply(x, empty(HIDDEN, HIDDEN, dtype=fp8), None, scale=empty(HIDDEN), norm=norm)
        multiply(inner, down.view(torch.int8), None, scale=empty(HIDDEN), add_to=x)
        blocks: Any = {"scale": empty(HIDDEN // 128, 2 * INNER).t(), "group_size": 128}
        multiply(x, gate_up, None, norm=norm, activation="silu", **blocks)


def call_scaled(dtype: torch.dtype) -> None:
    """Quantized rows with quantized weights."""
    from seesay.kernels.scaled_matmul import multiply_scaled

    for num_rows in (1, 40, 100, 300):
        rows, weight, bias = empty(num_rows, HIDDEN), empty(INNER, HIDDEN), empty(INNER, dtype=dtype)
        whole = (rows.to(torch.int8), empty(num_rows, 1))
        multiply_scaled(whole, bias, weight=weight.to(torch.int8), scale=empty(INNER), dtype=dtype)
        groups = (rows.to(torch.float8_e4m3fn), empty(num_rows, HIDDEN // 128))
        multiply_scaled(
            groups,
            bias,
            weight=weight.to(torch.float8_e4m3fn),
            scale=empty(HIDDEN // 128, INNER).t(),
            dtype=dtype,
            group_size=128,
        )


def call_packed(dtype: torch.dtype) -> None:
    """Every tiling of 4-bit weights, and what differs for 8 bits, for sorted inputs and for other groups."""
    from seesay.kernels.packed.packed_matmul import multiply_few, multiply_tiles
    from seesay.kernels.packed.packed_numbers import multiply_out

    norm = (empty(HIDDEN, dtype=dtype), 1e-6)
    plain = make_packed(HIDDEN, INNER, dtype), make_packed(2 * INNER, HIDDEN, dtype)
    sorted_inputs = make_packed(HIDDEN, INNER, dtype, group_size=32, bits=8, has_order=True)
    for num_rows in (1, 8, 16, 32):
        x, inner = empty(num_rows, HIDDEN, dtype=dtype), empty(num_rows, INNER, dtype=dtype)
        multiply_few(x, plain[1], empty(2 * INNER, dtype=dtype), norm=norm, activation="silu")
        multiply_few(inner, plain[0], None, add_to=x)
    multiply_few(inner, sorted_inputs, None, add_to=x)
    for num_rows in (40, 200):
        multiply_tiles(empty(num_rows, HIDDEN, dtype=dtype), plain[1], None)
        multiply_tiles(empty(num_rows, INNER, dtype=dtype), sorted_inputs, empty(HIDDEN, dtype=dtype))
    for packed in (*plain, sorted_inputs):
        multiply_out(packed, 0, HIDDEN, dtype)


def make_packed(
    num_outputs: int,
    num_inputs: int,
    dtype: torch.dtype,
    *,
    group_size: int = 128,
    bits: int = 4,
    has_order: bool = False,
) -> Any:
    from seesay.device.linear.packed_product import to_kernel
    from seesay.device.linear.packed_weight import Packer

    packer = Packer(
        num_outputs=num_outputs,
        num_inputs=num_inputs,
        group_size=group_size,
        bits=bits,
        device=torch.device("cpu"),
    )
    scales = empty(-(-num_inputs // group_size), num_outputs, dtype=torch.float16)
    weight = packer.finish(scales, scales, empty(num_inputs, dtype=int32) if has_order else None)
    return to_kernel(weight, dtype)


def call_experts(dtype: torch.dtype) -> None:
    """Qwen3-30B-A3B, and Mixtral for sizes that are no multiples; groups are those of DeepSeek-V3."""
    from seesay.kernels.experts import mixture as experts

    choosings = (
        experts.Choosing(8),
        experts.Choosing(2, jitter=0.01),
        experts.Choosing(8, is_sigmoid=True, groups=(8, 4), sums_two=True, bias=empty(128)),
    )
    for choosing in choosings:
        experts.choose(empty(8, 128, dtype=dtype), choosing)
    one_byte = torch.float8_e4m3fn
    for kind, group_size in (
        ((dtype, None), (one_byte, 128), (one_byte, 32), (one_byte, None)) if dtype.itemsize == 2 else ((dtype, None),)
    ):
        matrices = []
        for num_outputs, size in ((2 * 768, 2048), (2048, 768)):
            shape = (128 * num_outputs,) if group_size is None else (128 * num_outputs, -(-size // group_size))
            scale = None if kind == dtype else empty(*shape)
            matrices.append(experts.ExpertMatrix(empty(shape[0], size, dtype=kind), None, scale, group_size))
        for num_tokens in (1, 8, 160, 512, 1024, 4096):
            x, logits = empty(num_tokens, 2048, dtype=dtype), empty(num_tokens, 128, dtype=dtype)
            for choosing in choosings[: 2 if num_tokens == 1 else 1]:
                norm = (empty(2048, dtype=dtype), 1e-6)
                experts.mix(x, logits, choosing, *matrices, activation="silu", norm=norm)
    matrices = [
        experts.ExpertMatrix(empty(64 * shape[0], shape[1], dtype=dtype)) for shape in ((1536, 2048), (2048, 768))
    ]
    for num_tokens in (1, 160):
        x, logits = empty(num_tokens, 2048, dtype=dtype), empty(num_tokens, 128, dtype=dtype)
        experts.mix(x, logits, choosings[0], *matrices, own=range(64, 128), activation="silu")
        biased = [matrix._replace(bias=empty(len(matrix.numbers), dtype=dtype)) for matrix in matrices]
        experts.mix(x, logits, choosings[0], *biased, own=range(64, 128), activation="clamped_silu")
        plain = [matrices[0]._replace(numbers=matrices[0].numbers[: 64 * 768]), matrices[1]]
        experts.mix(x, logits, choosings[0], *plain, own=range(64, 128), activation="relu2")


def call_tower_attention(dtype: torch.dtype) -> None:
    from seesay.kernels import tower

    qkv, angles = empty(128, 3, TOWER_HEADS, TOWER_DIM, dtype=dtype), empty(128, TOWER_DIM // 2)
    starts = empty(3, dtype=int32)
    tower.attend_windows(qkv, angles, angles, starts, tower.LONGEST_WINDOW)
    tower.attend_segments(qkv, starts, 4096)


def call_tower(dtype: torch.dtype) -> None:
    from seesay.kernels import tower

    angles = empty(128, TOWER_DIM // 2)
    tower.rotate_(empty(128, 3, TOWER_HEADS, TOWER_DIM, dtype=dtype), angles, angles)
    x, weight = empty(128, TOWER_HIDDEN, dtype=dtype), empty(TOWER_HIDDEN, dtype=dtype)
    tower.norm(x, x, weight, None, 1e-6)
    tower.norm(x, x, weight, weight, 1e-6, scale=weight, offset=empty(TOWER_HIDDEN))
    tower.quick_gelu_(x)


def call_resize(dtype: torch.dtype) -> None:
    """Two frames of 1024 · 1024 pixels, as Qwen2.5-VL takes them."""
    from seesay.kernels import resize

    frames, new_size = empty(2, 1024, 1024, 3, dtype=torch.uint8), 1036
    taps = resize.make_taps(1024, new_size, "bicubic")
    taps = taps._replace(starts=torch.tensor(taps.starts), weights=torch.tensor(taps.weights))
    layout = Patches((14, 14), (2, 2), 2)
    out = empty((new_size // 14) ** 2, layout.vector_size, dtype=dtype)
    resize.cut_patches(resize.resize_columns(frames, taps), taps, empty(3, 256, dtype=dtype), layout, out)


def call_sampling(dtype: torch.dtype) -> None:
    from seesay.kernels import best_token, logit_changes, sampling, token_masks
    from seesay.llm.running.sampler import WEIGHT_OF_BEST

    scores, best, token_ids = empty(8, VOCABULARY, dtype=dtype), empty(8, dtype=dtype), empty(8, dtype=int64)
    rows, starts, listed = empty(8, dtype=int64), empty(9, dtype=int64), empty(100, dtype=int64)
    best_token.find_best(scores)
    best_token.find_best(scores, best.float())
    sampling.draw_tokens(scores, best, empty(8, 6, dtype=int64), token_ids, unit=WEIGHT_OF_BEST)
    logit_changes.avoid_tokens(scores, best, token_ids, rows, starts, listed)
    token_masks.mask_tokens(scores, rows, empty(8, -(-VOCABULARY // 32), dtype=int32))
    counts, penalties = empty(100, dtype=int32), empty(8, 3, dtype=float64)
    logit_changes.penalize_tokens(scores.float(), rows, starts, counts, counts, penalties, rows, token_ids)


def call_row_state(dtype: torch.dtype) -> None:
    from seesay.kernels import row_state

    state, slots, table = empty(513, 11, dtype=int64), empty(8, dtype=int64), empty(513, 1024, dtype=int32)
    row_state.begin_decode(state, table, slots, table, block_size=64, num_axes=3)
    row_state.make_draws(state, slots, slots)


def call_ngrams(dtype: torch.dtype) -> None:
    from seesay.kernels import ngrams

    ids, fields, tokens = empty(64, 1 << 16, dtype=int32), empty(8, 4, dtype=int64), empty(8, 8, dtype=int64)
    rates, counts, least_rates = empty(8, dtype=float64), empty(8, dtype=int64), empty(7, dtype=float64)
    ngrams.follow_texts(ids, fields, rates, tokens, counts, least_rates, weight=0.125, vocab_size=VOCABULARY)


def call_rounds(dtype: torch.dtype) -> None:
    from seesay.kernels import rounds

    state, slots, proposed, tokens = (empty(*shape, dtype=int64) for shape in ((513, 11), (12,), (4, 3), (4, 4)))
    rows = slots[:4]
    rounds.put_proposed(state, slots, slots, slots, slots, proposed)
    rounds.count_round(state, rows, tokens, proposed, empty(16, dtype=int64), empty(16, dtype=dtype))
    rounds.put_missing(state, empty(16, dtype=int64), rows, rows, proposed, tokens, rows, rows, rows)
    for known_ids in (None, empty(32000, dtype=int64)):
        rounds.choose(empty(4, 32000, dtype=dtype), known_ids, rows, state, rows)


def call_states(dtype: torch.dtype) -> None:
    from seesay.kernels.states import delta_rule, faults, gated_heads, short_convolution

    mixed, states, slots = empty(8, 8192 + 64, dtype=dtype), empty(9, 24, 32, 128, 128), empty(8, dtype=int64)
    query, key, value, beta, rate = torch.split(mixed, [2048, 2048, 4096, 32, 32], dim=1)
    query, key, value = query.view(8, 16, 128), key.view(8, 16, 128), value.view(8, 32, 128)
    delta_rule.step(query, key, value, beta, rate, (empty(32), empty(32)), states[:, 3], slots, empty(8))
    heads, rates = (empty(8, 32, 128, dtype=dtype) for _ in range(2))
    by_component = (empty(32), empty(32, 128))
    delta_rule.step(heads, heads, value, beta, rates, by_component, states[:, 3], slots, empty(8))
    taps, inputs = empty(8192, 4, dtype=dtype), empty(9, 3, 8192, dtype=dtype)
    for bias, activates in ((None, True), (empty(8192, dtype=dtype), False)):
        short_convolution.convolve_step(mixed[:, :8192], inputs, taps, bias, slots, activates=activates)
    faults.note_faults(mixed[:, :4096], empty(8))
    for is_sigmoid in (False, True):
        output, gate, weight = empty(8, 32, 128), mixed[:, :4096], empty(128, dtype=dtype)
        gated_heads.gate_heads(output, gate, weight, 1e-6, is_sigmoid=is_sigmoid)


def call_state_spaces(dtype: torch.dtype) -> None:
    """Of Granite 4's heads in steps of one token, and of Jamba's in longer ones."""
    from seesay.kernels.states import state_space

    slots, bounds = empty(8, dtype=int64), empty(9, dtype=int64)
    for groups, heads, size, width, own in ((1, 128, 128, 64, None), (1, 8192, 16, 1, bounds)):
        mixed = empty(40, 2 * groups * size + heads * width + heads, dtype=dtype)
        query, key, value, rate = torch.split(mixed, [groups * size, groups * size, heads * width, heads], dim=1)
        query, key = query.view(40, groups, size), key.view(40, groups, size)
        log_rate = empty(heads) if own is None else empty(heads, size)
        weights = (log_rate, empty(heads), empty(heads))
        states = empty(9, 24, groups, size, heads * width // groups)[:, 3]
        state_space.scan(query, key, value.view(40, heads, width), rate, weights, (0.0, 9.0), states, slots, own)


def call_latent_attention(dtype: torch.dtype) -> None:
    from seesay.kernels.attention import latent_attention
    from seesay.kernels.attention.latent_rows import write_rows
    from seesay.llm.memory.kv_layout import KVLayout
    from seesay.llm.ops.triton_attention import describe_format

    table, lens, slots = empty(8, 64, dtype=int32), empty(8, dtype=int32), empty(8, dtype=int64)
    turns, norm = (empty(8, 1, 64, dtype=dtype), empty(8, 1, 64, dtype=dtype)), (empty(512, dtype=dtype), 1e-6)
    for kind in ("plain", "int8", "fp8"):
        layout = KVLayout(format=kind, dtype=dtype, block_size=64, num_kv_heads=1, head_dim=576, turned_dim=64)
        cache, format = empty(512, *layout.block_shape, dtype=layout.element_type), describe_format(layout)
        write_rows(empty(8, 576, dtype=dtype), *turns, norm, cache, slots, empty(8), format=format)
        for num_heads, rows in ((16, None), (128, lens)):
            query = empty(8, num_heads, 576, dtype=dtype)
            latent_attention.attend(query, cache, table, lens, rows, turned_dim=64, scale=0.1, format=format)


def call_low_rank(dtype: torch.dtype) -> None:
    """Adapters of the largest and of the usual rank, in steps of few and of many tokens."""
    from seesay.kernels.low_rank import SlotProducts, add_and_gate, add_low_rank

    for max_rank, tile_rows, num_tiles in ((16, 16, 3), (16, 32, 300), (64, 32, 20), (512, 16, 3)):
        x, y = empty(40, HIDDEN, dtype=dtype), empty(40, 2 * INNER, dtype=dtype)
        a, b = empty(2, 2 * max_rank, HIDDEN, dtype=dtype), empty(2, max_rank, 2 * INNER, dtype=dtype)
        ranks, spans = empty(2, 2, dtype=int32), empty(2, 3, dtype=int32)
        rows = empty(40, dtype=int32), empty(num_tiles, 3, dtype=int32), tile_rows
        products = SlotProducts(a, b, ranks, spans, *rows, span=512, is_aligned=tile_rows == 16)
        add_low_rank(y, x, products)
        add_and_gate(y, x, products, "silu")


def call_low_rank_of_a_row(dtype: torch.dtype) -> None:
    """Adapters in the product of one row."""
    from seesay.kernels.few_rows.few_row_matmul import multiply
    from seesay.kernels.low_rank import SlotProducts

    x, weight = empty(1, HIDDEN, dtype=dtype), empty(2 * INNER, HIDDEN, dtype=dtype)
    a, b = empty(2, 32, HIDDEN, dtype=dtype), empty(2, 16, 2 * INNER, dtype=dtype)
    ranks, spans = empty(2, 2, dtype=int32), empty(2, 3, dtype=int32)
    rows = empty(1, dtype=int32), empty(1, 3, dtype=int32), 16
    products = SlotProducts(a, b, ranks, spans, *rows, span=512, is_aligned=True)
    multiply(x, weight, None, norm=(empty(HIDDEN, dtype=dtype), 1e-6), activation="silu", products=products)
    multiply(x, weight, None, add_to=empty(1, 2 * INNER, dtype=dtype), products=products)


def call_all_reduce(dtype: torch.dtype) -> None:
    from seesay.kernels.all_reduce import MAX_PROGRAMS, PeerSums

    x = empty(40, HIDDEN, dtype=dtype)
    for size in (2, 8):
        sums = PeerSums(empty(size, dtype=int64), empty(MAX_PROGRAMS, dtype=int32), rank=0)
        sums.sum_one_shot(x)
        sums.sum_two_shot(x)
        sums.sum_one_shot(x, add_to=x)


CALLS = {
    "bfloat16": (
        call_attention,
        call_quantized_kv,
        call_fixed_attention,
        call_fixed_products,
        call_gemv,
        call_fp8,
        call_scaled,
        call_packed,
        call_tower_attention,
        call_tower,
        call_sampling,
        call_resize,
        call_experts,
        call_rows,
        call_row_state,
        call_ngrams,
        call_rounds,
        call_states,
        call_state_spaces,
        call_latent_attention,
        call_all_reduce,
        call_low_rank,
        call_low_rank_of_a_row,
    ),
    "float32": (
        call_fixed_attention,
        call_fixed_products,
        call_wide_attention,
        call_quantized_kv,
        call_tower_attention,
        call_low_rank,
        call_low_rank_of_a_row,
    ),
}
"""float32: where it has tiles of its own."""
NVIDIA_ALONE = (
    call_fixed_attention,
    call_fixed_products,
    call_gemv,
    call_low_rank_of_a_row,
    call_packed,
    call_all_reduce,
)
"""They launch kernels of modules that say so of themselves (`NVIDIA_ALONE`)."""
ON_ONE = (
    call_tower,
    call_sampling,
    call_resize,
    call_rows,
    call_row_state,
    call_ngrams,
    call_rounds,
    call_states,
    call_state_spaces,
    call_all_reduce,
)
"""These multiply no matrices: their code is the same for every GPU, and is compiled for 9.0 alone."""


# --- all of it -------------------------------------------------------------------------------------------------------


def find_kernels() -> set[str]:
    """All that the package could launch: Triton functions named …_kernel."""
    import seesay.kernels
    import seesay.llm.ops

    found = set()
    for package in (seesay.kernels, seesay.llm.ops):
        for info in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            values = vars(importlib.import_module(info.name)).values()
            found |= {name_kernel(value) for value in values if isinstance(value, JITFunction)}
    return {name for name in found if name.endswith("_kernel")}


UNALIGNED = ("seesay.kernels.low_rank:expand_kernel",)
"""These are compiled for outputs of any number, too."""


def find_single_reads(kernel: Any) -> list[str]:
    """Return the shapes of matrices of 16 bits of which each thread reads single numbers, as Triton's code has them.
    Where inputs come in the order of activations, the numbers of a thread are never neighbours."""
    source, code = kernel.src, kernel.asm["ttgir"]
    if any(source.fn.arg_names[place[0]] == "HAS_ORDER" and value for place, value in source.constants.items()):
        return []
    sizes = dict(re.findall(r"(#blocked\d*) = #ttg\.blocked<\{sizePerThread = \[([^\]]*)\]", code))
    reads = re.findall(r"tt\.load .*?: tensor<(\d+x\d+)x!tt\.ptr<(?:bf16|f16)>, (#blocked\d*)>", code)
    return sorted(
        {
            shape
            for shape, layout in reads
            if math.prod(map(int, shape.split("x"))) >= 1024 and set(sizes[layout].split(", ")) == {"1"}
        }
    )


def compile_all(kind: str, dtype: str, *, is_once: bool) -> dict[str, Any]:
    shared_bytes: dict[str, int] = {}
    problems: list[str] = []
    limit = make_gpu(kind).shared_bytes
    with pretend_gpu(kind) as launches, first_launches() if is_once else nullcontext():
        for call in CALLS[dtype]:
            is_amd = kind in AMD_SHARED_BYTES
            if call in (NVIDIA_ALONE if is_amd else ON_ONE if kind != "90" else ()):
                continue
            call(getattr(torch, dtype))
        for name, kernel in {id(kernel): (name, kernel) for name, kernel in launches.kernels}.values():
            try:
                kernel = kernel.result() if hasattr(kernel, "result") else kernel
                taken = kernel.metadata.shared
            except Exception as error:
                problems.append(f"{name} does not compile: {type(error).__name__}: {error}")
                continue
            if kind in AMD_SHARED_BYTES and "inline_asm" in kernel.asm["ttir"]:
                problems.append(f"{name} has PTX, about which AMD's assembler only complains on stderr")
            is_fixed = kind == "90" and name.endswith(":fixed_product_kernel") and dtype != "float32"
            if is_fixed and re.search(r"\bmma\.sync", kernel.asm["ptx"]):
                problems.append(f"{name} has mma.sync, whose sums have other bits than those of wgmma")
            if kind == "90" and name not in UNALIGNED and (found := find_single_reads(kernel)):
                problems.append(
                    f"{name} reads {', '.join(found)} number by number: Triton does not know their alignment"
                )
            shared_bytes[name] = max(taken, shared_bytes.get(name, 0))
            if taken > limit:
                problems.append(f"{name} takes {taken} bytes of shared memory; a block has {limit}")
    unused = find_kernels() - {name for name, _ in launches.kernels}
    return {"shared_bytes": shared_bytes, "problems": problems, "unused": sorted(unused)}


def main(kind: str, dtype: str, times: str = "always") -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S + 10))  # ends by SIGXCPU
    try:
        try_triton(kind)
    except Exception as error:
        print(json.dumps({"unavailable": f"{type(error).__name__}: {error}"}))
    else:
        print(json.dumps(compile_all(kind, dtype, is_once=times == "once")))


if __name__ == "__main__":
    main(*sys.argv[1:])
