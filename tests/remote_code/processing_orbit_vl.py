"""The processor of a model that Transformers does not have: pictures become squares of 12 pixels, in nine patches."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import torch
from transformers import BatchFeature, ProcessorMixin
from transformers.image_processing_utils import BaseImageProcessor

SIDE, PATCH = 12, 4


class OrbitVLImageProcessor(BaseImageProcessor):  # type: ignore[misc, unused-ignore]
    model_input_names: ClassVar = ["pixel_values"]

    def preprocess(self, images: Any, **options: Any) -> BatchFeature:
        made = []
        for image in images:
            pixels = np.asarray(image.convert("RGB").resize((SIDE, SIDE)), dtype=np.float32) / 127.5 - 1
            grid = pixels.reshape(SIDE // PATCH, PATCH, SIDE // PATCH, PATCH, 3).transpose(0, 2, 1, 3, 4)
            made.append(torch.from_numpy(np.ascontiguousarray(grid)).reshape(-1, 3 * PATCH**2))
        return BatchFeature({"pixel_values": torch.stack(made)})


class OrbitVLProcessor(ProcessorMixin):  # type: ignore[misc, unused-ignore]
    attributes: ClassVar = ["image_processor", "tokenizer"]
    image_processor_class = "AutoImageProcessor"
    tokenizer_class = "AutoTokenizer"

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: Any = None, **_: Any) -> None:
        super().__init__(image_processor, tokenizer, chat_template=chat_template)
        self.image_token = "<image>"
        self.image_token_id = tokenizer.convert_tokens_to_ids(self.image_token)

    def __call__(self, text: Any = None, images: Any = None, **options: Any) -> BatchFeature:
        texts = [text] if isinstance(text, str) else list(text)
        row = self.image_token * (SIDE // PATCH) ** 2
        encoded = self.tokenizer([each.replace(self.image_token, row) for each in texts], **options)
        pixels = self.image_processor.preprocess(images) if images else {}
        return BatchFeature({**encoded, **pixels})
