#!/usr/bin/env bash
# Prefill service of the disaggregated pair: GPUs 0 to 3.
set -euo pipefail

export CUDA_VISIBLE_DEVICES=0,1,2,3
export SGLANG_DISAGGREGATION_BOOTSTRAP_TIMEOUT=300

exec python -m sglang.launch_server \
  --model-path "${DSV4_MODEL:?set DSV4_MODEL to the model folder}" \
  --served-model-name dsv4 \
  --host 127.0.0.1 \
  --port 30000 \
  --tp-size 4 \
  --disaggregation-mode prefill \
  --disaggregation-bootstrap-port 8998 \
  --enable-metrics
