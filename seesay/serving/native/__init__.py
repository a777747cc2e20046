"""Routes that OpenAI and Anthropic do not have: LMDeploy's interactive chat, token ids in and out."""

from __future__ import annotations
