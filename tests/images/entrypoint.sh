#!/bin/bash
# The entrypoint of the images that build.sh makes: what the official Postgres image does, as far as tests need it.
set -euo pipefail

: "${PGDATA:=/var/lib/postgresql/data}"
: "${POSTGRES_USER:=postgres}"
: "${POSTGRES_DB:=$POSTGRES_USER}"
: "${POSTGRES_HOST_AUTH_METHOD:=scram-sha-256}"

# `image -c key=value` is short for `image postgres -c key=value`; any other command runs as it is.
[[ "${1:-}" == -* ]] && set -- postgres "$@"
[[ "${1:-}" == postgres ]] || exec "$@"

# Postgres refuses to run as root.
if [[ "$(id -u)" == 0 ]]; then
    mkdir -p "$PGDATA" /var/run/postgresql
    chown postgres:postgres "$PGDATA" /var/run/postgresql
    exec setpriv --reuid=postgres --regid=postgres --init-groups --inh-caps=-all "$0" "$@"
fi

# Nothing here outlives its container, so nothing is synced to disk.
make_cluster() {
    if [[ -z "${POSTGRES_PASSWORD:-}" && "$POSTGRES_HOST_AUTH_METHOD" != trust ]]; then
        echo "entrypoint: POSTGRES_PASSWORD must be set, or POSTGRES_HOST_AUTH_METHOD=trust" >&2
        exit 1
    fi
    # With `trust` the password may be empty, and initdb wants one all the same when it is handed a file.
    initdb --pgdata="$PGDATA" --username="$POSTGRES_USER" --encoding=UTF8 --locale=C.UTF-8 --no-sync \
        --auth-local=trust --auth-host="$POSTGRES_HOST_AUTH_METHOD" \
        --pwfile=<(printf '%s\n' "${POSTGRES_PASSWORD:-unused}") >&2
    printf "listen_addresses = '*'\n" >>"$PGDATA/postgresql.conf"
    printf 'host all all all %s\n' "$POSTGRES_HOST_AUTH_METHOD" >>"$PGDATA/pg_hba.conf"
    if [[ "$POSTGRES_DB" != postgres ]]; then
        printf 'CREATE DATABASE "%s"\n' "${POSTGRES_DB//\"/\"\"}" | postgres --single -c fsync=off -D "$PGDATA" postgres >/dev/null
    fi
}

[[ -s "$PGDATA/PG_VERSION" ]] || make_cluster

# A signal that arrives before the server runs must end the container all the same.
server=""
stop() { if [[ -n "$server" ]]; then kill -INT "$server" 2>/dev/null || true; else exit 0; fi; }
# SIGTERM is what `docker stop` sends; Postgres alone would take it as "wait for every client to leave".
trap stop TERM INT
trap '[[ -z "$server" ]] || kill -QUIT "$server"' QUIT
trap '[[ -z "$server" ]] || kill -HUP "$server"' HUP

"$@" &
server=$!
# `wait` returns early whenever a signal was handled; only the server's end is the end.
code=0
while true; do
    code=0
    wait "$server" || code=$?
    kill -0 "$server" 2>/dev/null || break
done
exit "$code"
