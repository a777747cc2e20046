"""Weights of decoders and towers replaced in place: as if loaded anew, or not at all."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from enrolment import ALL_AUDIO, COMPOSED, FAMILIES
from family_contract import draw_image, load_family, preprocess
from other_weights import copy_with_other_weights, read_weights, write_weights
from quantized_folders import FORMS, PACKED_FORMS, write_quantized
from sounds import make_tone

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.quantization import InFlight
from seesay.checkpoint.tensor_source import GivenTensor, HandedTensors
from seesay.device.linear.layer_loading import LoadedLayers
from seesay.errors import CheckpointError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, Modality

CPU = torch.device("cpu")
BACKBONES = ["llama", "qwen2", "phi3"]


def load_decoder(
    path: Path, dtype: torch.dtype = torch.float32, quantization: InFlight | None = None
) -> ComposedDecoder:
    family, _ = load_family(path)
    backbone = family.backbone()
    config = backbone.decoder_config(session_len=256)
    checkpoint = Checkpoint.load(path, quantization=quantization)
    return ComposedDecoder.load(checkpoint, config, decoder_name=backbone.decoder_name, device=CPU, dtype=dtype)


def outputs(decoder: ComposedDecoder) -> list[torch.Tensor]:
    """What each part makes of the same numbers."""
    generator = torch.Generator().manual_seed(0)
    found = [weight.data for weight in decoder.plain_weights]
    for linear in decoder.linears.values():
        x = torch.randn(3, linear.in_features, generator=generator).to(decoder.dtype)
        found.append(linear(x))
    return found


def list_addresses(decoder: ComposedDecoder) -> list[int]:
    """Of all tensors that no library has packed."""
    return [tensor.data_ptr() for tensor in decoder.weights.tensors() if tensor.layout is torch.strided]


def encode(encoder: Any, family: Any) -> torch.Tensor:
    media = [draw_image(30, 40), draw_image(9, 60)]
    if family.modalities == (Modality.AUDIO,):
        sounds = [AudioSamples(samples=make_tone(length_s), rate_hz=family.audio_rate_hz) for length_s in (0.6, 1.7)]
        media = [make_decoded_audio(sound) for sound in sounds]
    return torch.cat(encoder.encode([preprocess(family, item) for item in media]))


def assert_equal(mine: list[torch.Tensor], theirs: list[torch.Tensor]) -> None:
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert torch.equal(one, other)


def given(path: Path) -> HandedTensors:
    return HandedTensors({name: GivenTensor.of(name, tensor) for name, tensor in read_weights(path).items()})


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", [*BACKBONES, "qwen2_5_vl"])
def test_a_decoder_is_as_if_loaded_anew(
    name: str, dtype: torch.dtype, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """From a folder and from tensors. In float16, in which no library packs weights, addresses stay."""
    first = tiny_checkpoint(name)
    second = copy_with_other_weights(first, tmp_path / "second")
    decoder, expected = load_decoder(first, dtype), outputs(load_decoder(second, dtype))
    before, places = [tensor.clone() for tensor in outputs(decoder)], list_addresses(decoder)
    assert dtype is torch.float32 or len(places) == len(decoder.weights.tensors())
    decoder.weights.check(Checkpoint.load(second), is_partial=False)
    assert_equal(outputs(decoder), before)
    decoder.weights.replace(Checkpoint.load(second), is_partial=False)
    assert_equal(outputs(decoder), expected)
    assert list_addresses(decoder) == places or dtype is torch.float32
    decoder.weights.replace(given(first), is_partial=False)
    assert_equal(outputs(decoder), before)


@pytest.mark.parametrize("name", [*FAMILIES, *ALL_AUDIO])
def test_a_tower_is_as_if_loaded_anew(name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    first = tiny_checkpoint(name)
    second = copy_with_other_weights(first, tmp_path / "second")
    (family, _), (other, _) = load_family(first), load_family(second)
    encoder = family.build_encoder(CPU, torch.float32)
    before, expected = encode(encoder, family), encode(other.build_encoder(CPU, torch.float32), other)
    assert not torch.equal(before, expected)
    encoder.weights.check(given(second), is_partial=False)
    assert torch.equal(encode(encoder, family), before)
    encoder.weights.replace(given(second), is_partial=False)
    assert torch.equal(encode(encoder, family), expected)
    encoder.weights.drop()
    assert not encoder.weights.tensors()
    encoder.weights.replace(Checkpoint.load(first), is_partial=False)
    assert torch.equal(encode(encoder, family), before)


@pytest.mark.parametrize("form", [*FORMS, *PACKED_FORMS, "in flight"])
def test_quantized_layers_are_as_if_loaded_anew(
    form: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    first = tiny_checkpoint("llama")
    second = copy_with_other_weights(first, tmp_path / "plain")
    quantization: InFlight | None = "fp8" if form == "in flight" else None
    if quantization is None:
        forms = {**FORMS, **PACKED_FORMS}
        (tmp_path / "first").mkdir()
        (tmp_path / "second").mkdir()
        first, _ = write_quantized(first, tmp_path / "first", forms[form])
        second, _ = write_quantized(second, tmp_path / "second", forms[form])
    decoder = load_decoder(first, quantization=quantization)
    before, expected = outputs(decoder), outputs(load_decoder(second, quantization=quantization))
    decoder.weights.replace(given(second), is_partial=False)
    assert_equal(outputs(decoder), expected)
    assert not torch.equal(before[-1], expected[-1])


def test_some_weights_are_replaced_and_others_stay(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    first = tiny_checkpoint("qwen2")
    weights = read_weights(first)
    chosen = {n: t.flip(0) for n, t in weights.items() if "layers.1.mlp" in n or n.endswith("norm.weight")}
    second = write_weights(first, tmp_path / "second", {**weights, **chosen})
    decoder = load_decoder(first)
    source = HandedTensors({name: GivenTensor.of(name, tensor) for name, tensor in chosen.items()})
    decoder.weights.check(source, is_partial=True)
    decoder.weights.replace(source, is_partial=True)
    assert_equal(outputs(decoder), outputs(load_decoder(second)))


def damage(weights: dict[str, torch.Tensor], how: str) -> None:
    up, norm = "model.layers.1.mlp.up_proj.weight", "model.norm.weight"
    match how:
        case "missing":
            del weights[up]
        case "shape":
            weights[up] = weights[up][:-1].clone()
        case "type":
            weights[up] = weights[up].to(torch.int32)
        case "infinity":
            weights[up][3, 4] = float("inf")
        case "NaN in a norm":
            weights[norm][1] = float("nan")
        case "unknown":
            weights["model.layers.7.mlp.up_proj.weight"] = weights[up]


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("missing", r"'model.layers.1.mlp.up_proj.weight' is missing"),
        ("shape", r"'model.layers.1.mlp.up_proj.weight' has shape \[\d+, \d+\], the config says"),
        ("type", r"'model.layers.1.mlp.up_proj.weight' is stored as I32"),
        ("infinity", r"'model.layers.1.mlp.up_proj.weight' has numbers that are not finite"),
        ("NaN in a norm", r"'model.norm.weight' has numbers that are not finite"),
        ("unknown", r"unexpected tensor 'model.layers.7.mlp.up_proj.weight'"),
    ],
)
@pytest.mark.parametrize("is_partial", [False, True])
def test_a_check_says_what_does_not_fit(
    how: str, message: str, is_partial: bool, tiny_checkpoint: Callable[[str], Path]
) -> None:
    path = tiny_checkpoint("llama")
    decoder, weights = load_decoder(path), read_weights(path)
    before = outputs(decoder)
    damage(weights, how)
    source = HandedTensors({name: GivenTensor.of(name, tensor) for name, tensor in weights.items()})
    with pytest.raises(CheckpointError, match=message):
        decoder.weights.check(source, is_partial=is_partial)
    assert_equal(outputs(decoder), before)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("name", BACKBONES)
def test_dropped_weights_are_gone_and_can_be_loaded(
    name: str, dtype: torch.dtype, tiny_checkpoint: Callable[[str], Path]
) -> None:
    path = tiny_checkpoint(name)
    decoder = load_decoder(path, dtype)
    before = [tensor.clone() for tensor in outputs(decoder)]
    held = [weakref.ref(tensor) for tensor in decoder.weights.tensors()]
    assert len(held) > 10
    decoder.weights.drop()
    assert not any(reference() is not None for reference in held), "a tensor is still referred to"
    decoder.weights.replace(Checkpoint.load(path), is_partial=False)
    assert_equal(outputs(decoder), before)


def test_a_trial_leaves_nothing_behind(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("llama")
    weights: LoadedLayers = load_decoder(path).weights
    before = list(map(id, weights.tensors()))
    weights.check(Checkpoint.load(path), is_partial=False)
    assert list(map(id, weights.tensors())) == before


@pytest.mark.parametrize("name", ["llama", *COMPOSED])
def test_weights_are_freed_with_their_owner(name: str, tiny_checkpoint: Callable[[str], Path]) -> None:
    """At once, not with the next garbage collection."""
    path = tiny_checkpoint(name)
    gc.disable()
    try:
        decoder = load_decoder(path)
        held = [weakref.ref(tensor) for tensor in decoder.weights.tensors()]
        del decoder
        if name in FAMILIES:
            family, _ = load_family(path)
            encoder = family.build_encoder(CPU, torch.float32)
            held += [weakref.ref(tensor) for tensor in encoder.weights.tensors()]
            del encoder
        assert len(held) > 10 and not any(reference() is not None for reference in held)
    finally:
        gc.enable()
