"""Stands in for systemctl, journalctl and docker in tests: really starts and stops small processes, and logs every call.

Usage: keeper.py PROGRAM ARGUMENTS…, with the folder KEEPER_HOME for its state. `install` writes the programs into a folder
for the PATH. Like the real ones it starts what it keeps with an environment of its own, not with the caller's, and systemd's
part uses a unit's files as they were at the last daemon-reload.

KEEPER_HOME/system and /user hold units; /deny makes docker refuse; /calls holds one JSON list of words a line.
"""

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

HOME = Path(os.environ.get("KEEPER_HOME", "/nonexistent"))


def install(folder, home):
    """Write the programs into *folder*; what they keep stands in *home*."""
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("system", "user", "kept"):
        (home / part).mkdir(parents=True, exist_ok=True)
    for name in ("systemctl", "journalctl", "docker"):
        program = folder / name
        program.write_text(
            f'#!/bin/sh\nKEEPER_HOME={shlex.quote(str(home))} exec {sys.executable} -S {Path(__file__)} {name} "$@"\n'
        )
        program.chmod(0o755)


def calls(home, program=None):
    """The calls so far, each as its words; of one program without its name."""
    lines = [json.loads(line) for line in (home / "calls").read_text().splitlines()]
    return [words[1:] for words in lines if words[0] == program] if program else lines


# ---- what is kept: one process with its own session, watched by a process that reaps it ------------------------------


class Kept:
    def __init__(self, name):
        self.file, self.log, self.stopped = (HOME / "kept" / f"{name}.{end}" for end in ("json", "log", "stopped"))

    @property
    def state(self):
        with contextlib.suppress(OSError, ValueError):
            new = {"pid": 0, "code": 0, "restarts": 0, "rm": False, "told": None}
            return {**new, **json.loads(self.file.read_text()), "stopping": self.stopped.exists()}
        return None

    def write(self, **state):
        part = self.file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps({**(self.state or {}), **state}))
        part.replace(self.file)

    def start(self, argv, env, *, again=False):
        """Run *argv* until it ends; *again*: then once more, as Restart=always."""
        marked = {name: os.environ[name] for name in ("PATH", "VINDICATE_TEST_SESSION") if name in os.environ}
        self.stopped.unlink(missing_ok=True)
        self.write(pid=0, code=None, restarts=0)
        if os.fork() == 0:
            os.setsid()
            null = os.open(os.devnull, os.O_RDWR)
            for descriptor in (0, 1, 2):
                os.dup2(null, descriptor)
            while True:
                with self.log.open("ab") as sink:
                    child = subprocess.Popen(
                        argv, env={**marked, **env}, stdout=sink, stderr=sink, start_new_session=True
                    )
                self.write(pid=child.pid)
                code = child.wait()
                self.write(pid=0, code=code)
                if again:
                    time.sleep(0.1)
                if not again or self.stopped.exists():
                    os._exit(0)
                self.write(restarts=self.state["restarts"] + 1)
        self.wait(lambda state: state["pid"] or state["code"] is not None)

    def wait(self, good, within=90.0):
        deadline = time.monotonic() + within
        while not good(self.state):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True

    def signal(self, number):
        self.stopped.touch()
        if self.state and self.state["pid"]:
            for pid in session_of(self.state["pid"]):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)

    def stop(self, within):
        self.signal(signal.SIGTERM)
        if self.state and not self.wait(lambda state: not state["pid"], within):
            self.signal(signal.SIGKILL)
            self.wait(lambda state: not state["pid"])
        self.signal(signal.SIGKILL)


def session_of(leader):
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError):
            if name.isdigit() and int(Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[3]) == leader:
                found.append(int(name))
    return found


# ---- systemd ---------------------------------------------------------------------------------------------------------


def files_of(folder, unit):
    drop_ins = sorted((folder / f"{unit}.d").glob("*.conf"))
    return {str(path): path.read_text() for path in (folder / unit, *drop_ins) if path.exists()}


def service_of(files):
    """The command, environment and Restart= of a unit, read with rules of this file's own."""
    env, command, again, unset = {}, [], False, []
    for text in files.values():
        for line in text.splitlines():
            key, _, value = line.partition("=")
            words = (
                [word.replace("%%", "%") for word in shlex.split(value)]
                if key in ("Environment", "ExecStart", "UnsetEnvironment")
                else []
            )
            if key == "Environment":
                env |= dict(word.split("=", 1) for word in words)
            elif key == "ExecStart":
                command = words
            elif key == "UnsetEnvironment":
                unset += words
            elif key == "Restart":
                again = value == "always"
    return command, {name: value for name, value in env.items() if name not in unset}, again


def systemctl(words):
    user = "--user" in words
    words = [word for word in words if word not in ("--user", "--no-ask-password", "--")]
    folder = HOME / ("user" if user else "system")
    verb, unit = words[0], words[-1]
    loaded = HOME / "kept" / f"loaded-{folder.name}.json"
    known = json.loads(loaded.read_text()) if loaded.exists() else {}
    if verb == "daemon-reload":
        loaded.write_text(json.dumps({path.name: files_of(folder, path.name) for path in folder.glob("*.service")}))
        return 0
    if not (folder / unit).exists():
        print("LoadState=not-found" if verb == "show" else f"Unit {unit} not found.")
        return 0 if verb == "show" else 5
    if unit not in known:
        known[unit] = files_of(folder, unit)
        loaded.write_text(json.dumps(known))
    kept = Kept(unit)
    if verb == "show":
        state = kept.state or {"pid": 0, "code": None, "stopping": True, "restarts": 0}
        over = "inactive" if state["stopping"] or state["code"] == 0 else "failed"
        active, sub = ("active", "running") if state["pid"] else (over, "dead" if over == "inactive" else "failed")
        if service_of(known[unit])[2] and over == "failed" and not state["pid"]:
            active, sub = "activating", "auto-restart"
        fragment, *drop_ins = known[unit]
        print(
            f"Id={unit}\nLoadState=loaded\nMainPID={state['pid']}\nActiveState={active}\nSubState={sub}\nControlGroup=\n"
            f"Result={'exit-code' if over == 'failed' else 'success'}\nNRestarts={state['restarts']}\nFragmentPath={fragment}\n"
            f"DropInPaths={' '.join(drop_ins)}\nNeedDaemonReload={'no' if known[unit] == files_of(folder, unit) else 'yes'}"
        )
    elif verb == "start":
        if not (kept.state and kept.state["pid"]):
            command, env, again = service_of(known[unit])
            kept.start(command, env, again=again)
    elif verb == "stop":
        kept.stop(90.0)
    elif verb == "kill":
        kept.signal(signal.SIGKILL)
    else:
        print(f"unexpected: {words}", file=sys.stderr)
        return 1
    return 0


# ---- docker ----------------------------------------------------------------------------------------------------------


def no_such(name):
    print(f"Error response from daemon: No such container: {name}", file=sys.stderr)
    return 1


def docker(words):
    if (HOME / "deny").exists():
        print(
            "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock",
            file=sys.stderr,
        )
        return 1
    verb, name = words[0], words[-1]
    if verb == "compose":
        return compose(words[1:])
    if verb == "run":
        return run(words[1:])
    kept = Kept(name)
    if kept.state is None:
        return no_such(name)
    state = kept.state
    if verb == "inspect":
        status = "running" if state["pid"] else "created" if state["code"] is None else "exited"
        print(json.dumps([{"Name": f"/{name}", "RestartCount": 0, "HostConfig": {"AutoRemove": state["rm"]},
                           "State": {"Status": status, "Pid": state["pid"], "ExitCode": state["code"], "OOMKilled": False}}]))  # fmt: skip
    elif verb == "start" and not state["pid"]:
        kept.start(state["argv"], state["env"])
    elif verb in ("stop", "kill"):
        kept.stop(float(words[words.index("-t") + 1])) if verb == "stop" else kept.signal(signal.SIGKILL)
        if state["rm"] and os.fork() == 0:  # the real one is stopped first and gone a little later, too
            os.closerange(0, 3)
            time.sleep(0.3)
            kept.file.unlink()
            os._exit(0)
    elif verb == "rm":
        if state["pid"]:
            print("Error response from daemon: cannot remove container: it is running", file=sys.stderr)
            return 1
        kept.file.unlink()
    elif verb == "logs":
        print("\n".join(kept.log.read_text().splitlines()[-int(words[words.index("--tail") + 1]) :]))
    return 0


def run(words):
    env, options = {}, []
    name = ""
    while words[0].startswith("-"):
        word = words.pop(0)
        if word == "-e":
            key, _, value = words.pop(0).partition("=")
            env[key] = value
        elif word == "--name":
            name = words.pop(0)
        else:
            options.append(word)
    kept = Kept(name)
    if kept.state is not None:
        print(
            f'docker: Error response from daemon: Conflict. The container name "/{name}" is already in use',
            file=sys.stderr,
        )
        return 125
    argv = words[1:]  # after the image
    kept.write(argv=argv, env=env, rm="--rm" in options, pid=0, code=None)  # created, from its first moment
    kept.start(argv, env)
    if "-d" in options:
        print("0123456789abcdef")
        return 0
    kept.wait(lambda state: state is None or not state["pid"], 120.0)
    return 0


def compose(words):
    assert words[0] == "-f"
    services = json.loads(Path(words[1]).read_text())["services"]  # JSON is YAML
    verb, service = words[2], words[-1]
    if service not in services:
        print(f"no such service: {service}", file=sys.stderr)
        return 1
    kept, told = Kept(f"project-{service}-1"), services[service]
    if verb == "ps" and kept.state is not None:
        print(f"project-{service}-1")
    elif verb == "up" and not (kept.state and kept.state["pid"] and kept.state["told"] == told):
        kept.stop(10.0)
        kept.write(argv=told["command"], env=told["environment"], rm=False, told=told, pid=0, code=None)
        kept.start(told["command"], told["environment"])
    elif verb in ("stop", "kill"):
        kept.stop(float(words[words.index("-t") + 1])) if verb == "stop" else kept.signal(signal.SIGKILL)
    elif verb == "logs":
        print(kept.log.read_text())
    return 0


def main():
    program, words = sys.argv[1], sys.argv[2:]
    with (HOME / "calls").open("a") as sink:
        sink.write(json.dumps([program, *words]) + "\n")
    if program == "journalctl":
        log = Kept(words[words.index("-u") + 1]).log
        print("\n".join(log.read_text().splitlines()[-20:]) if log.exists() else "-- No entries --")
        return 0
    return {"systemctl": systemctl, "docker": docker}[program](words)


if __name__ == "__main__":
    sys.exit(main())
