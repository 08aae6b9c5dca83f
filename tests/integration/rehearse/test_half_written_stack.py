"""A reference stack is written whole, or the earlier one stays."""

import errno
from pathlib import Path

import pytest

from vindicate.errors import CannotError
from vindicate.rehearse.reference_stack import write_reference_stack


@pytest.mark.parametrize("n_written", [0, 1, 3])
def test_a_full_disk_leaves_the_earlier_stack_whole(tmp_path, monkeypatch, n_written):
    write_reference_stack(tmp_path)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    write_text, written = Path.write_text, []

    def full(path, text, **how):
        written.append(path)
        if len(written) > n_written:
            write_text(path, text[:10], **how)
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return write_text(path, text, **how)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(CannotError, match="No space left"):
        write_reference_stack(tmp_path, knob_value="512")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
