"""Content parts: text, images, audio and files, in one stored form however they were given.

Callers write ``ImagePart``, ``AudioPart``, ``FilePart``, or a string for text. ``part_of`` also reads the
parts of the three wires as their vendors document them. The stored form is a plain mapping as in chat
completions, with a few more keys: ``name`` is the name of the part, ``text`` of a file is for models that
cannot read files, ``file_url`` and ``file_id`` locate a part outside the conversation. A stored mapping may
lack any key; readers must tolerate that."""

# Tool images are stored whole. A resumed session must send the same bytes, and the store must equal the
# returned messages, so a verbal summary is not enough.

from __future__ import annotations

import base64
import binascii
import mimetypes
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote_to_bytes, urlsplit

from fsm_agent.errors import ConfigError
from fsm_agent.support.texts import clean, one_line

Part = Mapping[str, Any]
Kind = Literal["image", "audio", "file"]
Carrier = Literal["data", "url", "id"]
"""How a part is carried: as its bytes, as an address, or as the id of an upload to a vendor."""
Source = str | bytes | os.PathLike[str]
PDF = "application/pdf"
AUDIO_FORMATS = {"audio/wav": "wav", "audio/mpeg": "mp3"}
"""The audio types that chat completions accept, by media type."""
OTHERS_BLOCKS = ("thinking", "redacted_thinking", "reasoning", "reasoning.text", "reasoning.encrypted")
"""Blocks of a history that are not content parts; they are left unchanged."""
IMAGE_CHARS = 6_000
"""Characters that an image counts for, whatever its bytes: 1,500 tokens."""
BYTES_PER_CHAR = 16
"""Base64 characters of audio and files per estimated character: a page of a PDF takes some 100 KB and 2,000
tokens, a second of MP3 takes 20 KB and 30."""
_KINDS: Mapping[str, Kind] = {"image_url": "image", "input_audio": "audio", "file": "file"}
_CARRYING: Mapping[Kind, str] = {"image": "url", "audio": "data", "file": "file_data"}
"""The key of a part's body that contains its bytes."""
_ADDRESSES = ("http://", "https://")
_LONGEST_NAME = 120
_LONGEST_HEAD = 200
"""Maximum characters of a data address before its data."""
_BEGINNINGS = (
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF8", "image/gif"),
    (b"BM", "image/bmp"), (b"II*\x00", "image/tiff"), (b"MM\x00*", "image/tiff"), (b"%PDF-", PDF),
    (b"ID3", "audio/mpeg"), (b"\xff\xfb", "audio/mpeg"), (b"\xff\xf3", "audio/mpeg"),
    (b"\xff\xf2", "audio/mpeg"), (b"OggS", "audio/ogg"), (b"fLaC", "audio/flac"),
)  # fmt: skip
_INSIDE = {b"WEBP": "image/webp", b"WAVE": "audio/wav", b"avif": "image/avif", b"heic": "image/heic"}
_SAME = {
    "image/jpg": "image/jpeg",
    "audio/mp3": "audio/mpeg",
    "audio/x-wav": "audio/wav",
    "audio/wave": "audio/wav",
}


@dataclass(frozen=True, slots=True)
class ImagePart:
    """An image: a path, an http(s) or data address, or its bytes. ``detail``: how closely the model should
    look, for vendors with such an option (``auto``, ``low``, ``high``)."""

    source: Source
    name: str = ""
    detail: str = ""

    def part(self) -> Part:
        """Return the part in stored form. Raises ``ConfigError`` for an unreadable file."""
        url, name = _load_address(self.source, self.name, "image")
        return _image(url, name, self.detail)


@dataclass(frozen=True, slots=True)
class AudioPart:
    """Speech or sound, WAV or MP3: a path, a data address, or its bytes."""

    source: Source
    name: str = ""

    def part(self) -> Part:
        """Return the stored form. Raises ``ConfigError`` for an unreadable file or another audio type."""
        url, name = _load_address(self.source, self.name, "audio")
        return _audio(url, name)


@dataclass(frozen=True, slots=True)
class FilePart:
    """A PDF or a text: a path, an http(s) or data address, or its bytes. A text file becomes a text part, an
    image or audio file a part of its own kind."""

    source: Source
    name: str = ""

    def part(self) -> Part:
        """Return the part in stored form. Raises ``ConfigError`` for a file that is unreadable or of any
        other type."""
        url, name = _load_address(self.source, self.name, "file")
        return _file(url, name)


# Properties of a part


def kind_of(part: Part) -> Kind | None:
    """Return the kind of a stored part, ``None`` for text and for anything that is not a part."""
    return _KINDS.get(str(part.get("type")))


def body_of(part: Part) -> Part:
    """Return the body under the part's own key; a bare address is allowed there."""
    body = part.get(str(part.get("type")))
    return body if isinstance(body, Mapping) else {"url": body}


def data_of(part: Part) -> tuple[str, str]:
    """Return (media type, base64) of a part that contains its bytes, else two empty strings."""
    inside = _inside(part)
    if kind_of(part) == "audio":
        return f"audio/{body_of(part).get('format', '')}".replace("mp3", "mpeg"), inside
    head, comma, data = inside.partition(",")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return "", ""
    kind = head.removeprefix("data:").partition(";")[0].lower()
    return _SAME.get(kind, kind), data


def carrier_of(part: Part) -> Carrier | None:
    """Return how the part is carried, ``None`` if only its text or its name is left."""
    body, inside = body_of(part), _inside(part)
    if inside.startswith("data:") and ";base64," in inside[:_LONGEST_HEAD]:
        return "data"
    if kind_of(part) == "audio":
        return "data" if inside else None
    if str(body.get("url") or body.get("file_url") or "").startswith(_ADDRESSES):
        return "url"
    return "id" if body.get("file_id") else None


def _inside(part: Part) -> str:
    """Return the field that contains the bytes of a part, if any."""
    kind = kind_of(part)
    return "" if kind is None else str(body_of(part).get(_CARRYING[kind]) or "")


def size_of(part: Part) -> int:
    """Return the number of bytes that a part contains."""
    return len(data_of(part)[1].rstrip("=")) * 3 // 4


def text_of_file(part: Part) -> str:
    """Return the text that replaces a file for a model that cannot read it: a heading and the file's text, or
    an empty string if the text is unknown."""
    text = part.get("text") if kind_of(part) == "file" else None
    return f"[{name_part(part)}, its text:]\n{text}" if isinstance(text, str) and text.strip() else ""


def name_part(part: Part) -> str:
    """Name a part in a few words: ``image photo.png (image/png, 24 KB)``."""
    kind, body = kind_of(part), body_of(part)
    if kind is None:
        return f"content of type {one_line(str(part.get('type')), _LONGEST_NAME)}"
    media_type, data = data_of(part)
    address = str(body.get("url") or body.get("file_url") or "")
    name = part.get("name") or body.get("filename")
    if not name and address.startswith(_ADDRESSES):
        name = address
    about = ", ".join(
        filter(None, (one_line(media_type, _LONGEST_NAME), _size(size_of(part)) if data else ""))
    )
    words = f"{kind} {one_line(str(name), _LONGEST_NAME)}" if name else kind
    return f"{words} ({about})" if about else words


def text_only(content: Any) -> str:
    """Return a message's content as text: its texts, and a line in brackets for each other part."""
    if isinstance(content, str):
        return content
    return "\n".join(_lines(content if isinstance(content, Sequence) else ()))


def _lines(parts: Sequence[Any]) -> Iterator[str]:
    for part in parts:
        if not isinstance(part, Mapping):
            continue
        if isinstance(text := part.get("text"), str) and kind_of(part) is None:
            yield text
        elif part.get("type") not in OTHERS_BLOCKS:
            yield f"[{name_part(part)}]"


def weight(part: Part) -> int:
    """Return the estimated size of a part in characters: its maximum on any wire."""
    kind, text = kind_of(part), part.get("text")
    if kind is None:
        return len(text) if isinstance(text, str) else 0
    length = len(_inside(part)) if kind != "image" else 0
    return max(
        0 if kind == "file" and carrier_of(part) is None else IMAGE_CHARS,
        length // BYTES_PER_CHAR,
        len(text) if isinstance(text, str) else 0,
    )


def _size(count: int) -> str:
    if count >= 1_000_000:
        return f"{count / 1_000_000:.1f} MB"
    return f"{count / 1_000:.0f} KB" if count >= 1_000 else f"{count} bytes"


# Reading


def part_of(given: Any) -> Part:
    """Return one part in stored form, given as a string, one of our classes, or a mapping in the form of chat
    completions, the Responses API or the Messages API. Raises ``ConfigError`` for everything else."""
    if isinstance(given, str):
        return {"type": "text", "text": given}
    if isinstance(given, ImagePart | AudioPart | FilePart):
        return given.part()
    if not isinstance(given, Mapping) or not isinstance(given.get("type"), str):
        raise ConfigError(
            "the message has something in it that is not a content part",
            type(given).__name__,
            "text, an ImagePart, an AudioPart, a FilePart, or a mapping with a type",
        )
    if given["type"] in OTHERS_BLOCKS:
        return dict(given)
    read = _FORMS.get(given["type"])
    if read is None:
        raise ConfigError(
            "the message has a content part of an unknown type", given["type"], ", ".join(_FORMS)
        )
    return read(given)


def parts_of(content: Any) -> Any:
    """Return a message's content with each part in stored form; text stays text. Raises ``ConfigError``."""
    if content is None or isinstance(content, str):
        return content
    single = isinstance(content, Mapping | ImagePart | AudioPart | FilePart)
    if not single and (not isinstance(content, Sequence) or isinstance(content, bytes)):
        raise ConfigError(
            "the message has the wrong type",
            type(content).__name__,
            "text, or a list of content parts",
        )
    return [part_of(part) for part in ([content] if single else content)]


def _text(given: Part) -> Part:
    words = given.get("text", given.get("refusal"))
    if not isinstance(words, str):
        raise ConfigError(f"a content part of type {given['type']} has no text", words, "a string")
    return {"type": "text", "text": words}


def _image_of(given: Part) -> Part:
    """Parse ``image_url`` of chat completions or ``input_image`` of Responses."""
    body = given.get("image_url")
    body = body if isinstance(body, Mapping) else {"url": body}
    name, detail = str(given.get("name") or ""), str(body.get("detail") or given.get("detail") or "")
    if not body.get("url") and (file_id := given.get("file_id") or body.get("file_id")):
        return _with_name({"type": "image_url", "image_url": {"file_id": str(file_id)}}, name)
    return _image(_address(body.get("url"), "image", name), name, detail)


def _audio_of(given: Part) -> Part:
    body = given.get("input_audio")
    if not isinstance(body, Mapping) or not isinstance(body.get("data"), str):
        raise ConfigError(
            "a content part of type input_audio has no data", None, '{"data": "<base64>", "format": "wav"}'
        )
    data = body["data"]
    url = data if data.startswith("data:") else f"data:audio/{body.get('format') or 'wav'};base64,{data}"
    return _audio(url, str(given.get("name") or ""))


def _file_of(given: Part) -> Part:
    """Parse ``file`` of chat completions or ``input_file`` of Responses."""
    body = given.get("file") if given["type"] == "file" else given
    body = body if isinstance(body, Mapping) else {}
    name = str(body.get("filename") or given.get("name") or "")
    if file_id := body.get("file_id"):
        return {"type": "file", "file": _drop_empty(filename=name, file_id=str(file_id))}
    data = body.get("file_data")
    if isinstance(data, str) and not data.startswith(("data:", *_ADDRESSES)):
        data = f"data:{_by_name(name)};base64,{data}"
    part = _file(_address(data or body.get("file_url"), "file", name), name)
    return {**part, "text": given["text"]} if isinstance(given.get("text"), str) else part


def _of_source(given: Part) -> Part:
    """Parse ``image`` or ``document`` of the Messages API."""
    source, name = given.get("source"), str(given.get("title") or given.get("name") or "")
    source, image = source if isinstance(source, Mapping) else {}, given["type"] == "image"
    match source.get("type"):
        case "base64":
            url = f"data:{source.get('media_type') or ''};base64,{source.get('data') or ''}"
        case "url":
            url = _address(source.get("url"), given["type"], name)
        case "text" if isinstance(source.get("data"), str):
            return _as_text_part(source["data"], name)
        case "content":
            return {"type": "text", "text": text_only(parts_of(source.get("content")))}
        case "file" if source.get("file_id"):
            key, body = ("image_url", {}) if image else ("file", _drop_empty(filename=name))
            return {"type": key, key: {**body, "file_id": str(source["file_id"])}}
        case other:
            raise ConfigError(
                f"a content part of type {given['type']} has an unknown source",
                other,
                "base64, url, text, content, file",
            )
    return _image(url, name, "") if image else _file(url, name)


_FORMS: Mapping[str, Callable[[Part], Part]] = {
    "text": _text, "input_text": _text, "output_text": _text, "refusal": _text,
    "image_url": _image_of, "input_image": _image_of, "image": _of_source,
    "input_audio": _audio_of,
    "file": _file_of, "input_file": _file_of, "document": _of_source,
}  # fmt: skip


# Making


def _image(url: str, name: str, detail: str) -> Part:
    if url.startswith("data:"):
        data, declared = _decode_data_url(url, "image", name)
        found = _media_type(data, declared, name)
        if not found.startswith("image/"):
            raise ConfigError(
                _display_name("image", name) + " is not an image", found, "a PNG, JPEG, WebP or GIF"
            )
        url = _data_url(found, data)
    return _with_name({"type": "image_url", "image_url": {"url": url, **_drop_empty(detail=detail)}}, name)


def _audio(url: str, name: str) -> Part:
    if not url.startswith("data:"):
        raise ConfigError(
            _display_name("audio", name) + " is an address",
            url,
            "the audio itself: no model takes it by address",
        )
    data, declared = _decode_data_url(url, "audio", name)
    found = _media_type(data, declared, name)
    if found not in AUDIO_FORMATS:
        raise ConfigError(
            _display_name("audio", name) + " is of a type that no model takes", found, "WAV or MP3"
        )
    body = {"data": base64.b64encode(data).decode(), "format": AUDIO_FORMATS[found]}
    return _with_name({"type": "input_audio", "input_audio": body}, name)


def _file(url: str, name: str) -> Part:
    if not url.startswith("data:"):
        return {"type": "file", "file": _drop_empty(filename=name, file_url=url)}
    data, declared = _decode_data_url(url, "file", name)
    found = _media_type(data, declared, name)
    if found == PDF:
        return {
            "type": "file",
            "file": {"filename": clean(name) or "document.pdf", "file_data": _data_url(PDF, data)},
        }
    if found.startswith("image/"):
        return _image(url, name, "")
    if found in AUDIO_FORMATS:
        return _audio(url, name)
    if (text := _as_text(data)) is not None:
        return _as_text_part(text, name)
    raise ConfigError(
        _display_name("file", name) + " is of a type that is not read",
        found,
        "a PDF, a text, an image, WAV or MP3",
    )


def _as_text_part(text: str, name: str) -> Part:
    """Return a text file as a text part: every model reads it, and it is searched and shortened like any
    other."""
    return {"type": "text", "text": f"[{_display_name('file', name).removeprefix('the ')}]\n{text}"}


def image_of(part: Part, media_type: str, data: bytes) -> Part:
    """Return the image with new bytes."""
    return {**part, "image_url": {**body_of(part), "url": _data_url(media_type, data)}}


def _load_address(source: Source, name: str, kind: Kind) -> tuple[str, str]:
    """Return the address and name of a caller's source."""
    if isinstance(source, str) and source.startswith(("data:", *_ADDRESSES)):
        return source, name
    if isinstance(source, bytes):
        return _data_url("application/octet-stream", source), name
    if not isinstance(source, str | os.PathLike):
        raise ConfigError(
            f"the {kind} has the wrong type", type(source).__name__, "a path, an address, or bytes"
        )
    path = Path(source).expanduser()
    try:
        return _data_url("application/octet-stream", path.read_bytes()), name or path.name
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"the {kind} cannot be read ({why})", str(source), "a file that is there") from None


def _address(url: Any, kind: str, name: str) -> str:
    """Return the address if it is data or on the web. Raises ``ConfigError`` otherwise: a mapping may come
    from anywhere, so it must not name a file of this machine."""
    if isinstance(url, str) and url.startswith("data:"):
        return url
    try:
        if isinstance(url, str) and url.startswith(_ADDRESSES) and urlsplit(url).hostname:
            return clean(url)
    except ValueError:
        pass
    raise ConfigError(
        _display_name(kind, name) + " has no address", url, "http://…, https://…, or data:<type>;base64,…"
    )


def _decode_data_url(url: str, kind: Kind, name: str) -> tuple[bytes, str]:
    """Return the bytes and the declared media type of a data address. Raises ``ConfigError``."""
    head, comma, text = url.removeprefix("data:").partition(",")
    declared, *marks = head.lower().split(";")
    try:
        data = (
            base64.b64decode("".join(text.split()), validate=True)
            if "base64" in marks
            else unquote_to_bytes(text)
        )
    except (binascii.Error, ValueError):
        raise ConfigError(_display_name(kind, name) + " has broken data", None, "base64") from None
    if not comma or not data:
        raise ConfigError(_display_name(kind, name) + " is empty", None, "data")
    return data, _SAME.get(declared, declared)


def _media_type(data: bytes, declared: str, name: str) -> str:
    """Detect the media type by the first bytes, else by the declared type, else by the name."""
    for beginning, found in _BEGINNINGS:
        if data.startswith(beginning):
            return found
    if data[:4] == b"RIFF" or data[4:8] == b"ftyp":
        inside = _INSIDE.get(data[8:12])
        if inside:
            return inside
    if declared and declared != "application/octet-stream":
        return declared
    return _by_name(name)


def _by_name(name: str) -> str:
    found = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return _SAME.get(found, found)


def _as_text(data: bytes) -> str | None:
    if b"\x00" in data:
        return None
    try:
        return clean(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return None


def _data_url(media_type: str, data: bytes) -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def _display_name(kind: str, name: str) -> str:
    return f"the {kind} {one_line(name, _LONGEST_NAME)}".rstrip()


def _with_name(part: dict[str, Any], name: str) -> Part:
    return {**part, "name": clean(name)} if name else part


def _drop_empty(**values: str) -> dict[str, str]:
    """Return only the non-empty values."""
    return {key: clean(value) for key, value in values.items() if value}
