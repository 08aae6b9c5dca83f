"""A story that breaks names the services that are not ready."""

import json
import subprocess

import pytest

from vindicate.rehearse.story import Story, StoryError


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (json.dumps({"services": [{"name": "decode", "state": "down"}, {"name": "router", "state": "ready"}]}), "it hung; not ready: decode (down)"),
        (json.dumps({"services": [{"name": "router", "state": "ready"}]}), "it hung"),
        ("no stack here", "it hung"),
    ],
)  # fmt: skip
def test_says_which_services_are_not_ready(tmp_path, monkeypatch, answer, said):
    monkeypatch.setattr(
        subprocess, "run", lambda words, **_: subprocess.CompletedProcess(words, 0, answer.encode(), b"")
    )
    story = Story(directory=tmp_path, show=print)
    story.expect(True, "nothing")
    with pytest.raises(StoryError) as caught:
        story.expect(False, "it hung")
    assert caught.value.problem == f"the story broke: {said}"
