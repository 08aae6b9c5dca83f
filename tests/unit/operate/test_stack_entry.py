"""A knob in the stack file itself: changed in the bytes of its value, in whatever form of TOML, or refused."""

import tomllib

import pytest

from vindicate.errors import MisuseError
from vindicate.operate.files import write_edit
from vindicate.operate.plan import plan_edits
from vindicate.operate.stack_entry import edit_entry, read_entry
from vindicate.stack.file import read_stack

# name: (the launcher, with KNOB=512, with --max-cap 512, without KNOB, without the flag)
FORMS = {
    "inline": (
        'launcher = { kind = "process", start = ["e", "--max-cap", "64", "--p=3"], env = { B = "b", KNOB = "256" } }  # why\n',
        'launcher = { kind = "process", start = ["e", "--max-cap", "64", "--p=3"], env = { B = "b", KNOB = "512" } }  # why\n',
        'launcher = { kind = "process", start = ["e", "--max-cap", "512", "--p=3"], env = { B = "b", KNOB = "256" } }  # why\n',
        None,
        'launcher = { kind = "process", start = ["e", "--p=3"], env = { B = "b", KNOB = "256" } }  # why\n',
    ),
    "tables": (
        "[services.w.launcher]\nkind = 'process'\nstart = [\n  'e',  # the engine\n  '--max-cap', '64',  # cap\n  '--b',\n]\n[services.w.launcher.env]\nKNOB = '256'  # k\nB = 'b'\n",
        "[services.w.launcher]\nkind = 'process'\nstart = [\n  'e',  # the engine\n  '--max-cap', '64',  # cap\n  '--b',\n]\n[services.w.launcher.env]\nKNOB = '512'  # k\nB = 'b'\n",
        "[services.w.launcher]\nkind = 'process'\nstart = [\n  'e',  # the engine\n  '--max-cap', '512',  # cap\n  '--b',\n]\n[services.w.launcher.env]\nKNOB = '256'  # k\nB = 'b'\n",
        "[services.w.launcher]\nkind = 'process'\nstart = [\n  'e',  # the engine\n  '--max-cap', '64',  # cap\n  '--b',\n]\n[services.w.launcher.env]\nB = 'b'\n",
        "[services.w.launcher]\nkind = 'process'\nstart = [\n  'e',  # the engine\n  # cap\n  '--b',\n]\n[services.w.launcher.env]\nKNOB = '256'  # k\nB = 'b'\n",
    ),
    "dotted, CR LF": (
        'launcher.kind = "process"\r\nlauncher.start = ["e", "--max_cap=64"]\r\nlauncher.env.KNOB = "256"\r\n',
        'launcher.kind = "process"\r\nlauncher.start = ["e", "--max_cap=64"]\r\nlauncher.env.KNOB = "512"\r\n',
        'launcher.kind = "process"\r\nlauncher.start = ["e", "--max_cap=512"]\r\nlauncher.env.KNOB = "256"\r\n',
        None,
        'launcher.kind = "process"\r\nlauncher.start = ["e"]\r\nlauncher.env.KNOB = "256"\r\n',
    ),
}  # fmt: skip
HEAD = '# ours\n[stack]\nname = "x"\n[services.w]\nrole = "engine"\nurl = "http://127.0.0.1:1"\n'
TAIL = '# the end\n[knobs.KNOB]\nservices = ["w"]\n'


@pytest.mark.parametrize("name", FORMS)
def test_only_the_bytes_of_the_value_change(name, tmp_path):
    path = tmp_path / "vindicate.toml"
    before, env, arg, no_env, no_arg = (None if form is None else (HEAD + form + TAIL).encode() for form in FORMS[name])
    path.write_bytes(before)
    for knob, is_env, value, after, without in (
        ("KNOB", True, "256", env, no_env),
        ("max-cap", False, "64", arg, no_arg),
    ):
        assert read_entry(path, "w", knob, env=is_env) == value
        assert edit_entry(before, path, "w", knob, value, env=is_env) == before
        assert edit_entry(before, path, "w", knob, "512", env=is_env) == after
        gone = edit_entry(before, path, "w", knob, None, env=is_env)
        assert without is None or gone == without
        again = edit_entry(gone, path, "w", knob, value, env=is_env)
        assert tomllib.loads(again.decode())["services"]["w"]["launcher"].get("env")["KNOB"] == "256"
        path.write_bytes(again)
        assert read_entry(path, "w", knob, env=is_env) == value
        path.write_bytes(before)


@pytest.mark.parametrize("value", ["", "a b", "it's", '"', "\\", "ü", "-x", "-1"])
@pytest.mark.parametrize("name", FORMS)
def test_any_value_is_read_as_it_was_given(name, value, tmp_path):
    path = tmp_path / "vindicate.toml"
    for knob, env in (("KNOB", True), ("max-cap", False)):
        path.write_bytes(edit_entry((HEAD + FORMS[name][0] + TAIL).encode(), path, "w", knob, value, env=env))
        assert read_entry(path, "w", knob, env=env) == value


@pytest.mark.parametrize("start", ['["bash", "-c", "e --max-cap 64"]', '["e", "--max-cap", "1", "--max-cap", "2"]', '["e", "--max-c", "1"]', '["e", "--", "--max-cap"]'])  # fmt: skip
def test_an_argument_list_that_is_not_understood_is_refused(start, tmp_path):
    text = f'{HEAD}launcher = {{ kind = "process", start = {start} }}\n'
    (tmp_path / "vindicate.toml").write_text(text)
    with pytest.raises(MisuseError, match=r"services\.w\.launcher\.start"):
        read_entry(tmp_path / "vindicate.toml", "w", "max-cap", env=False)
    with pytest.raises(MisuseError):
        edit_entry(text.encode(), tmp_path / "vindicate.toml", "w", "max-cap", "5", env=False)


def test_two_services_of_one_stack_file_are_both_changed(tmp_path):
    service = '[services.{0}]\nrole = "engine"\nurl = "http://127.0.0.1:{1}"\nlauncher = {{ kind = "process", start = ["true", "--max-cap", "64"] }}\n'
    (tmp_path / "vindicate.toml").write_text(
        service.format("a", 1) + service.format("b", 2) + '[knobs."--max-cap"]\nservices = ["a", "b"]\nkind = "arg"\n'
    )
    stack = read_stack(tmp_path / "vindicate.toml")
    plan = plan_edits(stack, "apply", {"max_cap": "128"}, ids=["C1"])
    assert [edit.knob for edit in plan.edits] == ["--max-cap"]
    write_edit(plan.files[0], plan.edits, stack)
    now = read_stack(tmp_path / "vindicate.toml")
    assert [service.launcher.start[2] for service in now.services.values()] == ["128", "128"]
