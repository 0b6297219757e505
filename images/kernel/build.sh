#!/bin/bash
# usage: [ARCH=amd64|arm64] build.sh OUTDIR
# Builds the guest kernel from Debian's kernel source: OUTDIR/vmlinux and OUTDIR/kernel.json.
# Needs root and mmdebstrap; compiler and source come from a Debian root made here, so every host builds the same.
set -euo pipefail
umask 022
here=$(cd "$(dirname "$0")" && pwd)
out=${1:?usage: build.sh OUTDIR}
arch=${ARCH:-amd64}
release=bookworm
source_package=linux-source-6.1
packages=(bc bison flex gcc libc6-dev libelf-dev make xz-utils "$source_package")

case $arch in
  amd64) lists=(common.config x86_64.config) make_args=(ARCH=x86_64) target=vmlinux built=vmlinux strip=strip ;;
  arm64) # Firecracker loads the flat Image there; it keeps the name vmlinux so that nobody has to ask.
    lists=(common.config arm64.config) target=Image built=arch/arm64/boot/Image strip=
    make_args=(ARCH=arm64)
    if [[ $(dpkg --print-architecture) != arm64 ]]; then
      make_args+=(CROSS_COMPILE=aarch64-linux-gnu-) packages+=(gcc-aarch64-linux-gnu)
    fi ;;
  *) echo "kernel: ARCH is amd64 or arm64, not '$arch'" >&2; exit 1 ;;
esac

say() { echo "kernel: $*" >&2; }
die() { say "$*"; exit 1; }
[[ $(id -u) = 0 ]] || die "needs root, to make the build root"
command -v mmdebstrap > /dev/null || die "needs the Debian package mmdebstrap"

work=$(mktemp -d -p "${MICROVM_SCRATCH:-${TMPDIR:-/tmp}}")
running=
finish() {
  if [[ -n $running ]]; then kill "$running" 2> /dev/null || true; wait "$running" || true; fi
  rm -rf --one-file-system "$work"
}
trap finish EXIT
root=$work/root
say "making a $release build root"
mmdebstrap --quiet --variant=minbase --include="$(IFS=,; echo "${packages[*]}")" "$release" "$root"
tarball=usr/src/$source_package.tar.xz
# shellcheck disable=SC2016 # dpkg-query's own variable
package_version=$(chroot "$root" dpkg-query -W -f '${Version}' "$source_package")
say "unpacking $source_package $package_version"
mkdir -p "$root/build"
tar -xJf "$root/$tarball" -C "$root/build" --strip-components=1
rm "$root/usr/src/"*.tar.xz

# Nothing of this host's environment goes in (a TMPDIR would name a directory that is not there), and everything
# that would name this host, this moment or a build counter is fixed.
clean_env=(env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C KBUILD_BUILD_USER=microvm KBUILD_BUILD_HOST=microvm
  KBUILD_BUILD_VERSION=1 "KBUILD_BUILD_TIMESTAMP=$(LC_ALL=C date -u -d "@$(stat -c %Y "$root/build/Makefile")")")
make_in_root=("${clean_env[@]}" chroot "$root" make -C /build "${make_args[@]}")

# The lists over tinyconfig, then a look at what became of every line: an option that was renamed or whose
# dependency is missing would else vanish without a word.
"${make_in_root[@]}" -s tinyconfig > /dev/null
(cd "$here" && cat "${lists[@]}") > "$work/list"
grep -E '^(CONFIG_|# CONFIG_[A-Z0-9_]+ is not set$)' "$work/list" > "$work/options"
cat "$work/options" >> "$root/build/.config"
"${make_in_root[@]}" -s olddefconfig > "$work/log" 2>&1 || { cat "$work/log" >&2; die "olddefconfig failed"; }
bad=0
while IFS= read -r line; do
  if [[ $line == '# CONFIG_'* ]]; then
    name=${line#\# } name=${name%% *}
    grep -q "^$name=" "$root/build/.config" || continue
    say "option $name is wanted off, but something turned it on: $(grep "^$name=" "$root/build/.config")"
  else
    grep -qxF -- "$line" "$root/build/.config" && continue
    name=${line%%=*}
    say "option '$line' did not survive: $(grep -E "^(# )?${name}[= ]" "$root/build/.config" || echo "$name does not exist")"
  fi
  bad=$((bad + 1))
done < "$work/options"
((bad == 0)) || die "$bad options of ${lists[*]} are not what $package_version makes of them; correct them"

say "compiling $target ($(nproc) jobs)"
"${make_in_root[@]}" -j"$(nproc)" "$target" > "$work/log" 2>&1 &
running=$!
started=$SECONDS
while kill -0 "$running" 2> /dev/null; do
  sleep 1
  if (((SECONDS - started) % 20 == 0)); then
    say "$(grep -c '^  \(CC\|AS\) ' "$work/log") objects of about 1350 after $((SECONDS - started)) s"
  fi
done
status=0; wait "$running" || status=$?
running=
((status == 0)) || { tail -n 40 "$work/log" >&2; die "make $target failed with $status"; }

mkdir -p "$out"
if [[ -n $strip ]]; then chroot "$root" "$strip" "/build/$built"; fi
install -m 0444 "$root/build/$built" "$out/vmlinux"
cat > "$out/kernel.json" <<EOF
{
  "name": "microvm-guest-kernel",
  "arch": "$arch",
  "version": "$(cat "$root/build/include/config/kernel.release")",
  "source_package": "$source_package $package_version",
  "options_sha256": "$(sha256sum < "$work/list" | cut -d' ' -f1)",
  "size": $(stat -c %s "$out/vmlinux"),
  "sha256": "$(sha256sum < "$out/vmlinux" | cut -d' ' -f1)"
}
EOF
say "done: $(($(stat -c %s "$out/vmlinux") / 1048576)) MiB in $SECONDS s"
