#!/bin/bash
# usage: build.sh OUTDIR
# The image `node`: base plus Debian's Node.js, npm, and what runs TypeScript files without a build.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
# shellcheck source=../image.sh
source "$here/../image.sh"

id=node
language=javascript
version_command="node -p process.versions.node"
packages=(nodejs)
runner=/usr/lib/node-typescript
# shellcheck disable=SC2034 # image.sh reads it
variables=("NODE_OPTIONS=--require $runner/register.cjs")

# npm comes as its own package: Debian's is 9.2 and brings 370 packages of one module each. sucrase takes types out of
# TypeScript in plain JavaScript; the others are what it loads. Who vouches: this project, which wrote the sums down
# from the machine's package registry. npm finds them by the machine's own settings.
npm_packages=(
  npm@10.9.9 sucrase@3.35.1 lines-and-columns@1.2.4 ts-interface-checker@0.1.13 @jridgewell/gen-mapping@0.3.13
  @jridgewell/sourcemap-codec@1.5.5 @jridgewell/trace-mapping@0.3.31 @jridgewell/resolve-uri@3.1.2
)
command -v npm > /dev/null || die "needs npm, to download $((${#npm_packages[@]})) packages: apt-get install npm"

customize() {
  local root=$1 archives=$1/tmp/npm name folder archive
  install -d "$archives"
  say "downloading ${npm_packages[*]}"
  npm pack --silent --pack-destination "$archives" "${npm_packages[@]}" > /dev/null
  (cd "$archives" && sha256sum --check --quiet "$here/packages.sha256")
  for name in "${npm_packages[@]}"; do
    archive=${name/#@/}
    archive=${archive//\//-}
    case $name in
      npm@*) folder=$root/usr/lib/node_modules/npm ;;
      *) folder=$root$runner/node_modules/${name%@*} ;;
    esac
    install -d "$folder"
    tar --extract --no-same-owner --strip-components=1 --directory="$folder" --file="$archives/${archive/@/-}.tgz"
  done
  install -m 644 "$here"/typescript/* "$root$runner/"
  # As pip does, npm puts programs where the user may write: npm install -g needs no sudo.
  # shellcheck disable=SC2016 # npm expands it
  printf 'prefix=${HOME}/.local\nupdate-notifier=false\nfund=false\n' > "$root/usr/lib/node_modules/npm/npmrc"
  chmod 755 "$root"/usr/lib/node_modules/npm/bin/np[mx]-cli.js
  for name in npm npx; do ln -s "../lib/node_modules/npm/bin/$name-cli.js" "$root/usr/bin/$name"; done
  rm -rf "$root"/usr/lib/node_modules/npm/{man,docs} "$archives"
  as_user "$root" npm --version > /dev/null
}

build_image "${1:?usage: build.sh OUTDIR}"
