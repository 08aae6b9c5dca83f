#!/usr/bin/env bash
# Decode service of the disaggregated pair: GPUs 4 to 7.
set -euo pipefail

export CUDA_VISIBLE_DEVICES=4,5,6,7
export SGLANG_DISAGGREGATION_WAITING_TIMEOUT=300

# Thread blocks that this team's split-K decode kernel aims for; the engine takes 256 when this is unset.
export SGLANG_SM120_MMA_TARGET_CTAS=256

exec python -m sglang.launch_server \
  --model-path "${DSV4_MODEL:?set DSV4_MODEL to the model folder}" \
  --served-model-name dsv4 \
  --host 127.0.0.1 \
  --port 30001 \
  --tp-size 4 \
  --disaggregation-mode decode \
  --enable-metrics
