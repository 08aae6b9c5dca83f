"""A script before and after a change → an error when bash no longer understands it."""

import shutil
import subprocess
from collections.abc import Callable

from vindicate.errors import MisuseError

__all__ = ["require_parsed"]


def require_parsed(before: bytes, after: bytes, refusal: Callable[[int, str], MisuseError]) -> None:
    """Let bash itself parse the result, where there is a bash; a script that was broken before may stay so.

    Args:
        refusal: Makes the error, of a byte and what is wrong there.
    """
    bash = shutil.which("bash")
    if bash is None:
        return
    check = subprocess.run([bash, "-n"], input=after, capture_output=True, timeout=10, check=False)
    if (
        check.returncode
        and not subprocess.run([bash, "-n"], input=before, capture_output=True, timeout=10, check=False).returncode
    ):
        said = check.stderr.decode(errors="replace").strip().splitlines()
        raise refusal(0, f"would no longer be understood by bash: {said[0] if said else 'bash -n failed'}")
