"""The configuration of a model of texts with pictures that Transformers does not have."""

from __future__ import annotations

from typing import Any, ClassVar

from transformers import PretrainedConfig

from .configuration_orbit import OrbitConfig


class OrbitVLConfig(PretrainedConfig):  # type: ignore[misc, unused-ignore]
    """patch: pixels on each side of what becomes a row."""

    model_type = "orbit_vl"
    sub_configs: ClassVar = {"text_config": OrbitConfig}

    def __init__(
        self,
        text_config: OrbitConfig | dict[str, Any] | None = None,
        patch: int = 4,
        image_token_id: int = 0,
        **options: Any,
    ) -> None:
        given = text_config or {}
        self.text_config = OrbitConfig(**given) if isinstance(given, dict) else given
        self.patch, self.image_token_id = patch, image_token_id
        super().__init__(**options)
