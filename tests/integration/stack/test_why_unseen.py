"""No process found is told from no process there."""

import getpass
import socket

from vindicate.stack.model import Service
from vindicate.stack.process import service_pids, why_unseen


def test_names_the_user_who_listens_where_no_process_could_be_found():
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        service = Service(
            name="x", role="engine", engine="generic", url=url, metrics="", health="", match="no such word"
        )
        assert service_pids(service) == ()
        assert f"a process of user {getpass.getuser()}" in why_unseen(service)
    assert why_unseen(service) == "no live process"
