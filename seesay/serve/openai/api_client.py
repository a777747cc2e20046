"""The client under the module name that LMDeploy has for it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from seesay.moved import advise
from seesay.serving.client import APIClient

__all__ = ["APIClient"]

if not TYPE_CHECKING:
    __getattr__ = advise(__name__, {"get_model_list": "use APIClient(url).available_models"})
