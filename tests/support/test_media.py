"""Images within bounds, and the text of PDFs."""

from __future__ import annotations

import io
import struct
import zlib

import pytest
from PIL import Image
from pypdf import PdfWriter

from fsm_agent.support.document_worker import read_pdf
from fsm_agent.support.media import IMAGE_TYPES, ImageBounds, UnusableMedia, fit_image, text_of_pdf

BOUNDS = ImageBounds(size=30_000, side=240)


def made(mode: str = "RGB", size: tuple[int, int] = (480, 320), form: str = "PNG") -> bytes:
    """An image that is hard to compress."""
    noise = Image.effect_noise(size, 120)
    image = Image.merge(mode, [noise] * len(mode)) if len(mode) > 1 else noise.convert(mode)
    file = io.BytesIO()
    image.save(file, form)
    return file.getvalue()


@pytest.mark.parametrize(("mode", "form"), [
    ("RGB", "PNG"), ("RGBA", "PNG"), ("L", "PNG"), ("1", "PNG"), ("LA", "PNG"), ("RGB", "BMP"), ("CMYK", "TIFF"), ("RGB", "JPEG"),
    ("RGBA", "WEBP"), ("L", "GIF"),
])  # fmt: skip
def test_whatever_the_image_it_is_within_the_bounds_afterwards(mode: str, form: str) -> None:
    data, media_type = fit_image(made(mode, form=form), f"image/{form.lower()}", BOUNDS)
    assert media_type in IMAGE_TYPES
    assert len(data) <= BOUNDS.size
    with Image.open(io.BytesIO(data)) as image:
        assert max(image.size) <= BOUNDS.side
        assert abs(image.width * 2 - image.height * 3) <= 6, "its form stays"
        assert Image.MIME[image.format or ""] == media_type
    assert fit_image(data, media_type, BOUNDS) == (data, media_type)


def test_an_image_that_fits_is_not_touched() -> None:
    data = made(size=(40, 30))
    assert fit_image(data, "image/png", BOUNDS)[0] is data


def test_a_photo_is_turned_as_its_camera_says() -> None:
    exif, file = Image.Exif(), io.BytesIO()
    exif[0x0112] = 6  # a quarter to the right
    Image.new("RGB", (900, 600)).save(file, "JPEG", exif=exif)
    with Image.open(io.BytesIO(fit_image(file.getvalue(), "image/jpeg", BOUNDS)[0])) as image:
        assert image.size == (160, 240)


def test_what_is_see_through_becomes_white_in_a_jpeg() -> None:
    noise = Image.effect_noise((900, 600), 120)
    file = io.BytesIO()
    alpha = noise.copy()
    alpha.paste(0, (0, 0, 300, 300))
    Image.merge("RGBA", [noise, noise, noise, alpha]).save(file, "PNG")
    data, media_type = fit_image(file.getvalue(), "image/png", ImageBounds(12_000, 400))
    assert media_type == "image/jpeg"
    with Image.open(io.BytesIO(data)) as image:
        pixel = image.getpixel((40, 40))
        assert isinstance(pixel, tuple)
        assert min(pixel) > 250


def bomb() -> bytes:
    """A PNG of a few bytes that says it has 196 million pixels."""
    head = struct.pack(">IIBBBBB", 14_000, 14_000, 1, 0, 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"")), (b"IEND", b"")]
    body = b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + body


def test_what_cannot_be_made_to_fit_says_why() -> None:
    for data, media_type, why in (
        (b"no image", "image/tiff", "it cannot be read"),
        (bomb()[:60], "image/bmp", "pixels|cannot be read"),
        (made(form="BMP")[:2_000], "image/bmp", "it cannot be read"),
        (bomb(), "image/bmp", "pixels|DecompressionBomb"),  # too many pixels to unpack
    ):
        with pytest.raises(UnusableMedia, match=why):
            fit_image(data, media_type, BOUNDS)


def pdf(password: str = "") -> bytes:
    writer, file = PdfWriter(), io.BytesIO()
    writer.add_blank_page(72, 72)
    if password:
        writer.encrypt(password)
    writer.write(file)
    return file.getvalue()


def test_a_pdf_that_cannot_be_read_says_why() -> None:
    for data, why in ((b"", "it is broken"), (pdf("secret"), "it is encrypted|broken")):
        with pytest.raises(UnusableMedia, match=why):
            text_of_pdf(data, 1_000)
    assert read_pdf(pdf(), 1_000) == {"problem": "it has no text, only pictures of it"}
