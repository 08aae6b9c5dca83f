#!/usr/bin/env bash
# Router in front of the pair.
set -euo pipefail

exec python -m sglang_router.launch_router \
  --pd-disaggregation \
  --prefill http://127.0.0.1:30000 8998 \
  --decode http://127.0.0.1:30001 \
  --host 127.0.0.1 \
  --port 8000 \
  --prometheus-host 127.0.0.1 \
  --prometheus-port 29000 \
  --health-check-interval-secs 5
