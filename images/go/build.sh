#!/bin/bash
# usage: build.sh OUTDIR
# The image `go`: base plus Debian's Go, with the standard library compiled in the user's build cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../image.sh
source "$here/../image.sh"

id=go
language=go
version_command="sed -n '1s/^go//p' /usr/lib/go/VERSION"
packages=(golang-go)
# What only tests of Go itself read.
dpkg_options+=(
  --dpkgopt='path-exclude=/usr/share/go-*/test/*' --dpkgopt='path-exclude=/usr/share/go-*/api/*'
  --dpkgopt='path-exclude=/usr/share/go-*/src/*/testdata/*'
)
cache=home/user/.cache/go-build

customize() {
  local root=$1 fill=$1/home/user/fill
  # The Go of the image is the one that is used: another would have to be downloaded, and nothing would be warm.
  sed -i 's/^GOTOOLCHAIN=.*/GOTOOLCHAIN=local/' "$root"/usr/lib/go-*/go.env
  as_user "$root" go telemetry off
  # As pip does, go install puts programs where PATH looks first.
  as_user "$root" go env -w GOBIN=/home/user/.local/bin
  say "compiling the standard library"
  as_user "$root" go build std
  # go vet, and go test, which vets first, keep facts about each package below: a program that imports them all.
  install -d -o 1000 -g 1000 "$fill"
  printf 'module fill\n\ngo 1.24\n' > "$fill/go.mod"
  { echo 'package main'; as_user "$root" go list std | grep -vE '(^|/)(internal|vendor)(/|$)' | sed 's/.*/import _ "&"/'; } > "$fill/fill.go"
  printf 'func main() {}\n' >> "$fill/fill.go"
  printf 'package main\n\nimport "testing"\n\nfunc TestFill(*testing.T) {}\n' > "$fill/fill_test.go"
  as_user "$root" go -C fill vet .
  as_user "$root" go -C fill test .
  rm -rf "$fill"
}

# Go throws out of its cache, once a day, what was not used for five days, and sets the time of what it uses. Times far
# ahead keep both from happening to what the image brings: it would be gone after the first build, and each use would
# copy a file into the sandbox's own disk. Entries also name the moment of their making, which would show.
finish() {
  find "$1/$cache" -name '*-a' -exec sed -i -E 's/ +[0-9]+$/                    0/' {} +
  find "$1/$cache" -type f -exec touch --date=2100-01-01 {} +
  chown -R 1000:1000 "$1/$cache" # sed writes a file anew
}

build_image "${1:?usage: build.sh OUTDIR}"
