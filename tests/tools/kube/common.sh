# common.sh: sourced by up.sh, down.sh and node.sh. What a lab is: a directory with everything it
# writes, a NAME for its namespaces and cgroups, a NET for its nodes. All three come from a slot: the
# first number that no other lab holds. A lab that was left behind is cleared by the next in its slot.
#
#   DIR/settings     what up.sh was told         DIR/run/X.pid, X.cmd   each process, and how to start it again
#   DIR/log/X.log    what it said                DIR/nN                 the disk of node N
#   DIR/pki          keys, certificates, kubeconfigs

# Where k3s keeps them. All below /run goes with a reboot, the rest stays.
CONTAINERD=/run/k3s/containerd/containerd.sock
# Takes room as it is written to.
DISK_SIZE=16G
CGROUPS=/sys/fs/cgroup
# cgroup version 2 has one tree; version 1 has one for each controller, and that of pids holds what a lab starts.
TREES=()
if [ -e "$CGROUPS/cgroup.controllers" ]; then
    TREES=("$CGROUPS") PROCESSES=$CGROUPS
else
    for hierarchy in cpu cpuacct cpuset memory devices freezer blkio pids systemd; do
        [ ! -d "$CGROUPS/$hierarchy" ] || TREES+=("$CGROUPS/$hierarchy")
    done
    PROCESSES=$CGROUPS/pids
fi

say() {
    echo "$(($(date +%s%N) / 1000000 - begun)) ms: $*" >&2
}

# Waits for a command to succeed; it says why not when time is up.
wait_for() {
    local what=$1 end=$((SECONDS + ${WITHIN:-120}))
    shift
    until "$@" > "$DIR/log/wait.log" 2>&1; do
        if [ $SECONDS -ge $end ]; then
            echo "waited in vain for $what: $*" >&2
            tail -n 3 "$DIR/log/wait.log" >&2
            return 1
        fi
        sleep 0.1
    done
}

# start NAME GROUP COMMAND...: a process of the lab, in its cgroup (none where GROUP is -).
start() {
    local name=$1
    printf '%q ' "${@:2}" > "$DIR/run/$name.cmd"
    launch "$name"
}

# The same again. Nothing of the lab holds its lock: a lab that lost its keeper gives up its slot.
launch() {
    local name=$1 command
    eval "command=($(cat "$DIR/run/$name.cmd"))"
    setsid bash -c '[ "$1" = - ] || echo $$ > "$1/cgroup.procs"; echo $$ > "$2"; shift 2; exec "$@"' start \
        "${command[0]}" "$DIR/run/$name.pid.part" "${command[@]:1}" >> "$DIR/log/$name.log" 2>&1 < /dev/null 9>&- &
    disown
    until [ -s "$DIR/run/$name.pid.part" ]; do sleep 0.01; done
    mv "$DIR/run/$name.pid.part" "$DIR/run/$name.pid"
}

# Whether a process of the lab runs: its command line names the lab's directory.
runs() {
    local pid
    pid=$(cat "$DIR/run/$1.pid" 2> /dev/null) && grep -qsaF "$DIR/" "/proc/$pid/cmdline"
}

# Kills a process and waits for its end.
stop() {
    local name=$1
    while runs "$name"; do
        kill -KILL "$(cat "$DIR/run/$name.pid")" 2> /dev/null || true
        sleep 0.05
    done
    rm -f "$DIR/run/$name.pid"
}

# Kills everything in cgroups of the lab, until nothing is left.
kill_groups() {
    local pids tries
    for tries in $(seq 200); do
        pids=$(find "$@" -name cgroup.procs -exec cat {} + 2> /dev/null) || true
        [ -n "$pids" ] || return 0
        # shellcheck disable=SC2086
        kill -KILL $pids 2> /dev/null || true
        sleep 0.05
    done
    echo "processes do not end: $pids" >&2
    return 1
}

# A node's network. Its namespace has no name, which would be a mount of the host: a process holds it,
# over reboots too.
network() {
    echo "/proc/$(cat "$DIR/run/network$1.pid")/ns/net"
}

on_network() {
    local number=$1
    shift
    nsenter --net="$(network "$number")" "$@"
}

# What a command begins with that runs among a node's mounts and on its network.
entering() {
    echo "nsenter --mount=/proc/$(cat "$DIR/run/holder$1.pid")/ns/mnt --net=$(network "$1")"
}

in_node() {
    local number=$1
    shift
    $(entering "$number") "$@"
}

kubectl() {
    "$KUBERNETES/kubectl" --kubeconfig "$DIR/pki/admin.kubeconfig" --request-timeout=5s "$@"
}

# ---- Keys

key() {
    openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1.key" 2> /dev/null
}

# certificate NAME SUBJECT [NAMES [COMMAND...]]: COMMAND is what openssl signs with, such as another clock.
certificate() {
    key "$1"
    openssl req -new -key "$1.key" -subj "$2" \
        | "${@:4}" openssl x509 -req -CA ca.crt -CAkey ca.key -days "${DAYS:-30}" -out "$1.crt" \
        -set_serial "0x$(openssl rand -hex 8)" \
        -extfile <(echo "extendedKeyUsage=serverAuth,clientAuth"; [ -z "${3:-}" ] || echo "subjectAltName=$3") 2> /dev/null
}

kubeconfig() {
    cat > "$1.kubeconfig" << END
apiVersion: v1
kind: Config
clusters: [{name: lab, cluster: {server: "$SERVER", certificate-authority-data: $(base64 -w0 ca.crt)}}]
users: [{name: user, user: {client-certificate-data: $(base64 -w0 "$1.crt"), client-key-data: $(base64 -w0 "$1.key")}}]
contexts: [{name: lab, context: {cluster: lab, user: user}}]
current-context: lab
END
}

make_keys() {
    local host=${SERVER#https://} number user before=()
    # A certificate that is valid for whoever has just been switched on and thinks it is 1970.
    [ -z "${API_FAKETIME:-}" ] || before=(env LD_PRELOAD="$API_FAKETIME" FAKETIME="@1970-01-01 12:00:00")
    mkdir -p "$DIR/pki"
    (
        cd "$DIR/pki"
        key ca
        openssl req -x509 -new -key ca.key -subj /CN=lab-ca -days 30 -out ca.crt
        DAYS=${API_FAKETIME:+36500} certificate apiserver /CN=kube-apiserver "DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,\
DNS:kubernetes.default.svc.cluster.local,DNS:localhost,IP:127.0.0.1,IP:10.43.0.1,IP:${host%:*}" "${before[@]}"
        certificate apiserver-kubelet /O=system:masters/CN=kube-apiserver-kubelet-client
        certificate admin /O=system:masters/CN=admin
        certificate controllers /CN=system:kube-controller-manager
        key accounts
        openssl pkey -in accounts.key -pubout -out accounts.pub
        for user in admin controllers; do kubeconfig $user; done
        [ "$NODES" -gt 0 ] || exit 0
        certificate scheduler /CN=system:kube-scheduler
        certificate proxy /CN=system:kube-proxy
        for user in scheduler proxy; do kubeconfig $user; done
        for number in $(seq "$NODES"); do
            certificate "edge$number" "/O=system:nodes/CN=system:node:edge$number" "DNS:edge$number,IP:$NET.$number"
            kubeconfig "edge$number"
        done
    )
}

# ---- The control plane

# start_api GROUP ADDRESS ENTER...: the API server, once DATASTORE is known, with k3s' settings, and a
# log of who asked for what. ENTER is what each command begins with.
start_api() {
    local group=$1 address=$2
    shift 2
    cat > "$DIR/audit.yaml" << 'END'
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata}]
END
    # shellcheck disable=SC2086
    start apiserver "$group" "$@" "$KUBERNETES/kube-apiserver" --etcd-servers="$DATASTORE" --secure-port="${SERVER##*:}" \
        --advertise-address="$address" --allow-privileged=true --anonymous-auth=false --profiling=false \
        --api-audiences=https://kubernetes.default.svc.cluster.local,k3s \
        --tls-cert-file="$DIR/pki/apiserver.crt" --tls-private-key-file="$DIR/pki/apiserver.key" \
        --client-ca-file="$DIR/pki/ca.crt" --service-cluster-ip-range=10.43.0.0/16 \
        --service-account-issuer=https://kubernetes.default.svc.cluster.local \
        --service-account-key-file="$DIR/pki/accounts.pub" --service-account-signing-key-file="$DIR/pki/accounts.key" \
        --authorization-mode=Node,RBAC --enable-admission-plugins=NodeRestriction \
        --kubelet-preferred-address-types=InternalIP --kubelet-certificate-authority="$DIR/pki/ca.crt" \
        --kubelet-client-certificate="$DIR/pki/apiserver-kubelet.crt" --kubelet-client-key="$DIR/pki/apiserver-kubelet.key" \
        --audit-policy-file="$DIR/audit.yaml" --audit-log-path="$DIR/audit.log" --audit-log-maxsize=1000 \
        ${API_ARGUMENTS:-}
}

# What controllers and scheduler are begun by, once the API server is ready, as k3s does. Begun with it,
# they end for ever where it takes longer than ten seconds.
ONCE_READY='until "$1" --kubeconfig "$2" --request-timeout=5s get --raw /readyz > /dev/null 2>&1; do sleep 0.2; done
shift 2; exec "$@"'

# The same of what ends by itself and is begun again, as systemd does with k3s after five seconds: kube-scheduler 1.36 ends
# ("Scheduler cache is corrupted") where a Pod was replaced by another of its name while its watch was broken.
ONCE_READY_AND_AGAIN=${ONCE_READY/exec \"\$@\"/while :; do \"\$@\"; sleep 5; done}

start_controllers() {
    local group=$1 grace=
    shift
    [ "$FAST" != 1 ] || grace=--node-monitor-grace-period=16s
    # At their usual rate of questions they take six seconds to start.
    # shellcheck disable=SC2086
    start controllers "$group" "$@" bash -c "$ONCE_READY" ready "$KUBERNETES/kubectl" "$DIR/pki/admin.kubeconfig" \
        "$KUBERNETES/kube-controller-manager" --kubeconfig="$DIR/pki/controllers.kubeconfig" \
        --root-ca-file="$DIR/pki/ca.crt" --service-account-private-key-file="$DIR/pki/accounts.key" \
        --use-service-account-credentials --leader-elect=false --secure-port="$CONTROLLERS_PORT" \
        --kube-api-qps=200 --kube-api-burst=400 $grace
}

is_ready() {
    kubectl get --raw /readyz
}

# ---- Nodes

# A node's own mount namespace, shared by its containerd, kubelet and containers: its /var/lib and
# /var/log are on a disk of its own, its /run is gone after a reboot, and what kubelet sets for a whole
# machine is set in files instead.
start_holder() {
    local number=$1 disk=$DIR/n$1 setting
    mkdir -p "$disk"/{bin,cni,disk} "$DIR/settings.d"
    if [ ! -f "$disk/disk.img" ]; then
        mkfs.ext4 -q -m 0 -E lazy_itable_init=1,lazy_journal_init=1,nodiscard "$disk/disk.img" "$DISK_SIZE" \
            > "$DIR/log/mkfs$number.log" 2>&1
    fi
    # After a reboot, once the last of its processes let go of it.
    wait_for "the disk of node $number" is_unused "$disk/disk.img"
    for setting in vm/overcommit_memory=1 vm/panic_on_oom=0 kernel/panic=10 kernel/panic_on_oops=1 \
        kernel/keys/root_maxkeys=1000000 kernel/keys/root_maxbytes=25000000; do
        mkdir -p "$DIR/settings.d/$(dirname "${setting%=*}")"
        echo "${setting#*=}" > "$DIR/settings.d/${setting%=*}"
    done
    echo nameserver 127.0.0.1 > "$disk/resolv.conf"
    cat /proc/sys/kernel/random/uuid > "$disk/boot_id"
    rm -f "$disk/holds"
    cat > "$DIR/holder.sh" << 'END'
# holder.sh DISK KUBERNETES
set -e
disk=$1
mount --make-rshared /
for command in kubelet kube-proxy; do
    touch "$disk/bin/$command"
    mount --bind "$(realpath "$2/$command")" "$disk/bin/$command"
done
cd "$disk/../settings.d"
find . -type f | while read -r file; do mount --bind "$file" "/proc/sys/$file"; done
mount --bind "$disk/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$disk/resolv.conf" "$(realpath /etc/resolv.conf)"
mount -o loop "$disk/disk.img" "$disk/disk"
mkdir -p "$disk/disk/lib" "$disk/disk/log"
mount --bind "$disk/disk/lib" /var/lib
mount --bind "$disk/disk/log" /var/log
mount -t tmpfs -o mode=755 tmpfs /run
mkdir -p /run/lock /run/netns /run/k3s/containerd /var/lib/rancher/k3s/storage
touch "$disk/holds"
exec -a "holder $disk" sleep infinity
END
    start "holder$number" "$PROCESSES/$NAME/sys/n$number" unshare --mount --propagation slave bash "$DIR/holder.sh" "$disk" "$KUBERNETES"
    wait_for "the namespace of node $number" test -e "$disk/holds"
}

is_unused() {
    [ -z "$(losetup --associated "$1")" ]
}

make_network() {
    local number=$1 other pid
    start "network$number" "$PROCESSES/$NAME/sys/network" unshare --net \
        bash -c 'touch "$1"; exec -a "network $1" sleep infinity' network "$DIR/run/network$number.is"
    wait_for "the network of node $number" test -e "$DIR/run/network$number.is"
    pid=$(cat "$DIR/run/network$number.pid")
    on_network "$number" ip link set lo up
    if [ "$number" = 1 ]; then
        on_network 1 ip link add lab0 type bridge
        on_network 1 ip addr add "$NET.1/24" dev lab0
        on_network 1 ip link set lab0 up
        ip link add "${NAME}h" type veth peer name host netns "$pid"
        on_network 1 ip link set host master lab0 up
        ip addr add "$NET.254/24" dev "${NAME}h"
        ip link set "${NAME}h" up
        on_network 1 ip route add default via "$NET.254"
    else
        on_network 1 ip link add "v$number" type veth peer name eth0 netns "$pid"
        on_network 1 ip link set "v$number" master lab0 up
        on_network "$number" ip addr add "$NET.$number/24" dev eth0
        on_network "$number" ip link set eth0 up
        on_network "$number" ip route add default via "$NET.1"
    fi
    on_network "$number" sysctl -q -w net.ipv4.ip_forward=1
    for other in $(seq "$NODES"); do
        [ "$other" = "$number" ] || on_network "$number" ip route add "10.42.$other.0/24" via "$NET.$other"
    done
}

make_groups() {
    local number=$1 tree file controller
    for tree in "${TREES[@]}"; do
        mkdir -p "$tree/$NAME/n$number"
        case $tree in
            */cpuset)
                for file in cpus mems; do
                    cat "$tree/cpuset.$file" > "$tree/$NAME/cpuset.$file"
                    cat "$tree/cpuset.$file" > "$tree/$NAME/n$number/cpuset.$file"
                done
                ;;
            "$CGROUPS")
                for controller in $(cat "$tree/cgroup.controllers"); do
                    for file in "$tree" "$tree/$NAME" "$tree/$NAME/n$number"; do
                        echo "+$controller" > "$file/cgroup.subtree_control"
                    done
                done
                ;;
        esac
    done
    mkdir -p "$PROCESSES/$NAME/sys"/{"n$number",api,network}
}

# Evicts when k3s does, and notices within seconds instead of minutes that it need not any more.
write_kubelet() {
    local number=$1
    cat > "$DIR/n$number/kubelet.yaml" << END
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://$CONTAINERD
failCgroupV1: false
cgroupDriver: cgroupfs
cgroupRoot: /$NAME/n$number
oomScoreAdj: 0
failSwapOn: false
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $DIR/pki/ca.crt}}
authorization: {mode: Webhook}
tlsCertFile: $DIR/pki/edge$number.crt
tlsPrivateKeyFile: $DIR/pki/edge$number.key
enforceNodeAllocatable: [pods]
evictionHard: {imagefs.available: 5%, nodefs.available: 5%}
evictionMinimumReclaim: {imagefs.available: 10%, nodefs.available: 10%}
evictionPressureTransitionPeriod: 5s
imageGCHighThresholdPercent: 100
# This containerd cannot pin the image of sandboxes: an eviction would remove it, and there is no registry.
imageMinimumGCAge: 24h
# An edited Secret is in a Pod that runs within seconds, in place of a minute and a half.
syncFrequency: 10s
$([ "$FAST" != 1 ] || echo 'nodeStatusUpdateFrequency: 4s')
clusterDNS: [10.43.0.10]
clusterDomain: cluster.local
resolvConf: ""
volumePluginDir: /var/lib/kubelet/volume-plugins
providerID: k3s://edge$number
END
}

write_node() {
    local number=$1 disk=$DIR/n$1
    cat > "$disk/cni/10-lab.conflist" << END
{"cniVersion": "1.0.0", "name": "lab", "plugins": [
 {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.42.$number.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}
END
    # Without the right to lower an OOM score the pause container could not start.
    cat > "$disk/containerd.toml" << END
version = 2
root = "/var/lib/rancher/k3s/agent/containerd"
state = "/run/k3s/containerd"
[grpc]
  address = "$CONTAINERD"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "localhost/pause:1"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "$disk/cni"
END
    write_kubelet "$number"
}

containers() {
    local number=$1
    shift
    in_node "$number" ctr -a "$CONTAINERD" -n k8s.io "$@"
}

import() {
    containers "$1" images import - < "$2" > "$DIR/log/import$1.log" 2>&1 || {
        cat "$DIR/log/import$1.log" >&2
        return 1
    }
}

start_containerd() {
    local number=$1
    # shellcheck disable=SC2046
    start "containerd$number" "$PROCESSES/$NAME/sys/n$number" $(entering "$number") \
        containerd --config "$DIR/n$number/containerd.toml"
    wait_for "containerd of node $number" containers "$number" version
}

start_kubelet() {
    local number=$1 group=$PROCESSES/$NAME/sys/n$1 enter
    read -r -a enter <<< "$(entering "$number")"
    start "kubelet$number" "$group" "${enter[@]}" "$DIR/n$number/bin/kubelet" --config="$DIR/n$number/kubelet.yaml" \
        --kubeconfig="$DIR/pki/edge$number.kubeconfig" --hostname-override="edge$number" --node-ip="$NET.$number" \
        --node-labels=node.kubernetes.io/instance-type=k3s,egress.k3s.io/cluster=true \
        --root-dir=/var/lib/kubelet --cert-dir="$DIR/n$number/kubelet-pki"
    start "proxy$number" "$group" "${enter[@]}" "$DIR/n$number/bin/kube-proxy" --kubeconfig="$DIR/pki/proxy.kubeconfig" \
        --proxy-mode=iptables --cluster-cidr=10.42.0.0/16 --hostname-override="edge$number" --conntrack-max-per-core=0 \
        --conntrack-min=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
}

# What the first node has beside: kine on SQLite as the API's datastore, as k3s has it, and DNS, which
# is a process here and a pod there.
start_control_plane() {
    local group=$PROCESSES/$NAME/sys/api enter=(nsenter --net="$(network 1)")
    mkdir -p "$DIR/datastore"
    DATASTORE=unix://$DIR/kine.sock
    CONTROLLERS_PORT=10257
    rm -f "$DIR/kine.sock"
    start kine "$group" "${enter[@]}" "$KUBERNETES/kine" --listen-address "unix://$DIR/kine.sock" --metrics-bind-address 0 \
        --endpoint "sqlite://$DIR/datastore/state.db?_journal=WAL&cache=shared&_busy_timeout=30000&_txlock=immediate"
    start_api "$group" "$NET.1" "${enter[@]}"
    start_controllers "$group" "${enter[@]}"
    start scheduler "$group" "${enter[@]}" bash -c "$ONCE_READY_AND_AGAIN" ready "$KUBERNETES/kubectl" \
        "$DIR/pki/admin.kubeconfig" "$KUBERNETES/kube-scheduler" --kubeconfig="$DIR/pki/scheduler.kubeconfig" --leader-elect=false
    cat > "$DIR/Corefile" << END
cluster.local:53 10.in-addr.arpa:53 {
  bind $NET.1
  errors
  kubernetes cluster.local 10.in-addr.arpa {
    kubeconfig $DIR/pki/admin.kubeconfig
    pods verified
  }
  cache 5
}
END
    start dns "$group" "${enter[@]}" "$KUBERNETES/coredns" -conf "$DIR/Corefile"
}
