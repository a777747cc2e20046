"""PDFs and TIFFs for tests: small, valid, and of known texts; and damaged copies of them."""

from __future__ import annotations

import io
import random
import zlib
from collections.abc import Sequence

from PIL import Image

LETTER = (612, 792)


def make_pdf(
    pages: Sequence[str], *, size: tuple[float, float] = LETTER, compress: bool = False, extra: str = "", font: int = 24
) -> bytes:
    """A PDF with a page of `size` (width, height) in points for each text, in lines. `extra`: more of the catalog."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        f"<< /Type /Catalog /Pages 2 0 R {extra} >>".encode(),
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        lines = "".join(f"({escape(line)}) Tj 0 {-1.2 * font} Td " for line in text.split("\n"))
        content = f"BT /F1 {font} Tf 40 {size[1] - 2 * font} Td {lines}ET".encode("latin-1")
        box = f"/MediaBox [0 0 {size[0]} {size[1]}]"
        resources = "/Resources << /Font << /F1 3 0 R >> >>"
        objects.append(f"<< /Type /Page /Parent 2 0 R {box} {resources} /Contents {5 + 2 * index} 0 R >>".encode())
        objects.append(make_stream(content, compress=compress))
    return join_objects(objects)


def escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace("(", "\\(").replace(")", "\\)")


def make_stream(content: bytes, *, compress: bool = False, extra: str = "") -> bytes:
    """A stream object."""
    if compress:
        content, extra = zlib.compress(content), f"/Filter /FlateDecode {extra}"
    return f"<< /Length {len(content)} {extra} >>\nstream\n".encode() + content + b"\nendstream"


def join_objects(objects: Sequence[bytes], *, trailer: str = "") -> bytes:
    """A PDF of these objects, the first of which is its catalog."""
    data = bytearray(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, content in enumerate(objects, 1):
        offsets.append(len(data))
        data += f"{number} 0 obj\n".encode() + content + b"\nendobj\n"
    start = len(data)
    data += f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode()
    data += b"".join(b"%010d 00000 n \n" % offset for offset in offsets)
    data += f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode()
    return bytes(data)


def make_tiff(sizes: Sequence[tuple[int, int]]) -> bytes:
    """A TIFF with a page of each size (width, height), each of another grey."""
    images = [Image.new("RGB", size, (20 * index, 0, 255)) for index, size in enumerate(sizes)]
    file = io.BytesIO()
    images[0].save(file, format="TIFF", save_all=True, append_images=images[1:])
    return file.getvalue()


def damage(data: bytes, seed: int) -> bytes:
    """A copy with a few bytes changed, cut out, doubled or cut off, or with other numbers."""
    rng = random.Random(seed)
    result = bytearray(data)
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(len(result)) if result else 0
        match rng.randrange(6):
            case 0:
                result[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                del result[at : at + rng.randint(1, 40)]
            case 2:
                result[at:at] = result[at : at + rng.randint(1, 200)]
            case 3:
                result[at : at + 4] = rng.choice([b"9999", b"-1  ", b"0 0 ", b"\xff" * 4, b"1e99"])
            case 4:
                result[at : at + 8] = rng.randbytes(8)
            case 5 if rng.random() < 0.2:
                del result[at:]
    return bytes(result)
