"""What the reference models share: a decoder of Transformers with rows of pictures in its prompt.

References are written from papers, published configurations and shapes, for models that Transformers does not have.
They compute one picture after another, and use nothing of the package.
"""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

Json = dict[str, Any]


class VisionLanguage(nn.Module):
    """`llm` is a causal model of Transformers. Subclasses compute the rows of all pictures of a prompt."""

    llm: Any

    def __init__(self, config: Json) -> None:
        super().__init__()
        self.config = SimpleNamespace(tie_word_embeddings=bool(config.get("tie_word_embeddings", False)))

    @classmethod
    def load(cls, path: Path) -> VisionLanguage:
        model = cls(json.loads((path / "config.json").read_text()))
        model.load_state_dict(load_file(path / "model.safetensors"))
        return model.eval()

    def save(self, path: Path) -> None:
        state = {name: tensor.contiguous() for name, tensor in self.state_dict().items()}
        save_file(state, path / "model.safetensors", metadata={"format": "pt"})

    @property
    def model(self) -> Any:
        return SimpleNamespace(language_model=self.llm.model)

    @property
    def lm_head(self) -> Any:
        return self.llm.lm_head

    def get_input_embeddings(self) -> Any:
        return self.llm.get_input_embeddings()

    def embed(self, input_ids: Tensor) -> Tensor:
        embeddings: Tensor = self.get_input_embeddings()(input_ids)
        return embeddings.clone()

    def make_rows(self, **media: Any) -> Tensor:
        """Return the rows [R, size] of all pictures of a prompt."""
        raise NotImplementedError

    def splice(self, input_ids: Tensor, is_row: Tensor | None = None, **media: Any) -> Tensor:
        embeddings = self.embed(input_ids)
        if is_row is not None:
            own = {name: x.to(embeddings) if x.is_floating_point() else x for name, x in media.items()}
            embeddings[is_row] = self.make_rows(**own).to(embeddings)
        return embeddings

    def forward(self, input_ids: Tensor, **media: Any) -> Any:
        return self.llm(inputs_embeds=self.splice(input_ids, **media))

    def generate(self, input_ids: Tensor, **inputs: Any) -> Tensor:
        media = {name: inputs.pop(name) for name in [*inputs] if isinstance(inputs[name], Tensor)}
        embeddings = self.splice(input_ids, **media)
        mask = torch.ones_like(input_ids)
        new = self.llm.generate(inputs_embeds=embeddings, attention_mask=mask, **inputs)
        return torch.cat((input_ids, new), dim=1)


class Inputs(dict[str, Any]):
    """The inputs of a reference model."""

    def to(self, device: Any) -> Inputs:
        return Inputs({name: value.to(device) for name, value in self.items()})


class Processor:
    """Subclasses turn a text with markers and pictures into `Inputs`."""

    def __init__(self, path: Path) -> None:
        from transformers import PreTrainedTokenizerFast

        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(str(path))
        nested = json.loads((path / "processor_config.json").read_text())
        self.settings: Json = nested["image_processor"]

    def apply_chat_template(self, messages: Any, **options: Any) -> Any:
        return self.tokenizer.apply_chat_template(messages, **options)


def read_picture(image: Any) -> Tensor:
    """Return a PIL picture as uint8 [3, H, W]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)


def scale(picture: Tensor, size: tuple[int, int], mode: str) -> Tensor:
    """Resize uint8 [3, H, W] as Pillow does: each published processor gives it a PIL picture."""
    image = Image.fromarray(picture.permute(1, 2, 0).numpy())
    return read_picture(image.resize(size[::-1], Image.Resampling[mode.upper()]))
