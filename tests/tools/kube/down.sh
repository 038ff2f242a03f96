#!/usr/bin/env bash
# down.sh DIR NAME: ends every process of a lab and removes its namespaces, cgroups and DIR. Nothing
# happens where there is none.
set -euo pipefail
DIR=$1
NAME=$2
source "$(dirname "$(realpath "$0")")/common.sh"
case $DIR in /tmp/eo-*) ;; *) echo "$DIR is no directory of a lab" >&2; exit 1 ;; esac
kill_groups "$CGROUPS/pids/$NAME"
for pid in "$DIR"/run/*.pid; do
    [ ! -e "$pid" ] || stop "$(basename "$pid" .pid)"
done
if [ "$(id -u)" = 0 ]; then
    for space in $(ip netns list | awk -v it="$NAME-" 'index($1, it) == 1 { print $1 }'); do ip netns del "$space"; done
    # The host's end of the wire goes with the other, a moment later; the next lab wants the name.
    ip link del "${NAME}h" 2> /dev/null || true
fi
for tries in $(seq 100); do
    compgen -G "$CGROUPS/*/$NAME" > /dev/null || break
    find "$CGROUPS"/*/"$NAME" -depth -type d -exec rmdir {} + 2> /dev/null || true
    [ "$tries" = 1 ] || sleep 0.05
done
[ ! -d "$DIR" ] || rm -rf --one-file-system "$DIR"
