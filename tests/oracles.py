"""The models that families are compared with: Transformers', or the references of what it does not have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from enrolment import reference_of


def load_oracle(path: Path, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """Return the model and the processor of the vision-language checkpoint `path`."""
    path = reference_of(path)
    config = json.loads((path / "config.json").read_text())
    architecture = config["architectures"][0]
    if architecture == "MiniCPMV":
        from reference.minicpmv import MiniCPMV, MiniCPMVProcessor

        return MiniCPMV.load(path).to(dtype), MiniCPMVProcessor(path, version=config.get("version", 2.5))
    if architecture == "Phi3VForCausalLM":
        from reference.phi3_v import Phi3V, Phi3VProcessor

        return Phi3V.load(path).to(dtype), Phi3VProcessor(path, tile=config["vision_config"]["image_size"])
    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(path, dtype=dtype).eval()
    return model, AutoProcessor.from_pretrained(path)
