"""Decodes documents and streams, and tells what was cut short from what is malformed."""

from __future__ import annotations

from collections.abc import Callable
from io import BufferedReader
from typing import Any, TypeVar

import msgspec

from tprig import evidence
from tprig.bundle.files import printable
from tprig.history import FIRST_RECORD_LINE, Stream

MAX_DOCUMENT_BYTES = 256 * 1024**2
MAX_LINE_BYTES = 64 * 1024**2
MAX_NESTING = 64

_T = TypeVar("_T", bound=evidence.Record)
_R = TypeVar("_R")
_HEADER = msgspec.json.Decoder(evidence.Header)
_RECORDS = {
    kind: msgspec.json.Decoder(union | evidence.End) for kind, union in evidence.STREAMS.items()
}


class MalformedError(Exception):
    """A file holds what the schema does not allow; the message begins with a verb."""


class CutError(Exception):
    """A document is not whole JSON, as when its writer was stopped in the middle."""


class _Versioned(msgspec.Struct):
    version: int


def read_document(handle: BufferedReader, kind: type[_T]) -> _T:
    """Reads a document of the given type.

    Raises:
        CutError: when it is not whole JSON.
        MalformedError: when it does not fit the schema.
        OSError: when it cannot be read.
    """
    return decode_document(read_bytes(handle), kind)


def read_bytes(handle: BufferedReader) -> bytes:
    """Reads all of a document.

    Raises:
        MalformedError: when it is longer than `MAX_DOCUMENT_BYTES`.
        OSError: when it cannot be read.
    """
    data = handle.read(MAX_DOCUMENT_BYTES + 1)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise MalformedError(f"has more than {MAX_DOCUMENT_BYTES} bytes, the limit of a document")
    return data


def decode_document(data: bytes, kind: type[_T]) -> _T:
    """Decodes a document of the given type.

    Raises:
        CutError: when it is not whole JSON.
        MalformedError: when it does not fit the schema.
    """
    try:
        record = msgspec.json.decode(data, type=kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedError(_explain(data, error)) from error
    except msgspec.DecodeError as error:
        raise CutError(f"is not whole JSON ({error}, {len(data)} bytes)") from error
    _check_version(getattr(record, "version", evidence.SCHEMA_VERSION))
    if isinstance(record, evidence.Arm):
        _check_raw(record.engine_args)
    return record


def _explain(data: bytes, error: Exception) -> str:
    try:
        _check_version(msgspec.json.decode(data, type=_Versioned).version)
    except MalformedError as other:
        return str(other)
    except (msgspec.DecodeError, RecursionError):
        pass
    return f"does not fit schema version {evidence.SCHEMA_VERSION}: {printable(str(error))}"


def _check_version(version: int) -> None:
    if version != evidence.SCHEMA_VERSION:
        raise MalformedError(
            f"has schema version {version}; this tprig reads {evidence.SCHEMA_VERSION}: "
            "use the tprig that wrote it"
        )


def _check_raw(values: dict[str, msgspec.Raw]) -> None:
    for name, raw in values.items():
        try:
            deep = _depth(msgspec.json.decode(raw)) > MAX_NESTING
        except RecursionError:
            deep = True
        except msgspec.DecodeError as error:
            raise MalformedError(f"holds malformed JSON as '{printable(name)}': {error}") from error
        if deep:
            raise MalformedError(f"nests '{printable(name)}' deeper than {MAX_NESTING}, the limit")


def _depth(value: object) -> int:
    depth, level = 0, [value]
    while level:
        containers = [v for v in level if isinstance(v, (dict, list))]
        level = [x for v in containers for x in (v.values() if isinstance(v, dict) else v)]
        depth += bool(containers)
    return depth


def read_stream(handle: BufferedReader, path: str, kind: str, subject: str | None) -> Stream[Any]:
    """Reads a stream; one that was cut at any byte gives its whole records, not `complete`.

    Args:
        handle: Where it is read from.
        path: The stream's path in the bundle.
        kind: A key of `evidence.STREAMS`.
        subject: What the header must name; None accepts any.

    Raises:
        MalformedError: when a line does not fit the schema, the header does not fit the place, or
            the end record does not fit the records.
        OSError: when it cannot be read.
    """
    first = _read_line(handle, 1)
    header = _decode(_HEADER.decode, first, 1)
    if header is None:
        return Stream(path=path, records=(), complete=False)
    _check_header(header, kind, subject)
    records, end = _read_records(handle, _RECORDS[kind].decode)
    if end is None:
        return Stream(path=path, records=tuple(records), complete=False)
    if end.records != len(records):
        line = len(records) + FIRST_RECORD_LINE
        raise MalformedError(
            f"line {line}: the end says {end.records} records; {len(records)} are there"
        )
    return Stream(path=path, records=tuple(records), complete=True, dropped=end.dropped)


def _read_records(
    handle: BufferedReader, decode: Callable[[bytes], Any]
) -> tuple[list[Any], evidence.End | None]:
    records: list[Any] = []
    end = None
    number = FIRST_RECORD_LINE
    while line := _read_line(handle, number):
        if end is not None:
            raise MalformedError(f"line {number}: follows the end record, the last line")
        record = _decode(decode, line, number)
        if record is None:
            break
        if type(record) is evidence.End:
            end = record
        else:
            records.append(record)
        number += 1
    return records, end


def _read_line(handle: BufferedReader, number: int) -> bytes:
    line = handle.readline(MAX_LINE_BYTES + 1)
    if len(line) > MAX_LINE_BYTES:
        raise MalformedError(f"line {number}: is longer than {MAX_LINE_BYTES} bytes, the limit")
    return line


def _decode(decode: Callable[[bytes], _R], line: bytes, number: int) -> _R | None:
    """Decodes one line; None when it is the last one and was cut."""
    try:
        return decode(line)
    except (msgspec.ValidationError, RecursionError) as error:
        raise MalformedError(f"line {number}: {_explain(line, error)}") from error
    except msgspec.DecodeError as error:
        if not line.endswith(b"\n"):
            return None
        raise MalformedError(f"line {number}: {printable(str(error))}") from error


def _check_header(header: evidence.Header, kind: str, subject: str | None) -> None:
    try:
        _check_version(header.version)
    except MalformedError as error:
        raise MalformedError(f"line 1: {error}") from error
    if header.stream != kind:
        found = printable(header.stream)
        raise MalformedError(f"line 1: expected the header of stream '{kind}', found '{found}'")
    if subject is not None and header.subject != subject:
        raise MalformedError(
            f"line 1: expected a stream of '{printable(subject)}', "
            f"found one of '{printable(header.subject)}'"
        )
