"""Calibration data of a run: texts, conversations and pictures, the prompts made of them, their hidden states."""

from __future__ import annotations
