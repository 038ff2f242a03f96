#!/usr/bin/env bash
# demo.sh OPERATOR ETCD_DIR [stop]: the story of `make demo`, under target/demo, on free ports.
set -euo pipefail
operator=$(realpath "$1")
etcd_dir=$(realpath "$2")
root=$(realpath -m target/demo)
example=deploy/examples/host.yaml
begin=$(date +%s%N)

say() { printf '%6.1f s  %s\n' "$(( ($(date +%s%N) - begin) / 100000000 ))e-1" "$*"; }
field() { sed -n "s/.*\"$1\": *\"\{0,1\}\([^\",]*\).*/\1/p" | head -n 1; }
status() { "$operator" --root "$root" status -o json || true; }
agent_pid() { cat "$root/agent.pid" 2> /dev/null || true; }

start_agent() {
    # It outlives this script, as it would outlive a shell.
    setsid "$operator" agent --root "$root" --driver process >> "$root/agent.log" 2>&1 < /dev/null &
    echo $! > "$root/agent.pid"
    disown
}

stop_demo() {
    local pid
    pid=$(agent_pid)
    # A binary that was built anew since is called "(deleted)".
    case ${pid:+$(readlink "/proc/$pid/exe" 2> /dev/null || true)} in
        "$operator" | "$operator (deleted)")
            kill "$pid" && while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done ;;
    esac
    # etcd is stopped as a person would: size 0, one pass of an agent.
    [ -e "$root/etc/etcd-operator/cluster.yaml" ] || return 0
    sed -i 's/^  size: .*/  size: 0/' "$root/etc/etcd-operator/cluster.yaml"
    start_agent
    for _ in $(seq 100); do
        status | grep -q '"reason": *"SizeZero"' && break
        sleep 0.1
    done
    kill "$(agent_pid)" 2> /dev/null || true
}

if [ "${3:-}" = stop ]; then
    stop_demo
    echo "stopped; the data stays in $root"
    exit 0
fi

etcdctl=$etcd_dir/etcdctl
[ -x "$etcdctl" ] || etcdctl=$(command -v etcdctl) || {
    echo "demo: $etcd_dir has no etcdctl, and none is installed: install it (Debian: etcd-client)" >&2
    exit 1
}

# A demo of before is ended and begun anew; its data is the demo's own.
stop_demo > /dev/null 2>&1 || true
rm -rf "$root"
mkdir -p "$root/etc/etcd-operator"

version=$("$etcd_dir/etcd" --version | sed -n 's/^etcd Version: //p')
read -r client peer metrics <<< "$(python3 -c 'import socket
held = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
print(*(one.getsockname()[1] for one in held))')"
sed -e "s/^  version: .*/  version: $version/" -e "s/clientPort: .*/clientPort: $client/" \
    -e "s/peerPort: .*/peerPort: $peer/" -e "s/metricsPort: [0-9]*/metricsPort: $metrics/" "$example" \
    > "$root/etc/etcd-operator/cluster.yaml"
case $(stat -f -c %T "$root") in
    tmpfs | overlayfs | nfs | msdos)
        echo "note: target/ lies on $(stat -f -c %T "$root"), where acknowledged writes can be lost: the demo allows it"
        printf '  storage:\n    unsafeFilesystem: allow\n' >> "$root/etc/etcd-operator/cluster.yaml" ;;
esac

mkdir "$root/snapshots"
cat >> "$root/etc/etcd-operator/cluster.yaml" << END
  backup:
    destinations:
      - local: {path: $root/snapshots, keep: 5}
END

say "installing etcd $version into the store, starting the operator on $example"
"$operator" --root "$root" etcd install --from "$etcd_dir" "$version" > /dev/null
start_agent
wait_available() {
    for _ in $(seq 200); do
        "$operator" --root "$root" status > /dev/null 2>&1 && return 0
        sleep 0.05
    done
    echo "etcd did not become available; $root/agent.log says why:" >&2
    tail -n 5 "$root/agent.log" >&2
    exit 1
}
wait_available
pid=$(status | sed -n '/"etcd"/,/}/p' | field pid)
say "etcd serves with mutual TLS (pid $pid)"

# Writes one key after the other over mutual TLS, and counts what is acknowledged. At the end it looks
# whether all of it is there. One more may be: written, and its answer lost when etcd was killed.
mkdir "$root/writer"
acknowledged() { cat "$root/writer/acknowledged" 2> /dev/null || echo 0; }
write() {
    local count=0 found
    while [ ! -e "$root/writer/stop" ]; do
        if "$etcdctl" --dial-timeout 1s --command-timeout 1s put "demo/$count" written > /dev/null 2>&1; then
            count=$((count + 1))
            echo $count > "$root/writer/acknowledged.part"
            mv "$root/writer/acknowledged.part" "$root/writer/acknowledged"
        fi
    done
    found=$("$etcdctl" get demo/ --prefix --count-only -w fields | sed -n 's/^"Count" : //p')
    echo "$count writes acknowledged, $found are there"
    [ "$found" -ge "$count" ]
}
eval "$("$operator" --root "$root" env)"
write > "$root/writer/result" 2>&1 &
writing=$!
sleep 1
say "a writer writes: $(acknowledged) writes acknowledged"

kill -KILL "$pid"
killed=$(date +%s%N)
while new=$(status | sed -n '/"etcd"/,/}/p' | field pid); [ "$new" = "$pid" ] || [ "$new" = null ]; do sleep 0.05; done
wait_available
say "etcd was killed with SIGKILL and is back after $(( ($(date +%s%N) - killed) / 1000000 )) ms (pid $new)"

kill -KILL "$(agent_pid)"
sleep 1.5
kill -0 "$new" || { echo "etcd did not survive the operator" >&2; exit 1; }
say "the operator was killed; etcd did not notice: $(acknowledged) writes acknowledged"
start_agent
wait_available
now=$(status | sed -n '/"etcd"/,/}/p' | field pid)
[ "$now" = "$new" ] || { echo "etcd was restarted: $new became $now" >&2; exit 1; }
say "the operator is back and adopted etcd (pid $now still)"
touch "$root/writer/stop"
wait "$writing" || { cat "$root/writer/result" >&2; exit 1; }
say "the writer ended: $(cat "$root/writer/result")"

# A chapter on backups: a snapshot, damage, a restore.
"$operator" --root "$root" backup create > /dev/null
say "a snapshot was taken and proven page by page:"
"$operator" --root "$root" backup list
pid=$(status | sed -n '/"etcd"/,/}/p' | field pid)
kill "$(agent_pid)" && while kill -0 "$(agent_pid)" 2> /dev/null; do sleep 0.05; done
kill -KILL "$pid" && while kill -0 "$pid" 2> /dev/null; do sleep 0.05; done
wal=$(ls "$root"/var/lib/etcd-operator/member/data/member/wal/*.wal | head -n 1)
printf 'a worn card' | dd of="$wal" bs=1 seek=300 conv=notrunc status=none
start_agent
for _ in $(seq 100); do status | grep -q '"hold"' && break; sleep 0.1; done
say "etcd's log was damaged: $(status | sed -n '/"plan"/,/}/p' | field message)"
say "nothing was touched; a person decides:"
"$operator" --root "$root" restore --yes
wait_available
say "etcd serves the snapshot's data"
echo
"$operator" --root "$root" status
cat << END

connect:  eval "\$($operator --root $root env)"; ${etcdctl} endpoint health
stop:     make demo-stop        log: $root/agent.log
END
