"""Finds the family of an architecture: one of the `families` folder, in which a broken family stops start-up, or one
from outside (`plugins.py`)."""

from __future__ import annotations

import difflib
import importlib
import logging
import os
import pkgutil
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

from seesay.checkpoint import ORIGINALS, Checkpoint, ConfigReader
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.models.configs.kinds import list_backbones
from seesay.vl import families
from seesay.vl.family import Family
from seesay.vl.model_names import REASONS
from seesay.vl.modules.module_family import ModuleTextFamily, is_known_to_transformers, list_causal_models
from seesay.vl.modules.module_vision import ModuleVisionFamily, takes_media
from seesay.vl.nearest_models import describe_nearest
from seesay.vl.plugins import BrokenPlugin, ModuleMap, Plugin, collect_claims, load_named, load_packages
from seesay.vl.text_family import TextFamily

logger = logging.getLogger("seesay")

WITH_TOWER = "/"
"""Between an architecture that several families claim and the `model_type` of the tower with which one does."""

_STEM = re.compile(r"(.+?)(?:Model|For[A-Z]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Registry:
    """The families that checkpoints are opened with.

    claims: families by the architectures they claim: a name, or `WITH_TOWER` between a name and a tower. plugins: those
    from outside, whose claims are among them. contested: architectures that an installed package claims and something
    else, too, with a message that names both. broken: packages whose families cannot be used.
    """

    claims: Mapping[str, type[Family]]
    plugins: tuple[Plugin, ...] = ()
    contested: Mapping[str, str] = field(default_factory=dict)
    broken: tuple[BrokenPlugin, ...] = ()

    @property
    def readers(self) -> Mapping[str, ConfigReader]:
        """Readers of config.json of the families from outside, by architecture."""
        outside = {family for plugin in self.plugins for family in plugin.families.values()}
        return {name: family.read_config for name, family in self.claims.items() if family in outside}

    def list_broken(self) -> str:
        """Return the end of a message about an architecture that no family claims: packages that may have one."""
        return "".join(f"; not usable: {broken}" for broken in self.broken)


def open_registry(plugins: Iterable[str | os.PathLike[str]] = (), module_map: ModuleMap | None = None) -> Registry:
    """Return our families, those of installed packages, and those that the process's owner names: see
    `EngineConfig.plugins` and `custom_module_map`. The last ones outrank the others; an architecture of ours that an
    installed package claims is contested. Raises `ConfigError` for a named one that cannot be used."""
    packages, broken = load_packages()
    named = load_named(plugins, module_map)
    claims, contested = {**list_families()}, {}
    origins = {**dict.fromkeys(ORIGINALS, "seesay"), **dict.fromkeys(claims, "seesay")}
    for plugin in packages:
        for name, family in plugin.families.items():
            if name in origins:
                contested[name] = (
                    f"architecture {name} is claimed by both {origins[name]} and {plugin.origin}: uninstall one, or "
                    "name the module that you want with plugins= (--plugin)"
                )
            else:
                claims[name], origins[name] = family, plugin.origin
    for plugin in named:
        for table in (claims, contested):
            for name in [name for name in table if name in plugin.families or _without_tower(name) in plugin.families]:
                del table[name]
        claims |= plugin.families
    return Registry(claims=claims, plugins=(*packages, *named), contested=contested, broken=broken)


def find_family(architecture: str, tower: str = "", registry: Registry | None = None) -> type[Family]:
    """Return the family of `architecture` (an entry of config.json's `architectures`): the one that claims it with this
    `tower` (the `model_type` of its vision_config), or else with any. Otherwise that of the same model with another
    head or none (`Qwen2Model`, `Qwen2ForSequenceClassification`), with a warning. Otherwise, where Transformers has a
    model of this name, the one that runs its modules.

    `registry`: the families to choose from; ours by default. Raises `CheckpointError` that says why an architecture
    does not run, where that is known, or which name is like it, and `ConfigError` for one that is contested.
    """
    registry = Registry(claims=list_families()) if registry is None else registry
    found = _try_find(architecture, tower, registry)
    if found is not None:
        return found
    if architecture in REASONS:
        raise CheckpointError(
            f"architecture {architecture!r} does not run here: {REASONS[architecture]}{registry.list_broken()}"
        )
    raise CheckpointError(_say_unknown(architecture, registry, ""))


def _say_unknown(architecture: str, registry: Registry, nearest: str) -> str:
    layouts = list_layouts(registry.claims)
    close = difflib.get_close_matches(architecture, [*layouts, *list_causal_models()], n=1)
    hint = f" did you mean {close[0]!r}?" if close else ""
    return (
        f"architecture {architecture!r} is not supported{nearest};{hint} neither seesay (docs/models.md, or seesay "
        "list) nor Transformers for texts, or texts with pictures or audio, has one of this name, and config.json's "
        f"auto_map names no code beside the weights{registry.list_broken()}"
    )


def find_model(checkpoint: Checkpoint, registry: Registry) -> tuple[type[Family], Checkpoint]:
    """Return the family of a checkpoint, and the checkpoint as that family reads it: with the code in its folder, where
    nothing else makes its model and the code may be run. Raises as `find_family` does, and `CheckpointError` for code
    that may not."""
    architecture, code = checkpoint.architecture, checkpoint.remote_code
    found = _try_find(architecture, checkpoint.tower_type, registry)
    if found is None or _has_foreign_decoder(found, checkpoint):
        found = _find_by_type(checkpoint, registry) or found
    if found is not None:
        return found, checkpoint
    if architecture in REASONS and not (code is not None and checkpoint.runs_code):
        return find_family(architecture, checkpoint.tower_type, registry), checkpoint
    family = _find_code_family(checkpoint, registry)
    return family, replace(checkpoint, code=code)


def _find_code_family(checkpoint: Checkpoint, registry: Registry) -> type[Family]:
    """Return the family of a model that the code in its folder makes. Raises `CheckpointError` if there is none, or it
    may not be run."""
    architecture, code = checkpoint.architecture, checkpoint.remote_code
    nearest = describe_nearest(checkpoint.config.get("model_type"))
    if code is None:
        raise CheckpointError(f"{checkpoint.path}: {_say_unknown(architecture, registry, nearest)}")
    if not checkpoint.runs_code:
        raise CheckpointError(
            f"{checkpoint.path}: architecture {architecture!r} is neither one of ours nor one of Transformers, but "
            f"Python in this folder ({code.files}), which would be executed: if you trust it, set "
            f"trust_remote_code=True (--trust-remote-code){nearest}{registry.list_broken()}"
        )
    return ModuleVisionFamily if code.takes_pictures else ModuleTextFamily


def _try_find(architecture: str, tower: str, registry: Registry) -> type[Family] | None:
    for name in (f"{architecture}{WITH_TOWER}{tower}", architecture):
        if name in registry.contested:
            raise ConfigError(registry.contested[name])
    claimed = _find_claimed(architecture, registry)
    for name in (f"{claimed}{WITH_TOWER}{tower}", claimed):
        if name in registry.claims:
            if claimed != architecture:
                logger.warning("the checkpoint is a %s: it is loaded as %s", architecture, claimed)
            return registry.claims[name]
    if architecture in REASONS:
        return None
    if takes_media(architecture):
        return ModuleVisionFamily
    return ModuleTextFamily if is_known_to_transformers(architecture) else None


def _find_claimed(architecture: str, registry: Registry) -> str:
    """Return the architecture that a family claims: this one, or one of the same model with another head."""
    claimed = list(map(_without_tower, registry.claims))
    stem = _STEM.fullmatch(architecture)
    if architecture in claimed or stem is None:
        return architecture
    return next((name for name in claimed if stem[1] == _STEM.sub(r"\1", name)), architecture)


def _has_foreign_decoder(family: type[Family], checkpoint: Checkpoint) -> bool:
    """Return whether our family of texts `family` does not know the decoder: Transformers makes models of several types
    by one class."""
    is_ours = family in list_families().values() and issubclass(family, TextFamily)
    return is_ours and checkpoint.text_config.model_type not in list_backbones()


def _find_by_type(checkpoint: Checkpoint, registry: Registry) -> type[Family] | None:
    """Return the family of Transformers' modules for a `model_type` that it has and we have not, as its auto classes
    choose: the architecture may be that of code beside the weights, which Transformers has taken over. None where that
    code may be run."""
    from transformers.models.auto import modeling_auto

    kind, architecture = checkpoint.config.get("model_type"), checkpoint.architecture
    runs_code = checkpoint.remote_code is not None and checkpoint.runs_code
    if runs_code or not isinstance(kind, str) or architecture in REASONS or kind in list_backbones():
        return None
    pictures = modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.get(kind)
    if pictures in map(_without_tower, registry.claims):
        return None
    found = pictures or modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    if found is None:
        return None
    if found != architecture:
        logger.warning(
            "the checkpoint is a %s: it is loaded as Transformers' %s, by its model_type", architecture, found
        )
    return ModuleVisionFamily if pictures else ModuleTextFamily


def _without_tower(claimed: str) -> str:
    return claimed.partition(WITH_TOWER)[0]


@cache
def list_families() -> Mapping[str, type[Family]]:
    """Return our families by the architectures they claim: a name, or `WITH_TOWER` between a name and a tower."""
    return collect_families(families.__path__, families.__name__)


def list_layouts(claimed: Mapping[str, type[Family]] | None = None) -> Mapping[str, tuple[type[Family], ...]]:
    """Return the families of every architecture that a config.json may name: of those that are `claimed`, by default
    ours, and of those that are read as one of several others (`ORIGINALS`)."""
    claimed = list_families() if claimed is None else claimed
    originals = {
        name: tuple(claimed[each] for each in known if each in claimed)
        for name, known in ORIGINALS.items()
        if name not in claimed
    }
    return {**{name: (family,) for name, family in claimed.items()}, **originals}


def collect_families(folders: Iterable[str], package: str) -> dict[str, type[Family]]:
    """Import every module of `package` in `folders`. Raises `RuntimeError` naming a module that cannot be imported,
    declares no family, or claims the architecture of another one."""
    found: dict[str, type[Family]] = {}
    for info in sorted(pkgutil.iter_modules(list(folders)), key=lambda info: info.name):
        module_name = f"{package}.{info.name}"
        try:
            module = importlib.import_module(module_name)
        except Exception as error:
            raise RuntimeError(f"family {module_name} cannot be imported: {error}") from error
        try:
            own = collect_claims(module)
        except ValueError as error:
            raise RuntimeError(f"family {error}") from None
        for architecture, family in own.items():
            if architecture in found:
                other = found[architecture].__module__
                raise RuntimeError(f"architecture {architecture} is claimed by both {other} and {module_name}")
            found[architecture] = family
    return found
