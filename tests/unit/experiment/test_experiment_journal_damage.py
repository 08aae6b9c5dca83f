"""A journal that cannot be read must not send anybody the wrong way."""

import pytest

from vindicate.errors import CannotError
from vindicate.experiment.journal import Journal, require_put_back


def test_a_damaged_before_file_is_named_with_the_way_out(tmp_path):
    folder = tmp_path / "experiments" / "X1"
    folder.mkdir(parents=True)
    (folder / "design.json").write_text("{}")
    (folder / "before.json").write_text("torn")
    with pytest.raises(CannotError) as caught:
        require_put_back(tmp_path)
    assert str(folder / "before.json") in caught.value.problem
    assert "before X1" in caught.value.problem
    assert "start the experiment anew" not in caught.value.remedy
    assert f"mv {folder}/before.json" in caught.value.remedy
    (folder / "before.json").rename(folder / "before.json.bad")
    assert Journal(folder).before() is None
    require_put_back(tmp_path)
