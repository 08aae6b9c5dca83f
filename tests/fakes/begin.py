"""The words of another program, from a file → that program in this process, so that its arguments do not say what part it plays."""

import json
import runpy
import sys
from pathlib import Path

words = json.loads(Path(sys.argv[1]).read_text())
if words[0] == "-m":
    sys.argv = words[1:]
    runpy.run_module(words[1], run_name="__main__", alter_sys=True)
else:
    sys.argv = words
    sys.path.insert(0, str(Path(words[0]).parent))
    runpy.run_path(words[0], run_name="__main__")
