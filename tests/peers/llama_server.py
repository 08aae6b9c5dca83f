"""llama.cpp's own HTTP server in this process: `llama_server.py MODEL.gguf PORT SLOTS`."""

import signal
import sys

import xllamacpp

model, port, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
params = xllamacpp.CommonParams()
params.model.path = model
params.hostnames = ["127.0.0.1"]
params.port = port
params.n_parallel = slots
params.n_ctx = 1024 * slots
params.endpoint_metrics = True
params.endpoint_slots = True
params.cpuparams.n_threads = 1
server = xllamacpp.Server(params)
signal.pause()
