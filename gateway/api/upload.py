"""A file sent as `multipart/form-data` (RFC 7578), streamed to storage: at most one chunk of it is in memory.

Field names and order as OpenAI's SDKs send them; a form with anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from gateway.errors import InvalidRequest, RequestTooLarge, UnsupportedMediaType

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

FIELDS = frozenset({"purpose", "expires_after[anchor]", "expires_after[seconds]"})
FILE = "file"
MAX_FIELD = 64
MAX_PARTS = 8
MAX_HEADER_BYTES = 4096
MAX_FORM_BYTES = 64 * 1024
"""What a form may have beside its file."""
_CLOSE = {"connection": "close"}
"""The rest of the body is not read."""


@dataclass(slots=True)
class Form:
    """What the form has said so far. `file` is taken away piece by piece."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None
    file: bytearray = field(default_factory=bytearray)
    ended: bool = False


class FormParts:
    """Feed it the body in pieces; `form` grows. Raises `InvalidRequest` for what is no such form."""

    def __init__(self, boundary: bytes) -> None:
        self.form = Form()
        self._parts, self._beside = 0, 0
        self._header, self._value = b"", b""
        self._disposition = b""
        self._name: str | None = None
        self._text = b""
        try:
            self._parser = MultipartParser(boundary, self._callbacks(), max_header_size=MAX_HEADER_BYTES)
        except FormParserError:
            raise _malformed() from None

    def feed(self, piece: bytes) -> None:
        before = len(self.form.file)
        try:
            self._parser.write(piece)
        except FormParserError:
            raise _malformed() from None
        self._beside += len(piece) - (len(self.form.file) - before)
        if self._beside > MAX_FORM_BYTES:
            raise RequestTooLarge("The form has too much beside its file.", param=None, headers=_CLOSE)

    def _callbacks(self) -> MultipartCallbacks:
        return {
            "on_part_begin": self._part_begins,
            "on_header_field": self._header_grows,
            "on_header_value": self._value_grows,
            "on_header_end": self._header_ends,
            "on_headers_finished": self._headers_end,
            "on_part_data": self._grows,
            "on_part_end": self._part_ends,
            "on_end": self._ends,
        }

    def _part_begins(self) -> None:
        self._parts += 1
        if self._parts > MAX_PARTS:
            raise _wrong(f"The form has more than {MAX_PARTS} parts.")
        self._disposition, self._name, self._text = b"", None, b""

    def _header_grows(self, data: bytes, start: int, end: int) -> None:
        self._header += data[start:end]

    def _value_grows(self, data: bytes, start: int, end: int) -> None:
        self._value += data[start:end]

    def _header_ends(self) -> None:
        if self._header.lower() == b"content-disposition":
            self._disposition = self._value
        elif self._header.lower() == b"content-transfer-encoding" and self._value.lower() not in (b"binary", b"8bit"):
            raise _wrong("A part is encoded; send it as it is.")
        self._header = self._value = b""

    def _headers_end(self) -> None:
        kind, options = parse_options_header(self._disposition)
        name = options.get(b"name", b"").decode("utf-8", "replace")
        if kind != b"form-data" or not name:
            raise _malformed()
        if name == FILE:
            if self.form.filename is not None:
                raise _wrong("The form has two files; send one.", FILE)
            self.form.filename = _plain(options.get(b"filename", b"").decode("utf-8", "replace")) or "upload.jsonl"
        elif name not in FIELDS:
            raise InvalidRequest(
                "The form has a field that is not supported.",
                code="unsupported_parameter",
                param=name if name.replace("_", "").isalnum() and len(name) <= MAX_FIELD else None,
                hint="send `file`, `purpose` and, if you like, `expires_after`",
                headers=_CLOSE,
            )
        elif name in self.form.fields:
            raise _wrong(f"`{name}` is sent twice.", name)
        self._name = name

    def _grows(self, data: bytes, start: int, end: int) -> None:
        if self._name == FILE:
            self.form.file += memoryview(data)[start:end]
            return
        self._text += data[start:end]
        if len(self._text) > MAX_FIELD:
            raise _wrong(f"`{self._name}` is too long.", self._name)

    def _part_ends(self) -> None:
        if self._name is not None and self._name != FILE:
            self.form.fields[self._name] = self._text.decode("utf-8", "replace")

    def _ends(self) -> None:
        self.form.ended = True


def reader_for(headers: Mapping[str, str], max_file_bytes: int) -> FormParts:
    """Raises `UnsupportedMediaType` (415), or `RequestTooLarge` for what is announced to be too large."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise UnsupportedMediaType("Compressed bodies are not accepted.", headers=_CLOSE)
    kind, options = parse_options_header(headers.get("content-type"))
    if kind != b"multipart/form-data" or not options.get(b"boundary"):
        raise UnsupportedMediaType(
            "A file is sent as a form.", hint="send `Content-Type: multipart/form-data; boundary=...`", headers=_CLOSE
        )
    length = headers.get("content-length", "")
    if length.isdigit() and int(length[:20]) > max_file_bytes + MAX_FORM_BYTES:
        raise too_large(max_file_bytes)
    return FormParts(options[b"boundary"])


async def pieces(reader: FormParts, body: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """The file in pieces of `size` bytes, the last one shorter. Raises `InvalidRequest` for a form that is cut off."""
    held = reader.form.file
    async for part in body:
        reader.feed(part)
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if not reader.form.ended:
        raise _malformed()
    if reader.form.filename is None:
        raise InvalidRequest("`file` is required.", code="missing_required_parameter", param=FILE)
    if held:
        yield bytes(held)


def too_large(max_file_bytes: int) -> RequestTooLarge:
    return RequestTooLarge(f"The file is larger than {max_file_bytes} bytes.", param=FILE, headers=_CLOSE)


def _plain(name: str) -> str:
    """The last part of a path, without characters that move a terminal's cursor."""
    return "".join(sign for sign in name.replace("\\", "/").rpartition("/")[2] if sign.isprintable())[:255]


def _malformed() -> InvalidRequest:
    return InvalidRequest("The body is not a well-formed form.", code="invalid_form", headers=_CLOSE)


def _wrong(message: str, param: str | None = None) -> InvalidRequest:
    return InvalidRequest(message, code="invalid_form", param=param, headers=_CLOSE)
