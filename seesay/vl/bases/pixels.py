"""The settings by which a checkpoint turns pixels into numbers, read from its processor files of any layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from seesay.checkpoint import Checkpoint
from seesay.checkpoint.model_config import ModelConfig
from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.values import MediaSize
from seesay.values.frame_chain import Library, Resample, Resize, Size

Channels = tuple[float, float, float]

_CLIP_STATISTICS = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_HALVES = (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
_LANCZOS, _BILINEAR, _BICUBIC = 1, 2, 3
_FILTERS: Mapping[int, Resample] = {_LANCZOS: "lanczos", _BILINEAR: "bilinear", _BICUBIC: "bicubic"}
_OTHER_NAMES = {"image_mean": "norm_mean", "image_std": "norm_std"}
"""The names of MiniCPM-V's processor, by the usual ones."""
_GRAY = (127, 127, 127)
_MAX_NUMBER = 1e6
"""Statistics beyond this, or scales below its inverse, are damaged; with all others, pixels are finite in float32."""
DEFAULTS: Mapping[str, tuple[tuple[Channels, Channels], int]] = {
    "CLIPImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "CogVLMVideoProcessor": (_CLIP_STATISTICS, _BILINEAR),
    "DeepseekVLHybridImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "DeepseekVLImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "DeepseekOcr2ImageProcessor": (_HALVES, _BICUBIC),
    "DeepseekVLV2Processor": (_HALVES, _BICUBIC),
    "Ernie4_5_VLMoeImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Ernie4_5_VLMoeVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Gemma3ImageProcessor": (_HALVES, _BILINEAR),
    "Glm4vImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Glm4vVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Glm46VImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Glm46VVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "GotOcr2ImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Idefics3ImageProcessor": (_HALVES, _LANCZOS),
    "InternVLVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "KimiVLImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Lfm2VlImageProcessor": (_HALVES, _BILINEAR),
    "Llama4ImageProcessor": (_HALVES, _BILINEAR),
    "LlavaImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "LlavaNextImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "LlavaOnevisionImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "LlavaOnevisionVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "MiniCPMVImageProcessor": (_HALVES, _BICUBIC),
    "MiniCPMV4_6ImageProcessor": (_HALVES, _BICUBIC),
    "NemotronH_Nano_Omni_Reasoning_V3ImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "NemotronH_Omni_Reasoning_V3ImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Ovis2ImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "MolmoImageProcessor": (_CLIP_STATISTICS, _BILINEAR),
    "PerceptionLMImageProcessor": (_HALVES, _BICUBIC),
    "PerceptionLMVideoProcessor": (_HALVES, _BICUBIC),
    "Phi3VImageProcessor": (_CLIP_STATISTICS, _BILINEAR),
    "PixtralImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "QwenVLImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Qwen2VLImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Qwen2VLVideoProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "Qwen3VLVideoProcessor": (_HALVES, _BICUBIC),
    "SiglipImageProcessor": (_HALVES, _BICUBIC),
    "Siglip2ImageProcessor": (_HALVES, _BILINEAR),
    "SmolVLMImageProcessor": (_HALVES, _LANCZOS),
    "VLMImageProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "SmolVLMVideoProcessor": (_HALVES, _LANCZOS),
    "XComposer2SquareProcessor": (_CLIP_STATISTICS, _BICUBIC),
    "XComposer2TileProcessor": (_CLIP_STATISTICS, _BILINEAR),
}
"""((mean, std), resample) of each processor class, where a checkpoint's file leaves them out."""


def read_processor(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    """Return the settings of one processor, `kind` being 'image_processor' or 'video_processor'; {} when the checkpoint
    has none.

    Where the published code has them elsewhere, pictures and videos have the same ones (`Checkpoint.image_processor`).
    Newer checkpoints nest them in processor_config.json; older ones have preprocessor_config.json and
    video_preprocessor_config.json; without the latter, videos have the settings of pictures. A setting that is null
    there has its default, as one that is left out; a flag is off.
    """
    if checkpoint.image_processor is not None:
        return dict(checkpoint.image_processor)
    return _without_nulls(_find_settings(checkpoint, kind))


def _find_settings(checkpoint: Checkpoint, kind: str) -> dict[str, Any]:
    nested = (checkpoint.read_json("processor_config.json") or {}).get(kind)
    if isinstance(nested, dict):
        return nested
    if kind == "video_processor":
        own = checkpoint.read_json("video_preprocessor_config.json")
        if own is not None:
            return own
    return checkpoint.read_json("preprocessor_config.json") or {}


def _without_nulls(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _without_nulls(value) if isinstance(value, Mapping) else value
        for name, value in settings.items()
        if value is not None or name.startswith("do_")
    }


def find_library(checkpoint: Checkpoint, default: Library = "torchvision") -> Library:
    """Return the library with which a checkpoint's published processor resizes: Pillow where the settings are not in
    Transformers' files, but in those of the authors' layout, else `default`."""
    return default if checkpoint.image_processor is None else "pillow"


def find_processor_class(checkpoint: Checkpoint) -> str | None:
    """Return the name of the class that a checkpoint's files give for its processor; None where they give none."""
    for file in ("processor_config.json", "preprocessor_config.json", "tokenizer_config.json"):
        found = (checkpoint.read_json(file) or {}).get("processor_class")
        if isinstance(found, str):
            return found
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class PixelSettings:
    """Resizing filter, the library whose arithmetic it has, and the statistics of
    (pixel · rescale_factor - mean) / std per channel."""

    resample: Resample
    mean: Channels
    std: Channels
    rescale_factor: float
    library: Library = "torchvision"

    @classmethod
    def read(
        cls, settings: Mapping[str, object], where: object, *, processor: str, library: Library = "torchvision"
    ) -> PixelSettings:
        """Read a processor's settings. What they leave out is as in the class that they name, or else in `processor`, a
        key of `DEFAULTS`. `library` is the one with which the published processor resizes. Raises `CheckpointError`
        naming a setting that is missing or not supported; `where` is the folder."""
        if not settings.get("do_resize", True):
            raise CheckpointError(f"{where}: processor setting do_resize=false is not supported")
        settings = {"rescale_factor": 1 / 255, **_find_defaults(settings, where, processor), **settings}
        mean, std, scale = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), 1.0
        if settings.get("do_normalize", True):
            mean = _read_channels(settings, "image_mean", least=-_MAX_NUMBER, where=where)
            std = _read_channels(settings, "image_std", least=1 / _MAX_NUMBER, where=where)
        if settings.get("do_rescale", True):
            scale = _read_scale(settings, where)
        resample = _read_resample(settings, where)
        return cls(resample=resample, mean=mean, std=std, rescale_factor=scale, library=library)

    def resize(self, size: Size) -> Resize:
        """Return the step that scales frames to `size` (height, width)."""
        return Resize(size, self.resample, self.library)

    def as_json(self) -> dict[str, Any]:
        """Return the settings as JSON values, for cache keys."""
        return asdict(self)

    @property
    def statistics(self) -> dict[str, Any]:
        """mean, std and rescale_factor, with which a tower normalizes uint8 pixels."""
        return {"mean": self.mean, "std": self.std, "rescale_factor": self.rescale_factor}


def _find_defaults(settings: Mapping[str, object], where: object, processor: str) -> dict[str, object]:
    named = settings.get("image_processor_type") or settings.get("video_processor_type") or processor
    if (known := DEFAULTS.get(str(named).removesuffix("Fast"))) is not None:
        (mean, std), resample = known
        return {"image_mean": mean, "image_std": std, "resample": resample}
    needed = ("image_mean", "image_std", "resample") if settings.get("do_normalize", True) else ("resample",)
    for name in needed:
        if name not in settings and _OTHER_NAMES.get(name) not in settings:
            raise CheckpointError(
                f"{where}: processor setting {name} is missing, and the default of {str(named)[:60]!r} is not known"
            )
    return {}


def _read_resample(settings: Mapping[str, object], where: object) -> Resample:
    value = settings["resample"]
    if type(value) is not int or value not in _FILTERS:
        _refuse(where, "resample", value, ", ".join(f"{number} ({name})" for number, name in _FILTERS.items()))
    return _FILTERS[value]


def _read_channels(settings: Mapping[str, object], name: str, *, least: float, where: object) -> Channels:
    if _OTHER_NAMES[name] in settings:
        name = _OTHER_NAMES[name]
    values = settings[name]
    if not isinstance(values, list | tuple) or len(values) != 3 or not all(_is_number(v, least) for v in values):
        _refuse(where, name, values, f"three numbers from {least:g} to {_MAX_NUMBER:g}")
    red, green, blue = values
    return float(red), float(green), float(blue)


def _read_scale(settings: Mapping[str, Any], where: object) -> float:
    value, least = settings["rescale_factor"], 1 / _MAX_NUMBER
    if not _is_number(value, least):
        _refuse(where, "rescale_factor", value, f"a number from {least:g} to {_MAX_NUMBER:g}")
    return float(value)


def _is_number(value: Any, least: float) -> bool:
    """Return whether `value` is a number from `least` to `_MAX_NUMBER`; NaN is not."""
    return type(value) in (int, float) and least <= value <= _MAX_NUMBER


def _refuse(where: object, name: str, value: Any, allowed: str) -> NoReturn:
    raise CheckpointError(f"{where}: processor setting {name} must be {allowed}, got {str(value)[:80]}")


def read_padding_color(settings: Mapping[str, object], where: object, *, processor: str) -> tuple[int, int, int]:
    """Return the color of the padding that makes pictures square: `image_mean`, also where pixels are not normalized
    with it. Arguments are those of `PixelSettings.read`. Raises `CheckpointError` for a mean that is no color."""
    given = {**_find_defaults({**settings, "do_normalize": True}, where, processor), **settings}
    if given["image_mean"] is None:
        return _GRAY
    red, green, blue = (
        int(value * 255) for value in _read_channels(given, "image_mean", least=-_MAX_NUMBER, where=where)
    )
    if not all(0 <= value <= 255 for value in (red, green, blue)):
        _refuse(where, "image_mean", given["image_mean"], "from 0 to 1, as it is the color of the padding")
    return red, green, blue


def read_count(settings: Mapping[str, object], name: str, default: int, *, most: int, where: object) -> int:
    """Return a setting that is a number from 1 to `most`. Raises `CheckpointError` naming one that is not."""
    value = settings.get(name, default)
    if type(value) is not int or not 1 <= value <= most:
        raise CheckpointError(
            f"{where}: processor setting {name} must be an integer from 1 to {most}, got {str(value)[:40]!r}"
        )
    return value


def read_positive(settings: Mapping[str, Any], name: str, default: float, where: object) -> float:
    """Return a setting that is a number above 0, at most a million. Raises `CheckpointError` naming one that is not."""
    value = settings.get(name, default)
    if not _is_number(value, 1 / _MAX_NUMBER):
        raise CheckpointError(f"{where}: processor setting {name} must be a number above 0, got {str(value)[:40]!r}")
    return float(value)


def read_square(size: Any, where: object, name: str) -> tuple[int, int]:
    """Return the (height, width) of a size setting. Raises `CheckpointError` naming a setting that fixes only one."""
    if isinstance(size, int):
        return size, size
    height, width = (size.get("height"), size.get("width")) if isinstance(size, Mapping) else (None, None)
    if not isinstance(height, int) or not isinstance(width, int):
        raise CheckpointError(f"{where}: processor setting {name}={str(size)[:80]} must give height and width")
    return height, width


def read_tile(
    settings: Mapping[str, object], side: int, where: object, *, default: int, name: str = "size"
) -> tuple[int, int]:
    """Return the (height, width) of the pictures that a processor makes for a tower of squares of `side` pixels. Raises
    `CheckpointError` if its size setting `name` says another one; `default` is that of its class."""
    size = settings.get(name, default)
    if read_square(size, where, name) != (side, side):
        raise CheckpointError(
            f"{where}: the processor makes pictures of {name}={str(size)[:80]}, the tower takes {(side, side)}"
        )
    return side, side


def count_patches(vision: ModelConfig, where: object) -> int:
    """Return the patches in a side of the square pictures of a tower. Raises `CheckpointError` for a configuration with
    other pictures or patches, or with none."""
    image, patch = vision.image_size, vision.patch_size
    if not isinstance(image, int) or not isinstance(patch, int) or image < patch:
        raise CheckpointError(
            f"{where}: image_size={str(image)[:40]} and patch_size={str(patch)[:40]} of the vision tower are not "
            "supported: they must be the sides of squares, of which one picture has at least one"
        )
    return image // patch


def check_num_rows(checkpoint: Checkpoint, name: str, num_rows: int) -> None:
    """Raise `CheckpointError` if the processor's setting `name`, the places that a tile takes in a prompt, is not the
    number of rows that the tower makes of it."""
    told = (checkpoint.read_json("processor_config.json") or {}).get(name, num_rows)
    if told != num_rows:
        raise CheckpointError(
            f"{checkpoint.path}: {name}={str(told)[:40]}, but the tower makes {num_rows} rows of a tile"
        )


def read_longest_edge(settings: Mapping[str, object], where: object, name: str, default: int) -> int:
    """Return the `longest_edge` of the size setting `name`. Raises `CheckpointError` naming one that gives another
    kind of size."""
    size = settings.get(name, {"longest_edge": default})
    edge = size.get("longest_edge") if isinstance(size, Mapping) else None
    if not isinstance(edge, int) or isinstance(edge, bool) or edge < 1:
        raise CheckpointError(f"{where}: processor setting {name}={str(size)[:80]} must give longest_edge")
    return edge


def refuse_thin(size: MediaSize, limit: int, patch: int, *, unit: str) -> NoReturn:
    """Raise `RequestError` for a picture that has a side of no `unit` when it is shrunk to `limit` patches of so many
    pixels a side."""
    raise RequestError(
        ErrorCode.INVALID_MEDIA,
        f"a picture of {size.width}x{size.height} pixels has a side of no {unit} when it is shrunk to "
        f"{limit} patches of {patch}x{patch}: crop or pad it",
        "messages",
    )
