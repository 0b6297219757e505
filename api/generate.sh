#!/bin/sh
# Regenerates everything that is made from openapi.yaml. The output depends on
# openapi.yaml, the settings beside it, and the versions in tools.mod only.
set -eu
cd "$(dirname "$0")"
for settings in server.yaml models.yaml; do
	go tool -modfile=../tools.mod oapi-codegen -config "$settings" openapi.yaml
done
