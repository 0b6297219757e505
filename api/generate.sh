#!/bin/sh
# Regenerates everything that is made from openapi.yaml, into the checkout or
# below the directory that is given. The output depends on openapi.yaml, the
# settings beside it, and the versions in tools.mod only.
set -eu
cd "$(dirname "$0")"
root=${1:-..}
mkdir -p "$root/internal/httpapi/gen" "$root/sdk/go"
generate() {
	go tool -modfile=../tools.mod oapi-codegen -config "$1" -o "$root/$2" openapi.yaml
}
generate server.yaml internal/httpapi/gen/server.gen.go
generate models.yaml sdk/go/types.gen.go
