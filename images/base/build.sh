#!/bin/bash
# usage: build.sh OUTDIR
# The image `base`: a small Debian with the tools that shell work expects, and no language.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../image.sh
source "$here/../image.sh"

id=base
language=
version_command=true
packages=()

build_image "${1:?usage: build.sh OUTDIR}"
