"""Shrinks images and reads PDFs, with Pillow and pypdf from the extras ``images`` and ``pdf``."""

from __future__ import annotations

import importlib.util
import io
import json
import subprocess
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fsm_agent.support.redaction import bare_environment

if TYPE_CHECKING:
    from PIL import Image

IMAGE_TYPES = ("image/png", "image/jpeg", "image/webp", "image/gif")
"""Types that every vendor with image models accepts."""
MOST_PIXELS = 120_000_000
"""Maximum pixels of an image to shrink; each takes three or four bytes."""
PDF_SECONDS = 60.0
"""Time limit for one PDF."""
_QUALITIES = (85, 70, 55)
_STEPS = 12
"""Maximum times an image is shrunk by a quarter: down to a thirtieth of its width."""


class UnusableMedia(Exception):
    """The medium cannot be processed; the message says briefly why."""


@dataclass(frozen=True, slots=True)
class ImageBounds:
    """Maximum ``size`` in bytes and ``side`` in pixels of the longer side."""

    size: int
    side: int


def can_shrink() -> bool:
    """Return whether Pillow is installed."""
    return importlib.util.find_spec("PIL") is not None


def fit_image(data: bytes, media_type: str, bounds: ImageBounds) -> tuple[bytes, str]:
    """Return (bytes, media type) of the image within the bounds: unchanged if it fits, else shrunk or
    rewritten as PNG or JPEG. Without Pillow its dimensions are unknown and not checked. Raises
    ``UnusableMedia``."""
    fits = media_type in IMAGE_TYPES and len(data) <= bounds.size
    if not can_shrink():
        if fits:
            return data, media_type
        raise UnusableMedia("Pillow is not installed")
    from PIL import Image, ImageOps

    try:
        with warnings.catch_warnings(action="ignore"):  # a large one is shrunk, a huge one refused
            image: Image.Image = Image.open(io.BytesIO(data))
            if fits and max(image.size) <= bounds.side:
                return data, media_type
            if image.width * image.height > MOST_PIXELS:
                raise UnusableMedia(f"it has {image.width * image.height:,} pixels")
            image.draft("RGB", (bounds.side, bounds.side))
            image = ImageOps.exif_transpose(image)
            image.thumbnail((bounds.side, bounds.side))
            return _encode(image, bounds.size)
    except UnusableMedia:
        raise
    except Exception as error:
        if fits:
            return data, media_type  # a vendor may read what Pillow cannot
        raise UnusableMedia(f"it cannot be read: {type(error).__name__}") from None


def _encode(image: Image.Image, most: int) -> tuple[bytes, str]:
    """Encode as PNG if transparent or with few colors, else as JPEG, shrinking until it fits."""
    from PIL import Image

    for _ in range(_STEPS):
        clear = image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info
        if clear or image.mode in ("1", "L", "P"):
            data = io.BytesIO()
            image.save(data, "PNG", optimize=True)
            if data.tell() <= most:
                return data.getvalue(), "image/png"
        if clear:
            colored = image.convert("RGBA")
            flat = Image.new("RGB", image.size, "white")
            flat.paste(colored, mask=colored.getchannel("A"))
        else:
            flat = image.convert("RGB")
        for quality in _QUALITIES:
            data = io.BytesIO()
            flat.save(data, "JPEG", quality=quality)
            if data.tell() <= most:
                return data.getvalue(), "image/jpeg"
        image = image.resize((max(1, image.width * 3 // 4), max(1, image.height * 3 // 4)))
    raise UnusableMedia("it cannot be made small enough")


def text_of_pdf(data: bytes, most: int) -> str:
    """Return the text of a PDF, at most about ``most`` characters, with its pages marked. Runs in a separate
    process and takes seconds. Raises ``UnusableMedia``."""
    if importlib.util.find_spec("pypdf") is None:
        raise UnusableMedia("pypdf is not installed")
    from fsm_agent.support import document_worker

    command = [sys.executable, "-P", "-X", "utf8", document_worker.__file__, "pdf", str(most)]
    try:
        done = subprocess.run(  # noqa: S603 - this interpreter, a file of ours
            command, input=data, capture_output=True, timeout=PDF_SECONDS, env=bare_environment(), check=False
        )
        answer = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        raise UnusableMedia(f"it could not be read within {PDF_SECONDS:g} seconds") from None
    except (OSError, ValueError):
        raise UnusableMedia("it could not be read") from None
    if problem := answer.get("problem"):
        raise UnusableMedia(str(problem))
    return str(answer["text"])
