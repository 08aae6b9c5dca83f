"""The container of a process, by its control group and docker's own files."""

import json

import pytest

from vindicate.stack import namespaces
from vindicate.stack.named import _published

ID = "3f" * 32


@pytest.mark.parametrize(
    "cgroup",
    [
        f"0::/system.slice/docker-{ID}.scope\n",
        f"12:pids:/docker/{ID}\n11:cpu:/docker/{ID}\n",
        f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/cri-containerd-{ID}.scope\n",
        f"0::/machine.slice/libpod-{ID}.scope/container\n",
    ],
)
def test_a_container_is_known_by_the_first_letters_of_its_id_and_by_its_name_where_docker_says_it(
    cgroup, tmp_path, monkeypatch
):
    monkeypatch.setattr(namespaces, "_DOCKER", tmp_path)
    assert namespaces.name_in(cgroup) == ID[:12]
    (tmp_path / ID).mkdir()
    for text, name in ((b"{}", ID[:12]), (b"[1", ID[:12]), (json.dumps({"Name": "/decode-1"}).encode(), "decode-1")):
        (tmp_path / ID / "config.v2.json").write_bytes(text)
        assert namespaces.name_in(cgroup) == name


@pytest.mark.parametrize("cgroup", ["", "0::/\n", "0::/user.slice/user-0.slice/session-1.scope\n", f"0::/{ID}ab\n"])
def test_what_is_in_no_container_has_no_name(cgroup):
    assert namespaces.name_in(cgroup) is None


def test_docker_s_forwarder_says_where_it_sends_what_comes():
    argv = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8000 -container-ip 172.18.0.3 -container-port 30000".split()
    (one,) = _published(argv)
    assert (one.host, one.port, one.upstream) == ("172.18.0.3", 30000, True)
    assert _published(["/usr/bin/other", *argv[1:]]) == _published(argv[:-1]) == []
