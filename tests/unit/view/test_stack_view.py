"""What a script or a process did not tell is not shown as unset."""

import pytest

from vindicate.operate.status import ServiceStand, knob_stand
from vindicate.stack.model import Knob, Launcher, Service, Stack
from vindicate.stack.process import KnobReading
from vindicate.view.stack import stack_lines


def line(script, monkeypatch, *readings):
    monkeypatch.setattr("vindicate.operate.status.live_readings", lambda *_: readings)
    service = Service(
        name="a", role="engine", engine="generic", url="http://127.0.0.1:1", metrics="", health="/health",
        launcher=Launcher(kind="script", file=script),
    )  # fmt: skip
    stand = knob_stand(Stack(name="s", entry="a", services={"a": service}), Knob(name="KNOB", services=("a",)), service)
    shown = ServiceStand(
        name="a", role="engine", engine="generic", pids=(), url="u", state="down", started_at=None, knobs={"KNOB": stand}
    )  # fmt: skip
    return stack_lines([shown])[1]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("export KNOB=5\n", "script says 5;"),
        ("true\n", "script says unset;"),
        ('export KNOB="$FOO"\n', "script: not known; live: no live process  ("),
        (None, "script: not known; live: no live process  ("),
    ],
)
def test_a_script_that_does_not_tell_is_not_shown_as_unset(tmp_path, monkeypatch, text, said):
    script = tmp_path / "a.sh"
    if text is not None:
        script.write_text(text)
    shown = line(script, monkeypatch)
    assert said in shown
    assert ("a.sh" in shown) == ("not known" in said)


def test_a_process_that_does_not_tell_is_not_shown_as_unset(tmp_path, monkeypatch):
    script = tmp_path / "a.sh"
    script.write_text("export KNOB=5\n")
    shown = line(script, monkeypatch, KnobReading(name="KNOB", pid=7, value=None, problem="no permission"))
    assert "live: not known in pid 7  (no permission)" in shown
    assert "DRIFT" not in shown
