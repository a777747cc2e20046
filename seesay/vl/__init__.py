"""The multimodal frontend: turns requests with pictures and videos into inputs of the language engine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from seesay.processors.media.load import load_image, load_video

__all__ = ["load_image", "load_video"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from seesay.processors.media import load as media

        return getattr(media, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
