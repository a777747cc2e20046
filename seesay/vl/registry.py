"""Finds the family of an architecture. Imports the whole `families` folder; a broken family stops start-up."""

from __future__ import annotations

import importlib
import logging
import pkgutil
import re
from collections.abc import Iterable, Mapping
from functools import cache

from seesay.checkpoint import ORIGINALS
from seesay.errors import CheckpointError
from seesay.vl import families
from seesay.vl.family import Family
from seesay.vl.model_names import REASONS
from seesay.vl.module_family import ModuleTextFamily, is_known_to_transformers

logger = logging.getLogger("seesay")

WITH_TOWER = "/"
"""Between an architecture that several families claim and the `model_type` of the tower with which one does."""

_STEM = re.compile(r"(.+?)(?:Model|For[A-Z]\w*)")


def find_family(architecture: str, tower: str = "") -> type[Family]:
    """Return the family of `architecture` (an entry of config.json's `architectures`): the one that claims it with this
    `tower` (the `model_type` of its vision_config), or else with any. Otherwise that of the same model with another
    head or none (`Qwen2Model`, `Qwen2ForSequenceClassification`), with a warning. Otherwise, where Transformers has a
    model of this name, the one that runs its modules.

    Raises `CheckpointError` that says why an architecture does not run, where that is known, or lists those that do.
    """
    known = list_families()
    stem = _STEM.fullmatch(architecture)
    same = [name for name in map(_without_tower, known) if stem is not None and stem[1] == _STEM.sub(r"\1", name)]
    claimed = next(iter(same), architecture) if architecture not in map(_without_tower, known) else architecture
    for name in (f"{claimed}{WITH_TOWER}{tower}", claimed):
        if name in known:
            if claimed != architecture:
                logger.warning("the checkpoint is a %s: it is loaded as %s", architecture, claimed)
            return known[name]
    if architecture not in REASONS and is_known_to_transformers(architecture):
        return ModuleTextFamily
    if architecture in REASONS:
        raise CheckpointError(f"architecture {architecture!r} does not run here: {REASONS[architecture]}")
    supported = ", ".join(sorted(list_layouts()))
    raise CheckpointError(f"architecture {architecture!r} is not supported; supported are: {supported}")


def _without_tower(claimed: str) -> str:
    return claimed.partition(WITH_TOWER)[0]


@cache
def list_families() -> Mapping[str, type[Family]]:
    """Return all families by the architectures they claim: a name, or `WITH_TOWER` between a name and a tower."""
    return collect_families(families.__path__, families.__name__)


def list_layouts() -> Mapping[str, tuple[type[Family], ...]]:
    """Return the families of every architecture that a config.json may name: of those that a family claims, and of
    those that are read as one of several others (`ORIGINALS`)."""
    claimed = list_families()
    originals = {name: tuple(claimed[each] for each in known) for name, known in ORIGINALS.items()}
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
        own = [
            value
            for value in vars(module).values()
            if isinstance(value, type) and issubclass(value, Family) and value.__module__ == module_name
        ]
        if not own:
            raise RuntimeError(f"family {module_name} declares no Family")
        for family in own:
            for architecture in family.architectures:
                if architecture in found:
                    other = found[architecture].__module__
                    raise RuntimeError(f"architecture {architecture} is claimed by both {other} and {module_name}")
                found[architecture] = family
    return found
