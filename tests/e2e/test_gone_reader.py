"""A reader of standard error that goes away stops nothing."""

import os
import subprocess
import sys


def test_progress_to_a_closed_pipe_is_no_error():
    read, write = os.pipe()
    os.close(read)
    code = "from vindicate.cli.option import say\nsay('one')\nsay('two')\nprint('went on')"
    done = subprocess.run(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write, text=True, timeout=30, check=False
    )
    os.close(write)
    assert done.stdout == "went on\n"
