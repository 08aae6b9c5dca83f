"""What a server says of itself may hold secrets; a capture holds none of them, and is otherwise the same."""

from dataclasses import replace

import msgspec

from fakes.captures import Scenery
from vindicate.observe.capture_file import without_secrets
from vindicate.record.observation import MetricValue, Scrape

SECRETS = {
    "key": "sk-planted1234567890",
    "user": "hf_plantedAbcdefgh",
    "auth": "Bearer planted-1234567",
    "jwt": "eyJplanted12.eyJplanted12.planted",
    "authorization": "planted",
}


def test_labels_model_names_and_urls_lose_their_secrets_only():
    plain = Scenery().idle_engines().probe("proxy").capture()
    assert without_secrets(plain) == plain
    labels = tuple(sorted({"le": "0.5", **SECRETS}.items()))
    secret = Scrape(
        service="proxy",
        kind="metrics",
        url="http://planted@h:1/metrics?token=planted",
        t_s=0.1,
        took_s=0.0,
        values=(MetricValue(name="x", labels=labels, value=1.0),),
        facts={"model": "sk-planted1234567890", "url": "http://h/?api_key=planted", "n_models": 1.0},
    )
    clean = without_secrets(replace(plain, scrapes=(*plain.scrapes, secret)))
    assert "planted" not in msgspec.json.encode(clean).decode()
    assert ("le", "0.5") in clean.scrapes[-1].values[0].labels
    assert clean.scrapes[-1].facts["n_models"] == 1.0
