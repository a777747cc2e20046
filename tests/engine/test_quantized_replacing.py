"""New weights and sleep where weights or the KV cache are quantized: the answers of a fresh engine, in both process
forms."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from other_weights import read_weights
from pairs import mark_after
from quantized_folders import FORMS, PACKED_FORMS, edit_tensors, write_quantized
from updating import NAME, answers, check_refused, epoch_of, fresh, load, make_pairs

from seesay.errors import CheckpointError

ALL_FORMS = {**FORMS, **PACKED_FORMS}
KV_FORMATS = ("int8", "int4", "fp8")


@pytest.fixture(scope="module")
def two(
    tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Path]]:
    """A tiny checkpoint, and one of the same model with other weights, by name."""
    return make_pairs(tiny_checkpoint, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def two_quantized(
    two: Callable[[str], list[Path]], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Path]]:
    """Both, quantized in the form of this name."""

    @cache
    def get(form: str) -> list[Path]:
        return [write_quantized(path, tmp_path_factory.mktemp("quantized"), ALL_FORMS[form])[0] for path in two(NAME)]

    return get


@pytest.mark.parametrize(
    ("form", "unpacked_copy"),
    [
        ("awq, groups of 32", None),
        ("gptq, in order of activations", None),  # the order of inputs changes with the weights, and so do fused layers
        ("gptq, in order of activations", True),
        ("pack-quantized, zero points", None),
        ("compressed-tensors, channels", None),
        ("compressed-tensors, int8 static tensors", None),
        ("fp8, blocks of 128", None),
    ],
)
def test_quantized_weights_are_replaced(
    form: str, unpacked_copy: bool | None, two_quantized: Callable[[str], list[Path]]
) -> None:
    first, second = two_quantized(form)
    expected = [fresh(path) for path in (first, second)]
    assert expected[0] != expected[1]
    with load(first, num_gpu_blocks=40, num_cpu_blocks=40, unpacked_copy=unpacked_copy) as pipe:
        assert answers(pipe) == expected[0]
        pipe.update_weights(second)
        assert answers(pipe) == expected[1]
        pipe.sleep(1)
        check_refused(pipe)
        pipe.wake_up()
        assert answers(pipe) == expected[1]
        pipe.sleep(2)
        pipe.update_weights(read_weights(first))
        pipe.wake_up()
        assert answers(pipe) == expected[0]
        assert epoch_of(pipe) == 2


@pytest.mark.parametrize(
    "form",
    ["gptq, in order of activations", pytest.param("compressed-tensors, int8 channels", marks=pytest.mark.slow)],
)
def test_quantized_weights_of_a_process_are_replaced(form: str, two_quantized: Callable[[str], list[Path]]) -> None:
    first, second = two_quantized(form)
    with load(first, own=True) as pipe:
        pipe.update_weights(read_weights(second))
        assert answers(pipe) == fresh(second)
        pipe.update_weights(first)
        for level in (1, 2):
            pipe.sleep(level)
            check_refused(pipe)
            pipe.wake_up()
            assert answers(pipe) == fresh(first)


def test_quantized_weights_that_do_not_fit_change_nothing(
    two: Callable[[str], list[Path]], two_quantized: Callable[[str], list[Path]], tmp_path: Path
) -> None:
    """Plain weights for a quantized model, another format, and a scale that makes no sense."""
    [first, second], [plain, _] = two_quantized("awq, groups of 32"), two(NAME)
    expected = fresh(first)
    broken, _ = write_quantized(plain, tmp_path, ALL_FORMS["awq, groups of 32"])
    scales = next(name for name in read_weights(broken) if name.endswith("layers.1.mlp.down_proj.scales"))
    edit_tensors(broken, lambda tensors: tensors.update({scales: tensors[scales] * float("nan")}))
    with load(first) as pipe:
        for source, message in (
            (read_weights(plain), "unexpected tensor '.*_proj.weight'"),
            (read_weights(two_quantized("gptq, in order of activations")[0]), "'.*' has shape|unexpected tensor"),
            (read_weights(broken), "scales' has scales that are not finite|scales' has numbers that are not finite"),
        ):
            with pytest.raises(CheckpointError, match=message):
                pipe.update_weights(source)
            assert answers(pipe) == expected and epoch_of(pipe) == 0
        scale = {scales: read_weights(second)[scales]}
        with pytest.raises(CheckpointError, match="is missing"):
            pipe.update_weights(scale, partial=True)  # of a layer all tensors or none
        assert answers(pipe) == expected


def test_a_tensor_that_makes_no_sense_is_named_as_it_was_given(two_quantized: Callable[[str], list[Path]]) -> None:
    first, second = two_quantized("compressed-tensors, channels")
    weights = read_weights(second)
    scale = next(name for name in weights if name.endswith("layers.1.mlp.down_proj.weight_scale"))
    module = scale.removesuffix("weight_scale")
    given = {name: tensor for name, tensor in weights.items() if name.startswith(module)}
    with load(first) as pipe:
        message = f"update_weights: tensor {scale!r} has scales that are not positive numbers"
        with pytest.raises(CheckpointError, match=re.escape(message)):
            pipe.update_weights({**given, scale: -given[scale]}, partial=True)


@pytest.mark.parametrize("own", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("format", mark_after(1, KV_FORMATS))
def test_a_quantized_kv_cache_never_outlives_the_weights(
    format: str, own: bool, two: Callable[[str], list[Path]]
) -> None:
    """Prefixes are found again, on the device and on the host; after an update and after sleep none is there."""
    first, second = two(NAME)
    options = {"kv_cache_dtype": format, "num_gpu_blocks": 40, "num_cpu_blocks": 40}
    expected = [fresh(path, kv_cache_dtype=format) for path in (first, second)]
    with load(first, own=own, **options) as pipe:
        assert answers(pipe) == answers(pipe) == expected[0]
        pipe.update_weights(second)
        assert pipe.engine.stats().num_cached_kv_blocks == 0
        assert answers(pipe) == expected[1]
        for level in (1, 2):
            pipe.sleep(level)
            check_refused(pipe)
            pipe.wake_up(["kv_cache"])
            pipe.wake_up(["weights"])
            assert pipe.engine.stats().num_cached_kv_blocks == 0
            assert answers(pipe) == expected[1]
        pipe.sleep(1)
        pipe.update_weights(read_weights(first))
        pipe.wake_up()
        assert answers(pipe) == expected[0]
