"""Files and words that nobody should give: a clear error with the contract's exit code, and no secret on the screen."""

import contextlib
import io
import json

import pytest

from fakes.small_stack import write_small_stack
from vindicate import cli


def run(folder, *words):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = cli._run(list(words), debug=False)
    assert "Traceback" not in err.getvalue()
    return code, out.getvalue(), err.getvalue()


DEEP = b"[" * 100_000
VERBS = [
    ("evidence", "import", "{file}"),
    ("ledger", "import", "{file}"),
    ("diagnose", "--replay", "{file}"),
    ("stack", "status", "--stack", "{file}"),
    ("load", "http://127.0.0.1:9", "--sessions", "{file}"),
    ("docs", "check", "{file}"),
    ("change", "discover", "--doc", "{file}"),
    ("rehearse", "proxy", "--upstream", "http://127.0.0.1:9", "--fault-file", "{file}"),
    ("knob", "list", "--ledger", "{file}"),
]


@pytest.mark.parametrize("words", VERBS, ids=" ".join)
@pytest.mark.parametrize("name", ["deep.json", "deep.toml", "binary.json", "nosuch.json", "folder"])
def test_no_file_makes_a_verb_break(tmp_path, words, name):
    (tmp_path / "deep.json").write_bytes(DEEP)
    (tmp_path / "deep.toml").write_bytes(b"a = " + DEEP)
    (tmp_path / "binary.json").write_bytes(bytes(range(256)) * 64)
    (tmp_path / "folder").mkdir()
    code, _, err = run(tmp_path, *(word.format(file=tmp_path / name) for word in words))
    assert code in {0, 1, 2, 4}, err
    assert "bug of ours" not in err


def test_a_value_that_looks_like_a_secret_is_not_shown(tmp_path):
    stack = write_small_stack(tmp_path, value="sk-planted1234567890")
    for words in (("stack", "status"), ("knob", "show", "KNOB"), ("knob", "list")):
        for form in ((), ("--json",)):
            code, out, err = run(stack.file.parent, *words, *form)
            assert code in {0, 1}, err
            assert "redacted" in out
            assert "planted" not in out + err


@pytest.mark.parametrize("fault", ["", "nope", "proxy.connector_starvatio"])
def test_an_unknown_fault_is_refused_before_anything_is_written(tmp_path, fault):
    code, _, err = run(tmp_path, "stack", "init", "--reference", "try", "--with-proxy", fault)
    assert code == 2
    assert "proxy.connector_starvation" in err
    assert not (tmp_path / "try").exists()


def test_a_huge_value_is_shown_by_its_ends(tmp_path):
    code, _, err = run(tmp_path, "knob", "show", "x" * 100_000)
    assert code in {2, 4}
    assert len(err) < 4000
    code, _, err = run(tmp_path, "y" * 100_000)
    assert code == 2
    assert len(err) < 4000


def test_secrets_in_what_was_asked_are_not_echoed(tmp_path):
    for words in (("stack", "status", "--stack", "http://h?api_key=planted1"), ("load", "http://u:planted@h:x")):
        code, out, err = run(tmp_path, *words)
        assert code == 2
        assert "planted" not in out + err


def test_a_disk_without_space_is_not_called_a_bug(tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device", "somewhere")

    monkeypatch.setattr("vindicate.stack.file.read_stack", full)
    (tmp_path / "vindicate.toml").write_text("")
    code, _, err = run(tmp_path, "stack", "status")
    assert code == 4
    assert "somewhere: No space left on device" in err


def test_words_that_are_no_text_are_refused(tmp_path):
    code, _, err = run(tmp_path, "claim", "add", "\udcff")
    assert (code, "no UTF-8 text" in err) == (2, True)
    folder = tmp_path / "\udcff"
    write_small_stack(folder)
    code, _, err = run(folder, "apply", "KNOB=512", "--dry-run")
    assert (code, "no UTF-8 text" in err) == (2, True)


def test_empty_words_say_nothing(tmp_path):
    for words in (("incident", "open", ""), ("claim", "add", " "), ("evidence", "add", "")):
        code, _, err = run(tmp_path, *words)
        assert code == 2
        assert "empty" in err
    assert json.loads(run(tmp_path, "diagnose", "--list-mechanisms", "--json")[1])["schema"] == "vindicate.mechanisms/1"
