#!/bin/bash
# Makes the Postgres images that the tests run on, from Debian's packages, where none can be pulled.
#
#   tests/images/build.sh [--pull] [MAJOR...]      as root; MAJOR is 17 or 15, both by default
#
# The images are partitioned-pool-postgres:MAJOR. They behave like the official image as far as the tests
# need it: POSTGRES_PASSWORD, POSTGRES_USER, POSTGRES_DB and POSTGRES_HOST_AUTH_METHOD, `postgres -c key=value`
# as the command, a cluster made at the first start, a fast shutdown on SIGTERM and SIGINT.
# An image that is there already is left alone, unless it was made by another recipe than this one. With --pull the
# official image is tried first.
set -euo pipefail

readonly NAME=partitioned-pool-postgres
readonly PULL_SECONDS=60
readonly HERE="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"

# The image remembers by which recipe it was made.
readonly RECIPE="partitioned-pool recipe $(cat "$HERE/build.sh" "$HERE/entrypoint.sh" | sha256sum | cut -c1-16)"

say() { printf 'images: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

suite_of() {
    case "$1" in
        17) echo trixie ;;
        15) echo bookworm ;;
        *) die "no Debian release is known here for Postgres $1; known: 17 (trixie), 15 (bookworm)" ;;
    esac
}

# The folder of the image in the making; gone at the end, however the end comes.
work=""

clean_up() {
    [[ -n "$work" ]] || return 0
    local mounted
    # Last mounted first. A mount that stays would make the removal below reach out of the folder.
    while read -r mounted; do
        umount "$mounted" || umount --lazy "$mounted" || say "cannot unmount $mounted"
    done < <(awk -v under="$work/" 'index($2, under) == 1 { print $2 }' /proc/self/mounts | tac)
    rm -rf --one-file-system "$work"
    work=""
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

need_debootstrap() {
    [[ "$(id -u)" == 0 ]] || die "making an image needs root (debootstrap, chroot); run it as root, or pull postgres:N instead"
    command -v debootstrap >/dev/null && return
    say "installing debootstrap"
    apt-get update -qq >&2
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends debootstrap >&2
}

pull() {
    local major="$1"
    say "trying to pull postgres:$major, at most $PULL_SECONDS s"
    timeout "$PULL_SECONDS" docker pull --quiet "postgres:$major" >&2 || return 1
    docker tag "postgres:$major" "$NAME:$major"
}

# What this machine's apt and resolver know must also hold inside, or nothing can be fetched there.
lend_network() {
    local root="$1"
    cp --dereference /etc/resolv.conf "$root/etc/resolv.conf"
    cp --dereference /etc/hosts "$root/etc/hosts"
    apt-config dump Acquire::http::Proxy >"$root/etc/apt/apt.conf.d/99lent"
}

# No documentation, no translations, no syncing of files that go into an archive, no server started by a package.
make_lean() {
    local root="$1"
    printf 'path-exclude=%s\n' '/usr/share/doc/*' '/usr/share/man/*' '/usr/share/info/*' '/usr/share/locale/*' \
        >"$root/etc/dpkg/dpkg.cfg.d/lean"
    echo force-unsafe-io >>"$root/etc/dpkg/dpkg.cfg.d/lean"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
}

inside() {
    local root="$1"
    shift
    DEBIAN_FRONTEND=noninteractive LC_ALL=C.UTF-8 PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$root" "$@" >>"$work/log" 2>&1
}

install_postgres() {
    local root="$1" major="$2"
    mount -t proc proc "$root/proc"
    inside "$root" apt-get update
    # The cluster is the entrypoint's to make, so the package must not make one.
    inside "$root" apt-get install -y --no-install-recommends postgresql-common
    sed -i "s/^#\? *create_main_cluster.*/create_main_cluster = false/" "$root/etc/postgresql-common/createcluster.conf"
    inside "$root" apt-get install -y --no-install-recommends "postgresql-$major"
    umount "$root/proc"
}

strip() {
    local root="$1"
    rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/tmp/* \
        "$root"/usr/share/{doc,man,info,locale}/* "$root/usr/sbin/policy-rc.d" "$root/etc/apt/apt.conf.d/99lent" \
        "$root/etc/resolv.conf" "$root/etc/hosts"
}

import() {
    local root="$1" major="$2"
    tar -C "$root" --one-file-system --exclude='./proc/*' --exclude='./sys/*' --exclude='./dev/*' -c . |
        docker import --message "$RECIPE" \
            -c "ENV PATH=/usr/lib/postgresql/$major/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" \
            -c "ENV PG_MAJOR=$major" -c 'ENV LANG=C.UTF-8' -c 'ENV PGDATA=/var/lib/postgresql/data' \
            -c 'ENTRYPOINT ["/usr/local/bin/entrypoint.sh"]' -c 'CMD ["postgres"]' -c 'EXPOSE 5432' \
            -c 'VOLUME /var/lib/postgresql/data' \
            - "$NAME:$major" >&2
}

make() {
    local major="$1" suite began=$SECONDS
    suite="$(suite_of "$major")"
    need_debootstrap
    say "making $NAME:$major from Debian $suite"
    work="$(mktemp -d "${TMPDIR:-/tmp}/$NAME-$major.XXXXXX")"
    local root="$work/root"
    trap_log "$major"
    debootstrap --variant=minbase "$suite" "$root" >>"$work/log" 2>&1
    lend_network "$root"
    make_lean "$root"
    install_postgres "$root" "$major"
    install -m 755 "$HERE/entrypoint.sh" "$root/usr/local/bin/entrypoint.sh"
    strip "$root"
    local replaced
    replaced="$(docker image inspect --format '{{.Id}}' "$NAME:$major" 2>/dev/null || true)"
    import "$root" "$major"
    [[ -z "$replaced" ]] || docker rmi "$replaced" >/dev/null 2>&1 || say "the replaced image $replaced is still in use"
    trap - ERR
    clean_up
    say "made $NAME:$major in $((SECONDS - began)) s"
}

# On a failure, the end of what the packages said; the whole log goes with the folder.
trap_log() {
    set -o errtrace
    trap 'say "making '"$NAME:$1"' failed; the end of the log:"; tail -n 30 "$work/log" >&2 || true' ERR
}

is_there() {
    local made_by
    made_by="$(docker image inspect --format '{{.Comment}}' "$NAME:$1" 2>/dev/null)" || return 1
    [[ "$made_by" == "$RECIPE" || ( "$made_by" != partitioned-pool\ recipe* && "$made_by" != Imported* ) ]]
}

ensure() {
    local major="$1"
    if is_there "$major"; then
        say "$NAME:$major is there"
        return
    fi
    if [[ "$try_pull" == yes ]] && pull "$major"; then
        say "$NAME:$major is the official postgres:$major"
        return
    fi
    make "$major"
}

try_pull=no
majors=()
for argument in "$@"; do
    case "$argument" in
        --pull) try_pull=yes ;;
        -*) die "unknown option $argument; usage: build.sh [--pull] [MAJOR...]" ;;
        *) suite_of "$argument" >/dev/null; majors+=("$argument") ;;
    esac
done
[[ ${#majors[@]} -gt 0 ]] || majors=(17 15)

docker info >/dev/null 2>&1 || die "no Docker engine answers; start one (for example: dockerd &) and run this again"
for major in "${majors[@]}"; do
    ensure "$major"
done
