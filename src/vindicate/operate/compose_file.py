"""A compose file and a knob of one of its services → what `environment` or `command` sets it to; and the file with only that changed.

Only what stands in the file itself is understood: anchors, aliases, merge keys, `extends`, tags and `env_file` are refused where
they may set the knob, and so is an interpolated value.
"""

import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from vindicate.errors import MisuseError
from vindicate.operate import yaml_text
from vindicate.operate.shell_args import ELSEWHERE
from vindicate.stack.flag import UnclearFlagError, find_flag, is_flag, may_become, spelled, splice_for

__all__ = ["edit_compose", "read_compose"]

_PLAIN_WORD = re.compile(r"[A-Za-z0-9_./:@%+=,-]+", re.ASCII)
_TOKEN = re.compile(r"""(?:[^\s"'\\]|"[^"\\`]*"|'[^']*')+""")


def read_compose(source: bytes, path: Path, service: str, name: str, *, env: bool) -> tuple[str | None, int]:
    """What the file gives the service, for its variable (*env*) or its flag *name*, and in which line.

    Raises:
        MisuseError: How it is set is not understood; says file and line.
    """
    part = _Part(source, path, service, name)
    return part.variable() if env else part.flag()


def edit_compose(source: bytes, path: Path, service: str, name: str, value: str | None, *, env: bool) -> bytes:
    """The file with that variable or flag at *value*, or not there for ``None``; every other byte stays.

    Raises:
        MisuseError: How it is set is not understood, or *value* cannot be written there.
    """
    part = _Part(source, path, service, name)
    held, line = part.variable() if env else part.flag()
    if held == value:
        return source
    edited = (part.with_variable(value) if env else part.with_flag(value)).encode()
    now, _ = read_compose(edited, path, service, name, env=env)
    if now != value or _rest(edited, service, name, env=env) != _rest(source, service, name, env=env):
        raise part.refusal_at(line, f"would set {name} to {now!r} after the change, not to {value!r}")
    return edited


class _Part:
    """One service of one compose file, asked about one knob."""

    def __init__(self, source: bytes, path: Path, service: str, name: str) -> None:
        self.path, self.service, self.name = path, service, name
        try:
            self.text = source.decode()
            root = yaml.compose(self.text, Loader=yaml.SafeLoader)
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            mark = getattr(error, "problem_mark", None)
            raise self.refusal_at(mark.line + 1 if mark else 1, "is no YAML that is understood") from error
        if self.text.startswith("\ufeff"):
            raise self.refusal_at(1, "begins with a byte order mark")
        services = _child(root, "services")
        found = _pair(services[1] if services else None, service)
        node = found[1] if found else None
        if found is None or not isinstance(node, yaml.MappingNode):
            raise self.refusal_at(1, f"has no service {service!r}")
        self.key, self.node = found[0], node
        self._require_plain()

    # ---- environment -------------------------------------------------------------------------------------------------

    def variable(self) -> tuple[str | None, int]:
        """What `environment` sets the variable to, and the line."""
        environment = _child(self.node, "environment")
        settings = self._settings(environment[1]) if environment else []
        own = [(node, value) for node, name, value in settings if name == self.name]
        if len(own) > 1:
            raise self.refusal(own[1][0], f"sets {self.name} more than once")
        if own:
            node, value = own[0]
            if value is None:
                raise self.refusal(node, f"takes {self.name} from the environment that compose is run in")
            return self._plain_value(node, value), _line(node)
        file = _child(self.node, "env_file")
        if file is not None:
            raise self.refusal(file[0], f"reads variables from a file, which may set {self.name}")
        return None, _line(environment[0] if environment else self.key)

    def with_variable(self, value: str | None) -> str:
        """The text with another value."""
        environment = _child(self.node, "environment")
        if environment is None:
            return yaml_text.with_block(self.text, self.node, "environment", self.name, _escaped(value or ""))
        node = environment[1]
        if isinstance(node, yaml.MappingNode):
            pair = _pair(node, self.name)
            if pair is None:
                return yaml_text.with_pair(self.text, node, self.name, _escaped(value or ""))
            if value is None:
                return yaml_text.without_pair(self.text, environment, pair)
            return yaml_text.with_scalar(self.text, pair[1], _escaped(value))
        at = next((at for at, item in enumerate(node.value) if item.value.partition("=")[0] == self.name), None)
        if at is None:
            return yaml_text.with_items(self.text, node, len(node.value), [f"{self.name}={_escaped(value or '')}"])
        if value is None:
            return yaml_text.without_items(self.text, environment, at, 1)
        return yaml_text.with_scalar(self.text, node.value[at], f"{self.name}={_escaped(value)}")

    def _settings(self, node: yaml.Node) -> list[tuple[yaml.Node, str, str | None]]:
        """Every variable that `environment` sets, as it is written."""
        if isinstance(node, yaml.MappingNode):
            found: list[tuple[yaml.Node, str, str | None]] = []
            for key, value in node.value:
                if not isinstance(key, yaml.ScalarNode) or not isinstance(value, yaml.ScalarNode) or "$" in key.value:
                    raise self.refusal(key, "sets variables in a way that is not understood")
                found.append((value, key.value, None if value.tag.endswith(":null") else value.value))
            return found
        if isinstance(node, yaml.SequenceNode):
            if any(not isinstance(item, yaml.ScalarNode) or item.value.startswith("$") for item in node.value):
                raise self.refusal(node, "sets variables in a way that is not understood")
            pairs = [(item, *item.value.partition("=")) for item in node.value]
            return [(item, name, value if equals else None) for item, name, equals, value in pairs]
        raise self.refusal(node, "sets variables in a way that is not understood")

    def _plain_value(self, node: yaml.Node, value: str) -> str:
        if "$" in value.replace("$$", ""):
            raise self.refusal(node, f"sets {self.name} to what is only known when compose runs: {value[:60]}")
        if not node.tag.endswith(":str") and not re.fullmatch(r"0|-?[1-9]\d*", value, re.ASCII):
            raise self.refusal(
                node, f"sets {self.name} to {value}, which is no text and may arrive otherwise; put it in quotes"
            )
        if (
            node.value == value
            and getattr(node, "style", None) is None
            and not yaml_text.is_plain(value.replace("$$", ""))
            and re.match(r"[-+.\d]", value)
        ):
            raise self.refusal(node, f"sets {self.name} to {value}, which may be taken for a number; put it in quotes")
        return value.replace("$$", "$")

    # ---- command -----------------------------------------------------------------------------------------------------

    def flag(self) -> tuple[str | None, int]:
        """What `command` sets the flag to, and the line."""
        command = _child(self.node, "command")
        entry = _child(self.node, "entrypoint")
        flag = spelled(self.name)
        for word in self._words(entry[1]) if entry else []:
            if word is None or word.rsplit("/", 1)[-1].encode() in ELSEWHERE or spelled(word.partition("=")[0]) == flag:
                raise self.refusal(
                    entry[0] if entry else self.key, f"has an entrypoint that may set {flag}, or is a shell"
                )
        if command is None:
            return None, _line(self.key)
        words = self._words(command[1])
        try:
            site = find_flag(words, flag)
        except UnclearFlagError as error:
            raise self.refusal(command[1], error.problem) from error
        node = command[1].value[site.at] if site and isinstance(command[1], yaml.SequenceNode) else command[1]
        return (site.value if site else None), _line(node)

    def with_flag(self, value: str | None) -> str:
        """The text with another value."""
        command = _child(self.node, "command")
        if command is None:
            raise self.refusal(self.key, "has no command of its own, and one that is added would replace the image's")
        node = command[1]
        try:
            splice = splice_for(self._words(node), self.name, value, since=0)
        except UnclearFlagError as error:
            raise self.refusal(node, error.problem) from error
        shared = min(splice.removed, len(splice.words))
        new, gone, at = splice.words[shared:], splice.removed - shared, splice.at + shared
        if isinstance(node, yaml.ScalarNode):
            return self._with_words(node, splice.at, splice.removed, splice.words)
        text = self.text
        if new:
            text = yaml_text.with_items(text, node, at, [_escaped(word) for word in new])
        elif gone:
            text = yaml_text.without_items(text, command, at, gone)
        for offset in reversed(range(shared)):
            text = yaml_text.with_scalar(text, node.value[splice.at + offset], _escaped(splice.words[offset]))
        return text

    def _with_words(self, node: yaml.ScalarNode, at: int, removed: int, words: tuple[str, ...]) -> str:
        """A command in one text, with some of its words replaced."""
        odd = next((word for word in words if not _PLAIN_WORD.fullmatch(word)), None)
        if odd is not None:
            raise self.refusal(
                node, f"holds its command in one text, in which {odd!r} cannot be written safely; make it a list"
            )
        spans = self._spans(node)
        shared = min(removed, len(words))
        text = self.text
        if len(words) > shared:
            stop = spans[at + shared - 1][1]
            text = text[:stop] + "".join(f" {word}" for word in words[shared:]) + text[stop:]
        elif removed > shared:
            first, last = at + shared, at + removed - 1
            start = spans[first - 1][1] if first else spans[0][0]
            stop = spans[last][1] if first else spans[last + 1][0]
            text = text[:start] + text[stop:]
        for offset in reversed(range(shared)):
            start, stop = spans[at + offset]
            text = text[:start] + words[offset] + text[stop:]
        return text

    def _words(self, node: yaml.Node) -> list[str | None]:
        """The words of `command`; one that is interpolated is ``None``, unless its beginning says that it is another flag."""
        if isinstance(node, yaml.SequenceNode):
            if any(not isinstance(item, yaml.ScalarNode) for item in node.value):
                raise self.refusal(node, "has a command that is not understood")
            texts = [str(item.value) for item in node.value]
        elif isinstance(node, yaml.ScalarNode) and not node.tag.endswith(":null"):
            texts = [shlex.split(self.text[start:stop])[0] for start, stop in self._spans(node)]
        else:
            raise self.refusal(node, "has a command that is not understood")
        if texts and texts[0].rsplit("/", 1)[-1].encode() in ELSEWHERE:
            raise self.refusal(node, f"runs {texts[0]}, whose arguments are not the service's")
        return [self._word(node, text) for text in texts]

    def _word(self, node: yaml.Node, text: str) -> str | None:
        known, dollar, _ = text.replace("$$", "\0").partition("$")
        known = known.replace("\0", "$")
        if not dollar:
            return known
        if may_become(known, spelled(self.name)):
            raise self.refusal(node, f"may set {self.name} to what is only known when compose runs: {text[:60]}")
        return known + "$" if is_flag(known) else None

    def _spans(self, node: yaml.ScalarNode) -> list[tuple[int, int]]:
        """Where the words of a command in one text stand."""
        start, stop = node.start_mark.index, node.end_mark.index
        if node.style in ("'", '"'):
            start, stop = start + 1, stop - 1
        elif node.style in ("|", ">"):
            start = self.text.index("\n", start) + 1
        spans = [(match.start() + start, match.end() + start) for match in _TOKEN.finditer(self.text[start:stop])]
        said: list[list[str]] = []
        try:
            said = [shlex.split(self.text[one:other]) for one, other in spans]
            known = [word for words in said for word in words] == shlex.split(node.value)
        except ValueError:
            known = False
        if not known or any(len(words) != 1 for words in said):
            raise self.refusal(node, "has a command that is not understood; make it a list")
        return spans

    # ---- what is refused ---------------------------------------------------------------------------------------------

    def _require_plain(self) -> None:
        """Refuse what makes the service's part of the file depend on another part."""
        start, stop = self.key.start_mark.index, self.node.end_mark.index
        if self.node.start_mark.index < start:
            raise self.refusal(self.key, "takes the service from an alias")
        for token in yaml.scan(self.text, Loader=yaml.SafeLoader):
            if start <= token.start_mark.index < stop and isinstance(
                token, yaml.AliasToken | yaml.AnchorToken | yaml.TagToken
            ):
                raise self.refusal_at(token.start_mark.line + 1, "has an anchor, an alias or a tag in that service")
        for node in (self.node, *(value for _, value in self.node.value if isinstance(value, yaml.MappingNode))):
            for key, _ in node.value:
                if key.value in ("<<", "extends") and (key.value == "<<" or node is self.node):
                    raise self.refusal(key, f"has {key.value} in that service, which takes settings from elsewhere")

    def refusal(self, node: yaml.Node, problem: str) -> MisuseError:
        """The error that names file and line."""
        return self.refusal_at(_line(node), problem)

    def refusal_at(self, line: int, problem: str) -> MisuseError:
        """The same, by line."""
        return MisuseError(
            f"{self.path}:{line}: the compose file {problem} (service {self.service})",
            remedy=f"write {self.name} once, as plain text, or change it by hand; nothing was written",
        )


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _pair(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    pairs = node.value if isinstance(node, yaml.MappingNode) else []
    return next(((name, value) for name, value in pairs if name.value == key), None)


def _child(node: yaml.Node | None, key: str) -> tuple[yaml.Node, yaml.Node] | None:
    """The pair of that key, unless its value is empty."""
    found = _pair(node, key)
    return None if found is None or found[1].tag.endswith(":null") else found


def _escaped(value: str) -> str:
    return value.replace("$", "$$")


def _rest(source: bytes, service: str, name: str, *, env: bool) -> Any:
    """The document without the knob, to see that nothing else has changed."""
    document = yaml.safe_load(source)
    part = document["services"][service]
    if env:
        held = part.pop("environment", None) or {}
        pairs = held.items() if isinstance(held, dict) else [str(item).partition("=")[::2] for item in held]
        return document, [(key, value) for key, value in pairs if key != name]
    words = part.pop("command", None)
    texts = shlex.split(words) if isinstance(words, str) else [str(word) for word in words or ()]
    splice = splice_for(texts, name, None, since=0)
    return document, splice.done(texts)
