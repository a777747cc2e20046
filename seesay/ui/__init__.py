"""The WebUI. It talks to a server over HTTP, and imports no other part of the package than the client.
Importing this package does not import Gradio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.ui.app import run_local, run_webui

__all__ = ["run_local", "run_webui"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from seesay.ui import app

    return getattr(app, name)
