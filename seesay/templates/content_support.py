"""Find out, by rendering small conversations, what a jinja chat template makes of texts, media and system messages, and
write the content of messages in the form that it takes.

Templates differ: some take content as a text, some as a list of parts; some move pictures to the front, or have no
place for a video.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from seesay.templates.chat import Markers, flatten
from seesay.templates.shield import Shield
from seesay.values import MediaPart, Message, Modality, TextPart

_PROBE, _SECOND = "probe 1d7f", "probe 2e80"


class ContentSupport:
    """Finds how one template writes content. What not all conversations ask for is found when it is first asked for.

    takes_strings: whether content may be a text.
    """

    def __init__(self, attempt: Callable[[list[dict[str, object]]], str | None]) -> None:
        """attempt: renders messages; None where the template refuses."""
        self._attempt = attempt
        as_list = attempt([{"role": "user", "content": [{"type": "text", "text": _PROBE}]}])
        as_string = attempt([{"role": "user", "content": _PROBE}])
        self._takes_lists = (
            as_list is not None and _PROBE in as_list and "'type'" not in as_list and '"type"' not in as_list
        )
        self.takes_strings = (as_string is not None and _PROBE in as_string) or not self._takes_lists

    def write(self, message: Message, shield: Shield, markers: Markers) -> object:
        """Return the content of a message in the form that the template takes, with its texts shielded."""
        if self._takes_as_list(message):
            media = [part for part in message.parts if isinstance(part, MediaPart)]
            inline = {id(part): markers[part.modality] for part in media if self._is_inline(part)}
            return _parts_as_json(message.parts, shield, inline)
        # A turn with tool calls only gets an empty text: most chat templates do not accept null.
        return flatten(message, write_media=lambda part: markers[part.modality], shield=shield)

    def _takes_as_list(self, message: Message) -> bool:
        if not self._takes_lists:
            return False
        has_several = len(message.parts) > 1 and message.role != "tool"  # results are seldom taken as lists
        has_media = any(isinstance(part, MediaPart) for part in message.parts)
        return has_media or has_several or not self.takes_strings

    def _is_inline(self, part: MediaPart) -> bool:
        """Return whether the marker of a medium is written into the text around it: of one that the user placed and the
        template would move, of a video where the template has places for pictures only, and of audio where it has
        none."""
        if part.modality is Modality.AUDIO:
            return (part.is_placed and self._moves_audio) or self._lacks_audio
        return (part.is_placed and self._moves_media) or (part.modality is Modality.VIDEO and self._lacks_videos)

    @cached_property
    def _moves_media(self) -> bool:
        """Whether the template moves a picture that stands between two texts, or has none: LLaVA's puts all first."""
        return self._moves(Modality.IMAGE)

    @cached_property
    def _moves_audio(self) -> bool:
        return self._moves(Modality.AUDIO)

    def _moves(self, kind: Modality) -> bool:
        without, given = self._try_media(None), self._try_media(kind)
        if without is None or given is None:
            return True
        between = [text.partition(_PROBE)[2].partition(_SECOND)[0] for text in (without, given)]
        return len(between[0]) >= len(between[1])

    @cached_property
    def _lacks_audio(self) -> bool:
        """Whether the template writes nothing for audio."""
        without = self._try_media(None)
        return without is not None and self._try_media(Modality.AUDIO) in (None, without)

    @cached_property
    def _lacks_videos(self) -> bool:
        """Whether the template writes something for a picture and nothing for a video, as SmolVLM2's does."""
        without, picture, video = (self._try_media(kind) for kind in (None, Modality.IMAGE, Modality.VIDEO))
        return without is not None and picture not in (None, without) and video == without

    def _try_media(self, kind: Modality | None) -> str | None:
        """Return what the template makes of two texts with nothing, a picture or a video between them."""
        media = [] if kind is None else [{"type": kind.value, kind.value: f"<{kind.value}>"}]
        first, second = ({"type": "text", "text": probe} for probe in (_PROBE, _SECOND))
        return self._attempt([{"role": "user", "content": [first, *media, second]}])

    @cached_property
    def brings_system(self) -> bool:
        """Whether the template writes a default instruction that a system message replaces."""
        user, system = self._plain("user", "a"), self._plain("system", _PROBE)
        alone, given = self._attempt([user]), self._attempt([system, user])
        if alone is None or given is None or _PROBE not in given:
            return False
        before, after = given.split(_PROBE, 1)
        # Without a default instruction, the prompt without a system message equals the prompt with one after the block
        # of the system message is cut out.
        return alone.startswith(before) and alone.endswith(after) and alone != before + after

    def _plain(self, role: str, text: str) -> dict[str, object]:
        return {"role": role, "content": text if self.takes_strings else [{"type": "text", "text": text}]}


def _parts_as_json(
    parts: Sequence[TextPart | MediaPart], shield: Shield, inline: Mapping[int, str]
) -> list[dict[str, Any]]:
    """Return the parts of a message. Media whose marker `inline` has, by id, are written into the text around them."""
    found: list[dict[str, Any]] = []
    joins = False
    for part in parts:
        is_inline = id(part) in inline
        if isinstance(part, MediaPart) and not is_inline:
            # Templates test the type or the key. None of them reads the value.
            kind = part.modality.value
            found.append({"type": kind, kind: f"<{kind}>"})
        else:
            text = inline[id(part)] if isinstance(part, MediaPart) else shield.cover(part.text)
            if found and found[-1]["type"] == "text" and (joins or is_inline):
                found[-1]["text"] += text
            else:
                found.append({"type": "text", "text": text})
        joins = is_inline
    return found
