"""Chat templates: render a conversation into the text format that a model was trained on."""

from __future__ import annotations

from seesay.templates.builtin import names, register
from seesay.templates.chat import ChatTemplate
from seesay.templates.choose import as_config, as_portable, as_template, check_choice, choose_template
from seesay.templates.jinja import JinjaTemplate
from seesay.templates.pieces import Pieces, PiecesTemplate

__all__ = [
    "ChatTemplate",
    "JinjaTemplate",
    "Pieces",
    "PiecesTemplate",
    "as_config",
    "as_portable",
    "as_template",
    "check_choice",
    "choose_template",
    "names",
    "register",
]
