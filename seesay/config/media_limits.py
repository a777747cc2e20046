"""Limits on the size and the sources of pictures, videos and audio."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seesay.config.checks import check_types, require

_HOST = re.compile(r"(\*\.)?[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?(\.[a-z0-9_]([a-z0-9_-]*[a-z0-9_])?)*")


@dataclass(frozen=True, kw_only=True)
class MediaLimits:
    """Limits on the size and the sources of a request's media. They are checked before anything is decoded.

    Sources:
    allow_local_paths: read local paths and file:// URLs. For scripts; servers turn it off.
    allowed_local_media_path: a folder. Only files in it are read, after symbolic links are resolved; replaces
        `allow_local_paths`.
    allow_private_hosts: fetch from addresses that are not globally routable.
    allowed_media_domains: the only hosts of http(s) URLs and of their redirects. "example.com" is that host only,
        "*.example.com" all of its subdomains.

    One picture or video: `max_bytes` as sent, `max_pixels` in a picture or frame, `max_frames` taken from a video of at
    most `max_duration_s`. Frames with more than `max_clip_pixels` in total are scaled down while they are decoded.

    One request: `max_items` pictures, videos, audios and pages of documents, `max_total_bytes` as sent,
    `max_total_pixels` in pictures and in the frames that are taken, `max_decoded_pixels` in all frames that must be
    decoded for those, `max_audio_s` seconds of audio, `max_document_s` seconds of processor time to open and draw
    documents, and `timeout_s` seconds until all of them are fetched, including redirects.
    """

    max_bytes: int = 256 << 20
    max_pixels: int = 178_956_970
    max_clip_pixels: int = 4 * 178_956_970
    max_frames: int = 768
    max_duration_s: float = 3600.0
    max_items: int = 1024
    max_total_bytes: int = 1 << 30
    max_total_pixels: int = 8 * 178_956_970
    max_decoded_pixels: int = 1_000_000_000_000
    max_audio_s: float = 3600.0
    max_document_s: float = 600.0
    timeout_s: float = 30.0
    max_redirects: int = 3
    allow_local_paths: bool = True
    allowed_local_media_path: str | os.PathLike[str] | None = None
    allow_private_hosts: bool = False
    allowed_media_domains: Sequence[str] | None = None

    @classmethod
    def for_server(cls, **changes: Any) -> MediaLimits:
        """Return the default limits of a server: no local files, and lower limits. `changes` replace fields."""
        return cls(
            **{
                "allow_local_paths": False,
                "max_bytes": 64 << 20,
                "max_pixels": 64_000_000,
                "max_clip_pixels": 256_000_000,
                "max_items": 64,
                "max_total_bytes": 128 << 20,
                "max_total_pixels": 512_000_000,
                "max_decoded_pixels": 200_000_000_000,
                "max_document_s": 60.0,
                **changes,
            }
        )

    def __post_init__(self) -> None:
        check_types(self)
        for name in (
            "max_bytes", "max_pixels", "max_clip_pixels", "max_frames", "max_items", "max_total_bytes",
            "max_total_pixels", "max_decoded_pixels",
        ):  # fmt: skip
            require(getattr(self, name) >= 1, name, getattr(self, name), "must be at least 1")
        for name in ("max_duration_s", "max_audio_s", "max_document_s", "timeout_s"):
            require(getattr(self, name) > 0, name, getattr(self, name), "must be above 0")
        require(self.max_redirects >= 0, "max_redirects", self.max_redirects, "must be at least 0")
        folder = self.allowed_local_media_path
        is_folder = folder is None or (bool(folder) and Path(folder).is_dir())
        require(is_folder, "allowed_local_media_path", folder, "must be an existing folder")
        domains = self.allowed_media_domains
        is_list = domains is None or all(map(_is_host, domains))
        need = "must be a list of host names such as 'example.com' or '*.example.com', without scheme, port or path"
        require(is_list, "allowed_media_domains", domains, need)


def _is_host(name: str) -> bool:
    """Return whether `name` is a host name, with an optional `*.` prefix, or an IP address."""
    if _HOST.fullmatch(name.lower().rstrip(".")):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
