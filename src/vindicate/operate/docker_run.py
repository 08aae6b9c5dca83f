"""A script with a ``docker run`` line → which word is the image, what ``-e`` sets a variable to, and the script with only that changed.

Read against the manual of docker 28 and what podman adds; an option that neither knows is refused, since it may take a value.
"""

import re
from dataclasses import dataclass
from pathlib import Path

from vindicate.errors import MisuseError
from vindicate.operate.script import check_syntax
from vindicate.operate.shell_args import ServiceCommand, Word
from vindicate.operate.shell_row import indent_of, with_words, without_words
from vindicate.operate.shell_word import quoted, with_tail

__all__ = ["edit_run_env", "image_at", "read_run_env"]

_SWITCHES = frozenset(
    "--detach --rm --interactive --tty --init --privileged --read-only --publish-all --no-healthcheck --oom-kill-disable --sig-proxy"
    " --disable-content-trust --quiet --use-api-socket --replace --tls-verify --env-host --http-proxy --no-hosts --rmi --rootfs".split()
)
_TAKES_VALUE = frozenset(
    "add-host annotation attach blkio-weight blkio-weight-device cap-add cap-drop cgroup-parent cgroupns cidfile cpu-count cpu-percent"
    " cpu-period cpu-quota cpu-rt-period cpu-rt-runtime cpu-shares cpus cpuset-cpus cpuset-mems detach-keys device device-cgroup-rule"
    " device-read-bps device-read-iops device-write-bps device-write-iops dns dns-opt dns-option dns-search domainname entrypoint env"
    " env-file expose gpus group-add health-cmd health-interval health-retries health-start-interval health-start-period"
    " health-timeout hostname io-maxbandwidth io-maxiops ip ip6 ipc isolation kernel-memory label label-file link link-local-ip"
    " log-driver log-opt mac-address memory memory-reservation memory-swap memory-swappiness mount name net net-alias network"
    " network-alias oom-score-adj pid pids-limit platform publish pull restart runtime security-opt shm-size stop-signal stop-timeout"
    " storage-opt sysctl tmpfs ulimit user userns uts volume volume-driver volumes-from workdir"
    " arch authfile conmon-pidfile env-merge group-entry hostuser image-volume pidfile pod requires sdnotify secret systemd timeout tz"
    " umask unsetenv".split()
)  # fmt: skip
_SHORT_SWITCHES, _SHORT_TAKES_VALUE = "ditqP", "acehlmpuvw"


@dataclass(frozen=True, slots=True)
class _Option:
    """One option: *words* are those it takes up, *value* its text, of which *head* stands before it in the last of them."""

    name: str
    words: tuple[Word, ...]
    head: str
    value: str
    known: bool


def image_at(command: ServiceCommand) -> int:
    """Which of the words of a ``docker run`` is the image; those behind it are the program's arguments.

    Raises:
        MisuseError: It is another command of docker, or has an option that is not known.
    """
    return _parsed(command)[1]


def read_run_env(path: Path, name: str) -> tuple[str, int] | None:
    """What the script's ``docker run`` sets the variable to, and in which line; ``None`` when it does not.

    Raises:
        MisuseError: The file cannot be read, or how it is set is not understood; says file and line.
    """
    try:
        source = path.read_bytes()
    except OSError as error:
        raise MisuseError(
            f"{path}: cannot be read: {error.strerror}", remedy="check the path and its permissions"
        ) from error
    held = _Held(source, name, path)
    option = held.option
    return (option.value.partition("=")[2], held.command.line(option.words[-1].start)) if option else None


def edit_run_env(source: bytes, name: str, value: str | None, *, path: Path | None = None) -> bytes:
    """The script with the variable at *value* in its ``docker run``, or not there for ``None``; every other byte stays.

    Raises:
        MisuseError: How it is set is not understood, or *value* cannot be written there.
    """
    before = _Held(source, name, path)
    if before.value == value:
        return source
    option = before.option
    if option is None:
        edited = _added(before, quoted(f"{name}={value}"))
    elif value is None:
        first, last = option.words[0], option.words[-1]
        if first.array != last.array:
            raise before.refusal("has -e and its value in different places")
        edited = without_words(source, before.command.row(first), first, last)
    else:
        word = option.words[-1]
        text = with_tail(source[word.start : word.stop], f"{option.head}{name}=", value)
        if text is None:
            raise before.refusal(f"has {name} in quotes in which {value!r} cannot be written")
        edited = source[: word.start] + text + source[word.stop :]
    after = _Held(edited, name, path)
    if after.value != value or after.others() != before.others():
        raise before.refusal(f"would set {name} to {after.value!r} after the change, not to {value!r}")
    check_syntax(source, edited, before.command.refusal)
    return edited


class _Held:
    """One script's ``docker run``, asked about one variable."""

    def __init__(self, source: bytes, name: str, path: Path | None) -> None:
        self.source, self.name, self.path = source, name, path
        self.command = ServiceCommand(source, f"-e {name}=VALUE", path, container=True)
        self.options, self.image = _parsed(self.command)
        self.option = self._option()

    @property
    def value(self) -> str | None:
        """What it is set to."""
        return self.option.value.partition("=")[2] if self.option else None

    def others(self) -> list[bytes]:
        """All words but the option's own, as they are written."""
        own = self.option.words if self.option else ()
        return [self.source[word.start : word.stop] for word in self.command.words if word not in own]

    def refusal(self, problem: str) -> MisuseError:
        """The error for this variable."""
        word = self.option.words[-1] if self.option else self.command.words[self.command.program]
        return self.command.refusal(word.start, problem)

    def _option(self) -> _Option | None:
        found: list[_Option] = []
        for option in self.options:
            if option.name not in ("-e", "--env"):
                continue
            name, equals, _ = option.value.partition("=")
            if name == self.name and equals:
                found.append(option)
            if (name == self.name and not (equals and option.known)) or not (equals or option.known):
                raise self.command.refusal(
                    option.words[0].start,
                    f"may set {self.name} to what is only known when it runs: {self._text(option)}",
                )
        if len(found) > 1:
            raise self.command.refusal(found[1].words[0].start, f"sets {self.name} more than once")
        named = re.compile(rb"(?<!\w)" + self.name.encode() + rb"(?!\w)")
        for word in self.command.words:
            if not (found and word in found[0].words) and named.search(self.source, word.start, word.stop):
                raise self.command.refusal(
                    word.start, f"names {self.name} elsewhere too: {self.command.line_text(word.start)}"
                )
        if not found:
            self._require_no_env_file()
        return found[0] if found else None

    def _require_no_env_file(self) -> None:
        for option in self.options:
            if option.name == "--env-file":
                raise self.command.refusal(
                    option.words[0].start,
                    f"reads variables from a file, which may set {self.name}: {self._text(option)}",
                )

    def _text(self, option: _Option) -> str:
        return self.command.line_text(option.words[0].start)


def _added(held: _Held, setting: bytes) -> bytes:
    """Put it behind the last ``-e``, else before the image."""
    source, command = held.source, held.command
    beside = [option for option in held.options if option.name in ("-e", "--env") and option.words[-1].array is None]
    image = command.words[held.image]
    if image.array is not None:
        raise held.refusal("has its image in an array")
    row = command.row(image)
    at = beside[-1].words[-1].stop if beside else row[row.index((image.start, image.stop)) - 1][1]
    here = next(number for number, (_, stop) in enumerate(row) if stop == at)
    name = beside[-1].name.encode() if beside else b"-e"
    return with_words(source, at, indent_of(source, row[: here + 2]), name + b" " + setting)


def _parsed(command: ServiceCommand) -> tuple[list[_Option], int]:
    """The options of a ``docker run``, and which of its words is the image."""
    words, at = command.words, command.program + 1
    if at < len(words) and words[at].text == "container":
        at += 1
    if at >= len(words) or words[at].text != "run":
        raise command.refusal(
            words[command.program].start, f"has no docker run: {command.line_text(words[command.program].start)}"
        )
    at += 1
    options: list[_Option] = []
    while at < len(words) and words[at].text.startswith("-"):
        word = words[at]
        name, head, attached = _split(word, command)
        if attached:
            options.append(_Option(name, (word,), head, word.text.removeprefix(head), word.known))
        elif attached is None:
            at += 1
            if at == len(words):
                raise command.refusal(word.start, f"ends in {word.text}")
            options.append(_Option(name, (word, words[at]), "", words[at].text, words[at].known))
        at += 1
    if at >= len(words):
        raise command.refusal(words[command.program].start, "names no image")
    return options, at


def _split(word: Word, command: ServiceCommand) -> tuple[str, str, bool | None]:
    """The option's name, what stands before its value, and whether that is in the same word; ``None``: it is the next one, ``False``: none."""
    if word.text.startswith("--"):
        name, equals, _ = word.text.partition("=")
        if name in _SWITCHES:
            return name, "", False
        if name.removeprefix("--") in _TAKES_VALUE:
            return name, f"{name}=", True if equals else None
    else:
        for number, letter in enumerate(word.text[1:], 2):
            if letter in _SHORT_TAKES_VALUE:
                return f"-{letter}", word.text[:number], True if len(word.text) > number or not word.known else None
            if letter not in _SHORT_SWITCHES:
                break
        else:
            if word.known and len(word.text) > 1:
                return word.text, "", False
    raise command.refusal(word.start, f"gives docker run an option that is not known here: {word.text[:40]}")
