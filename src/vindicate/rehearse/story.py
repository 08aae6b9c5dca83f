"""A directory → the story played in it by the commands a user would type, each act checked for what it claims."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from vindicate.errors import CannotError

__all__ = ["Act", "Story", "StoryError"]

KNOB = "SGLANG_SM120_MMA_TARGET_CTAS"

PLAN = f"""\
# dsv4: performance plan

## Split-K decode: how many thread blocks to aim for

`{KNOB}` sets how many thread blocks the split-K decode kernel aims for. Default 256; measured against 512,
one start of the decode service each.

| concurrent requests | output throughput, 512 over 256 |
|---|---|
| 64 | +12.8 % |
| 80 | +1.2 % |
| 96 | +5.7 % |

Decision: `{KNOB}=512` in `serve_decode.sh`.
"""

REVERT_NOTE = f"""
**Update:** agent sessions freeze after a few rounds since the change. `{KNOB}` was reverted to 256 because of the freeze.
"""


class StoryError(CannotError):
    """An act did not do what it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Act:
    """One act: what happens, told in a line, and the line that says what was measured."""

    number: int
    title: str
    measured: str


@dataclass(slots=True)
class Story:
    """Plays the acts one after another in *directory*; *show* gets every line for the person who watches.

    Each act raises StoryError when what it claims did not happen. A background harness is ended with the act.
    """

    directory: Path
    show: Callable[[str], None]
    full: bool = False
    acts: list[Act] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    child: "subprocess.Popen[bytes] | None" = None

    def play(self) -> None:
        """Play all acts.

        Raises:
            StoryError: An act did not do what it says.
        """
        for number, (title, act) in enumerate(
            [
                ("The tuning: 512 is written down as the better value", self.tuning),
                ("The hang: agents freeze after some rounds", self.hang),
                ("The wrongful revert: the newest change is the suspect", self.revert),
                ("The truth: who is waiting for whom", self.truth),
                ("The claw-back: what did we give up?", self.clawback),
                ("The recovery: put it back, safely", self.recovery),
                *([("The proof: measured honestly, on fresh starts", self.proof)] if self.full else []),
            ],
            start=1,
        ):
            self.show(f"\n== Act {number}. {title}  [after {time.monotonic() - self.began:.0f} s]")
            measured = act()
            self.acts.append(Act(number=number, title=title, measured=measured))

    # ---- the acts ------------------------------------------------------------------------------------------------

    def tuning(self) -> str:
        """Bring the stack up, set 512, and keep the table of the performance plan as evidence."""
        self.vindicate("stack", "init", "--reference", ".", "--with-proxy", "proxy.connector_starvation")
        self.vindicate("stack", "up")
        self.vindicate("apply", f"{KNOB}=512", "--yes")
        self.expect(self.live_value() == "512", "the live decode process does not hold 512")
        (self.directory / "PLAN.md").write_text(PLAN, encoding="utf-8")
        self.vindicate("evidence", "import", "PLAN.md", "--yes")
        effects = [effect for item in self.facts("evidence") for effect in item["effects"]]
        self.expect({effect["level"] for effect in effects} == {64, 80, 96}, "the table in PLAN.md was not understood")
        self.expect(all(effect["grade"] == "D" for effect in effects), "one start per arm is not grade D")
        return (
            f"decode holds 512; {len(effects)} effects imported from PLAN.md, grade D: one start per arm, no interval"
        )

    def hang(self) -> str:
        """Let the harness freeze twice, with the proxy restarted in between, and open the incident."""
        n_sent = n_froze = 0
        for turn in (1, 2):
            if turn > 1:
                self.tell("somebody restarts the proxy, as one does, and it works again for a while")
                self.vindicate("stack", "restart", "proxy", "--yes")
            level = self.harness(f"hang-{turn}", code=1)
            self.expect(level["stalled"] > 0, "the harness did not freeze")
            n_froze += 1
            n_sent += level["requests"] - level["stalled"] + 1  # what came after the first stall is the same event
        self.vindicate(
            "incident", "open", "agent sessions freeze after a few rounds", "--count", str(n_froze), "--exposure", f"{n_sent}req"
        )  # fmt: skip
        return f"{n_froze} freezes in {n_sent} requests (each run counted up to its first stall)"

    def revert(self) -> str:
        """Suspect the knob, take it back on that claim, and see the freeze stay."""
        self.vindicate(
            "claim",
            "add",
            f"{KNOB}=512 makes agent sessions freeze",
            "--incident",
            "INC-1",
            "--about",
            f"knob:{KNOB}=512",
        )
        self.vindicate("revert", f"{KNOB}=256", "--because", "H1", "--yes")
        self.expect(self.live_value() == "256", "the live decode process does not hold 256")
        with (self.directory / "PLAN.md").open("a", encoding="utf-8") as plan:
            plan.write(REVERT_NOTE)
        level = self.harness("after-revert", code=1)
        self.expect(level["stalled"] > 0, "the freeze did not stay")
        return (
            f"decode holds 256, and the harness froze again: {level['stalled']} of {level['requests']} streams stalled"
        )

    def truth(self) -> str:
        """Diagnose while the harness hangs; the saved verdict displaces the claim."""
        self.tell("the harness runs and hangs in the background while we look")
        harness = self.start(*self.harness_words("background", stall_after="90s"))
        try:
            self.wait_for_silence(harness)
            began = time.monotonic()
            self.vindicate("diagnose", "--window", "6s", "--save", code=1)
            took = time.monotonic() - began
        finally:
            self.end(harness)
        saved = [item for item in self.facts("evidence") if item["kind"] == "diagnosis"]
        self.expect(bool(saved), "the diagnosis was not saved")
        verdict = saved[-1]["diagnosis"]
        self.expect(
            (verdict["service"], verdict["mechanism"]) == ("proxy", "proxy.connector_starvation"),
            f"the verdict is {verdict['service']}: {verdict['mechanism']}",
        )
        cleared = {(item["service"], knob) for item in verdict["cleared"] for knob in item["knobs"]}
        self.expect(("decode", KNOB) in cleared, f"{KNOB} was not cleared")
        self.vindicate("claim", "displace", "H1", "--evidence", saved[-1]["id"])
        return f"diagnose named the proxy in {took:.0f} s, confidence {verdict['confidence']:.2f}, and cleared decode and its knob"

    def clawback(self) -> str:
        """Ask what was given up."""
        self.vindicate("clawback")
        found = json.loads(self.quietly("clawback", "--json"))["candidates"]
        self.expect(len(found) == 1, f"clawback lists {len(found)} candidates")
        candidate = found[0]
        worth = {item["level"]: item["gain_pct"] for item in candidate["worth"]}
        self.expect(worth == {64: 12.8, 80: 1.2, 96: 5.7}, f"its worth reads {worth}")
        return f"{candidate['change']} is {candidate['standing']}, worth " + ", ".join(
            f"{gain:+.1f} % at {level}" for level, gain in sorted(worth.items())
        )

    def recovery(self) -> str:
        """Replace the proxy, restore the knob under watch, correct the document, stop everything."""
        self.tell("the proxy is replaced by a correct one")
        script = self.directory / "serve_proxy.sh"
        script.write_text(
            script.read_text(encoding="utf-8").replace("proxy.connector_starvation", "none"), encoding="utf-8"
        )
        self.vindicate("stack", "restart", "proxy", "--yes")
        change = json.loads(self.quietly("clawback", "--json"))["candidates"][0]["change"]
        self.vindicate("restore", change, "--accept", "the proxy was at fault; the watch is the refuting test", "--yes")
        self.expect(self.live_value() == "512", "the live decode process does not hold 512")
        claims = {item["claim"]: item["status"] for item in self.facts("claim_event")}
        self.expect(claims.get("H1") == "refuted", f"H1 is {claims.get('H1')}")
        self.vindicate("docs", "sync", "PLAN.md", "--yes")
        text = (self.directory / "PLAN.md").read_text(encoding="utf-8")
        self.expect("~~" in text, "PLAN.md was not corrected")
        left = json.loads(self.quietly("clawback", "--json"))["candidates"]
        self.expect(not left, "clawback still lists a candidate")
        watched = [item for item in self.facts("evidence") if item["kind"] == "intervention"][-1]
        self.vindicate("stack", "down")
        return f"512 is back and live; {watched['text']}; H1 refuted; PLAN.md corrected; nothing left running"

    def proof(self) -> str:
        """Measure the knob on fresh starts in random blocks."""
        self.vindicate("stack", "up")
        self.vindicate("ab", f"{KNOB}=256..512", "--levels", "64,80,96", "--blocks", "6", "--looks", "6", "--yes")
        self.vindicate("stack", "down")
        measured = [item for item in self.facts("evidence") if item["kind"] == "experiment"][-1]
        return str(measured["text"])

    # ---- the harness ---------------------------------------------------------------------------------------------

    def harness_words(self, name: str, *, stall_after: str = "3s") -> list[str]:
        """The harness as a command line: agents that grow their history and sometimes abandon a stream."""
        return [
            "load", "--model", "reference-copy", "--concurrency", "8", "--rounds", "4", "--requests", "80", "--max-tokens", "16",
            "--cancel-share", "0.2", "--stall-after", stall_after, "--out", f"runs/{name}",
        ]  # fmt: skip

    def harness(self, name: str, *, code: int) -> dict[str, Any]:
        """Run the harness to its end and give the summary of its one level."""
        self.vindicate(*self.harness_words(name), code=code)
        summary = json.loads((self.directory / "runs" / name / "summary.json").read_text(encoding="utf-8"))
        level: dict[str, Any] = summary["levels"][0]
        return level

    def wait_for_silence(self, harness: "subprocess.Popen[bytes]") -> None:
        """Wait until the background harness has finished no request for three seconds while some are open."""
        log = self.directory / "runs" / "background" / "requests.jsonl"
        deadline = time.monotonic() + 30
        size, since = -1, time.monotonic()
        while time.monotonic() < deadline and time.monotonic() - since < 3:
            self.expect(harness.poll() is None, f"the harness ended with {harness.returncode}")
            now = log.stat().st_size if log.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            time.sleep(0.1)

    # ---- running commands ----------------------------------------------------------------------------------------

    def vindicate(self, *words: str, code: int = 0) -> None:
        """Run one command as a user would, its output shown, and insist on its exit code."""
        self.show("\n$ vindicate " + " ".join(_quoted(word) for word in words))
        self.child = child = subprocess.Popen(
            [sys.executable, "-m", "vindicate", *words],
            cwd=self.directory, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            env=_environment(), start_new_session=True,
        )  # fmt: skip
        assert child.stdout is not None
        self._copy(child.stdout)
        seen = child.wait()
        self.child = None
        self.expect(seen == code, f"`vindicate {words[0]}` ended with {seen}, and this act needs {code}")

    def quietly(self, *words: str) -> str:
        """Run one reading command and give its standard output."""
        done = subprocess.run(
            [sys.executable, "-m", "vindicate", *words], cwd=self.directory, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            env=_environment(), check=False, timeout=60,
        )  # fmt: skip
        self.expect(
            done.returncode == 0,
            f"`vindicate {' '.join(words)}` ended with {done.returncode}: {done.stderr.strip()[-300:]}",
        )
        return done.stdout

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start one command in the background; its output goes to a file."""
        self.show("\n$ vindicate " + " ".join(_quoted(word) for word in words) + " &")
        log = self.directory / f"{words[0]}.log"
        with log.open("wb") as sink:
            self.child = subprocess.Popen(
                [sys.executable, "-m", "vindicate", *words], cwd=self.directory, stdin=subprocess.DEVNULL, stdout=sink, stderr=subprocess.STDOUT,
                env=_environment(), start_new_session=True,
            )  # fmt: skip
        return self.child

    def end(self, child: "subprocess.Popen[bytes] | None" = None) -> None:
        """End a command of ours: as Ctrl-C would, then for good."""
        child = child or self.child
        if child is None or child.poll() is not None:
            return
        child.send_signal(signal.SIGINT)
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def _copy(self, stream: IO[bytes]) -> None:
        for line in stream:
            self.show("  " + line.decode(errors="replace").rstrip("\n"))

    # ---- looking -------------------------------------------------------------------------------------------------

    def tell(self, text: str) -> None:
        """Show a line of the teller."""
        self.show(f"\n-- {text}")

    def expect(self, good: bool, otherwise: str) -> None:
        """Break the story off when *good* is false, and name the services that are not ready."""
        if not good:
            raise StoryError(
                f"the story broke: {otherwise}{self._not_ready()}",
                remedy="run it again with --keep DIR, then look at the logs in DIR",
            )

    def _not_ready(self) -> str:
        """``; not ready: decode (down)``, or nothing when all are, or it cannot be told."""
        try:
            done = subprocess.run(
                [sys.executable, "-m", "vindicate", "stack", "status", "--json"], cwd=self.directory, stdin=subprocess.DEVNULL,
                capture_output=True, env=_environment(), check=False, timeout=20,
            )  # fmt: skip
            services = json.loads(done.stdout)["services"]
        except (OSError, ValueError, KeyError, subprocess.TimeoutExpired):
            return ""
        found = [f"{service['name']} ({service['state']})" for service in services if service["state"] != "ready"]
        return f"; not ready: {', '.join(found)}" if found else ""

    def live_value(self) -> str | None:
        """What the live decode process holds, when all its processes agree."""
        status = json.loads(self.quietly("stack", "status", "--json"))
        decode = next(service for service in status["services"] if service["name"] == "decode")
        values = set(decode["knobs"][KNOB]["live"].values())
        return values.pop() if len(values) == 1 else None

    def facts(self, kind: str) -> list[dict[str, Any]]:
        """Bodies of all facts of one kind in the ledger, oldest first."""
        lines = self.quietly("ledger", "export").splitlines()
        return [fact["body"] for fact in map(json.loads, lines) if fact.get("kind") == kind]


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word else word


def _environment() -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": os.environ.get("COLUMNS", "100"),
        "NO_COLOR": os.environ.get("NO_COLOR", "1"),
        "VINDICATE_STACK": "",
    }
