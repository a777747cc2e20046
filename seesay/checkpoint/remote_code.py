"""Python beside the weights of a model: found by `auto_map` in config.json, and run only where that is allowed."""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seesay.errors import CheckpointError

CONFIG = "AutoConfig"
WITH_PICTURES = ("AutoModelForImageTextToText", "AutoModelForVision2Seq")
_MODELS = (*WITH_PICTURES, "AutoModelForCausalLM", "AutoModel")
"""The names of `auto_map` for models that write text, the most specific first."""
_REFERENCE = re.compile(r"(?:[\w.-]+/[\w.-]+--)?([A-Za-z_]\w*)\.([A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCode:
    """The code in `folder`. classes: "module.Class" by the names of Transformers' auto classes. model: the name of the
    one that makes the model. takes_pictures: whether it is a model of texts with pictures. Nothing runs before
    `load_class`."""

    folder: Path
    classes: Mapping[str, str]
    model: str
    takes_pictures: bool

    @classmethod
    def find(cls, folder: Path, config: Mapping[str, object]) -> RemoteCode | None:
        """Return the code that `config`, the content of config.json, names for a model; None if it names none. Raises
        `CheckpointError` for a name that is not 'file.Class' of a file in the folder."""
        found = config.get("auto_map")
        if not isinstance(found, Mapping) or not any(name in found for name in _MODELS):
            return None
        classes = {name: _read_reference(folder, name, found[name]) for name in (CONFIG, *_MODELS) if name in found}
        model = next(name for name in _MODELS if name in classes)
        takes_pictures = model in WITH_PICTURES or isinstance(config.get("vision_config"), Mapping)
        return cls(folder=folder, classes=classes, model=model, takes_pictures=takes_pictures)

    @property
    def architecture(self) -> str:
        """The name of the model's class."""
        return self.classes[self.model].rpartition(".")[2]

    @property
    def files(self) -> str:
        """The files that would be run, for messages."""
        return ", ".join(sorted({f"{reference.partition('.')[0]}.py" for reference in self.classes.values()}))

    def load_class(self, name: str) -> type[Any]:
        """Run the folder's code, and return its class for this auto class. Raises `CheckpointError` where its file is
        missing, fails, or has no such class."""
        from transformers.dynamic_module_utils import get_class_from_dynamic_module, init_hf_modules
        from transformers.utils import HF_MODULES_CACHE

        reference = self.classes[name]
        file = self.folder / f"{reference.partition('.')[0]}.py"
        if not file.is_file():
            raise CheckpointError(f"{file}: config.json's auto_map names {reference}, and there is no such file here")
        try:
            init_hf_modules()
            with _locked(HF_MODULES_CACHE):
                found: type[Any] = get_class_from_dynamic_module(reference, str(self.folder), local_files_only=True)
        except Exception as error:  # it is anybody's code
            raise CheckpointError(f"{file}: {reference} cannot be loaded: {type(error).__name__}: {error}") from error
        return found


@contextmanager
def _locked(folder: str) -> Iterator[None]:
    """Let one process at a time copy code into Transformers' folder of modules, and import it from there."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _read_reference(folder: Path, name: str, value: object) -> str:
    """Return "module.Class" of an entry `name` of auto_map."""
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise CheckpointError(
            f"{folder / 'config.json'}: auto_map.{name} must be 'file.Class', got {str(value)[:80]!r}"
        )
    return f"{match[1]}.{match[2]}"
