"""Compares a vision-language model that runs through Transformers' modules with itself at start.

Two prompts, of one picture and of three, one of a video where the model takes videos, and two of audio where it takes
audio, go through our prompt
builder, tower and packed steps, and through the model's own processor and forward pass. Both must have the same tokens
and hidden states.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from seesay.errors import CheckpointError
from seesay.llm.models.modules.module_check import CheckedPrompt, check_media
from seesay.processors.media.decoded import make_decoded_audio
from seesay.values import AudioSamples, DecodedMedia, MediaPart, Modality, MultimodalInput, RenderedPrompt
from seesay.vl.media.media_items import PreparedMedia
from seesay.vl.prompts.prompt import build_input, tokenize

if TYPE_CHECKING:
    from seesay.encoders.towers.module_tower import ModuleTower
    from seesay.llm.models.modules.module_decoder import ModuleDecoder
    from seesay.vl.family import Family
    from seesay.vl.modules.module_processor import ModuleProcessor

_PROMPTS = (((72, 40),), ((40, 56), (64, 48), (33, 90)))
"""(height, width) of the pictures of each prompt."""
_LARGE = ((900, 1400), (800, 600), (1300, 700))
"""Sizes of pictures in the prompt whose tokens alone are compared: some processors cut large pictures, or not beside
others."""
_TEXTS = ("what is in ", " and in\n", "? One, ", " two.")
_TIMES_S = (0.0, 0.5, 1.0, 1.5, 2.0)
_AUDIO_S = ((0.9,), (1.2, 1.2, 1.2))
"""Durations of the audio of each prompt. Beside longer audio, some processors fill up the end of a shorter one, and
Gemma 3n's and Qwen3-Omni's towers compute that otherwise than alone."""
_UNEQUAL_AUDIO_S = ((1.9, 1.2, 1.1),)
"""Those of a prompt whose tokens alone are compared."""
_VIDEO = (60, 44)
"""(height, width) of a video, whose frames are shown at these times."""


def check_prompts(family: Family, processor: ModuleProcessor, tower: ModuleTower, decoder: ModuleDecoder) -> None:
    """Raise `CheckpointError` saying in which way a prompt with media is computed otherwise."""
    media = [*_draw_pictures(family), *_draw_audio(family, processor, _AUDIO_S)]
    check_media(decoder, [_make_prompt(family, processor, tower, decoder, each) for each in media])
    for sounds in _draw_audio(family, processor, _UNEQUAL_AUDIO_S):
        _make_input(family, processor, sounds)
    if Modality.IMAGE in family.modalities:
        _make_input(family, processor, [_decoded(np.zeros((1, *size, 3), dtype=np.uint8)) for size in _LARGE])


def _draw_pictures(family: Family) -> list[list[DecodedMedia]]:
    """Return the pictures of each prompt, and the video."""
    rng = np.random.default_rng(0)
    shapes = [[(1, *size) for size in sizes] for sizes in _PROMPTS] if Modality.IMAGE in family.modalities else []
    if Modality.VIDEO in family.modalities:  # alone: not all models take both in one prompt
        shapes.append([(len(_TIMES_S), *_VIDEO)])
    return [[_decoded(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)) for shape in each] for each in shapes]


def _draw_audio(
    family: Family, processor: ModuleProcessor, durations_s: Sequence[Sequence[float]]
) -> list[list[DecodedMedia]]:
    """Return the audio of each prompt that the processor takes, noise."""
    if Modality.AUDIO not in family.modalities:
        return []
    rng, rate_hz = np.random.default_rng(0), family.audio_rate_hz
    found = [[rng.normal(0, 0.1, round(each * rate_hz)).astype(np.float32) for each in times] for times in durations_s]
    sounds = [
        [make_decoded_audio(AudioSamples(samples=samples, rate_hz=rate_hz)) for samples in each] for each in found
    ]
    return [each for each in sounds if len(each) == 1 or _takes(family, processor, each)]


def _takes(family: Family, processor: ModuleProcessor, media: Sequence[DecodedMedia]) -> bool:
    """Return whether the model's processor takes these media together: some take one audio alone."""
    try:
        processor.process_prompt(_render(family, media).text, media)
    except ValueError:
        return False
    return True


def _decoded(frames: npt.NDArray[np.uint8]) -> DecodedMedia:
    if len(frames) == 1:
        return DecodedMedia(modality=Modality.IMAGE, frames=frames, digest=bytes(32))
    return DecodedMedia(
        modality=Modality.VIDEO, frames=frames, timestamps_s=_TIMES_S, frame_interval_s=_TIMES_S[1], digest=bytes(32)
    )


def _make_input(
    family: Family, processor: ModuleProcessor, media: Sequence[DecodedMedia]
) -> tuple[MultimodalInput, dict[str, npt.NDArray[Any]]]:
    """Return our prompt with these media, and what the model's processor makes of it, which has the same tokens."""
    rendered = _render(family, media)
    prepared = [_prepare(family, item) for item in media]
    tokens = tokenize(rendered, family.tokenizer, [item.plan.wording for item in prepared])
    made = build_input(tokens, prepared, family=family, model_digest=bytes(32))
    theirs = processor.process_prompt(rendered.text, media)
    if theirs["input_ids"][0].tolist() != made.token_ids.tolist():
        raise CheckpointError(
            f"its processor makes {theirs['input_ids'].shape[1]} tokens of a prompt with {len(media)} media, "
            f"which are not those of the text and of each of them alone ({len(made.token_ids)})"
        )
    return made, theirs


def _make_prompt(
    family: Family,
    processor: ModuleProcessor,
    tower: ModuleTower,
    decoder: ModuleDecoder,
    media: Sequence[DecodedMedia],
) -> CheckedPrompt:
    made, theirs = _make_input(family, processor, media)
    rows = []
    for item in made.items:
        assert item.features is not None
        rows += tower.encode([item.features])
        if len(rows[-1]) != len(item.slots):
            raise CheckpointError(f"its tower makes {len(rows[-1])} rows for {len(item.slots)} places")
    inputs = tower.load(theirs)
    _check_given(tower.show(inputs))
    device = decoder.device
    return CheckedPrompt(
        ids=torch.from_numpy(made.token_ids).to(device),
        positions=torch.from_numpy(np.ascontiguousarray(made.positions)).to(device),
        places=torch.from_numpy(np.concatenate([item.slots for item in made.items])).to(device),
        rows=torch.cat(rows),
        expected=decoder.compute_whole(inputs),
    )


def _render(family: Family, media: Sequence[DecodedMedia]) -> RenderedPrompt:
    text, spans = _TEXTS[0], []
    for index, item in enumerate(media):
        marker = family.markers[item.modality]
        spans.append((len(text), len(text) + len(marker)))
        text += marker + _TEXTS[1 + index]
    parts = tuple(MediaPart(modality=item.modality, source=None) for item in media)
    return RenderedPrompt(text=text, media=parts, markers=tuple(spans))


def _prepare(family: Family, media: DecodedMedia) -> PreparedMedia:
    plan = family.plan_media(media.modality, media.size, {})
    features = family.preprocess(media, plan.measures)
    return PreparedMedia(modality=media.modality, features=features, plan=plan, key=bytes(32), size=media.size)


def _check_given(given: Mapping[str, object]) -> None:
    """Raise `CheckpointError` naming inputs of the decoder that are not computed here."""
    if _is_something(given.get("deepstack_features")):
        raise CheckpointError("rows of pictures are added behind layers that it chooses itself (deepstack_features)")
    if _is_something(given.get("cross_attention_states")):
        raise CheckpointError("its text attends to pictures beside the text (cross-attention)")


def _is_something(value: object) -> bool:
    return bool(len(value)) if isinstance(value, Sequence) else value is not None
