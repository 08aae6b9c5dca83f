"""Compose files in many hands and a knob: changed in the value's bytes only, or refused with the line."""

from pathlib import Path

import pytest
import yaml

from vindicate.errors import MisuseError
from vindicate.operate.compose_file import edit_compose, read_compose

PATH = Path("compose.yaml")
HEAD = "services:\n  db:\n    image: d\n    environment:\n      K: other\n  web:\n    image: x  # of today\n"

# name: (what stands below the service, with K=512, without K); it is 256 before.
ENV = {
    "map": ("    environment:\n      A: 1\n      K: 256  # c\n", "    environment:\n      A: 1\n      K: 512  # c\n", "    environment:\n      A: 1\n"),
    "map, quoted": ('    environment:\n      K: "256"\n      A: 1\n', '    environment:\n      K: "512"\n      A: 1\n', "    environment:\n      A: 1\n"),
    "map, single quotes": ("    environment: {A: 1, K: '256'}\n", "    environment: {A: 1, K: '512'}\n", "    environment: {A: 1}\n"),
    "list": ("    environment:\n      - A=1\n      - K=256\n", "    environment:\n      - A=1\n      - K=512\n", "    environment:\n      - A=1\n"),
    "list, quoted": ("    environment:\n    - 'K=256'\n    - B=$X\n", "    environment:\n    - 'K=512'\n    - B=$X\n", "    environment:\n    - B=$X\n"),
    "flow list": ('    environment: ["K=256", "A=1"]\n', '    environment: ["K=512", "A=1"]\n', '    environment: ["A=1"]\n'),
    "the only one": ("    environment:\n      K: 256\n    ports: []\n", "    environment:\n      K: 512\n    ports: []\n", "    ports: []\n"),
    "carriage returns": ("    environment:\r\n      K: 256\r\n      A: 1\r\n", "    environment:\r\n      K: 512\r\n      A: 1\r\n", "    environment:\r\n      A: 1\r\n"),
    "a file beside it": ("    env_file: e\n    environment:\n      A: 1\n      K: 256", "    env_file: e\n    environment:\n      A: 1\n      K: 512", MisuseError),
}  # fmt: skip

# name: (without K, with K=512)
NO_ENV = {
    "map": ("    environment:\n      A: 1 # c\n    ports: []\n", "    environment:\n      A: 1 # c\n      K: 512\n    ports: []\n"),
    "list": ("    environment:\n      - A=1\n    ports: []\n", "    environment:\n      - A=1\n      - K=512\n    ports: []\n"),
    "flow": ("    environment: {A: 1}\n", "    environment: {A: 1, K: 512}\n"),
    "flow list": ("    environment: [A=1]\n", "    environment: [A=1, K=512]\n"),
}  # fmt: skip

# name: (what stands below the service, with --max-cap 512, without the flag); it is 64 before.
ARGS = {
    "list": ('    command: ["serve", "--max-cap", "64", "--b"]\n', '    command: ["serve", "--max-cap", "512", "--b"]\n', '    command: ["serve", "--b"]\n'),
    "list, joined": ("    command: [serve, --max_cap=64]\n", "    command: [serve, --max_cap=512]\n", "    command: [serve]\n"),
    "block": (
        "    command:\n      - serve\n      - --max-cap  # cap\n      - '64'\n      - --b\n",
        "    command:\n      - serve\n      - --max-cap  # cap\n      - '512'\n      - --b\n",
        "    command:\n      - serve\n      - --b\n",
    ),
    "text": ("    command: serve --max-cap 64 --port ${PORT}  # c\n", "    command: serve --max-cap 512 --port ${PORT}  # c\n", "    command: serve --port ${PORT}  # c\n"),
    "quoted text": ("    command: \"serve --max-cap=64 --n 'a b'\"\n", "    command: \"serve --max-cap=512 --n 'a b'\"\n", "    command: \"serve --n 'a b'\"\n"),
    "folded": (
        "    command: >\n      serve\n      --max-cap 64\n      --b\n    ports: []\n",
        "    command: >\n      serve\n      --max-cap 512\n      --b\n    ports: []\n",
        "    command: >\n      serve\n      --b\n    ports: []\n",
    ),
    "over lines": ("    command: serve\n      --max-cap 64\n      --b\n", "    command: serve\n      --max-cap 512\n      --b\n", "    command: serve\n      --b\n"),
    "flags first": ("    command: [--max-cap, '64']\n", "    command: [--max-cap, '512']\n", "    command: []\n"),
}  # fmt: skip

REFUSED_ENV = {
    "interpolated": ("    environment:\n      K: ${K:-256}\n", 9),
    "interpolated in a list": ("    environment:\n      - K=$K\n", 9),
    "from outside": ("    environment:\n      - K\n", 9),
    "from outside in a map": ("    environment:\n      K:\n", 9),
    "twice": ("    environment:\n      - K=1\n      - K=2\n", 10),
    "in a file": ("    env_file: x.env\n", 8),
    "an anchor": ("    environment: &e\n      K: 1\n", 8),
    "a merge key": ("    environment:\n      <<: {A: 1}\n      K: 1\n", 9),
    "extends": ("    extends: {service: db}\n    environment: {K: 1}\n", 8),
    "a tag": ("    environment: !override\n      K: 1\n", 8),
    "a float": ("    environment:\n      K: 1.10\n", 9),
    "a number that others read otherwise": ("    environment:\n      K: 1e3\n", 9),
    "a boolean": ("    environment:\n      K: yes\n", 9),
}

REFUSED_ARGS = {
    "interpolated": ("    command: serve --max-cap ${C}\n", 8),
    "interpolated in a list": ("    command: [serve, --max-cap, $C]\n", 8),
    "twice": ("    command: serve --max-cap 1 --max_cap=2\n", 8),
    "a shell": ("    command: bash -c 'serve --max-cap 1'\n", 8),
    "a shell as entrypoint": ("    entrypoint: [sh, -c]\n    command: serve --max-cap 1\n", 8),
    "in the entrypoint": ("    entrypoint: serve --max-cap 1\n", 8),
    "shortened": ("    command: serve --max-c 1\n", 8),
    "several values": ("    command: serve --max-cap 1 2\n", 8),
    "a flag that is computed": ("    command: serve --max-$X 1\n", 8),
}


def both(text, service, name, value, *, env):
    return edit_compose(text.encode(), PATH, service, name, value, env=env).decode()


@pytest.mark.parametrize("name", ENV)
def test_only_the_bytes_of_a_variables_value_change(name):
    before, after, without = ENV[name]
    assert read_compose((HEAD + before).encode(), PATH, "web", "K", env=True)[0] == "256"
    assert both(HEAD + before, "web", "K", "512", env=True) == HEAD + after
    assert both(HEAD + before, "web", "K", "256", env=True) == HEAD + before
    if isinstance(without, str):
        assert both(HEAD + before, "web", "K", None, env=True) == HEAD + without
    else:
        with pytest.raises(without):
            both(HEAD + before, "web", "K", None, env=True)


@pytest.mark.parametrize("name", NO_ENV)
def test_an_absent_variable_is_added_in_the_files_style_and_comes_out_again(name):
    before, after = NO_ENV[name]
    assert read_compose((HEAD + before).encode(), PATH, "web", "K", env=True)[0] is None
    assert both(HEAD + before, "web", "K", "512", env=True) == HEAD + after
    assert both(HEAD + after, "web", "K", None, env=True) == HEAD + before


def test_a_service_without_environment_gets_one():
    after = both(HEAD, "web", "K", "512", env=True)
    assert after == HEAD + "    environment:\n      K: 512\n"
    assert both(after, "web", "K", None, env=True) == HEAD


@pytest.mark.parametrize("name", ARGS)
def test_only_the_bytes_of_a_flags_value_change(name):
    before, after, without = ARGS[name]
    for spelling in ("--max-cap", "max_cap"):
        assert read_compose((HEAD + before).encode(), PATH, "web", spelling, env=False)[0] == "64"
        assert both(HEAD + before, "web", spelling, "512", env=False) == HEAD + after
    assert both(HEAD + before, "web", "--max-cap", None, env=False) == HEAD + without
    if "[]" not in without:
        added = both(HEAD + without, "web", "--max-cap", "64", env=False)
        assert read_compose(added.encode(), PATH, "web", "--max-cap", env=False)[0] == "64"


@pytest.mark.parametrize("value", ["", "a b", "yes", "null", "1e3", "0x1F", "1.10", "010", "it's", '"', "$HOME", "a: b # c", "ü", "-", "a\nb"])  # fmt: skip
@pytest.mark.parametrize("name", [*ENV, *NO_ENV])
def test_any_value_is_read_by_yaml_as_it_was_given(name, value):
    before = {**ENV, **NO_ENV}[name][0]
    service = yaml.safe_load(both(HEAD + before, "web", "K", value, env=True))["services"]["web"]["environment"]
    pairs = service if isinstance(service, dict) else dict(item.split("=", 1) for item in service)
    assert pairs["K"].replace("$$", "$") == value
    assert isinstance(pairs["K"], str)


@pytest.mark.parametrize("name", REFUSED_ENV)
def test_a_variable_that_is_not_understood_is_refused_with_its_line(name):
    text, line = REFUSED_ENV[name]
    for value in ("512", "", None):
        with pytest.raises(MisuseError, match=f"compose.yaml:{line}: "):
            edit_compose((HEAD + text).encode(), PATH, "web", "K", value, env=True)


@pytest.mark.parametrize("name", REFUSED_ARGS)
def test_a_command_that_is_not_understood_is_refused_with_its_line(name):
    text, line = REFUSED_ARGS[name]
    for value in ("512", None):
        with pytest.raises(MisuseError, match=f"compose.yaml:{line}: "):
            edit_compose((HEAD + text).encode(), PATH, "web", "--max-cap", value, env=False)


def test_an_alias_and_a_missing_service_are_refused():
    text = "services:\n  web: &w\n    environment: {K: 1}\n  other: *w\n"
    for service in ("web", "other", "none"):
        with pytest.raises(MisuseError):
            read_compose(text.encode(), PATH, service, "K", env=True)


def test_a_flag_is_not_given_to_a_service_whose_command_is_the_images():
    assert read_compose(HEAD.encode(), PATH, "web", "--max-cap", env=False)[0] is None
    with pytest.raises(MisuseError, match="would replace the image's"):
        both(HEAD, "web", "--max-cap", "1", env=False)
