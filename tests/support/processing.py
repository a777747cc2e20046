"""Transformers' processors of prompts with pictures and videos, whatever they name the pixels of both."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch

_OF_TEXT = ("input_ids", "attention_mask")


def process(
    processor: Any,
    text: str,
    *,
    images: Sequence[Any] = (),
    videos: Sequence[Any] = (),
    video_metadata: Sequence[dict[str, Any]] = (),
    **options: Any,
) -> Any:
    """Return what a processor makes of a text with PIL pictures and videos uint8 [N, H, W, 3], as tensors."""
    kwargs: dict[str, Any] = {**options, "return_tensors": "pt"}
    pictures: dict[str, Any] = {"images": list(images)} if images else {}
    clips: dict[str, Any] = (
        {"videos": [torch.from_numpy(each).permute(0, 3, 1, 2) for each in videos]} if videos else {}
    )
    if clips:
        clips |= {"video_metadata": [dict(each) for each in video_metadata], "do_sample_frames": False}
    if len(images) > 1 and type(processor).__name__ == "LlavaOnevisionProcessor":
        pictures = {"images": [list(images)]}  # those of one prompt: a plain list has one picture of each
    if pictures and clips and "pixel_values" in processor.video_processor.model_input_names:
        return _process_apart(processor, text, pictures, clips, kwargs)
    if len(images) > 1 and type(processor).__name__ == "PerceptionLMProcessor":
        return _process_uneven(processor, text, pictures, clips, kwargs)
    if not images and type(processor).__name__ == "PaliGemmaProcessor":
        return _process_prefix(processor, text)
    return processor(text=[text], **pictures, **clips, **kwargs)


def _process_prefix(processor: Any, text: str) -> Any:
    """As `process`, for one that refuses a prompt without pictures, which its model takes: the text that it would write
    behind them, and the types of tokens that it gives to all of a prompt."""
    written = f"{processor.tokenizer.bos_token}{text}\n"
    inputs = processor.tokenizer([written], add_special_tokens=False, return_tensors="pt")
    inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
    return inputs


def count_tiles(processor: Any, height: int, width: int) -> tuple[int, ...]:
    """Return the (rows, columns) of tiles that a processor cuts a picture of this size into; nothing for one that takes
    each picture as a whole."""
    image_processor = processor.image_processor
    if type(processor).__name__ == "DeepseekOcr2Processor":
        return (image_processor.get_number_of_image_patches(height, width) - 1,)
    if hasattr(image_processor, "get_number_of_image_patches"):
        return tuple(image_processor.get_number_of_image_patches(height, width)[1:])
    if type(processor).__name__ == "NemotronH_Omni_Reasoning_V3Processor":
        return _count_patches_of_nemotron(image_processor, height, width)
    if type(processor).__name__ == "Ovis2Processor":
        return _count_tiles_of_ovis(image_processor, height, width)
    if type(processor).__name__ == "Llama4Processor":
        return _count_tiles_of_llama4(image_processor, height, width)
    if type(processor).__name__ == "Lfm2VlProcessor":
        return _size_in_lfm2(image_processor, height, width)
    if type(processor).__name__ == "MiniCPMV4_6Processor":
        return _sizes_in_minicpm(image_processor, height, width)
    return ()


def as_image_inputs(processor: Any, *grid: int) -> dict[str, Any]:
    """Return what the processor's `replace_image_token` takes of a picture with this grid of tiles."""
    if type(processor).__name__ == "DeepseekOcr2Processor":
        return {"num_local_patches": grid}
    if type(processor).__name__ == "NemotronH_Omni_Reasoning_V3Processor":
        return {"image_grid_hw": torch.tensor([grid])}
    if type(processor).__name__ == "Ovis2Processor":
        return {"grids": [torch.tensor(grid)]}
    if type(processor).__name__ == "Llama4Processor":
        size = processor.image_processor.size
        return {"aspect_ratios": [grid], "pixel_values": [torch.empty(3, size.height, size.width)]}
    if type(processor).__name__ == "Lfm2VlProcessor":
        return {"image_rows": grid[:1], "image_cols": grid[1:2], "image_sizes": [grid[2:]]}
    if type(processor).__name__ == "MiniCPMV4_6Processor":
        sizes = [grid[2:4], *(grid[4:] for _ in range(grid[0] * grid[1]))]
        return {"grids": [grid[:2]], "num_patches_per_image": [len(sizes)], "target_sizes": torch.tensor(sizes)}
    return {"rows": [[grid[0]]], "cols": [[grid[1]]]} if grid else {}


def _count_patches_of_nemotron(image_processor: Any, height: int, width: int) -> tuple[int, int]:
    """Return the rows and columns of patches of a picture that is alone; 0 for one that the processor fails for."""
    from transformers.models.nemotron_h_omni import image_processing_nemotron_h_omni as published

    least, most = image_processor.min_num_patches, image_processor.max_num_patches
    side, merge = image_processor.patch_size, round(1 / image_processor.downsample_ratio)
    most = min(max((image_processor.max_model_len - 4) * merge**2, least), most)
    try:
        found: tuple[int, int] = published.get_patch_grid_size(height, width, side, merge, least, most)
    except ZeroDivisionError:
        return 0, 0
    return found


def _size_in_lfm2(image_processor: Any, height: int, width: int) -> tuple[int, ...]:
    """Return the rows and columns of tiles, and the height and width of the whole picture, as the processor finds
    them."""
    names = ("max_image_tokens", "encoder_patch_size", "downsample_factor")
    options = {name: getattr(image_processor, name) for name in names}
    least = image_processor.min_image_tokens
    whole = image_processor.smart_resize(height, width, min_image_tokens=least, **options)[::-1]
    tolerance = image_processor.max_pixels_tolerance
    if not image_processor._is_image_too_large(height, width, max_pixels_tolerance=tolerance, **options):
        return 1, 1, *whole
    tiles = (getattr(image_processor, name) for name in ("min_tiles", "max_tiles", "tile_size"))
    columns, rows, *_ = image_processor._get_grid_layout(height, width, *tiles)
    return rows, columns, *whole


def _sizes_in_minicpm(image_processor: Any, height: int, width: int) -> tuple[int, ...]:
    """Return the rows and columns of slices, and the height and width in patches of the whole picture and of a slice,
    as the processor finds them."""
    size, side, patch = (height, width), image_processor.scale_resolution, image_processor.patch_size
    options = {"scale_resolution": side, "patch_size": patch, "downsample_mode": image_processor.downsample_mode}
    cut = image_processor.get_sliced_grid(size, image_processor.max_slice_nums, side)
    whole = image_processor.find_best_resize(size, **options, allow_upscale=cut is None)
    sides = [length // patch for length in whole]
    if cut is None:
        return 0, 0, *sides
    slices = image_processor.get_refine_size(size, cut, **options, allow_upscale=True)
    return *cut, *sides, *(length // count // patch for length, count in zip(slices, cut, strict=True))


def _count_tiles_of_llama4(image_processor: Any, height: int, width: int) -> tuple[int, int]:
    """As `count_tiles`, by the functions that choose a canvas."""
    from transformers.models.llama4 import image_processing_llama4 as published

    size = image_processor.size
    canvases = published.find_supported_resolutions(max_num_chunks=image_processor.max_patches, patch_size=size)
    rows, columns = (int(n) for n in published.get_best_fit((height, width), torch.tensor(canvases)))
    return rows // size.height, columns // size.width


def _count_tiles_of_ovis(image_processor: Any, height: int, width: int) -> tuple[int, int]:
    """As `count_tiles`, by the functions that choose how a picture is cut."""
    from transformers.models.ovis2 import image_processing_ovis2 as published

    side, most = image_processor.size["height"], image_processor.max_patches
    if image_processor.use_covering_area_grid:
        columns, rows = published.get_min_tile_covering_grid((height, width), side, most)
    else:
        least = image_processor.min_patches
        columns, rows = published.get_optimal_tiled_canvas((height, width), (side, side), least, most)
    return rows, columns


def _process_uneven(
    processor: Any, text: str, pictures: dict[str, Any], clips: dict[str, Any], kwargs: dict[str, Any]
) -> Any:
    """As `process`, for one that cannot stack pictures of different numbers of tiles: they are joined to one picture
    [1, tiles, 3, H, W], which is the same to its model."""
    inputs = processor(text=[text], **pictures, **clips, **{**kwargs, "return_tensors": None})
    joined = {"pixel_values": torch.cat(list(inputs["pixel_values"]))[None]}
    if "pixel_values_videos" in inputs:
        joined["pixel_values_videos"] = torch.stack(list(inputs["pixel_values_videos"]))
    return type(inputs)({**inputs, **joined, **{key: torch.tensor(inputs[key]) for key in _OF_TEXT}})


def _process_apart(
    processor: Any, text: str, pictures: dict[str, Any], clips: dict[str, Any], kwargs: dict[str, Any]
) -> Any:
    """As `process`, for one that gives pictures and videos the same name: of a prompt with both it returns the pixels
    of the videos alone. Each item is processed by itself, and the pixels are put in the order of the text."""
    tokens = {processor.image_token: "images", processor.video_token: "videos"}
    order = [tokens[found] for found in re.findall("|".join(map(re.escape, tokens)), text)]
    written: dict[str, list[str]] = {kind: [] for kind in tokens.values()}
    pixels, masks = [], []
    kinds = processor.valid_processor_kwargs
    merged = processor._merge_kwargs(kinds, tokenizer_init_kwargs=processor.tokenizer.init_kwargs, **kwargs)
    pictures_left, clips_left = iter(pictures["images"]), iter(zip(clips["videos"], clips["video_metadata"]))
    for kind in order:
        if kind == "images":
            made, texts = processor._process_images([[next(pictures_left)]], **merged["images_kwargs"])
        else:
            clip, metadata = next(clips_left)
            options = {**merged["videos_kwargs"], "video_metadata": [metadata], "do_sample_frames": False}
            made, texts = processor._process_videos([clip], **options)
        written[kind] += texts
        pixels.append(made["pixel_values"])
        masks.append(made["pixel_attention_mask"])
    [whole], _ = processor.get_text_with_replacements([text], written["images"], written["videos"])
    inputs = processor.tokenizer([whole], **merged["text_kwargs"])
    inputs["pixel_values"], inputs["pixel_attention_mask"] = torch.cat(pixels, dim=1), torch.cat(masks, dim=1)
    return inputs
