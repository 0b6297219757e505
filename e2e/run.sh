#!/usr/bin/env bash
# Runs the e2e suites (or the benchmarks) on a host with KVM: this machine where
# its KVM is hardware, else the emulated host. Everything the suites need is
# brought up first, through the same command that a new user types.
# usage: run.sh [bench [ARG...]]
set -euo pipefail
cd "$(dirname "$0")/.."
suites=(lifecycle)
microvm=bin/microvm

say() { printf -- '-- %s\n' "$*"; }

say 'programs of the tests'
go build -trimpath -o bin/census ./e2e/census
for suite in "${suites[@]}"; do
  go test -c -trimpath -o "bin/e2e-$suite" "./e2e/$suite"
done

say 'host'
"$microvm" up

if "$microvm" doctor --kvm >/dev/null; then
  install -m 755 bin/census bin/e2e-* /usr/local/bin/
  on_host() { "$@"; }
else
  "$microvm" machine push bin/census "${suites[@]/#/bin/e2e-}" /usr/local/bin
  on_host() { "$microvm" machine shell -- "$@"; }
fi

if [[ ${1:-} = bench ]]; then
  on_host /usr/local/bin/microvm bench "${@:2}"
  exit
fi
table=()
for suite in "${suites[@]}"; do
  say "e2e/$suite"
  began=$SECONDS
  on_host "/usr/local/bin/e2e-$suite" -test.v -test.timeout 30m | tee "bin/e2e-$suite.log"
  grep -q '^--- PASS' "bin/e2e-$suite.log" || { echo "e2e/$suite ran no test" >&2; exit 1; }
  table+=("$(printf 'e2e/%-12s %5d s' "$suite" $((SECONDS - began)))")
done
printf '%s\n' "${table[@]}"
