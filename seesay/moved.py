"""Names and modules of LMDeploy that have no counterpart here. Importing one raises an error that says what to use
instead."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of `typing`, whose import takes a third of that of the package
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType
    from typing import Any

_MODULES = {
    "seesay.api": "import pipeline, serve and client from seesay",
    "seesay.archs": "seesay recognizes a checkpoint by its config.json, and `seesay list` shows what it knows",
    "seesay.pytorch.config": "use seesay.EngineConfig; facts about a model are in its config.json",
    "seesay.serve.gradio.vl": "use `seesay serve gradio`, or seesay.serve.gradio.app.run",
    "seesay.serve.openai.protocol": "use seesay.serving.openai.protocol",
    "seesay.serve.proxy": "put a load balancer that checks /health in front of several `seesay serve api_server`",
    "seesay.serve.vl_async_engine": "use seesay.AsyncEngine, which takes pictures, too",
    "seesay.tokenizer": "use the `tokenizer` of a pipeline or of seesay.AsyncEngine",
}


def advise(module: str, advice: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a `__getattr__` for `module` that raises ImportError with advice for the names in `advice`."""

    def get(name: str) -> Any:
        if name in advice:
            raise ImportError(_explain(f"{module}.{name}", advice[name]))
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    return get


class ModuleAdvice:
    """Finds no module. Asked last, for modules that are not there, it says what to use instead of LMDeploy's."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        del path, target
        if fullname in _MODULES:
            raise ModuleNotFoundError(_explain(fullname, _MODULES[fullname]), name=fullname)
        return None


def install_advice() -> None:
    """Let the import system ask `ModuleAdvice` after all other finders."""
    if not any(isinstance(finder, ModuleAdvice) for finder in sys.meta_path):
        sys.meta_path.append(ModuleAdvice())


def _explain(name: str, advice: str) -> str:
    return f"{name} is LMDeploy's and not part of seesay: {advice}"
