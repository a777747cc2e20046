"""Families from outside of this package: of installed packages, and of the files and modules that the process's owner
names. Loading one runs its code; a checkpoint or a request never names one.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from seesay.errors import ConfigError, describe
from seesay.vl.family import Family

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

logger = logging.getLogger("seesay")

ENTRY_POINTS = "seesay.families"
"""The group of entry points, each of which names a module with families."""
ModuleMap = Mapping[str, str] | str | os.PathLike[str]
"""Families by architecture ('package.module.Class'), or a Python file with them as MODULE_MAP or CUSTOM_MODULE_MAP."""
_FILE_MAPS = ("MODULE_MAP", "CUSTOM_MODULE_MAP")


@dataclass(frozen=True, slots=True)
class Plugin:
    """The families of one place, by the architectures that they claim. `origin` says where: "package NAME VERSION",
    "file PATH" or "module NAME"."""

    origin: str
    families: Mapping[str, type[Family]]


@dataclass(frozen=True, slots=True)
class BrokenPlugin:
    """A package whose families cannot be used, and why."""

    origin: str
    reason: str

    def __str__(self) -> str:
        return f"{self.origin}: {self.reason}"


@cache
def load_packages() -> tuple[tuple[Plugin, ...], tuple[BrokenPlugin, ...]]:
    """Import the families of all installed packages. One that fails is logged and returned as broken: models that need
    none of its families are served."""
    from importlib.metadata import entry_points

    found, broken = [], []
    for entry in sorted(entry_points(group=ENTRY_POINTS), key=lambda entry: (_origin_of(entry), entry.name)):
        origin = _origin_of(entry)
        try:
            if entry.attr:
                raise ValueError(f"entry point {entry.name!r} must name a module, got {entry.value!r}")
            found.append(Plugin(origin, collect_claims(importlib.import_module(entry.module))))
        except (Exception, SystemExit) as error:
            broken.append(BrokenPlugin(origin, describe(error)))
            logger.warning("the families of %s cannot be used: %s", origin, describe(error))
    return tuple(found), tuple(broken)


def load_named(plugins: Iterable[str | os.PathLike[str]], module_map: ModuleMap | None) -> tuple[Plugin, ...]:
    """Import the families that the process's owner names: `EngineConfig.plugins`, and last `custom_module_map`, which
    outranks them. Raises `ConfigError` naming the one at fault."""
    found: list[Plugin] = []
    claimed: dict[str, str] = {}
    for given in plugins:
        name = os.fspath(given)
        module = _import(name, f"plugins={name}")
        origin = f"module {name}" if _path_of(name) is None else f"file {module.__file__}"
        try:
            families = collect_claims(module)
        except ValueError as error:
            raise ConfigError(f"plugins={name}: {error}") from None
        for architecture in families:
            if architecture in claimed:
                raise ConfigError(
                    f"plugins: architecture {architecture} is claimed by both {claimed[architecture]} and {origin}: "
                    "give one of them"
                )
            claimed[architecture] = origin
        found.append(Plugin(origin, families))
    if module_map is not None:
        found.append(_read_map(module_map))
    return tuple(found)


def make_absolute(plugins: Iterable[str | os.PathLike[str]]) -> list[str]:
    """Return the plugins with absolute paths, for a process that may run in another folder."""
    return [str(_path_of(os.fspath(name)) or name) for name in plugins]


def collect_claims(module: ModuleType) -> dict[str, type[Family]]:
    """Return the families that a module declares, or a package in any of the modules that it has imported, by the
    architectures that they claim. Raises `ValueError` where there are none, or two claim the same."""
    prefix = f"{module.__name__}."
    own = [
        value
        for value in vars(module).values()
        if isinstance(value, type) and issubclass(value, Family) and f"{value.__module__}.".startswith(prefix)
    ]
    if not own:
        raise ValueError(f"{module.__name__} declares no Family")
    found: dict[str, type[Family]] = {}
    for family in dict.fromkeys(own):
        for architecture in getattr(family, "architectures", ()):
            if architecture in found:
                raise ValueError(
                    f"architecture {architecture} is claimed by both {found[architecture].__qualname__} and "
                    f"{family.__qualname__}"
                )
            found[architecture] = family
    return found


def _origin_of(entry: EntryPoint) -> str:
    return f"entry point {entry.name}" if entry.dist is None else f"package {entry.dist.name} {entry.dist.version}"


def _path_of(name: str) -> Path | None:
    """Return the path of a Python file; None for the name of a module."""
    is_file = name.endswith(".py") or os.sep in name
    return Path(os.path.abspath(Path(name).expanduser())) if is_file else None  # noqa: PTH100 - without `..`, links stay


def _import(name: str, where: str) -> ModuleType:
    """Import a module, or a Python file as one. Raises `ConfigError` that begins with `where`."""
    path = _path_of(name)
    if path is not None and not path.is_file():
        raise ConfigError(f"{where}: there is no such file: give the path of a Python file, or a module's name")
    try:
        return importlib.import_module(name) if path is None else _load_file(path, path.stat().st_mtime_ns)
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{where} cannot be imported: {describe(error)}") from error


@cache
def _load_file(path: Path, changed_ns: int) -> ModuleType:
    """Run a file as a module of its own name, anew where it has changed."""
    digest = blake2b(f"{path}:{changed_ns}".encode(), digest_size=6).hexdigest()
    name = f"seesay_plugin_{digest}.{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is not a Python file: its name must end with .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _read_map(given: ModuleMap) -> Plugin:
    """Return the families of a module map."""
    if isinstance(given, Mapping):
        return Plugin("custom_module_map", _find_classes(given, None))
    path = os.fspath(given)
    module = _import(path, f"custom_module_map: {path}")
    maps = [vars(module)[name] for name in _FILE_MAPS if name in vars(module)]
    if not maps or not all(isinstance(each, Mapping) for each in maps):
        raise ConfigError(
            f"custom_module_map: {path} has no dict MODULE_MAP; a file whose families declare their architectures "
            "is one for plugins="
        )
    entries = {name: value for each in maps for name, value in each.items()}
    return Plugin(f"file {module.__file__}", _find_classes(entries, module))


def _find_classes(entries: Mapping[str, object], module: ModuleType | None) -> dict[str, type[Family]]:
    """Return the family of each architecture of a module map, which is in the file `module` if it is in one."""
    return {str(name): _find_class(str(name), value, module) for name, value in entries.items()}


def _find_class(architecture: str, given: object, module: ModuleType | None) -> type[Family]:
    """Return the family that a module map has for an architecture: a name in its own file, or a dotted one."""
    where, found = f"custom_module_map: {architecture}", given
    if isinstance(given, str):
        outer, dot, name = given.rpartition(".")
        owner = _import(outer, f"{where}: {outer}") if dot else module
        if not hasattr(owner, name):
            raise ConfigError(f"{where}: there is no {given!r}: name a class as 'package.module.Class'")
        found = getattr(owner, name)
    if not (isinstance(found, type) and issubclass(found, Family)):
        raise ConfigError(
            f"{where}: {given!r} is not a Family (seesay.vl.family): modules that are written for another engine do "
            "not run here; docs/plugins.md says what a family is"
        )
    return found
