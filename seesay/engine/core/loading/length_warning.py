"""Warn of a context that is longer than what a model was trained for."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.config import EngineConfig
    from seesay.vl.family import Backbone

logger = logging.getLogger("seesay")


def warn_beyond_training(config: EngineConfig, backbone: Backbone) -> None:
    """Log the setting that is missing for texts of `session_len` tokens, if they are longer than the model knows."""
    if config.session_len is None or getattr(backbone.text_config, "max_position_embeddings", None) is None:
        return
    from seesay.llm.models.configs.rope_parameters import (
        can_scale_dynamically,
        find_covered_length,
        find_trained_length,
    )

    session_len, trained = config.session_len, find_trained_length(backbone.text_config)
    covered = find_covered_length(backbone.text_config)
    if session_len > covered and not config.rope_scaling_factor:
        scales = backbone.is_ours and can_scale_dynamically(backbone.text_config)
        beyond = "" if covered == trained else f" ({covered} with the rotary scaling of its config.json)"
        logger.warning(
            "session_len=%d is more than the %d positions that the model was trained for%s: answers beyond them are "
            "seldom good; set %swith hf_overrides a rotary scaling that the model's authors publish "
            "(docs/long_context.md)",
            session_len,
            trained,
            beyond,
            f"rope_scaling_factor={float(-(-session_len // trained))} (dynamic NTK), or " if scales else "",
        )
