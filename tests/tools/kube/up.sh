#!/usr/bin/env bash
# up.sh TOOLS IMAGES [TAR...]: a real Kubernetes, shaped like k3s, from the programs below TOOLS and the
# container images below IMAGES; each TAR is imported on every node.
#
#   NODES=N   so many nodes (1): edge1, with the control plane, edge2, ..., each with network, mounts,
#             containerd, kubelet and kube-proxy of its own. kine on SQLite, local-path as default
#             StorageClass, k3s' ranges, labels, paths and timings. Needs root.
#   NODES=0   the API server alone, on loopback, on etcd; no root. CONTROLLERS=1 adds the controllers
#   FAST=1    a node that is cut off is NotReady after 16 s instead of 50 s, at the cost of writes
#   ETCD=LINE of the API server alone (3.6)     API_ARGUMENTS   more for the API server
#   API_FAKETIME=libfaketime.so.1   the API server's certificate is valid from 1970 on
#
# Prints the lab's DIR when it is ready, and keeps it until its input ends, whatever ends it: then all
# is removed. With KEEP=1 it returns; down.sh ends the lab. node.sh does things to it.
set -euo pipefail
here=$(dirname "$(realpath "$0")")
source "$here/common.sh"
begun=$(($(date +%s%N) / 1000000))
TOOLS=$(realpath "$1")
KUBERNETES=$TOOLS/kubernetes
images=$(realpath "$2")
shift 2
tars=()
for tar in "$@"; do tars+=("$(realpath "$tar")"); done
NODES=${NODES:-1} FAST=${FAST:-0} CONTROLLERS=${CONTROLLERS:-0}
export PATH=$PATH:/usr/sbin:/sbin

# A slot is held by a lock, for as long as this runs.
for slot in $(seq 0 199); do
    DIR=/tmp/eo-$(id -u)-$slot
    exec 9> "$DIR.lock"
    ! flock -n 9 || break
    exec 9>&-
done
NAME=eo$(id -u)s$slot NET=10.77.$slot
[ -e /proc/self/fd/9 ] || { echo "200 labs are too many" >&2; exit 1; }
"$here/down.sh" "$DIR" "$NAME"
mkdir -p "$DIR"/{log,run}

down() {
    status=$?
    trap - EXIT
    if [ $status != 0 ]; then
        for log in "$DIR"/log/*.log; do
            echo "--- ${log##*/}"
            tail -n 8 "$log"
        done >&2
    fi
    "$here/down.sh" "$DIR" "$NAME" 9>&-
    exit $status
}
trap down EXIT
trap 'exit 143' TERM INT HUP

free_port() {
    ! (exec 3<> "/dev/tcp/127.0.0.1/$1") 2> /dev/null
}

if [ "$NODES" = 0 ]; then
    # Above the ports that other tests take, below those that the kernel gives to clients.
    port=$((31000 + slot * 4))
    while ! free_port $port || ! free_port $((port + 1)) || ! free_port $((port + 2)) || ! free_port $((port + 3)); do
        port=$((port + 800))
    done
    SERVER=https://127.0.0.1:$port DATASTORE=http://127.0.0.1:$((port + 1)) CONTROLLERS_PORT=$((port + 3))
else
    SERVER=https://$NET.1:6443
fi
for name in NAME NET NODES FAST SERVER KUBERNETES; do printf '%s=%q\n' "$name" "${!name}"; done > "$DIR/settings"
make_keys

if [ "$NODES" = 0 ]; then
    peer=http://127.0.0.1:$((port + 2))
    start etcd - "$TOOLS/etcd/${ETCD:-3.6}/etcd" --data-dir "$DIR/etcd" --unsafe-no-fsync --log-level warn \
        --listen-client-urls "$DATASTORE" --advertise-client-urls "$DATASTORE" --listen-peer-urls "$peer" \
        --initial-advertise-peer-urls "$peer" --initial-cluster "default=$peer"
    # Without the controllers no namespace has a service account that pods could run as.
    [ "$CONTROLLERS" = 1 ] || API_ARGUMENTS="--disable-admission-plugins=ServiceAccount ${API_ARGUMENTS:-}"
    API_ARGUMENTS="--bind-address=127.0.0.1 --endpoint-reconciler-type=none ${API_ARGUMENTS:-}"
    start_api - 127.0.0.1
    [ "$CONTROLLERS" != 1 ] || start_controllers -
    wait_for "the API server" is_ready
else
    for number in $(seq "$NODES"); do
        make_groups "$number"
        make_network "$number"
    done
    start_control_plane
    for number in $(seq "$NODES"); do
        start_holder "$number"
        write_node "$number"
        start_containerd "$number"
        for tar in "$images"/{pause,local-path,busybox}.tar "${tars[@]}"; do import "$number" "$tar"; done
        start_kubelet "$number"
    done
    wait_for "the API server" is_ready
    say "API server ready"
    paths=$(for number in $(seq "$NODES"); do printf '{"node":"edge%s","paths":["/var/lib/rancher/k3s/storage"]},' "$number"; done)
    sed -e "s#NODE_PATHS#${paths%,}#" -e "s#NODE_1#$NET.1#" "$here/cluster.yaml" > "$DIR/cluster.yaml"
    wait_for "the cluster's own objects" kubectl apply -f "$DIR/cluster.yaml"
    nodes_ready() {
        local number
        # One that could not read a cgroup that another process just made has ended; a service would be started again.
        for number in $(seq "$NODES"); do
            runs "kubelet$number" || launch "kubelet$number"
        done
        [ "$(kubectl get nodes --no-headers | grep -c ' Ready ')" = "$NODES" ]
    }
    wait_for "$NODES nodes" nodes_ready
    kubectl label node edge1 node-role.kubernetes.io/control-plane=true > /dev/null
    say "nodes ready"
    wait_for local-path kubectl -n kube-system rollout status deploy/local-path-provisioner --timeout=1s
fi
[ "$NODES$CONTROLLERS" = 00 ] || wait_for "the service account default" kubectl get serviceaccount default
say "ready"
if [ "${KEEP:-0}" = 1 ]; then
    trap - EXIT
    echo "$DIR"
    exit
fi
echo "$DIR"
cat > /dev/null
