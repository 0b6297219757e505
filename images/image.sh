# shellcheck shell=bash
# The steps that every image recipe shares; sourced by images/<id>/build.sh, which sets
#   id        name of the image
#   language  what it is for ("" for none), and version_command, which prints its version inside the image
#   packages  Debian packages on top of base_packages
#   variables (optional) NAME=VALUE words of the environment on top of PATH, HOME and LANG: no quotes, no spaces but plain ones
#   customize (optional function) changes the tree in $1 after the packages are in
#   finish    (optional function) changes the tree in $1 when file times are settled, and sets those of what it changes
# and calls build_image OUTDIR. Makes OUTDIR/rootfs.erofs and OUTDIR/image.json. Needs root and mmdebstrap.

umask 022
release=trixie
variables=()
user_path=/home/user/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

# What an agent reaches for without asking. No compilers (300 MB) and no ssh (no network by default):
# sudo apt-get brings them. iproute2: the first question about a network is `ip addr`.
base_packages=(ca-certificates curl git iproute2 jq less patch procps sudo unzip xz-utils zip zstd)

say() { echo "image $id: $*" >&2; }
die() { say "$*"; exit 1; }

# Runs a command in a tree with nothing of this host's environment (a TMPDIR would not exist there).
in_root() {
  local root=$1
  shift
  env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot "$root" "$@"
}

# Runs a command in a tree as `user`, at home. Go finds its own folder by /proc, which is mounted where nobody else sees
# it: a build that is killed leaves no mount.
as_user() {
  # shellcheck disable=SC2016 # the inner shell expands them
  env -i PATH="$user_path" HOME=/home/user LC_ALL=C.UTF-8 unshare --mount bash -c '
    root=$1; shift
    mount -t proc proc "$root/proc"
    exec chroot --userspec=1000:1000 "$root" env --chdir=/home/user "$@"' as_user "$@"
}

# File times decide whether a .pyc is current, so package times stay as they are. What the build itself wrote
# gets the newest time of a packaged file: the same packages give the same image.
settle_times() {
  local root=$1 start=$2 newest
  newest=$(find "$root" -xdev -type f ! -newermt "@$start" -printf '%T@\n' | sort -n | tail -n 1)
  newest=${newest%.*}
  find "$root" -xdev -newermt "@$start" -exec touch --no-dereference --date="@$newest" {} +
  echo "$newest"
}

# dpkg keeps these options, so a later apt-get in a sandbox leaves documentation out as well.
dpkg_options=(
  --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-include=/usr/share/doc/*/copyright'
  --dpkgopt='path-exclude=/usr/share/man/*' --dpkgopt='path-exclude=/usr/share/info/*'
  --dpkgopt='path-exclude=/usr/share/locale/*' --dpkgopt='path-exclude=/usr/share/lintian/*'
)

add_user() {
  local root=$1 variable
  in_root "$root" groupadd --gid 1000 user
  in_root "$root" useradd --uid 1000 --gid 1000 --create-home --shell /bin/bash user
  echo 'user ALL=(ALL:ALL) NOPASSWD: ALL' > "$root/etc/sudoers.d/user"
  install -d -o 1000 -g 1000 "$root/workspace"
  # A login shell resets PATH: keep it the same as image.json's.
  # shellcheck disable=SC2016 # the profile expands it, not this script
  printf 'export PATH=%s LANG=C.UTF-8\n' "$user_path" > "$root/etc/profile.d/path.sh"
  sed -i "s|^Defaults.*secure_path=.*|Defaults secure_path=\"$user_path\"|" "$root/etc/sudoers"
  for variable in "${variables[@]}"; do
    printf "export %s='%s'\n" "${variable%%=*}" "${variable#*=}" >> "$root/etc/profile.d/path.sh"
    printf 'Defaults env_keep += "%s"\n' "${variable%%=*}" >> "$root/etc/sudoers.d/user"
  done
  chmod 0440 "$root/etc/sudoers.d/user"
}

# Nothing of the build host, no caches, no logs, no identity: the agent gives each sandbox its own.
clean() {
  local root=$1
  rm -rf "$root"/var/lib/apt/lists/* "$root"/var/cache/{apt,debconf,ldconfig}/* "$root"/var/log/* "$root"/tmp/* \
    "$root"/var/lib/dpkg/*-old "$root"/etc/*- "$root"/root/.cache "$root"/run/*
  rm -f "$root"/etc/{resolv.conf,machine-id,hostname}
  : > "$root/etc/resolv.conf"
  : > "$root/etc/machine-id"
  echo sandbox > "$root/etc/hostname"
  printf '127.0.0.1 localhost sandbox\n::1 localhost ip6-localhost\n' > "$root/etc/hosts"
}

json_variables() {
  local variable
  for variable in "${variables[@]}"; do printf ', "%s": "%s"' "${variable%%=*}" "${variable#*=}"; done
}

build_image() {
  local out=$1 work tools root start epoch arch count version size digest
  [[ $(id -u) = 0 ]] || die "needs root: the tree has foreign owners and devices"
  command -v mmdebstrap > /dev/null || die "needs the Debian package mmdebstrap"
  arch=$(dpkg --print-architecture)
  [[ ${ARCH:-$arch} = "$arch" ]] || die "is built on its own architecture: this is $arch, wanted is $ARCH"
  work=$(mktemp -d -p "${MICROVM_SCRATCH:-${TMPDIR:-/tmp}}")
  # shellcheck disable=SC2064 # the path of now
  trap "rm -rf --one-file-system '$work'" EXIT
  tools=$work/tools root=$work/tools/image
  say "making a $release root for mkfs.erofs, so that the file format does not depend on the host"
  mmdebstrap --quiet --variant=minbase --include=erofs-utils "$release" "$tools"
  start=$(date +%s)
  say "installing Debian $release packages"
  mmdebstrap --quiet --variant=minbase "${dpkg_options[@]}" \
    --include="$(IFS=,; echo "${base_packages[*]}${packages[*]:+,${packages[*]}}")" "$release" "$root"
  add_user "$root"
  if declare -F customize > /dev/null; then customize "$root"; fi
  clean "$root"
  count=$(in_root "$root" dpkg-query -f '.\n' -W | wc -l)
  version=$(in_root "$root" sh -c "$version_command")
  epoch=$(settle_times "$root" "$start")
  if declare -F finish > /dev/null; then finish "$root"; fi
  say "writing the file system"
  mkdir -p "$out"
  in_root "$tools" mkfs.erofs --quiet -U 6d696372-6f76-4d00-8000-000000000000 -T "$epoch" --mkfs-time /rootfs.erofs /image
  mv "$tools/rootfs.erofs" "$out/rootfs.erofs"
  chmod 0444 "$out/rootfs.erofs"
  size=$(stat -c %s "$out/rootfs.erofs")
  digest=$(sha256sum "$out/rootfs.erofs" | cut -d' ' -f1)
  cat > "$out/image.json" <<EOF
{
  "id": "$id",
  "language": "$language",
  "language_version": "$version",
  "arch": "$arch",
  "size_bytes": $size,
  "digest": "sha256:$digest",
  "format": "erofs",
  "env": {"PATH": "$user_path", "HOME": "/home/user", "LANG": "C.UTF-8"$(json_variables)},
  "workdir": "/workspace",
  "uid": 1000,
  "gid": 1000,
  "user": "user",
  "debian_release": "$release",
  "packages_count": $count
}
EOF
  say "done: $((size / 1048576)) MiB, $count packages"
}
