"""LLaVA-NeXT (LLaVA-1.6) in its Transformers form: a newline ends each line of the tiles, without the padding around
the picture."""

from __future__ import annotations

from seesay.vl.any_resolution import NEWLINE, AnyResolutionFamily
from seesay.vl.arrangement import Rows, chain, end_lines
from seesay.vl.family import Features


class LlavaNext(AnyResolutionFamily):
    """Pictures."""

    architectures = ("LlavaNextForConditionalGeneration",)
    strategies = ("default",)
    processor = "LlavaNextImageProcessor"

    def arrange(self, whole: Rows, lines: Rows) -> Features:
        return {"rows": chain(whole, end_lines(lines, NEWLINE))}
