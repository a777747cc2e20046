"""Divides documents into pages, and videos into frames where the model takes pictures only. Decodes nothing."""

from __future__ import annotations

from dataclasses import replace

from seesay.config import MediaLimits, Transparency
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.document import open_document
from seesay.processors.media.open import DECODE_OPTIONS, check_transparency, open_media
from seesay.processors.media.video.frame_sampling import FrameSampling, fill_sampling_options
from seesay.processors.media.video.opened_video import LoadedVideo, Video
from seesay.processors.media.video.video_frame import split_video
from seesay.values import DocumentOptions, MediaPart, Modality, TextPart
from seesay.vl.family import Family

_PICTURES_OF_A_VIDEO = 8
"""Frames that are taken of a video for a model that takes pictures only, where neither request nor family say more."""
Parts = tuple[TextPart | MediaPart, ...]


class MediaSplitter:
    """Splits media for one family."""

    def __init__(self, family: Family, limits: MediaLimits, transparency: Transparency) -> None:
        self._family, self._limits, self._transparency = family, limits, transparency

    def splits(self, part: MediaPart) -> bool:
        """Return whether a part is replaced by others."""
        if part.modality is Modality.VIDEO:
            return self._family.splits_videos
        return part.modality is Modality.DOCUMENT

    def split(self, part: MediaPart, allowance: Allowance) -> Parts:
        """Return what stands for a part: itself, if it is not split. Reads or fetches it for that. Raises
        `RequestError`."""
        if not self.splits(part):
            return (part,)
        return (
            self._split_document(part, allowance)
            if part.modality is Modality.DOCUMENT
            else self._split_video(part, allowance)
        )

    def _split_document(self, part: MediaPart, allowance: Allowance) -> Parts:
        """Return the pictures of the pages of a document, each behind its number, and before its own text if that was
        asked for. A document of one page that has no name is its picture alone."""
        if Modality.IMAGE not in self._family.modalities:
            raise refuse_modality(self._family, part.modality)
        chosen, others = divide_options(part)
        options = DocumentOptions.checked(chosen)
        transparency = check_transparency(chosen.get("transparency", self._transparency))
        document = open_document(part.source, options, allowance, transparency=transparency)
        title = f"{options.filename}, " if options.filename else ""
        is_marked = bool(title) or document.num_pages > 1
        parts: list[TextPart | MediaPart] = []
        for page in document.pages:
            if is_marked:
                parts.append(TextPart(text=f"[{title}page {page.number} of {document.num_pages}]\n"))
            parts.append(replace(part, modality=Modality.IMAGE, source=page, options=others))
            if text := page.text.strip():
                parts.append(TextPart(text=f"\n[text of page {page.number}]\n{text}\n[end of the text]\n"))
        return tuple(parts)

    def _split_video(self, part: MediaPart, allowance: Allowance) -> Parts:
        limits = self._limits
        chosen, others = divide_options(part)
        self._family.check_frame_options(others)
        default = self._family.default_sampling or {"num_frames": _PICTURES_OF_A_VIDEO}
        chosen = dict(fill_sampling_options(chosen, default, limit=limits.max_frames))
        video = open_media(Modality.VIDEO, part.source, {"transparency": self._transparency, **chosen}, allowance)
        assert isinstance(video, Video)
        size = video.size()
        if size is None:
            video = LoadedVideo(video.frames(), FrameSampling.checked(limit=limits.max_frames))
            size = video.size()
        options = {**self._family.frame_options, **others}
        return tuple(
            replace(part, modality=Modality.IMAGE, source=frame, options=options) for frame in split_video(video, size)
        )


def refuse_modality(family: Family, modality: Modality) -> RequestError:
    """Return the error for media that a family does not take."""
    takes = ", ".join(m.value for m in family.modalities) or "no media"
    return RequestError(ErrorCode.INVALID_MEDIA, f"this model takes {takes}, not {modality.value} input", "messages")


def divide_options(part: MediaPart) -> tuple[dict[str, object], dict[str, object]]:
    """Return (the options of `part` that concern its decoding, the others)."""
    known = DECODE_OPTIONS[part.modality]
    chosen = {name: value for name, value in part.options.items() if name in known}
    return chosen, {name: value for name, value in part.options.items() if name not in known}
