"""A picture that was read or fetched: its size from its header, then its pixels, from one opening of the content."""

from __future__ import annotations

from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
from PIL import Image

from seesay.config import MediaLimits, Transparency
from seesay.processors.media.decoded import make_decoded
from seesay.processors.media.pillow import check_size, image_of_array, open_image, to_rgb, upright_size
from seesay.system.hashing import digest
from seesay.values import DecodedMedia, MediaSize, Modality

PictureContent: TypeAlias = "bytes | Image.Image | npt.NDArray[np.uint8]"


class Picture:
    """One picture: an encoded file as bytes, a PIL image, or a uint8 array [H, W, 3].

    Nothing is parsed before `size` or the pixels are asked for. `name` is what messages call the picture;
    `transparency` says what transparent parts become. All methods raise `RequestError` for content that is damaged or
    beyond `limits`, and may be called from any thread.
    """

    modality = Modality.IMAGE

    def __init__(
        self, content: PictureContent, *, limits: MediaLimits, name: str, transparency: Transparency = "white"
    ) -> None:
        self._content = content
        self._limits = limits
        self._name = name
        self._transparency = transparency
        self._header: Image.Image | None = None  # the encoded content, opened and not decoded
        self._size: MediaSize | None = None

    def size(self) -> MediaSize:
        """Return the size of the upright picture. Decodes nothing."""
        if self._size is None:
            self._size = self._read_size()
        return self._size

    def decode(self) -> DecodedMedia:
        """Return the pixels as one frame, in memory of its own."""
        pixels = self.pixels()
        owned = pixels.copy(order="C") if pixels is self._content else pixels
        return make_decoded(self.modality, owned[None])

    def pixels(self) -> npt.NDArray[np.uint8]:
        """Return the pixels uint8 [H, W, 3]: the array itself, if the content is one. May be read-only."""
        return self._content if isinstance(self._content, np.ndarray) else np.asarray(self.to_image())

    def to_image(self) -> Image.Image:
        """Return the picture as an upright RGB image: the image itself, if it is both already."""
        if isinstance(self._content, Image.Image):
            image = self._content
        elif isinstance(self._content, np.ndarray):
            image = image_of_array(self._content)
        else:
            image, self._header = self._header or open_image(self._content, self._name), None  # decoding fills it
        return to_rgb(image, self._limits, self._name, transparency=self._transparency)

    @property
    def file(self) -> bytes | None:
        """The encoded file; None for pixels."""
        return self._content if isinstance(self._content, bytes) else None

    @cached_property
    def content_key(self) -> bytes | None:
        """A hash of the encoded content and of how it is decoded. None for content that is decoded already, which its
        owner may change."""
        if not isinstance(self._content, bytes):
            return None
        return digest(b"picture", self._content, self._transparency.encode())

    @property
    def identity(self) -> tuple[object, ...]:
        """Equal for pictures of the very same object, as long as one of them exists."""
        return id(self._content), self._transparency

    def _read_size(self) -> MediaSize:
        if isinstance(self._content, np.ndarray):
            height, width = self._content.shape[:2]
            check_size((width, height), self._limits, self._name)
        else:
            image = self._content
            if isinstance(image, bytes):
                image = self._header = open_image(image, self._name)
            height, width = upright_size(image, self._limits, self._name)
        return MediaSize(num_frames=1, height=height, width=width)
