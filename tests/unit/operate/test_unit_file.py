"""What a systemd unit's files set a variable to, by the rules of systemd.exec(5) and systemd.syntax(7)."""

from pathlib import Path

import pytest

from vindicate.errors import MisuseError
from vindicate.operate.unit_file import UnitText, drop_in, is_drop_in, unit_setting


def setting(*texts):
    return unit_setting([UnitText(Path(f"{n}.conf"), text) for n, text in enumerate(texts)], "KNOB")


@pytest.mark.parametrize(
    ("text", "value", "line"),
    [
        ("[Service]\nEnvironment=KNOB=1\n", "1", 2),
        ("[Service]\nEnvironment = A=1 KNOB=2 KNOB=3\n", "3", 2),
        ('[Service]\nEnvironment="KNOB=a b" B=c\n', "a b", 2),
        ("[Service]\nEnvironment='KNOB=a \"b'\n", 'a "b', 2),
        ('[Service]\nEnvironment="KNOB=a \\"b\\" \\\\ 5%%"\n', 'a "b" \\ 5%', 2),
        ("[Service]\nEnvironment=KNOB=\n", "", 2),
        ("[Service]\nEnvironment=A=1 \\\n# between\n  KNOB=2\n", "2", 2),
        ("[Service]\nEnvironment=KNOB=1\nEnvironment=\n", None, 0),
        ("[Service]\n#Environment=KNOB=1\n;Environment=KNOB=2\nEnvironment=KNOBS=3\n", None, 0),
        ("[Unit]\nEnvironment=KNOB=1\n", None, 0),
        ("[Service]\nEnvironment=KNOB=1\nUnsetEnvironment=A KNOB\n", None, 3),
        ("[Service]\nEnvironment=KNOB=1\nUnsetEnvironment=KNOB=2\n", "1", 2),
        ("[Service]\nEnvironment=KNOB=1\nUnsetEnvironment=KNOB=1\n", None, 3),
        ("[Service]\nUnsetEnvironment=KNOB\nUnsetEnvironment=\nEnvironment=KNOB=1\n", "1", 4),
        ("[Service]\nPassEnvironment=KNOB\nEnvironment=KNOB=1\n", "1", 3),
        ("[Service]\nEnvironmentFile=-/not/there\nEnvironment=KNOB=1\n", "1", 3),
    ],
)
def test_one_file_is_read_as_systemd_reads_it(text, value, line):
    found = setting(text)
    assert (found.value, found.line) == (value, line)


def test_the_last_file_has_the_last_word():
    found = setting("[Service]\nEnvironment=KNOB=1\n", "[Service]\nEnvironment=KNOB=2\n", "[Service]\nNice=1\n")
    assert (found.value, str(found.path)) == ("2", "1.conf")
    assert setting("[Service]\nEnvironment=KNOB=1\n", "[Service]\nEnvironment=\n").value is None


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[Service]\nEnvironment=KNOB=%i\n", r"0\.conf:2: holds a specifier"),
        ("[Service]\nEnvironment=KNOB=%%%i\n", "holds a specifier"),
        ('[Service]\nEnvironment=KNOB="a b"\n', "quotes a part of"),
        ('[Service]\nEnvironment="KNOB=\\x41"\n', "holds the escape"),
        ("[Service]\n\nPassEnvironment=A KNOB\n", r"0\.conf:3: passes KNOB on"),
        ("[Service]\nEnvironmentFile=/etc/%p.env\n", "by a specifier, and it may set KNOB"),
    ],
)
def test_what_is_not_understood_is_refused_with_file_and_line(text, problem):
    with pytest.raises(MisuseError, match=problem):
        setting(text)


@pytest.mark.parametrize(
    "value", ["", "512", "a b", '"', "\\", "\\n", "100%", "%i", "it's", "$X ${Y}", "ü", "#", ";", "a\\"]
)
def test_a_drop_in_says_what_it_was_made_to_say_and_is_known_again(value):
    content = drop_in("KNOB", value)
    assert setting(content.decode()).value == value
    assert is_drop_in(content, "KNOB")
    assert not is_drop_in(content, "OTHER")
    assert not is_drop_in(content + b"Nice=1\n", "KNOB")


def test_a_drop_in_that_takes_it_away_is_known_again():
    assert setting("[Service]\nEnvironment=KNOB=1\n", drop_in("KNOB", None).decode()).value is None
    assert is_drop_in(drop_in("KNOB", None), "KNOB")


@pytest.mark.parametrize("value", ["a\nb", "a\tb", "\x1b[2J"])
def test_control_characters_are_refused(value):
    with pytest.raises(MisuseError, match="cannot be written in a systemd unit"):
        drop_in("KNOB", value)
