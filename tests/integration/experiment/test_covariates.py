"""What is read beside the metric: from services that tell it, from services that are broken, and from `nvidia-smi`."""

import json
import os
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic, sleep

from vindicate.experiment.covariates import cache_counts, hit_share, said_of_itself, watch_cards
from vindicate.stack.model import Service

INFO = {
    "version": "0.5.9",
    "model_path": "some/model",
    "tp_size": 2,
    "api_key": "sk-live-1234567890abcdef",
    "scheduler_info": {"max_total_num_tokens": 245760},
    "internal_states": [{"effective_max_running_requests_per_dp": 48}],
}
METRICS = 'sglang:prompt_tokens_total{m="x"} 1000\nsglang:cached_tokens_total{m="x"} 400\nsglang:other 7\n'


@contextmanager
def serving(pages):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            page = pages.get(self.path)
            self.send_response(200 if page is not None else 404)
            self.send_header("Content-Length", str(len(page or b"")))
            self.end_headers()
            self.wfile.write(page or b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}"
        yield Service(name="decode", role="decode", engine="sglang", url=url, metrics=f"{url}/metrics", health="")
    finally:
        server.shutdown()
        server.server_close()


def test_versions_models_and_sizes_are_read_and_nothing_secret_is():
    with serving({"/server_info": json.dumps(INFO).encode()}) as service:
        identity, sizes = said_of_itself([service])
    assert identity == {"decode version": "0.5.9", "decode model_path": "some/model", "decode tp_size": "2"}
    assert sizes == {"decode max_total_num_tokens": 245760.0, "decode effective_max_running_requests_per_dp": 48.0}


def test_a_service_that_is_gone_or_says_rubbish_tells_nothing():
    with serving({"/server_info": b"\xff{{{", "/version": b"[1]", "/metrics": b"\x00\x01"}) as service:
        assert said_of_itself([service]) == ({}, {})
        assert cache_counts([service]) == {}
    assert said_of_itself([service]) == ({}, {})
    assert cache_counts([service]) == {}


def test_the_share_of_cache_hits_is_that_between_two_readings():
    pages = {"/metrics": METRICS.encode()}
    with serving(pages) as service:
        before = cache_counts([service])
        pages["/metrics"] = METRICS.replace("1000", "3000").replace("400", "2000").encode()
        after = cache_counts([service])
    assert hit_share(before, after) == 0.8
    assert hit_share(before, before) is None
    assert hit_share({}, after) is None
    assert hit_share(after, before) is None, "a counter that was reset says nothing"


def test_clocks_of_all_cards_are_sampled_while_it_runs(tmp_path, monkeypatch):
    script = tmp_path / "nvidia-smi"
    script.write_text(
        '#!/bin/sh\necho "$@" > "$0.words"\necho "[N/A], 40"\necho "2000, 60"\necho "1000, 70"\nexec sleep 60\n'
    )
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with watch_cards() as cards:
        deadline = monotonic() + 10
        while not (tmp_path / "nvidia-smi.words").exists() and monotonic() < deadline:
            sleep(0.01)
        sleep(0.2)
    assert (cards.sm_clock_mhz, cards.celsius) == (1500.0, 65.0)
    assert "clocks.sm,temperature.gpu" in (tmp_path / "nvidia-smi.words").read_text()


def test_without_nvidia_smi_nothing_is_known(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with watch_cards() as cards:
        pass
    assert (cards.sm_clock_mhz, cards.celsius) == (None, None)
