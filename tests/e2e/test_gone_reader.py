"""Standard streams that are closed, full, read by nobody or narrow: the verb does its work, and its exit code says so."""

import os
import signal
import subprocess
import sys

import pytest

from fakes.small_stack import write_small_stack
from vindicate.operate.services import bring_down, bring_up
from vindicate.operate.status import look

VINDICATE = f"{sys.executable} -m vindicate"


def shell(line, folder, **more):
    """Run *line* in bash; the exit code is that of `vindicate`, wherever it stands in a pipe."""
    return subprocess.run(
        ["bash", "-c", f"{line}; exit ${{PIPESTATUS[0]}}"], cwd=folder, capture_output=True, text=True, timeout=50,
        check=False, stdin=subprocess.DEVNULL, env={**os.environ, **more},
    )  # fmt: skip


@pytest.fixture
def stack(tmp_path):
    return write_small_stack(tmp_path / "stack")


def test_progress_to_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    code = "from vindicate.cli.option import say\nsay('one')\nsay('two')\nprint('went on')"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, text=True, timeout=30, check=False
    )
    os.close(write)
    assert done.stdout == "went on\n"


def test_a_change_whose_reader_has_left_still_comes_to_its_end(stack):
    bring_up(stack, tuple(stack.services), say=lambda _: None, timeout_s=30)
    try:
        done = shell(f"{VINDICATE} apply KNOB=512 --yes --timeout 30s 2>&1 | head -1", stack.file.parent)
        assert done.returncode == 0, done.stdout + done.stderr
        assert len(done.stdout.splitlines()) == 1
        knob = look(stack)[1].knobs["KNOB"]
        assert (knob.declared, set(knob.live.values()), knob.drift) == ("512", {"512"}, False)
        listed = shell(f"{VINDICATE} change list --json", stack.file.parent)
        assert '"state": "done"' in listed.stdout
    finally:
        bring_down(stack, tuple(stack.services), say=lambda _: None)


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("stack status | true", 0, ""),
        ("--help | true", 0, ""),
        ("stack status >/dev/full", 4, "No space left"),
        ("stack status >&-", 2, "standard output is closed"),
        ("stack status <&-", 0, ""),
    ],
)
def test_a_stream_that_cannot_be_used_is_no_bug_of_ours(line, code, says, stack):
    done = shell(f"{VINDICATE} {line}", stack.file.parent)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert says or not done.stderr


def test_progress_never_stands_on_standard_output(stack):
    done = shell(f"{VINDICATE} stack restart worker --dry-run 2>&-", stack.file.parent)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_terminal_without_arrows_gets_plain_signs(stack):
    done = shell(
        f"{VINDICATE} ab KNOB=256..512 --plan; {VINDICATE} knob show KNOB", stack.file.parent, PYTHONIOENCODING="ascii"
    )
    assert done.returncode == 0, done.stderr
    assert "bug" not in done.stderr


def test_a_folder_that_is_gone_is_said(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    done = shell(f"rmdir {gone}; {VINDICATE} knob list", gone, PYTHONSAFEPATH="1")
    assert done.returncode == 2
    assert "the folder you stand in is gone" in done.stderr


INTERRUPTED = """
import os, signal, sys
class At:
    def find_spec(self, name, *_):
        if name == {name!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, At())
from vindicate.cli import main
main(["knob", "list"])
"""


@pytest.mark.parametrize("name", ["click", "vindicate.redact", "vindicate.cli.knob", "sqlalchemy"])
def test_ctrl_c_shows_no_traceback_however_early(stack, name):
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(name=name)],
        cwd=stack.file.parent, capture_output=True, text=True, timeout=30, check=False,
    )  # fmt: skip
    assert done.returncode in {130, -signal.SIGINT}, done.stderr
    assert done.stderr.strip() == "vindicate: interrupted"
