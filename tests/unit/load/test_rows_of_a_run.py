"""A run's rows as they are read again."""

import msgspec
import pytest

from vindicate.errors import MisuseError
from vindicate.load.export import read_run
from vindicate.record.load import RequestRecord

ROW = msgspec.json.encode(
    RequestRecord(id="x", level=1, session=0, round=1, started_at="", start_s=0.0, outcome="completed", e2e_s=1.0)
)


@pytest.mark.parametrize(
    ("raw", "rows", "torn"), [(ROW + b"\n", 1, False), (ROW + b"\n" + ROW[:9], 1, True), (b"", 0, False)]
)
def test_a_last_line_that_a_kill_tore_is_left_out_and_told(tmp_path, raw, rows, torn):
    (tmp_path / "requests.jsonl").write_bytes(raw)
    found, left_out = read_run(tmp_path)
    assert (len(found), left_out) == (rows, torn)


@pytest.mark.parametrize("raw", [b"\xff\xfe\x00", b"text\n", b"{}\n"])
def test_what_holds_no_row_is_no_run(tmp_path, raw):
    (tmp_path / "requests.jsonl").write_bytes(raw)
    with pytest.raises(MisuseError, match=r"requests\.jsonl"):
        read_run(tmp_path)
