"""Options that a request gives for all of its pictures and videos: `mm_processor_kwargs` and `media_io_kwargs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from seesay.errors import show
from seesay.serving.errors import bad_request
from seesay.values import MediaPart, MediaPlace, Message, Modality

if TYPE_CHECKING:
    from seesay.vl.family import Family

_FRAME_COUNTS = frozenset({"fps", "num_frames", "nframes"})  # exclude each other


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaOptions:
    """Options by modality, and the field of the request that has each: errors name it."""

    values: Mapping[Modality, Mapping[str, Any]] = field(default_factory=dict)
    places: Mapping[Modality, Mapping[str, str]] = field(default_factory=dict)

    def fill(self, part: MediaPart) -> MediaPart:
        """Return the part with the options that it does not have itself."""
        given = set(part.options)
        if given & _FRAME_COUNTS:
            given |= _FRAME_COUNTS
        added = {name: value for name, value in self.values.get(part.modality, {}).items() if name not in given}
        if not added:
            return part
        place = part.place or MediaPlace(source="messages")
        fields = {name: self.places[part.modality][name] for name in added}
        return replace(part, options={**part.options, **added}, place=replace(place, fields=fields))

    def fill_messages(self, messages: Sequence[Message]) -> tuple[Message, ...]:
        """Return the messages with the options filled into their pictures and videos."""
        if not self.values:
            return tuple(messages)
        return tuple(
            replace(m, parts=tuple(self.fill(part) if isinstance(part, MediaPart) else part for part in m.parts))
            for m in messages
        )


NO_OPTIONS = MediaOptions()


def read_media_options(
    family: Family,
    processor: Mapping[str, object] | None,
    loading: Mapping[str, object] | None = None,
    *,
    single: Mapping[str, object] | None = None,
) -> MediaOptions:
    """Return the options of a request. `processor` is `mm_processor_kwargs`: an option applies to each modality that
    has it. `single` are options that are fields themselves. `loading` is `media_io_kwargs`: options by modality. Raises
    `ApiError` 400 that names an option that no picture or video of this model has."""
    if not processor and not loading and not single:
        return NO_OPTIONS
    known = {modality: family.option_names(modality) for modality in Modality}
    found = _Found()
    found.add_all(known, processor or {}, "mm_processor_kwargs.")
    found.add_all(known, single or {}, "")
    for kind, options in (loading or {}).items():
        found.add_object(known, kind, options)
    return MediaOptions(values=found.values, places=found.places)


class _Found:
    """The options read so far."""

    def __init__(self) -> None:
        self.values: dict[Modality, dict[str, Any]] = {}
        self.places: dict[Modality, dict[str, str]] = {}

    def add_object(self, known: Mapping[Modality, frozenset[str]], kind: str, options: object) -> None:
        """Add the options of `media_io_kwargs` for one modality."""
        place = f"media_io_kwargs.{kind[:60]}"
        if kind not in list(Modality):
            raise bad_request(f"{place} is unknown; known are: {', '.join(Modality)}", place)
        if not isinstance(options, dict):
            raise bad_request(f"{place} must be an object, got {show(options)}", place)
        self.add_all({Modality(kind): known[Modality(kind)]}, options, f"{place}.")

    def add_all(self, known: Mapping[Modality, frozenset[str]], options: Mapping[str, object], prefix: str) -> None:
        """Add options, whose places begin with `prefix`."""
        for name, value in options.items():
            self.add(known, name, value, f"{prefix}{name[:60]}")

    def add(self, known: Mapping[Modality, frozenset[str]], name: str, value: object, place: str) -> None:
        """Add an option to the modalities that have it. A later field wins."""
        modalities = [modality for modality, names in known.items() if name in names]
        if not modalities:
            names = ", ".join(sorted(frozenset().union(*known.values()))) or "none"
            raise bad_request(f"{place} is unknown to this model; known are: {names}", place)
        for modality in modalities:
            self.values.setdefault(modality, {})[name] = value
            self.places.setdefault(modality, {})[name] = place
