"""Routes that neither OpenAI nor Anthropic have: LMDeploy's interactive chat, token ids in and out."""

from __future__ import annotations
