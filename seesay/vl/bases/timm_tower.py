"""Towers that a configuration names as a model of timm (`model_type: timm_wrapper`): which of them our own tower
computes, and which options of timm the others may use. timm is not imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from seesay.checkpoint import Checkpoint
from seesay.errors import CheckpointError, MissingExtraError

if TYPE_CHECKING:
    import torch

    from seesay.encoders.encoder import LoadedEncoder
    from seesay.encoders.towers.projected_vit import ProjectorConfig
    from seesay.encoders.towers.vit import VitConfig
    from seesay.vl.bases.pixels import PixelSettings

_TOWER = "tower."
_COUNTER = ".num_batches_tracked"
"""Of batch norms in training."""
_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}(\.[a-z0-9_]{1,60})?")
_MAX_SIDE, _MAX_SIZE, _MAX_COUNT, _MAX_RATIO = 1 << 13, 1 << 15, 1 << 10, 64.0


def _is_count(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 1 <= value <= most


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _MAX_RATIO


def _is_list_of(is_fine: Callable[[Any], bool], most: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and 1 <= len(value) <= most and all(map(is_fine, value))


def _is_flag(value: object) -> bool:
    return isinstance(value, bool)


_IS_SIDE = _is_count(_MAX_SIDE)
_IS_SIZE = _is_count(_MAX_SIZE)


def _is_square_or_pair(value: Any) -> bool:
    return _IS_SIDE(value) or (_is_list_of(_IS_SIDE, 2)(value) and len(value) == 2)


_ARGUMENTS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(
        ("img_size", "patch_size", "ref_feat_shape", "msfa_output_resolution"), (_is_square_or_pair, "a length or two")
    ),
    **dict.fromkeys(
        ("depth", "num_heads", "attn_pool_num_heads"), (_is_count(_MAX_COUNT), f"an integer from 1 to {_MAX_COUNT}")
    ),
    "embed_dim": (_IS_SIZE, f"an integer from 1 to {_MAX_SIZE}"),
    **dict.fromkeys(("layers", "embed_dims"), (_is_list_of(_IS_SIZE, 16), f"up to 16 numbers from 1 to {_MAX_SIZE}")),
    **dict.fromkeys(
        ("mlp_ratio", "init_values", "rope_grid_offset", "channel_multiplier"),
        (_is_number, f"from 0 to {_MAX_RATIO:g}"),
    ),
    "rope_temperature": (lambda value: _is_number(value) or _IS_SIZE(value), f"from 0 to {_MAX_SIZE}"),
    "reg_tokens": (lambda value: value == 0 or _is_count(_MAX_COUNT)(value), f"from 0 to {_MAX_COUNT}"),
    "num_reg_tokens": (lambda value: value == 0 or _is_count(_MAX_COUNT)(value), f"from 0 to {_MAX_COUNT}"),
    "global_pool": (lambda value: value in ("", "avg", "token", "map"), "'', 'avg', 'token' or 'map'"),
    "rope_grid_indexing": (lambda value: value in ("ij", "xy"), "'ij' or 'xy'"),
    **dict.fromkeys(
        (
            "class_token",
            "final_norm",
            "inference_mode",
            "no_embed_class",
            "pre_norm",
            "qk_norm",
            "qkv_bias",
            "qkv_fused",
            "scale_attn_inner",
            "scale_mlp",
            "swiglu_mlp",
            "use_abs_pos_emb",
            "use_fc_norm",
            "use_post_norm",
            "use_post_transformer_norm",
            "use_pre_transformer_norm",
            "use_rot_pos_emb",
        ),
        (_is_flag, "true or false"),
    ),
}
"""Allowed keys of `model_args` for timm: sizes and options of a model's layers, nothing that loads, fetches or
wraps."""

_ENCODER: Mapping[str, Any] = {
    "class_token": True,
    "mlp_ratio": 4.0,
    "num_heads": 16,
    "patch_size": 14,
    "rope_grid_indexing": "xy",
    "rope_grid_offset": 1.0,
    "rope_temperature": 10000.0,
    "use_post_transformer_norm": True,
    "use_fc_norm": False,
    "init_values": None,
}
_LARGE = {**_ENCODER, "embed_dim": 1024, "depth": 24, "img_size": 336, "ref_feat_shape": 24}
_GIGANTIC = {
    **_ENCODER, "embed_dim": 1536, "depth": 50, "img_size": 448, "ref_feat_shape": 32, "class_token": False,
    "mlp_ratio": 8960 / 1536, "rope_grid_offset": 0.0,
}  # fmt: skip
_LANGUAGE = {"img_size": 448, "ref_feat_shape": 32, "use_post_transformer_norm": False, "init_values": 0.1}
PERCEPTION_ENCODERS: Mapping[str, Mapping[str, Any]] = {
    "vit_pe_core_large_patch14_336": _LARGE,
    "vit_pe_core_gigantic_patch14_448": _GIGANTIC,
    "vit_pe_lang_large_patch14_448": {**_LARGE, **_LANGUAGE, "depth": 23, "global_pool": ""},
    "vit_pe_lang_gigantic_patch14_448": {**_GIGANTIC, **_LANGUAGE, "depth": 47, "global_pool": ""},
}
"""Architectures that our own tower computes, with timm's options of each (arXiv 2504.13181, table 1)."""


def check_timm_models(settings: Mapping[str, Any], where: object, path: str = "") -> None:
    """Raise `CheckpointError` for a model of timm anywhere in the `settings` of a Transformers model, which its modules
    would make, whose name or arguments are not allowed: timm fetches some, and reads files; and `MissingExtraError`
    without timm. path: of the settings."""
    if settings.get("model_type") == "timm_backbone":
        raise CheckpointError(f"{where}: {path or 'config.json'} is of type timm_backbone, which is not supported")
    if "model_args" in settings:
        name = settings.get("architecture")
        _check(name, settings["model_args"] or {}, where, path)
        if find_spec("timm") is None:
            raise MissingExtraError(f"the vision tower {name!r}", package="timm", extra="timm")
    for name, part in settings.items():
        if isinstance(part, Mapping):
            check_timm_models(part, where, f"{path}.{name}" if path else name)


def _check(name: object, args: object, where: object, path: str) -> None:
    """Raise `CheckpointError` unless the name and the arguments of a model of timm are allowed."""
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise CheckpointError(f"{where}: {path}.architecture must be the name of a timm model, got {str(name)[:80]!r}")
    if not isinstance(args, Mapping):
        raise CheckpointError(f"{where}: {path}.model_args must be an object, got {str(args)[:40]!r}")
    for key, value in args.items():
        if key not in _ARGUMENTS:
            known = ", ".join(sorted(_ARGUMENTS))
            raise CheckpointError(
                f"{where}: {path}.model_args.{str(key)[:40]} is not supported; supported are: {known}"
            )
        is_fine, allowed = _ARGUMENTS[key]
        if value is not None and not is_fine(value):
            raise CheckpointError(f"{where}: {path}.model_args.{key} must be {allowed}, got {str(value)[:40]!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmTower:
    """A tower as a configuration names it: an `architecture` of timm, and the `args` with which it is made. where: the
    checkpoint, for messages."""

    architecture: str
    args: Mapping[str, Any]
    where: object

    @classmethod
    def read(cls, checkpoint: Checkpoint) -> TimmTower:
        """Read the checkpoint's `vision_config`. Raises `CheckpointError` naming an argument that is not allowed."""
        vision, where = checkpoint.model_config.vision_config, checkpoint.path
        name, args = vision.architecture, vision.model_args or {}
        _check(name, args, where, "vision_config")
        return cls(architecture=name, args=args, where=where)

    @property
    def is_own(self) -> bool:
        """Whether our own tower computes it, and not timm's module."""
        known = PERCEPTION_ENCODERS.get(self._plain_name)
        if known is None or not self.args.keys() <= {*known, "global_pool", "num_heads"}:
            return False
        options = {**known, **self.args}
        # Pooling has weights of its own, which no language model uses.
        return options.get("global_pool") == "" and not options["use_fc_norm"]

    @property
    def _plain_name(self) -> str:
        """The architecture without the tag of pretrained weights."""
        return self.architecture.partition(".")[0]

    def check_size(self, tile: tuple[int, int]) -> None:
        """Raise `CheckpointError` if the tower's pictures have not the (height, width) `tile`."""
        given = self.args.get("img_size") or PERCEPTION_ENCODERS.get(self._plain_name, {}).get("img_size")
        if given is not None and _pair(given) != tile:
            raise CheckpointError(
                f"{self.where}: the processor makes pictures of {tile}, the tower takes {_pair(given)}"
            )

    def own_config(self) -> VitConfig:
        """Return the sizes of our own tower, where it `is_own`."""
        from seesay.encoders.towers.vit import RopeConfig, VitConfig
        from seesay.encoders.towers.vit_layers import LayerConfig

        options = {**PERCEPTION_ENCODERS[self._plain_name], **self.args}
        size = options["embed_dim"]
        layers = LayerConfig(
            hidden_size=size,
            num_heads=options["num_heads"],
            intermediate_size=int(size * options["mlp_ratio"]),
            activation="gelu",
            norm_eps=1e-5,
            qkv=("qkv",),
            rotates_neighbours=True,
            has_scales=options["init_values"] is not None,
        )
        image_size, patch_size = _pair(options["img_size"]), _pair(options["patch_size"])
        grid = (image_size[0] // patch_size[0], image_size[1] // patch_size[1])
        rope = RopeConfig(
            grid=grid if options["ref_feat_shape"] is None else _pair(options["ref_feat_shape"]),
            theta=options["rope_temperature"],
            offset=options["rope_grid_offset"],
            columns_first=options["rope_grid_indexing"] == "xy",
        )
        return VitConfig(
            layers=layers,
            image_size=image_size,
            patch_size=patch_size,
            feature_layers=(options["depth"],),
            has_class_token=options["class_token"],
            has_patch_bias=False,
            has_input_norm=True,
            has_final_norm=options["use_post_transformer_norm"] is not False,
            rope=rope,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TimmRows:
    """The tower's rows by the configuration: `grid` (height, width) of them for a picture of `image_size`, each
    of `size`, with one for a class token before them if it `has_class_token`."""

    image_size: tuple[int, int]
    grid: tuple[int, int]
    size: int
    has_class_token: bool


def load_encoder(
    tower: TimmTower,
    rows: TimmRows,
    projector: ProjectorConfig,
    pixels: PixelSettings,
    checkpoint: Checkpoint,
    name_of: Callable[[str], str | None],
    *,
    device: torch.device,
    dtype: torch.dtype,
) -> LoadedEncoder:
    """Return the tower, our own or timm's module, with its projector. `name_of` gives timm's names behind `tower.`.
    Raises `CheckpointError` for a tower that does not make these `rows`, and for tensors that do not fit."""
    import torch

    from seesay.encoders.towers import timm_tower
    from seesay.encoders.towers.layers import PixelNormalizer
    from seesay.encoders.towers.projected_vit import ProjectedVit, make_encoder
    from seesay.encoders.towers.vit import TowerRows, Vit
    from seesay.encoders.towers.weights import load_tower

    module = None
    if tower.is_own:
        own = tower.own_config()
        made = own.rows
        with torch.device("meta"):
            model = ProjectedVit(Vit(own), made, projector)
    else:
        patch = (rows.image_size[0] // rows.grid[0], rows.image_size[1] // rows.grid[1])
        made = TowerRows(
            image_size=rows.image_size,
            patch_size=patch,
            grid=rows.grid,
            size=rows.size,
            has_class_token=rows.has_class_token,
        )
        module = timm_tower.make_module(tower.architecture, tower.args, tower.where)
        with torch.device("meta"):
            model = ProjectedVit(timm_tower.TimmTower(module, made.image_size, patch), made, projector)
    found = TimmRows(image_size=made.image_size, grid=made.grid, size=made.size, has_class_token=made.has_class_token)
    if found != rows:
        raise CheckpointError(f"{tower.where}: the tower {tower.architecture!r} makes {found}, not {rows}")

    def own_name(name: str) -> str | None:
        found = name_of(name)
        if found is None or not found.startswith(_TOWER):
            return found
        if module is None:
            return found.replace(_TOWER + "patch_embed.proj.", _TOWER + "patch_embed.")
        return None if found.endswith(_COUNTER) else _TOWER + timm_tower.MODULE + found.removeprefix(_TOWER)

    weights = load_tower(model, checkpoint, own_name, device=device, dtype=dtype)
    if module is not None:
        timm_tower.finish_module(module, device, tower.where)
        timm_tower.check_rows(model.tower, made, tower.where)
    encoder = make_encoder(model, PixelNormalizer(**pixels.statistics), projector.out_hidden_size, weights)
    if module is not None:
        encoder.disable_graphs()  # not every module can be captured
    return encoder


def _pair(value: Any) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[1])
