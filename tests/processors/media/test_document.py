from __future__ import annotations

import gc
import io
import os
import zlib
from pathlib import Path

import pytest
from pdfs import LETTER, damage, join_objects, make_pdf, make_stream, make_tiff
from PIL import Image, ImageChops

from seesay import MediaLimits, load_document
from seesay.errors import ErrorCode, RequestError
from seesay.processors.media.allowance import Allowance
from seesay.processors.media.document import open_document
from seesay.processors.media.document_process import DOCUMENT_PROCESS, DocumentProcess
from seesay.system.cancellation import Cancellation
from seesay.values import DocumentOptions
from seesay.values.documents import parse_pages

THREE = make_pdf(["Hello one\nsecond line", "Page two", "third"])


def refusal(source: object, **options: object) -> RequestError:
    with pytest.raises(RequestError) as caught:
        load_document(source, **options)  # type: ignore[arg-type]
    return caught.value


def test_pages_are_pictures_of_their_size_with_what_they_show() -> None:
    first, second, _ = load_document(THREE, dpi=72)
    assert (first.number, first.image.size, first.image.mode, first.text) == (1, LETTER, "RGB", "")
    assert first.image.getpixel((5, 5)) == (255, 255, 255)
    ink = ImageChops.invert(first.image.convert("L")).getbbox()
    assert ink is not None and 38 <= ink[0] <= 44 and 25 <= ink[1] <= 50 and ink[3] <= 90  # two lines at the top
    assert ImageChops.difference(first.image, second.image).getbbox() is not None


def test_dots_per_inch_scale_the_pictures() -> None:
    [page] = load_document(THREE, pages=2, dpi=150)
    assert (page.number, page.image.size) == (2, (1275, 1650))


def test_the_text_of_a_page_is_given_if_asked_for() -> None:
    pages = load_document(THREE, text_layer="auto", dpi=36)
    assert [page.text for page in pages] == ["Hello one\nsecond line", "Page two", "third"]


@pytest.mark.parametrize(
    ("pages", "numbers"),
    [("1-3", [1, 2, 3]), ("3,1", [3, 1]), ("2-", [2, 3]), (" 1 , 3 ", [1, 3]), (3, [3]), (None, [1, 2, 3])],
)
def test_pages_are_chosen_by_number_and_range(pages: str | int | None, numbers: list[int]) -> None:
    assert [page.number for page in load_document(THREE, pages=pages, dpi=18)] == numbers


@pytest.mark.parametrize(
    "pages", ["", "0", "3-1", "1,,2", "a", "1-2-3", "-2", "12345678", True, 1.5, "1" + ",1" * 1024]
)
def test_what_names_no_pages_is_refused(pages: object) -> None:
    with pytest.raises(RequestError) as caught:
        parse_pages(pages)
    assert caught.value.param == "pages" and "'1-3,7'" in caught.value.message


def test_a_page_that_there_is_not_is_refused() -> None:
    error = refusal(THREE, pages="2-4")
    assert error.param == "pages" and "has 3 pages, and no page 4" in error.message


@pytest.mark.parametrize(("option", "value"), [("dpi", 5), ("dpi", 72.5), ("dpi", True), ("text_layer", "only")])
def test_options_are_checked(option: str, value: object) -> None:
    assert refusal(THREE, **{option: value}).param == option


def test_a_tiff_of_several_pages_is_a_document() -> None:
    pages = load_document(make_tiff([(40, 30), (41, 31)]))
    assert [(page.number, page.image.size, page.image.getpixel((3, 3))) for page in pages] == [
        (1, (40, 30), (0, 0, 255)),
        (2, (41, 31), (20, 0, 255)),
    ]


def test_a_turned_page_of_a_tiff_is_upright() -> None:
    file = io.BytesIO()
    image = Image.new("RGB", (40, 20), (255, 0, 0))
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(file, format="TIFF", exif=exif)
    [page] = load_document(file.getvalue())
    assert page.image.size == (20, 40)


def test_a_turned_page_of_a_pdf_is_upright() -> None:
    turned = THREE.replace(b"/Type /Page /Parent", b"/Rotate 90 /Type /Page /Parent")
    assert load_document(turned, pages=1, dpi=72)[0].image.size == LETTER[::-1]


def test_fields_that_are_filled_in_are_drawn() -> None:
    field = (
        "<< /Type /Annot /Subtype /Widget /FT /Tx /T (a) /V (XXXXXXXXXX) /Rect [100 100 400 140] /DA (/F1 24 Tf 0 g) "
        "/F 4 /P 4 0 R /MK << /BG [1 0 0] >> >>"
    )
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R /AcroForm << /Fields [6 0 R] /NeedAppearances true "
        b"/DR << /Font << /F1 3 0 R >> >> >> >>",
        b"<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents 5 0 R /Annots [6 0 R] >>",
        make_stream(b""),
        field.encode(),
    ]
    [page] = load_document(join_objects(objects), dpi=72)
    assert ImageChops.invert(page.image.crop((100, 652, 400, 692)).convert("L")).getbbox() is not None


# --- what is hostile -------------------------------------------------------------------------------------------------


def test_a_huge_page_is_refused_before_it_is_drawn() -> None:
    error = refusal(make_pdf(["a"], size=(14400, 14400)), dpi=600)
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and error.param == "dpi" and "120000x120000" in error.message


def test_many_pages_are_refused_by_number() -> None:
    error = refusal(make_pdf(["a"] * 30), limits=MediaLimits(max_items=20))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE and "pages='1-20'" in error.message


@pytest.mark.parametrize("count", [b"2000000000", b"-1", b"99999999999999999999"])
def test_a_number_of_pages_that_is_not_true_does_no_harm(count: bytes) -> None:
    try:
        pages = load_document(THREE.replace(b"/Count 3", b"/Count " + count), dpi=18)
    except RequestError as error:
        assert error.code in (ErrorCode.MEDIA_TOO_LARGE, ErrorCode.INVALID_MEDIA)
    else:
        assert len(pages) == 3


def test_pages_that_hold_each_other_are_refused() -> None:
    looped = join_objects(
        [
            b"<< /Type /Catalog /Pages 2 0 R >>",
            b"<< /Type /Pages /Kids [3 0 R 3 0 R] /Count 100 >>",
            b"<< /Type /Pages /Parent 2 0 R /Kids [2 0 R 2 0 R] /Count 100 >>",
        ]
    )
    assert refusal(looped).code is ErrorCode.INVALID_MEDIA


def test_a_bomb_of_forms_in_forms_is_ended() -> None:
    """Each of twelve forms is drawn sixteen times by the one before it."""
    forms = [
        make_stream(
            (f"/X{n + 1} Do " * 16).encode() if n < 11 else b"0 0 500 500 re f",
            extra="/Type /XObject /Subtype /Form /BBox [0 0 600 600] "
            f"/Resources << /XObject << /X{n + 1} {6 + n} 0 R >> >>",
        )
        for n in range(12)
    ]
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 600] /Contents 4 0 R "
        b"/Resources << /XObject << /X0 5 0 R >> >> >>",
        make_stream(b"/X0 Do"),
        *forms,
    ]
    error = refusal(join_objects(objects), dpi=18, limits=MediaLimits(max_document_s=1))  # to draw it takes for ever
    assert error.code is ErrorCode.MEDIA_TOO_LARGE


def test_a_bomb_of_bytes_is_ended() -> None:
    """A content stream that is 2 GB when it is unpacked four times."""
    content = b"0 0 1 1 re f " * (1 << 20)
    for _ in range(2):
        content = zlib.compress(content, 9)
    stream = f"<< /Length {len(content)} /Filter [/FlateDecode /FlateDecode] >>\nstream\n".encode() + content
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 600] /Contents [" + b"4 0 R " * 200 + b"] >>",
        stream + b"\nendstream",
    ]
    error = refusal(join_objects(objects), dpi=18, limits=MediaLimits(max_document_s=2))
    assert error.code is ErrorCode.MEDIA_TOO_LARGE


def test_an_encrypted_document_is_refused() -> None:
    trailer = (
        "/Encrypt << /Filter /Standard /V 1 /R 2 /O <" + "28" * 32 + "> /U <" + "28" * 32 + "> /P -4 >> /ID [<00> <00>]"
    )
    body = THREE[: THREE.rindex(b"trailer")] + f"trailer\n<< /Size 10 /Root 1 0 R {trailer} >>\n".encode()
    tail = THREE[THREE.rindex(b"startxref") :]
    assert "encrypted" in refusal(body + tail).message


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "is empty"),
        (b"%PDF-1.7 garbage", "damaged"),
        (b"hello", "neither a PDF nor a TIFF"),
        (b"PK\x03\x04....word/document.xml", "DOCX"),
        (b"PK\x03\x04....ppt/presentation.xml", "PPTX"),
        (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1....", "Office"),
        (b"II*\0\xff\xff\xff\xff", "damaged"),
        (b"II*\0\x08\0\0\0\0\0\x08\0\0\0", "damaged"),
    ],
)
def test_what_is_not_a_document_is_refused_with_what_to_do(data: bytes, said: str) -> None:
    error = refusal(data)
    assert error.code is ErrorCode.INVALID_MEDIA and said in error.message


def test_a_tiff_whose_pages_go_round_is_ended() -> None:
    """The offset of the page behind the last one is that of the first."""
    data = bytearray(make_tiff([(8, 8), (8, 8)]))
    first = int.from_bytes(data[4:8], "little")
    num_entries = int.from_bytes(data[first : first + 2], "little")
    second = int.from_bytes(data[first + 2 + 12 * num_entries :][:4], "little")
    num_entries = int.from_bytes(data[second : second + 2], "little")
    data[second + 2 + 12 * num_entries :][:4] = first.to_bytes(4, "little")
    at = second + 2 + 12 * num_entries
    data[at : at + 4] = first.to_bytes(4, "little")
    try:
        pages = load_document(bytes(data), limits=MediaLimits(max_document_s=2))
    except RequestError as error:
        assert error.code in (ErrorCode.MEDIA_TOO_LARGE, ErrorCode.INVALID_MEDIA)
    else:
        assert len(pages) == 2


def _sweep(number: int, *, first: int) -> None:
    """Damaged documents are read or refused, each within its limits, and none disturbs the next."""
    sources = [THREE, make_pdf(["compressed"] * 2, compress=True), make_tiff([(40, 30), (41, 31)])]
    limits = MediaLimits(max_document_s=3, max_pixels=4_000_000)
    num_read = 0
    for seed in range(first, first + number):
        data = damage(sources[seed % len(sources)], seed)
        try:
            num_read += bool(load_document(data, dpi=18, text_layer="auto", limits=limits))
        except RequestError as error:
            assert error.code in (ErrorCode.INVALID_MEDIA, ErrorCode.MEDIA_TOO_LARGE), (seed, error)
            assert len(error.message) < 400
    assert 0 < num_read < number
    assert [page.text for page in load_document(THREE, dpi=18, text_layer="auto")][1] == "Page two"


def test_damaged_documents_are_read_or_refused() -> None:
    _sweep(200, first=0)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_damaged_documents_are_read_or_refused() -> None:
    _sweep(2000, first=200)


# --- the process -----------------------------------------------------------------------------------------------------


def test_a_process_that_was_killed_is_replaced() -> None:
    load_document(THREE, dpi=18)
    process = DOCUMENT_PROCESS._process
    assert process is not None
    process.kill()
    process.wait()
    assert len(load_document(THREE, dpi=18)) == 3
    assert DOCUMENT_PROCESS._process is not process


def test_work_ends_when_nobody_waits_for_it() -> None:
    cancellation = Cancellation()
    cancellation.leave()
    with pytest.raises(RequestError) as caught:
        open_document(THREE, DocumentOptions(), Allowance(MediaLimits(), cancellation))
    assert caught.value.code is ErrorCode.ABORTED


def test_files_and_processes_are_closed() -> None:
    load_document(THREE, dpi=18)
    gc.collect()

    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(5):
        load_document(THREE, dpi=18)
    gc.collect()
    assert open_files() == before


def test_another_process_has_its_own() -> None:
    process = DocumentProcess()
    assert process._pid != os.getpid()
    process.close()  # never started


def test_page_keys_depend_on_all_that_changes_the_picture() -> None:
    def key(data: bytes = THREE, page: int = 1, dpi: int = 72) -> bytes:
        options = DocumentOptions(ranges=((page, page),), dpi=dpi)
        return open_document(data, options, Allowance(MediaLimits())).pages[0].content_key

    keys = [key(), key(page=2), key(dpi=73), key(make_pdf(["Hello one\nsecond line", "Page two", "fourth"]))]
    assert len(set(keys)) == len(keys) and key() == keys[0]
