#!/usr/bin/env bash
# down.sh DIR NAME: ends every process of a lab and removes its namespaces, cgroups and DIR. Nothing
# happens where there is none.
set -euo pipefail
DIR=$1
NAME=$2
export PATH=$PATH:/usr/sbin:/sbin
source "$(dirname "$(realpath "$0")")/common.sh"
case $DIR in /tmp/eo-*) ;; *) echo "$DIR is no directory of a lab" >&2; exit 1 ;; esac
kill_groups "$PROCESSES/$NAME"
for pid in "$DIR"/run/*.pid; do
    [ ! -e "$pid" ] || stop "$(basename "$pid" .pid)"
done
# The host's end of the wire goes with the other, a moment later; the next lab wants the name.
[ "$(id -u)" != 0 ] || ip link del "${NAME}h" 2> /dev/null || true
for tries in $(seq 100); do
    find "${TREES[@]/%//$NAME}" -depth -type d -exec rmdir {} + 2> /dev/null || true
    compgen -G "$CGROUPS/$NAME" > /dev/null || compgen -G "$CGROUPS/*/$NAME" > /dev/null || break
    [ "$tries" = 1 ] || sleep 0.05
done
[ ! -d "$DIR" ] || rm -rf --one-file-system "$DIR"
