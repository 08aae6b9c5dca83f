"""A Capture ↔ a file: JSON, packed when the name ends in `.gz`; bounded in size both ways."""

import contextlib
import gzip
import os
import zlib
from dataclasses import replace
from pathlib import Path

import msgspec

from vindicate.errors import CannotError, MisuseError
from vindicate.record.observation import Capture, MetricValue
from vindicate.redact import redact_json

__all__ = ["SCHEMA", "load_capture", "save_capture", "without_secrets"]

SCHEMA = "vindicate.capture/1"
_LIMIT = 256_000_000
_Labels = tuple[tuple[str, str], ...]


def without_secrets(capture: Capture) -> Capture:
    """*capture* with all that looks like a secret blanked out: URLs, model names, metric labels, answers."""
    known: dict[_Labels, _Labels] = {}  # a page repeats its labels thousands of times

    def clean(value: MetricValue) -> MetricValue:
        if value.labels not in known:
            known[value.labels] = tuple((name, text) for name, text in redact_json(value.labels))
        labels = known[value.labels]
        return value if labels == value.labels else replace(value, labels=labels)

    bare = replace(capture, scrapes=tuple(replace(seen, values=()) for seen in capture.scrapes))
    made = msgspec.convert(redact_json(msgspec.to_builtins(bare)), Capture)
    scrapes = zip(made.scrapes, capture.scrapes, strict=True)
    return replace(
        made, scrapes=tuple(replace(plain, values=tuple(map(clean, seen.values))) for plain, seen in scrapes)
    )


def save_capture(capture: Capture, path: Path) -> None:
    """Write *capture* to *path*, whole or not at all.

    Raises:
        CannotError: It cannot be written there; nothing is left behind.
    """
    data = msgspec.json.encode(capture)
    if path.name.endswith(".gz"):
        data = gzip.compress(data, compresslevel=6, mtime=0)
    beside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        beside.write_bytes(data)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise CannotError(
            f"{path}: the capture cannot be written: {error.strerror}", remedy="choose a folder that you may write to"
        ) from error


def load_capture(path: Path) -> Capture:
    """Read a capture that `save_capture` wrote, on any machine.

    Raises:
        MisuseError: The file is not there, too large, or no capture.
    """
    remedy = "try: vindicate diagnose capture --out FILE"
    try:
        with path.open("rb") as file:
            data = file.read(_LIMIT + 1)
    except OSError as error:
        raise MisuseError(f"{path}: cannot be read: {error.strerror}", remedy=remedy) from error
    try:
        if data[:2] == b"\x1f\x8b":
            unpacker = zlib.decompressobj(wbits=31)
            data = unpacker.decompress(data, _LIMIT + 1)
        if len(data) > _LIMIT:
            raise MisuseError(f"{path} holds more than {_LIMIT // 1_000_000} MB; no capture does", remedy=remedy)
        capture = msgspec.json.decode(data, type=Capture)
    except (msgspec.MsgspecError, zlib.error, UnicodeDecodeError, RecursionError) as error:
        raise MisuseError(f"{path} is no capture: {error}", remedy=remedy) from error
    if capture.schema != SCHEMA:
        raise MisuseError(f"{path} says schema {capture.schema!r}; {SCHEMA!r} expected", remedy=remedy)
    return capture
