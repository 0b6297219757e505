#!/usr/bin/env bash
# Everything about the code that can be told without running it.
set -euo pipefail
cd "$(dirname "$0")/.."
tool() { go tool -modfile=tools.mod "$@"; }
say() { printf -- '-- %s\n' "$*"; }

say 'format'
unformatted=$(git ls-files '*.go' | grep -v '/gen/' | xargs go tool -modfile=tools.mod gofumpt -l)
[[ -z $unformatted ]] || { printf 'not formatted (make format):\n%s\n' "$unformatted" >&2; exit 1; }

say 'vet and cross-build: amd64 and arm64'
for arch in amd64 arm64; do
  GOARCH=$arch go vet ./...
  GOARCH=$arch go vet -tags kvm ./internal/{cgroup,firecracker,hostnet}
  GOARCH=$arch go vet -tags fakevmm ./internal/daemon ./cmd/microvmd
  GOARCH=$arch go build -o /dev/null ./cmd/microvmd
  GOARCH=$arch go build -o /dev/null ./cmd/microvm
  GOARCH=$arch go build -o /dev/null ./cmd/guestd
  (cd sdk/go && GOARCH=$arch go vet ./...)
done

say 'import rules and package comments'
go test -count=1 ./internal/archtest

say 'generated code is current'
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
generated=$(git ls-files | grep -E '(/gen/|\.gen\.go$)')
xargs cp --parents -t "$copy" <<<"$generated"
./api/generate.sh
while read -r file; do
  cmp -s "$file" "$copy/$file" || { echo "$file is not what api/generate.sh makes: commit its output" >&2; exit 1; }
done <<<"$generated"

say 'lint'
tool golangci-lint run ./...
(cd sdk/go && go tool -modfile=../../tools.mod golangci-lint run --config ../../.golangci.yml ./...)

say 'shell scripts'
./hack/need.sh shellcheck
git ls-files '*.sh' .ci/run | xargs shellcheck
