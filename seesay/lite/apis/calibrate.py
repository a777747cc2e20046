"""LMDeploy's import path of `calibrate`."""

from __future__ import annotations

from seesay.lite.api import calibrate

__all__ = ["calibrate"]
