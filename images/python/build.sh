#!/bin/bash
# usage: build.sh OUTDIR
# The image `python`: base plus Debian's Python with pip and venv.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../image.sh
source "$here/../image.sh"

id=python
language=python
version_command="python3 -c 'import platform; print(platform.python_version())'"
packages=(python3 python3-pip python3-venv python-is-python3)
# In a sandbox pip is the user's way to packages, and nothing of Debian's can be broken for anybody else:
# without this mark `pip install` works without a flag and goes to ~/.local. As a dpkg option it also
# survives an upgrade of Python in the sandbox.
dpkg_options+=(--dpkgopt='path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED')

customize() {
  printf '[global]\ndisable-pip-version-check = true\n' > "$1/etc/pip.conf"
  # pip's own modules are compiled when its package is installed only if py3compile ran: make sure, and fail if not.
  in_root "$1" python3 -c 'import pip, sys; sys.exit(not pip.__cached__)'
}

build_image "${1:?usage: build.sh OUTDIR}"
