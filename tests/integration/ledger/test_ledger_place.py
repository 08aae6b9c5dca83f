"""Where --ledger points to, for every verb alike."""

import pytest

from vindicate.cli.option import ledger_file
from vindicate.errors import MisuseError


def test_a_sqlite_url_is_the_path_in_it():
    assert str(ledger_file("sqlite:////srv/ledger.db", None)) == "/srv/ledger.db"
    assert str(ledger_file("sqlite:///ledger.db", None)) == "ledger.db"


def test_another_kind_of_url_is_refused():
    with pytest.raises(MisuseError, match="postgresql://"):
        ledger_file("postgresql://host/x", None)
