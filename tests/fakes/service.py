"""A tiny real service for tests of start and stop: answers /health, says what its environment holds, misbehaves on request.

Speaks just enough of the chat protocol to be asked whether it still answers as before. See --help for how it misbehaves.
"""

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("port", type=int)
parser.add_argument("--knob", default="KNOB")
parser.add_argument("--die-after", type=float)
parser.add_argument("--ignore-term", action="store_true")
parser.add_argument("--spawn-worker", action="store_true")
parser.add_argument("--daemon-worker", action="store_true")
parser.add_argument("--unhealthy", action="store_true")
parser.add_argument("--sick-file", help="while it is there, /health is slow, or answers the status that it holds")
parser.add_argument("--refuse-file", help="while it is there, every prompt is answered 503")
parser.add_argument("--never-listen", action="store_true")
parser.add_argument("--never-listen-knob", help="never listen when the knob has this value")
parser.add_argument("--answer-knob", action="store_true")
parser.add_argument("--forget-knob", help="lose the context when the knob has this value")
parser.add_argument("--models", type=int, default=1, help="how many it lists, the first one's page 30 kB for 300")
parser.add_argument("--reasons", action="store_true", help="answers come as reasoning, the content is empty")
parser.add_argument("--mute", action="store_true", help="answers are empty")
parser.add_argument("--locked", action="store_true", help="/v1/models answers 401")
parser.add_argument("--api-key", help="a secret on the command line")
parser.add_argument("--delay", type=float, default=0.0, help="of every stream")
parser.add_argument("--stall-knob", help="stall streams when the knob has this value")
parser.add_argument("--stall-after", type=int, default=0, help="only after so many streams")
parser.add_argument("--fail-knob", help="end at once when the knob has this value")
parser.add_argument("--max-cap", help="a knob on the command line; 666 ends it at once")
parser.add_argument("--life", type=float, default=50.0)
options = parser.parse_args()
value = os.environ.get(options.knob)
seen = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        status = 503 if options.unhealthy else 200
        if self.path == "/health" and options.sick_file and Path(options.sick_file).exists():
            status = int(Path(options.sick_file).read_text() or 0)
            if not status:
                time.sleep(3.0)
                status = 200
        if self.path == "/v1/models":
            listed = [
                {"id": "fake" if n == 0 else f"fake-{n}", "object": "model", "pad": "x" * 64}
                for n in range(options.models)
            ]
            return self.reply(
                401 if options.locked else 200, {"object": "list", "data": listed}, in_pieces=options.models > 1
            )
        return self.reply(status if self.path == "/health" else 404, {"knob": value})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if options.refuse_file and Path(options.refuse_file).exists():
            return self.reply(503, {"error": "no prefill worker is available"})
        said = " ".join(message["content"] for message in body["messages"])
        planted = dict(re.findall(r"The value of (KEY-[0-9a-f]+) is (VAL-[0-9a-f]+)", said))
        asked = re.findall(r"What is the value of (KEY-[0-9a-f]+)", said)
        lost = options.forget_knob is not None and value == options.forget_knob
        text = planted.get(asked[-1], "?") if asked and not lost else "nothing to say"
        if options.answer_knob:
            text += f" {value}"
        if not body.get("stream"):
            said = (
                {"content": None, "reasoning_content": text}
                if options.reasons
                else {"content": "" if options.mute else text}
            )
            message = {"index": 0, "message": {"role": "assistant", **said}, "finish_reason": "stop"}
            return self.reply(
                200, {"id": "x", "object": "chat.completion", "model": "fake", "choices": [message], "usage": {}}
            )
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.event({"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None})
        seen.append(1)
        time.sleep(options.delay)
        if options.stall_knob is not None and value == options.stall_knob and len(seen) > options.stall_after:
            time.sleep(options.life)
        self.event({"index": 0, "delta": {}, "finish_reason": "stop"})
        self.chunk(b"data: [DONE]\n\n")
        return self.chunk(b"")

    def event(self, choice):
        document = {"id": "x", "object": "chat.completion.chunk", "model": "fake", "choices": [choice]}
        self.chunk(f"data: {json.dumps(document)}\n\n".encode())

    def chunk(self, data):
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def reply(self, status, document, *, in_pieces=False):
        data = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if in_pieces:
            self.wfile.write(data[:1000])
            time.sleep(0.2)
            data = data[1000:]
        self.wfile.write(data)

    def log_message(self, *args):
        pass


def sleeper(seconds):
    return [sys.executable, "-c", f"import signal,time; signal.signal(15, signal.SIG_IGN); time.sleep({seconds})"]


print(f"starting on {options.port}", flush=True)
if options.fail_knob is not None and value == options.fail_knob:
    print("CUDA out of memory api_key=sk-planted1234567890", flush=True)
    sys.exit(7)
if options.max_cap == "666":
    sys.exit(6)
if options.ignore_term:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if options.spawn_worker:
    subprocess.Popen(sleeper(options.life))
if options.daemon_worker:
    subprocess.Popen(sleeper(options.life), start_new_session=True)
threading.Timer(options.life, lambda: os._exit(0)).start()
if options.die_after is not None:
    threading.Timer(options.die_after, lambda: os._exit(3)).start()
if options.never_listen or (options.never_listen_knob is not None and value == options.never_listen_knob):
    time.sleep(options.life)
ThreadingHTTPServer(("127.0.0.1", options.port), Handler).serve_forever()
