#!/usr/bin/env bash
# Runs make targets one after the other and prints how long each took.
# usage: timed.sh TARGET...
set -euo pipefail
table=()
for target in "$@"; do
  began=$SECONDS
  printf '\n== make %s\n' "$target"
  make --no-print-directory "$target"
  table+=("$(printf '%-14s %5d s' "$target" $((SECONDS - began)))")
done
printf '\n== all passed\n'
printf '%s\n' "${table[@]}"
