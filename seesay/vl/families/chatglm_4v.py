"""GLM-4V (arXiv 2406.12793): pictures of one size through CogVLM's EVA-CLIP, of whose rows four are joined to one."""

from __future__ import annotations

from dataclasses import replace

from seesay.checkpoint import Checkpoint
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import Expansion, Modality
from seesay.vl.bases.eva_clip import EVA_CLIP_TOWER, EvaClipFamily, name_eva_clip
from seesay.vl.families.chatglm import ChatGLM
from seesay.vl.family import Features, make_expansion
from seesay.vl.published import Published

_START, _PLACE, _END = "<|begin_of_image|>", "<|endoftext|>", "<|end_of_image|>"


class OriginalGlm4V(EvaClipFamily):
    architectures = ("ChatGLMModel/clip_vision_model",)
    published = (Published(decoder="glm", names=("THUDM/glm-4v-9b",)),)
    weights = replace(ChatGLM.weights, tower=name_eva_clip("transformer.vision."), tower_patterns=EVA_CLIP_TOWER)

    def __init__(self, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
        super().__init__(checkpoint, tokenizer)
        self._ends = self.token_id(_START), self.token_id(_END)

    def find_placeholder(self, modality: Modality) -> tuple[int, str]:
        return self.token_id(_PLACE), _START + _PLACE + _END

    def expand(self, modality: Modality, measures: Features) -> Expansion:
        """All tokens take rows, also those before and behind the picture."""
        start, end = self._ends
        return make_expansion(([start, *[self.image_token] * self.num_rows, end], True))
