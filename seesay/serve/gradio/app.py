"""The WebUI for a model or a server, under the module name that LMDeploy has for it."""

from __future__ import annotations

from seesay.ui.app import run_webui as run

__all__ = ["run"]
