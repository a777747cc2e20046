from __future__ import annotations

import copy
import itertools
from typing import Any

import numpy as np
import pytest
import torch

from seesay.encoders.towers.layers import SegmentTable, attend, group_neighbours, group_segments
from seesay.encoders.towers.packed_layout import (
    DownsamplerConfig,
    JoinedConfig,
    PackedVisionConfig,
    ProjectorConfig,
    _make_gpu_layout,
    make_layout,
)
from seesay.encoders.towers.packed_vit import PackedVisionTower
from seesay.encoders.towers.weights import finish_layers

CPU = torch.device("cpu")
GRIDS = [(1, 4, 6), (1, 10, 14), (3, 6, 10), (1, 2, 2), (1, 16, 16), (2, 10, 14)]


def make_config(**changes: Any) -> PackedVisionConfig:
    values: dict[str, Any] = {
        "depth": 3,
        "hidden_size": 32,
        "num_heads": 2,
        "intermediate_size": 48,
        "out_hidden_size": 24,
        "patch_dim": 24,
        "merge_size": 2,
        "activation": "silu",
        "uses_rms_norm": True,
        "window_size": 2,
        "full_attention_layers": frozenset([1]),
    }
    return PackedVisionConfig(**{**values, **changes})


DEEP: dict[str, Any] = {
    "uses_rms_norm": False,
    "window_size": None,
    "patch_bias": True,
    "position_side": 5,
    "deep_layers": (0, 1),
}


RADIO: dict[str, Any] = {
    "uses_rms_norm": False,
    "activation": "gelu",
    "window_size": None,
    "full_attention_layers": frozenset(),
    "has_rotary": False,
    "has_scales": True,
    "num_prefix": 3,
    "position_side": 5,
    "position_blending": "cropped",
    "position_axes": "batch",
    "projector": JoinedConfig(inner_size=20, activation="relu2", has_bias=False, norm="rms", norms_patches=False),
}


PIXTRAL: dict[str, Any] = {
    "window_size": None,
    "norms_patches": True,
    "has_biases": False,
    "splits_qkv": True,
    "alternates_axes": True,
    "projector": ProjectorConfig(activation="gelu", has_bias=False, merge_norm_eps=1e-5),
}


GLM: dict[str, Any] = {
    "window_size": None,
    "norms_patches": True,
    "patch_bias": True,
    "position_side": 5,
    "position_blending": "bicubic",
    "has_biases": False,
    "has_qkv_bias": True,
    "projector": DownsamplerConfig(inner_size=40, activation="silu"),
}


def make_tower(config: PackedVisionConfig) -> PackedVisionTower:
    tower = PackedVisionTower(config)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in tower.parameters():
            spread = 1.2 / parameter[0].numel() ** 0.5 if parameter.dim() > 1 else 0.3
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * spread + (parameter.dim() == 1))
    return tower.eval().requires_grad_(False)


@pytest.mark.parametrize("side", [1, 2, 3, 4])
def test_windows_hold_the_tokens_of_the_reference(side: int) -> None:
    """Which merged tokens share a window, and where frames are, against Transformers' own index."""
    get_vision_window_index = pytest.importorskip("transformers.vision_utils").get_vision_window_index
    config = make_config(window_size=side)
    layout = make_layout(GRIDS, config, CPU)
    order = layout.order.numpy() if layout.order is not None else np.arange(sum(t * h * w for t, h, w in GRIDS) // 4)
    index, cu_seqlens = get_vision_window_index(torch.tensor(GRIDS), 2, side * 2 * 4, 4)
    expected = {tuple(sorted(index[start // 4 : stop // 4].tolist())) for start, stop in itertools.pairwise(cu_seqlens)}
    patches = (order[:, None] * 4 + np.arange(4)).ravel()
    found = set()
    assert not isinstance(layout.windows, SegmentTable) and not isinstance(layout.frames, SegmentTable)
    for group in layout.windows:
        assert isinstance(group.rows, slice), "windows of equal length must lie together"
        for window in patches[group.rows].reshape(group.count, group.length):
            found.add(tuple(sorted({int(p) // 4 for p in window})))
    assert found == expected
    frames = {
        tuple(sorted(patches[g.rows].reshape(g.count, -1)[i].tolist())) for g in layout.frames for i in range(g.count)
    }
    start, wanted = 0, set()
    for t, h, w in GRIDS:
        for _ in range(t):
            wanted.add(tuple(range(start, start + h * w)))
            start += h * w
    assert frames == wanted


@pytest.mark.parametrize("side", [2, 3, 4])
def test_on_a_gpu_windows_are_the_same_and_frames_stay_whole(side: int) -> None:
    config = make_config(window_size=side)
    cpu, gpu = make_layout(GRIDS, config, CPU), _make_gpu_layout(GRIDS, config, CPU)
    assert gpu.order is not None and gpu.inverse is not None and isinstance(gpu.windows, SegmentTable)
    assert torch.equal(gpu.order[gpu.inverse], torch.arange(len(gpu.order)))
    patches = (gpu.order[:, None] * 4 + torch.arange(4)).flatten().tolist()
    starts = gpu.windows.starts.tolist()
    assert starts[-1] == len(patches) and max(b - a for a, b in itertools.pairwise(starts)) == gpu.windows.longest
    found = {frozenset(patches[start:stop]) for start, stop in itertools.pairwise(starts)}
    cpu_patches = (
        torch.arange(len(patches)) if cpu.order is None else (cpu.order[:, None] * 4 + torch.arange(4)).flatten()
    )
    assert not isinstance(cpu.windows, SegmentTable) and not isinstance(gpu.frames, SegmentTable)
    wanted = {frozenset(w.tolist()) for g in cpu.windows for w in cpu_patches[g.rows].view(g.count, g.length)}
    assert found == wanted
    angles = {p: (c.tolist(), s.tolist()) for p, c, s in zip(cpu_patches.tolist(), cpu.cos, cpu.sin)}
    assert angles == {p: (c.tolist(), s.tolist()) for p, c, s in zip(patches, gpu.cos, gpu.sin)}
    first = 0
    for group in gpu.frames:
        for _ in range(group.count):
            assert set(patches[first : first + group.length]) == set(range(first, first + group.length))
            first += group.length
    assert first == len(patches)


def test_neighbours_of_one_length_are_one_group() -> None:
    groups = group_neighbours(np.array([4, 4, 2, 4]))
    assert [(g.count, g.length, g.rows) for g in groups] == [
        (2, 4, slice(0, 8)),
        (1, 2, slice(8, 10)),
        (1, 4, slice(10, 14)),
    ]


def test_one_plain_picture_moves_nothing() -> None:
    layout = make_layout([(1, 4, 4)], make_config(window_size=2), CPU)
    assert layout.order is None and layout.inverse is None
    layout = make_layout([(1, 8, 4), (2, 8, 4)], make_config(window_size=None), CPU)
    assert layout.order is None and not isinstance(layout.frames, SegmentTable) and len(layout.frames) == 1


@pytest.mark.parametrize("window_size", [None, 2])
def test_learned_positions_are_stretched_over_each_frame(window_size: int | None) -> None:
    config = make_config(position_side=5, window_size=window_size)
    positions = torch.randn(5, 5, 3, generator=torch.Generator().manual_seed(6))
    for layout in (make_layout(GRIDS, config, CPU), _make_gpu_layout(GRIDS, config, CPU)):
        assert layout.taps is not None
        indices, shares = layout.taps
        found = (positions.flatten(0, 1)[indices] * shares[:, :, None]).sum(1).view(-1, config.merge_unit, 3)
        if layout.inverse is not None:
            found = found[layout.inverse]
        first = 0
        for t, h, w in GRIDS:
            own = found[first : first + t * h * w // 4].view(t, h // 2, w // 2, 2, 2, 3).permute(0, 1, 3, 2, 4, 5)
            first += t * h * w // 4
            stretched = torch.nn.functional.interpolate(
                positions.permute(2, 0, 1)[None], (h, w), mode="bilinear", align_corners=True
            )[0].permute(1, 2, 0)
            for frame in own.reshape(t, h, w, 3):
                torch.testing.assert_close(frame, stretched, rtol=0, atol=1e-5)


@pytest.mark.parametrize("side", [1, 2, 5])
def test_learned_positions_are_blended_cubically(side: int) -> None:
    """As torch does between pixels whose edges are those of the frame."""
    config = make_config(position_side=side, position_blending="bicubic", window_size=None, merge_size=1)
    positions = torch.randn(side, side, 3, generator=torch.Generator().manual_seed(6))
    layout = make_layout(GRIDS, config, CPU)
    assert layout.taps is not None
    indices, shares = layout.taps
    assert layout.inverse is not None  # merge groups are single patches
    found = (positions.flatten(0, 1)[indices] * shares[:, :, None]).sum(1)[layout.inverse]
    first = 0
    for t, h, w in GRIDS:
        own = found[first : first + t * h * w].view(t, h, w, 3)
        first += t * h * w
        points = [(torch.arange(length) + 0.5) / length * 2 - 1 for length in (w, h)]
        grid = torch.stack(torch.meshgrid(*points, indexing="xy"), dim=-1)[None]
        stretched = torch.nn.functional.grid_sample(
            positions.permute(2, 0, 1)[None], grid, mode="bicubic", padding_mode="border", align_corners=False
        )[0].permute(1, 2, 0)
        for frame in own:
            torch.testing.assert_close(frame, stretched, rtol=0, atol=1e-5)


def test_axes_take_frequencies_in_turn() -> None:
    """The angles of a head of 16 are those of the eight frequencies of a text's head, even ones for rows."""
    layout = make_layout([(1, 4, 6)], make_config(window_size=None, merge_size=1, alternates_axes=True), CPU)
    rows, columns = np.divmod(np.arange(24), 6)
    frequencies = 10000.0 ** (-np.arange(0, 16, 2) / 16)
    angles = np.concatenate([rows[:, None] * frequencies[::2], columns[:, None] * frequencies[1::2]], axis=1)
    torch.testing.assert_close(layout.cos, torch.from_numpy(np.cos(angles)).float())
    torch.testing.assert_close(layout.sin, torch.from_numpy(np.sin(angles)).float())


@pytest.mark.parametrize("lengths", [[5], [3, 3, 3], [4, 1, 4, 2, 1], [7, 2]])
def test_attend_stays_inside_segments(lengths: list[int]) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = torch.randn(3, sum(lengths), 2, 8, generator=generator)
    rows = np.random.default_rng(2).permutation(sum(lengths))
    groups = group_segments(np.array(lengths), rows, CPU)
    expected = torch.empty(sum(lengths), 16)
    for part in np.split(rows, np.cumsum(lengths)[:-1]):
        scores = torch.einsum("qhd,khd->hqk", query[part], key[part]) / 8**0.5
        expected[part] = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value[part]).flatten(1)
    torch.testing.assert_close(attend(query, key, value, groups), expected)


@pytest.mark.parametrize(
    "changes",
    [{}, {"window_size": None}, {"uses_rms_norm": False, "activation": "quick_gelu"}, DEEP, PIXTRAL, GLM, RADIO],
)
def test_many_sizes_packed_equal_each_alone(changes: dict[str, Any]) -> None:
    config = make_config(**changes)
    tower = make_tower(config)
    generator = torch.Generator().manual_seed(3)
    patches = [torch.randn(t * h * w, config.patch_dim, generator=generator) for t, h, w in GRIDS]
    packed = tower(torch.cat(patches), GRIDS).split([len(p) // 4 for p in patches])
    for grid, own, rows in zip(GRIDS, patches, packed):
        assert rows.std() > 0.1
        torch.testing.assert_close(rows, tower(own, [grid]), rtol=0, atol=2e-5)


@pytest.mark.parametrize("changes", [{}, {"uses_rms_norm": False, "activation": "quick_gelu"}, DEEP, PIXTRAL, GLM])
def test_biases_left_to_the_norms_change_nothing(changes: dict[str, Any]) -> None:
    config = make_config(**changes)
    tower = make_tower(config)
    patches = torch.randn(
        sum(t * h * w for t, h, w in GRIDS), config.patch_dim, generator=torch.Generator().manual_seed(5)
    )
    expected = tower(patches, GRIDS)
    tower.fuse()
    found = tower(patches, GRIDS)
    assert not torch.equal(found, expected) or not config.has_biases, "nothing was fused"
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5)


def test_scaled_updates_keep_their_biases() -> None:
    tower = make_tower(make_config(**RADIO))
    patches = torch.randn(sum(t * h * w for t, h, w in GRIDS), 24, generator=torch.Generator().manual_seed(5))
    expected = tower(patches, GRIDS)
    tower.fuse()
    assert torch.equal(tower(patches, GRIDS), expected)


@pytest.mark.parametrize("changes", [PIXTRAL, GLM, RADIO])
def test_on_a_gpu_rows_in_another_order_are_the_same(changes: dict[str, Any]) -> None:
    """Frames stay in place there, and rows before their patches with them."""
    tower = make_tower(make_config(**changes))
    patches = torch.randn(sum(t * h * w for t, h, w in GRIDS), 24, generator=torch.Generator().manual_seed(5))
    layout = _make_gpu_layout(GRIDS, tower.config, CPU)
    found = tower._compute(layout, layout.frames, patches)
    torch.testing.assert_close(found, tower(patches, GRIDS), rtol=0, atol=2e-5)
    assert isinstance(layout.frames_once, SegmentTable)
    lengths = [h * w + tower.config.num_prefix for t, h, w in GRIDS for _ in range(t)]
    assert layout.frames_once.starts.diff().tolist() == lengths and layout.frames_once.longest == max(lengths)


@pytest.mark.parametrize("side", [1, 2, 5, 20])
def test_learned_positions_of_the_upper_left_part_of_a_square(side: int) -> None:
    config = make_config(position_side=side, position_blending="cropped", window_size=None)
    positions = torch.randn(side, side, 3, generator=torch.Generator().manual_seed(6))
    grids = [(1, 4, 6), (1, 2, 14), (1, 16, 2), (1, 16, 16)]
    layout = _make_gpu_layout(grids, config, CPU)  # frames stay in place
    assert layout.taps is not None
    indices, shares = layout.taps
    found = (positions.flatten(0, 1)[indices] * shares[:, :, None]).sum(1)
    for (_, h, w), own in zip(grids, torch.split(found, [h * w for _, h, w in grids]), strict=True):
        square = torch.nn.functional.interpolate(
            positions.permute(2, 0, 1)[None], (max(h, w),) * 2, mode="bilinear", align_corners=False
        )[0].permute(1, 2, 0)
        frame = own.view(h // 2, w // 2, 2, 2, 3).permute(0, 2, 1, 3, 4).reshape(h, w, 3)
        torch.testing.assert_close(frame, square[:h, :w], rtol=0, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize(
    "changes",
    [
        {"intermediate_size": 50},
        {"hidden_size": 160, "window_size": 9},
        {"window_size": None},
        {"uses_rms_norm": False, "activation": "quick_gelu"},
        DEEP,
        PIXTRAL,
        GLM,
        RADIO,
    ],
)
def test_on_a_gpu_the_rows_are_those_of_the_cpu(changes: dict[str, Any], is_fused: bool) -> None:
    config = make_config(**changes)
    tower = make_tower(config)
    patches = torch.randn(
        sum(t * h * w for t, h, w in GRIDS), config.patch_dim, generator=torch.Generator().manual_seed(4)
    )
    expected = tower(patches, GRIDS)
    exact, coarse = copy.deepcopy(tower).cuda(), copy.deepcopy(tower).to("cuda", torch.bfloat16)
    if is_fused:
        finish_layers(exact)
        finish_layers(coarse)
    for _ in range(2):
        torch.testing.assert_close(exact(patches.cuda(), GRIDS).cpu(), expected, rtol=0, atol=1e-4)
    found = coarse(patches.to("cuda", torch.bfloat16), GRIDS).float().cpu()
    assert (found - expected).abs().mean() < 0.03 * expected.abs().mean()
