#!/usr/bin/env bash
# Installs Debian's PostgreSQL for the tests, of whatever release this Debian has.
# The package would also make a cluster and start it; here it does not.
set -euo pipefail
cd "$(dirname "$0")"
compgen -G '/usr/lib/postgresql/*/bin/postgres' >/dev/null && exit 0
if [[ $(id -u) = 0 ]]; then
  setting=/etc/postgresql-common/createcluster.d/microvm-tests.conf
  mkdir -p "${setting%/*}"
  trap 'rm -f "$setting"' EXIT
  echo 'create_main_cluster = false' >"$setting"
fi
./need.sh postgresql
