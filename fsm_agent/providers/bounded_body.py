"""Bodies of responses, read no further than anybody means them to go.

They are unpacked here, piece by piece, because a few packed bytes can be made to unfold into gigabytes; and
handed on in small pieces, between which the event loop gets its turn. Loaded with the first HTTP client."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Iterator

import httpx2

PIECE = 16_384
"""Bytes that are handed on at once."""
ENCODINGS = "gzip, deflate"
"""What is asked for, and all that is unpacked."""


class BadBody(httpx2.StreamError):
    """A body that is not read on; the text says why, with "it" for its sender."""


class BoundedBody(httpx2.AsyncByteStream):
    """The body of a response, unpacked, of at most ``most`` bytes. Where it cannot be read on it ends with
    ``BadBody``, or just ends when it may be ``cut``."""

    def __init__(self, response: httpx2.Response, most: int, *, cut: bool = False) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        self._stream = response.stream
        self._encoding = response.headers.get("content-encoding", "identity").strip().lower()
        self._most, self._cut = most, cut

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the pieces. Raises ``BadBody``."""
        left = self._most
        try:
            unpack = _Unpacker(self._encoding)
            async for packed in self._stream:
                for number, piece in enumerate(unpack.feed(packed)):
                    if number:
                        await asyncio.sleep(0)
                    if len(piece) > left:
                        if not self._cut:
                            raise BadBody(f"it answered with more than {self._most:,} bytes")
                        yield piece[:left]
                        return
                    left -= len(piece)
                    yield piece
                if unpack.ended:
                    return
        except BadBody:
            if not self._cut:
                raise

    async def aclose(self) -> None:
        """Close the connection, unless the body was read to its end."""
        await self._stream.aclose()


class _Unpacker:
    def __init__(self, encoding: str) -> None:
        if encoding not in ("identity", "", "gzip", "x-gzip", "deflate"):
            raise BadBody(f"it answered in the encoding {encoding[:40]!r}, which was not asked for")
        self._bare = encoding == "deflate"
        self._plain = encoding in ("identity", "")
        self._unpack: zlib._Decompress | None = None

    @property
    def ended(self) -> bool:
        """What was packed has ended; what follows is nothing of it."""
        return self._unpack is not None and self._unpack.eof

    def feed(self, packed: bytes) -> Iterator[bytes]:
        """The pieces that these bytes unfold into."""
        if self._plain:
            yield from (packed[at : at + PIECE] for at in range(0, len(packed), PIECE))
            return
        if self._unpack is None and packed:  # deflate comes with a header, as it should, or without
            self._unpack = zlib.decompressobj(-15 if self._bare and packed[0] & 0x0F != 8 else 47)
        while packed and self._unpack is not None and not self._unpack.eof:
            try:
                yield self._unpack.decompress(packed, PIECE)
            except zlib.error as error:
                raise BadBody(f"its answer is damaged: {error}") from None
            packed = self._unpack.unconsumed_tail
