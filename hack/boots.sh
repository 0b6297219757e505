#!/usr/bin/env bash
# Boots the emulated host again and again, runs ten sandboxes at once in each,
# and tells a panic or a hang of the host from a failed test.
# usage: boots.sh [RUNS]     (after make up)
set -euo pipefail
cd "$(dirname "$0")/.."
runs=${1:-30}
export CGO_ENABLED=0
go build -trimpath -o bin/census ./e2e/census
go test -c -trimpath -o bin/e2e-lifecycle ./e2e/lifecycle
failed=0 lost=0
for ((i = 1; i <= runs; i++)); do
  began=$SECONDS
  bin/microvm machine stop >/dev/null 2>&1 || true
  verdict=passed
  if ! bin/microvm machine start >bin/boots.log 2>&1; then
    verdict='host did not start'
    lost=$((lost + 1))
  elif ! { bin/microvm machine push bin/census bin/e2e-lifecycle /usr/local/bin &&
    timeout 900 bin/microvm machine shell -- /usr/local/bin/e2e-lifecycle -test.run 'TestTenAtOnce$' -test.timeout 14m; } >>bin/boots.log 2>&1; then
    verdict='test failed'
    failed=$((failed + 1))
    if state=$(bin/microvm machine status | grep -i crashed); then
      verdict="host lost: $state"
      lost=$((lost + 1))
    fi
    cp bin/boots.log "bin/boots-$i.log"
  fi
  printf 'run %d of %d: %s, %d s\n' "$i" "$runs" "$verdict" $((SECONDS - began))
done
printf '%d runs: %d tests failed, %d hosts lost\n' "$runs" "$failed" "$lost"
[[ $((failed + lost)) = 0 ]]
