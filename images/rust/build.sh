#!/bin/bash
# usage: build.sh OUTDIR
# The image `rust`: base plus Debian's Rust and cargo, whose package brings the standard library compiled, and a few
# crates in cargo's cache.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../image.sh
source "$here/../image.sh"

id=rust
language=rust
version_command="rustc --version | cut -d' ' -f2"
# gcc comes with rustc: it is the linker, and compiles C for crates that bring some.
packages=(rustc cargo)

customize() {
  local root=$1 home=$1/home/user target
  # As pip does, cargo install puts programs where PATH looks first.
  install -d -o 1000 -g 1000 "$home/.cargo"
  printf '[install]\nroot = "/home/user/.local"\n' > "$home/.cargo/config.toml"
  # The image's own cargo downloads, so that the cache is as it expects it; certificates and proxy are this machine's.
  # Checksums are those of Cargo.lock.
  say "downloading crates"
  install -d -o 1000 -g 1000 "$home/crates"
  install -o 1000 -g 1000 -m 644 "$here"/crates/* "$home/crates/"
  cp /etc/resolv.conf "$root/etc/resolv.conf"
  install -m 644 /etc/ssl/certs/ca-certificates.crt "$root/tmp/ca.crt"
  target=$(as_user "$root" rustc -vV | sed -n 's/^host: //p')
  as_user "$root" env CARGO_HTTP_CAINFO=/tmp/ca.crt ${https_proxy:+"https_proxy=$https_proxy"} \
    cargo fetch --quiet --locked --target "$target" --manifest-path crates/Cargo.toml
  # It says when each crate was used last, which is when this was built.
  rm -rf "$home/crates" "$home/.cargo/.global-cache"
}

build_image "${1:?usage: build.sh OUTDIR}"
