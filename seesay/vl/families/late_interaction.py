"""ColPali, ColQwen2 and ColQwen2.5 (arXiv 2407.01449): vectors for each token of questions and pages, of the hidden
states of a vision-language model."""

from __future__ import annotations

from seesay.values import Modality
from seesay.vl.bases.late_interaction import LateInteractionFamily, nest_weights
from seesay.vl.families.paligemma import PaliGemma
from seesay.vl.families.qwen2_5_vl import Qwen2_5VL
from seesay.vl.families.qwen2_vl import Qwen2VL
from seesay.vl.published import Published

_QWEN_PREFIXES = (
    "<|im_start|>user\n<|vision_start|><|image_pad|><|vision_end|>Describe the image.<|im_end|><|endoftext|>",
    "Query: ",
)


class ColPali(LateInteractionFamily, PaliGemma):
    """The picture comes first, as in PaliGemma."""

    architectures = ("ColPaliForRetrieval",)
    published = (Published(decoder="gemma", names=("vidore/colpali-v1.2-hf", "vidore/colpali-v1.3-hf")),)
    weights = nest_weights(PaliGemma.weights)
    default_prefixes = ("Describe the image.", "Question: ")
    page_ending = "\n"

    def place_page(self, prefix: str) -> str:
        return f"{self.markers[Modality.IMAGE]}{self._bos}{prefix}"

    def begin_query(self, prefix: str) -> str:
        return f"{self._bos}{prefix}"


class ColQwen2(LateInteractionFamily, Qwen2VL):
    """Positions are those of Qwen2-VL, as it was trained. Transformers 5.24 counts those of pictures like text's."""

    architectures = ("ColQwen2ForRetrieval",)
    published = (Published(decoder="qwen2_vl_text", names=("vidore/colqwen2-v1.0-hf",)),)
    weights = nest_weights(Qwen2VL.weights)
    default_prefixes = _QWEN_PREFIXES


class ColQwen25(LateInteractionFamily, Qwen2_5VL):
    """A ColQwen2 whose model is a Qwen2.5-VL."""

    architectures = ("ColQwen2_5ForRetrieval",)
    weights = nest_weights(Qwen2_5VL.weights)
    default_prefixes = _QWEN_PREFIXES
