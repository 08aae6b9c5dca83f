"""Captures of chains at which nobody is at fault, by name: what remains of one after evidence was lost must accuse nobody."""

from fakes.captures import PLAIN, Scenery

HOPS = (("client", "proxy"), ("proxy", "router"), ("router", "decode"))
PLAIN_HOPS = (("client", "proxy"), ("proxy", "engine"))


def _passing(scene):
    for name in scene.upstream:
        if name != "prefill":
            scene.probe(name)
    return scene


def _on(scene, hops, kind, n, **how):
    for hop in hops:
        getattr(scene, kind)(n, *hop, **how)
    return scene


def _long_prefill():
    scene = _on(Scenery(), (*HOPS, ("router", "prefill")), "waiting", 2, since=6)
    return scene.figures("prefill", running=2, tokens=4000).figures("decode", decode_transfer=2)


def _at_capacity():
    scene = _on(Scenery(), HOPS, "streaming", 4).waiting(4, "client", "proxy", since=1.5)
    scene.figures("prefill", tokens=300).figures("decode", running=4, http=4, tokens=500)
    return scene.probe("proxy", "no_headers").probe("router").probe("decode")


def _answered_on_the_way():
    scene = _on(Scenery(), HOPS, "streaming", 3).figures("prefill", tokens=90).figures("decode", running=3, tokens=300)
    return (
        _passing(scene)
        .forwarded("proxy", "router", "decode", answered=True)
        .forwarded("router", "decode", answered=True)
    )


def _cancelled():
    scene = Scenery().idle_engines()
    for _ in range(4):
        for hop in HOPS:
            scene.link(*hop, {0.5: (500, 0), 0.75: (500, 900)}, closed=8)
    return scene


HEALTHY = {
    "quiet": lambda: _passing(Scenery().idle_engines()),
    "idle": lambda: _passing(_on(Scenery().idle_engines(), (*HOPS, ("router", "prefill")), "silent", 4)),
    "plain idle": lambda: _passing(_on(Scenery(PLAIN), PLAIN_HOPS, "silent", 4)),
    "busy": lambda: _passing(
        _on(Scenery(), HOPS, "streaming", 5)
        .figures("prefill", tokens=400)
        .figures("decode", running=5, http=5, tokens=900)
    ),
    "plain busy": lambda: _passing(_on(Scenery(PLAIN), PLAIN_HOPS, "streaming", 4)),
    "agents": lambda: _passing(
        _on(Scenery(), HOPS, "rounds", 4)
        .figures("prefill", tokens=300)
        .figures("decode", running=4, http=4, tokens=300)
    ),
    "plain agents": lambda: _passing(_on(Scenery(PLAIN), PLAIN_HOPS, "rounds", 4)),
    "slow": lambda: _passing(
        _on(Scenery(), HOPS, "streaming", 3, step=2.0).figures("prefill").figures("decode", running=3, http=3, tokens=5)
    ),
    "stale gauge": lambda: _passing(_on(Scenery(), HOPS, "silent", 2).figures("prefill").figures("decode", running=20)),
    "long prefill": lambda: _passing(_long_prefill()),
    "at capacity": _at_capacity,
    "probes on their way": _answered_on_the_way,
    "cancelled": lambda: _passing(_cancelled()),
}
