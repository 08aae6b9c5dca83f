"""A page or picture → its file, whole or not at all; other people's files only by consent."""

from contextlib import suppress
from pathlib import Path

from vindicate.cli.option import agree
from vindicate.errors import CannotError, MisuseError

__all__ = ["as_picture", "require_ours", "write_page"]


def require_ours(path: Path, mark: str) -> None:
    """Insist that no file is there, or an older one of ours.

    Raises:
        MisuseError: Somebody else's file is there.
        CannotError: It cannot be read.
    """
    if _is_of_others(path, mark):
        raise MisuseError(f"{path} is there and is none of ours; it was left as it is", remedy="name another file")


def _is_of_others(path: Path, mark: str) -> bool:
    try:
        return path.exists() and mark.encode() not in path.read_bytes()
    except OSError as error:
        raise CannotError(f"{path} cannot be read: {error.strerror}", remedy="name another file") from error


def write_page(path: Path, content: bytes, mark: str, *, yes: bool | None = None) -> None:
    """Write *content*; an older file that holds *mark* is replaced without a word.

    Args:
        yes: Consent to overwrite any other file; asked for when false, refused when ``None``.

    Raises:
        MisuseError: A file that is none of ours is there, and nobody agreed.
        CannotError: It cannot be written.
    """
    if yes is None:
        require_ours(path, mark)
    elif _is_of_others(path, mark):
        agree(f"{path} is there and is none of ours. Overwrite it?", yes=yes)
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_bytes(content)
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink()
        raise CannotError(f"{path} cannot be written: {error.strerror}", remedy="name another file") from error


def as_picture(path: Path, svg: str, mark: str) -> bytes:
    """*svg* in the format that the name of *path* asks for; a PNG carries *mark* behind its end, where no viewer looks.

    Raises:
        MisuseError: It ends neither in .svg nor in .png.
        CannotError: A PNG is wanted, and the extra that draws one is not installed.
    """
    if path.suffix == ".svg":
        return svg.encode()
    if path.suffix != ".png":
        raise MisuseError(f"{path} ends neither in .svg nor in .png", remedy=f"try: {path.with_suffix('.svg')}")
    try:
        import resvg_py
    except ImportError as error:
        raise CannotError(
            "a PNG is drawn with resvg-py, which is not installed",
            remedy=f"pip install 'vindicate[plot]', or name it {path.with_suffix('.svg')}",
        ) from error
    return bytes(resvg_py.svg_to_bytes(svg_string=svg, zoom=2)) + mark.encode()
