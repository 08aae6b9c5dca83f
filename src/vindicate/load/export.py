"""A run's requests.jsonl → the same rows as CSV, Parquet, or the per-request lines that aiperf writes."""

import csv
import io
import json
from collections.abc import Iterable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal

import msgspec

from vindicate.errors import CannotError, MisuseError
from vindicate.record.load import RequestRecord

__all__ = ["FORMATS", "Format", "export_run", "read_run"]

Format = Literal["csv", "parquet", "aiperf"]
FORMATS: tuple[Format, ...] = ("csv", "parquet", "aiperf")
_COLUMNS = tuple(field.name for field in fields(RequestRecord))


def read_run(folder: Path) -> tuple[tuple[RequestRecord, ...], bool]:
    """The rows of a run, and whether a last line that a kill cut off was left out.

    Raises:
        MisuseError: *folder* holds no run, or a line is no row.
    """
    path = folder / "requests.jsonl" if folder.is_dir() else folder
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise MisuseError(f"{path}: {error.strerror}", remedy="name the folder that vindicate load wrote") from error
    if lines[-1].strip() and len(lines) == 1:
        raise MisuseError(f"{path}: holds no whole row", remedy="this is no requests.jsonl of vindicate load")
    found = []
    for number, line in enumerate(lines[:-1], 1):
        try:
            found.append(msgspec.json.decode(line, type=RequestRecord))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise MisuseError(
                f"{path}:{number}: {error}", remedy="this is no requests.jsonl of vindicate load"
            ) from error
    return tuple(found), bool(lines[-1].strip())


def export_run(records: Iterable[RequestRecord], kind: Format, out: Path) -> None:
    """Write *records* to *out*; gaps are JSON in a CSV cell and a list in Parquet.

    Raises:
        CannotError: *out* cannot be written, or pyarrow is missing for Parquet.
    """
    try:
        if kind == "parquet":
            _parquet(records, out)
        else:
            out.write_text("".join(_csv(records) if kind == "csv" else _aiperf(records)), encoding="utf-8")
    except OSError as error:
        raise CannotError(f"cannot write {out}: {error.strerror}", remedy="choose another --out") from error


def _csv(records: Iterable[RequestRecord]) -> Iterator[str]:
    line = io.StringIO()
    writer = csv.writer(line)
    writer.writerow(_COLUMNS)
    for record in records:
        writer.writerow(
            [json.dumps(value) if isinstance(value := getattr(record, name), tuple) else value for name in _COLUMNS]
        )
    yield line.getvalue()


def _parquet(records: Iterable[RequestRecord], out: Path) -> None:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise CannotError(
            "Parquet needs pyarrow, which is not installed",
            remedy="try: pip install 'vindicate[parquet]', or --format csv",
        ) from error
    table = pa.Table.from_pylist([msgspec.to_builtins(record) for record in records])
    parquet.write_table(table, out, compression="zstd")


def _aiperf(records: Iterable[RequestRecord]) -> Iterator[str]:
    """As aiperf's profile_export.jsonl: metadata, metrics with their units, error."""
    for record in records:
        metrics: dict[str, Any] = {
            "request_latency": _with_unit(1000 * record.e2e_s, "ms"),
            "output_sequence_length": _with_unit(record.n_tokens, "tokens"),
        }
        if record.n_prompt_tokens is not None:
            metrics["input_sequence_length"] = _with_unit(record.n_prompt_tokens, "tokens")
        if record.ttft_s is not None:
            metrics["time_to_first_token"] = _with_unit(1000 * record.ttft_s, "ms")
        if record.gaps_s:
            metrics["inter_chunk_latency"] = _with_unit([round(1000 * gap, 3) for gap in record.gaps_s], "ms")
            if record.n_tokens > 1:
                metrics["inter_token_latency"] = _with_unit(1000 * sum(record.gaps_s) / (record.n_tokens - 1), "ms")
        metadata = {
            "x_request_id": record.id,
            "conversation_id": f"{record.level}-{record.session}",
            "turn_index": record.round - 1,
            "request_start_ns": round(1e9 * record.start_s),
            "request_end_ns": round(1e9 * (record.start_s + record.e2e_s)),
            "was_cancelled": record.outcome == "cancelled",
        }
        error = None
        if record.outcome not in ("completed", "cancelled"):
            error = {"type": record.error, "code": record.status, "message": record.detail or record.outcome}
            metrics = {}
        yield json.dumps({"metadata": metadata, "metrics": metrics, "error": error}, ensure_ascii=False) + "\n"


def _with_unit(value: float | list[float], unit: str) -> dict[str, Any]:
    return {"value": round(value, 3) if isinstance(value, float) else value, "unit": unit}
