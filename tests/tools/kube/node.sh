#!/usr/bin/env bash
# node.sh DIR VERB...: does to a running lab what happens to nodes.
#
#   kubelet-restart|kubelet-stop|kubelet-start N       api-stop|api-start
#   reboot N           its power goes and returns: every process of it is killed, with edge1 the control
#                      plane too; what lies below /run and in memory is gone, its disk stays.
#                      Prints the new boot's id
#   import N TAR       remove-image N REFERENCE
#   tag-image N REFERENCE NEW
#   cut N|heal N       the wire to a node other than the first
#   fill N|empty N     the node's disk, but for its last 2%
#   stop NAME|start NAME   a process by its name in DIR/run
set -euo pipefail
DIR=$1
verb=$2
number=${3:-}
source "$(dirname "$(realpath "$0")")/common.sh"
source "$DIR/settings"
begun=0
export PATH=$PATH:/usr/sbin:/sbin

reset_network() {
    local link
    for link in $(on_network "$number" ip -o link show | sed -n 's/^[0-9]*: \(veth[^@:]*\|cni0\)[@:].*/\1/p'); do
        on_network "$number" ip link del "$link" 2> /dev/null || true
    done
    on_network "$number" nft flush ruleset
}

case $verb in
    kubelet-stop) stop "kubelet$number" ;;
    kubelet-start) launch "kubelet$number" ;;
    kubelet-restart)
        stop "kubelet$number"
        launch "kubelet$number"
        ;;
    api-stop) stop apiserver ;;
    api-start) launch apiserver ;;
    stop) stop "$number" ;;
    start) launch "$number" ;;
    reboot)
        groups=("$PROCESSES/$NAME/sys/n$number" "$PROCESSES/$NAME/n$number")
        [ "$number" != 1 ] || groups+=("$PROCESSES/$NAME/sys/api")
        kill_groups "${groups[@]}"
        find "${TREES[@]/%//$NAME/n$number}" -mindepth 1 -depth -type d -exec rmdir {} + 2> /dev/null || true
        reset_network
        [ "$number" != 1 ] || start_control_plane
        start_holder "$number"
        start_containerd "$number"
        start_kubelet "$number"
        cat "$DIR/n$number/boot_id"
        ;;
    import) import "$number" "$4" ;;
    remove-image)
        digest=$(containers "$number" images ls "name==$4" | awk 'NR == 2 { print $3 }')
        [ -n "$digest" ] || { echo "no image $4" >&2; exit 1; }
        for reference in $(containers "$number" images ls | awk -v it="$digest" '$3 == it { print $1 }'); do
            containers "$number" images rm "$reference" > /dev/null
        done
        ;;
    tag-image) containers "$number" images tag "$4" "$5" > /dev/null ;;
    cut) on_network 1 ip link set "v$number" down ;;
    heal) on_network 1 ip link set "v$number" up ;;
    fill)
        read -r size free < <(in_node "$number" df --output=size,avail -B1 /var/lib | tail -n 1)
        in_node "$number" fallocate -l $((free - size / 50)) /var/lib/filler
        ;;
    empty) in_node "$number" rm -f /var/lib/filler ;;
    *)
        echo "node.sh: no verb $verb" >&2
        exit 1
        ;;
esac
