#!/usr/bin/env bash
# Installs Debian packages that are missing, and says so.
# usage: need.sh PACKAGE...
set -euo pipefail
missing=()
for package in "$@"; do
  dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q ' installed$' || missing+=("$package")
done
[[ ${#missing[@]} -gt 0 ]] || exit 0
[[ $(id -u) = 0 ]] || { echo "error: missing Debian packages: ${missing[*]}"$'\n'"  fix: run as root, or: sudo apt-get install ${missing[*]}" >&2; exit 1; }
echo "installing Debian packages: ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null 2>&1 ||
  { apt-get update -qq >/dev/null && apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null; }
