#!/usr/bin/env bash
# Runs the e2e suites (or a long soak, or the benchmarks) on a host with KVM: this
# machine where its KVM is hardware, else the emulated host. Everything the suites
# need is brought up first, through the same command that a new user types.
# usage: run.sh [more | soak | bench [ARG...]]
set -euo pipefail
cd "$(dirname "$0")/.."
export CGO_ENABLED=0 # a test binary is also a VMM in a jail, where no library is
suites=(lifecycle executions restart soak)
images=() # those that `up` brings only when asked
# What `make test` has no time for.
if [[ ${1:-} = more ]]; then
  suites=(files images languages)
  images=(node go rust)
fi
# What is proved below the daemon: jails, hostile VMMs, cgroups, the namespace, and that the fake VMM is as strict as the
# real one.
adapters=(cgroup hostnet firecracker)
microvm=bin/microvm

# tests_of ADAPTER: a pattern of its tests that need a host; the others are unit tests as well.
tests_of() {
  grep -l '^//go:build kvm' "internal/$1"/*_test.go | xargs sed -n 's/^func \(Test[A-Z][A-Za-z0-9]*\)(t .*/\1/p' | paste -sd'|' | sed 's/.*/^(&)$/'
}

# folder_of SUITE: where its package is; e2e/soak itself needs no host.
folder_of() { if [[ $1 = soak ]]; then echo ./e2e/soak/real; else echo "./e2e/$1"; fi; }

say() { printf -- '-- %s\n' "$*"; }

say 'programs of the tests'
go build -trimpath -o bin/census ./e2e/census
for suite in "${suites[@]}"; do
  go test -c -trimpath -o "bin/e2e-$suite" "$(folder_of "$suite")"
done
for adapter in "${adapters[@]}"; do
  go test -c -trimpath -tags kvm -o "bin/kvm-$adapter" "./internal/$adapter"
done

say 'host and images'
"$microvm" up "${images[@]/#/--image=}"

if "$microvm" doctor --kvm >/dev/null; then
  install -m 755 bin/census "${suites[@]/#/bin/e2e-}" "${adapters[@]/#/bin/kvm-}" /usr/local/bin/
  on_host() { "$@"; }
else
  "$microvm" machine push bin/census "${suites[@]/#/bin/e2e-}" "${adapters[@]/#/bin/kvm-}" /usr/local/bin
  on_host() { "$microvm" machine shell -- "$@"; }
fi

if [[ ${1:-} = bench ]]; then
  on_host /usr/local/bin/microvm bench "${@:2}"
  exit
fi
table=()
# on NAME PATTERN [VARIABLE=VALUE]...: runs tests of a binary on the host.
on() { timed "$1" on_host env "${@:3}" "/usr/local/bin/$1" -test.v -test.timeout 30m -test.run "$2"; }
# here NAME: runs all tests of a binary on this machine.
here() { timed "$1" env "MICROVM_BIN=$microvm" "bin/$1" -test.v -test.timeout 30m; }
# timed NAME COMMAND...: runs tests. Where none ran, that is a failure.
timed() {
  local name=$1 began=$SECONDS
  say "$name"
  "${@:2}" | tee "bin/$name.log"
  grep -q '^--- PASS' "bin/$name.log" || { echo "$name ran no test" >&2; exit 1; }
  table+=("$(printf '%-16s %5d s' "$name" $((SECONDS - began)))")
}
# A soak is repeated by its seed, which it prints.
settings=()
for name in MICROVM_SOAK_SEED MICROVM_SOAK_OPERATIONS MICROVM_SOAK_KILLS; do
  if [[ -v $name ]]; then settings+=("$name=${!name}"); fi
done
if [[ ${1:-} = soak ]]; then
  on e2e-soak . MICROVM_SOAK_OPERATIONS=500 MICROVM_SOAK_KILLS=70 "${settings[@]}"
  printf '%s\n' "${table[@]}"
  exit
fi
for suite in "${suites[@]}"; do
  on "e2e-$suite" . "${settings[@]}"
done
if [[ ${1:-} = more ]]; then
  printf '%s\n' "${table[@]}"
  exit
fi
# A terminal is where people are: on this machine.
./hack/need.sh tmux
go test -c -trimpath -o bin/e2e-terminal ./e2e/terminal
here e2e-terminal
# The adapters' tests get what they need in one directory, by hard links: it must be the file system of the jails.
on_host sh -ec 'cd /var/lib/microvm; rm -rf e2e/adapters; mkdir -p e2e/adapters/files e2e/adapters/state
  ln bin/firecracker bin/jailer kernel/vmlinux guest/guestd e2e/adapters/files
  ln images/python/rootfs.* e2e/adapters/files/rootfs'
for adapter in "${adapters[@]}"; do
  on "kvm-$adapter" "$(tests_of "$adapter")" MICROVM_TEST_DIR=/var/lib/microvm/e2e/adapters/files MICROVM_TEST_STATE=/var/lib/microvm/e2e/adapters/state \
    MICROVM_TEST_CGROUP=/sys/fs/cgroup/microvm.slice/microvm-sandboxes.service
done
on_host rm -rf /var/lib/microvm/e2e/adapters
printf '%s\n' "${table[@]}"
