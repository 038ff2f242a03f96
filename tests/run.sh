#!/usr/bin/env bash
# run.sh quick|rest: what `make test` and `make test-all` do, with the time of each step.
#
#   quick  every promise of the README at least once, on real parts: etcd 3.6, an S3 server, systemd,
#          one Kubernetes node, all with the unoptimised program that the tests are built with
#   rest   everything else: lints, the release artefacts of both architectures, the other tests of etcd
#          3.6, etcd 3.5 and 3.7, the second S3 server, arm64 under emulation, every test on nodes
#
# Tools are built and packages installed beside the compiler; each step's output is in target/log/. At
# the end: a table of steps and seconds, and what was skipped, with the reason. CI=1: nothing may be.
set -euo pipefail
cd "$(dirname "$0")/.."
part=$1
tools=$PWD/target/tools
log=$PWD/target/log
mkdir -p "$log" "$tools"
times=$log/times.tsv
[ "$part" = rest ] || : > "$times"
[ "$part" = rest ] || rm -f target/skipped
export PATH=$PATH:/usr/sbin:/sbin
export PATH=$tools/prometheus/bin:$tools/containerd/bin:$PATH
# What nobody builds a second time takes half the disk so.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
begun=$(date +%s)
free=$(($(df --output=avail -k . | tail -n 1) / 1048576))
[ "$free" -ge 12 ] || echo "warning: $free GiB are free here, and this takes some 12" >&2

# step NAME COMMAND...: runs it, with its output in a file; the end of that file where it fails.
step() {
    local name=$1 from seconds status
    shift
    from=$(date +%s)
    # Not in a condition, where bash would go on after a command that failed.
    set +e
    (set -e; "$@") > "$log/$name.log" 2>&1 < /dev/null
    status=$?
    set -e
    seconds=$(($(date +%s) - from))
    printf '%s\t%s\t%s\n' "$part" "$name" "$seconds" >> "$times"
    if [ "$status" != 0 ]; then
        echo "--- $name failed after $seconds s; the end of target/log/$name.log:" >&2
        grep -A 12 -E "panicked at|^error" "$log/$name.log" | tail -n 150 >&2 || true
        tail -n 40 "$log/$name.log" >&2
        exit 1
    fi
    printf '%-22s %5s s   %s\n' "$name" "$seconds" "$(results "$log/$name.log")"
}

# How many tests ran, by what cargo says.
results() {
    awk '/^test result:/ { ok += $4; ignored += $8 } END { if (ok) printf "%d tests", ok
        if (ignored) printf ", %d ignored", ignored }' "$1"
}

suite() { # suite NAME ARGUMENTS...: of `cargo test`
    local name=$1
    shift
    step "$name" cargo test "$@"
}

jobs_of=()
background() { # background NAME COMMAND...
    step "$@" &
    jobs_of+=($!)
}
finish() {
    local job failed=
    for job in "${jobs_of[@]}"; do wait "$job" || failed=yes; done
    jobs_of=()
    [ -z "$failed" ] || exit 1
}
trap 'kill $(jobs -p) 2> /dev/null || true' EXIT

FAST=(--lib --bins --test document --test exhaustive --test hostile --test restoring --test generated --test plan
    --test simulation --test tidy)
LIVE=(--test etcd_live --test backup_live --test s3_live --test systemd_live --test kube_live)

# They wait more than they work.
AT_ONCE=(--test-threads=4)
# Bytes that are written at rest are counted with nobody beside.
AT_REST=an_idle_operator_writes_nothing
# What the names of tests hold that start an etcd of another line than 3.6.
OLD_AND_NEW=(3_5 3_7 every_line)
ONLY_3_6=("${OLD_AND_NEW[@]/#/--skip=}")
# The tests of etcd 3.6 that hold the README's promises, and the first of each room. `rest` runs all others.
MAIN=(life:: health:: datastore:: certificates:: guard::the_guard_alone guard::a_disk_of_another_cluster
    guard::damage_is_seen damage::on_3_6::bit_flipped damage::on_3_6::pages_of damage::damage_is_held
    hints::a_repaired_log full::an_etcd_that_died full::a_disk_that_fills restore::a_restore_on
    restore::a_restore_that_was_cut restore::sigkills restore::a_replaced_box_comes undo::a_restore_on
    s3::the_queue s3::what_is_encrypted edits::diff_says backup::snapshots_are_taken backup::proven_snapshots
    predecessor::a_bootstrap_is_tried store::etcdctl overview::)
MAIN_OF_BACKUP=(bytes:: interrupted::)

packages() {
    tests/tools/apt.sh libfaketime openssl e2fsprogs containerd runc containernetworking-plugins iptables \
        nftables iproute2 busybox-static gcc libc6-dev
    tests/tools/systemd-root.sh "$tools/systemd-root"
    tests/tools/prometheus.sh "$tools/prometheus"
}
go_tools() {
    tests/tools/etcd.sh "$tools/etcd" 3.6
    tests/tools/kubernetes.sh "$tools/kubernetes" kube-apiserver kubectl kube-controller-manager kube-scheduler \
        kubelet kube-proxy coredns kine local-path-provisioner
}

quick() {
    tests/tools/protoc.sh "$tools/protoc" > /dev/null
    background packages packages
    background go-tools go_tools
    background s3s-fs tests/tools/s3s-fs.sh "$tools/s3s-fs"
    step compile cargo test --no-run "${FAST[@]}" "${LIVE[@]}"
    finish
    # Nothing but the core's tests, which write nothing, run beside the one that counts bytes.
    background at-rest cargo test --test etcd_live -- "$AT_REST"
    suite fast "${FAST[@]}"
    finish
    step images tests/tools/kube/operator.sh "$tools/kubernetes-images" target/debug/etcd-operator
    background kube-walk env ETCD_OPERATOR_IMAGE="$tools/kubernetes-images/operator.tar" \
        LIBC_OF="$PWD/target/debug/etcd-operator" cargo test --test kube_live walk::
    suite systemd --test systemd_live -- life::
    # A refusal and a bucket with object lock are versitygw's alone: they have their turn where both servers are.
    suite s3-one --test s3_live -- "${AT_ONCE[@]}" --skip=a_wrong_region --skip=named::
    suite backup-main --test backup_live -- "${AT_ONCE[@]}" "${ONLY_3_6[@]}" "${MAIN_OF_BACKUP[@]}"
    finish
    suite etcd-main --test etcd_live -- "${AT_ONCE[@]}" "${ONLY_3_6[@]}" "${MAIN[@]}"
}

more_packages() {
    tests/tools/apt.sh lintian
    tests/tools/systemd-root.sh "$tools/systemd-root-trixie" trixie
    tests/tools/kubernetes-validate.sh "$tools/validate"
    tests/tools/containerd.sh "$tools/containerd"
    tests/tools/qemu.sh "$tools/qemu" user
}
more_tools() {
    tests/tools/etcd.sh "$tools/etcd" 3.5 3.7
    tests/tools/etcd.sh --arch arm64 "$tools/etcd-arm64" 3.6
    tests/tools/versitygw.sh "$tools/versitygw"
}

rest() {
    background lint sh -c 'cargo fmt --check && cargo clippy --all-targets -- -D warnings'
    background more-packages more_packages
    background more-tools more_tools
    step dist nice -n 5 cross/dist.sh target/dist
    finish
    suite artefacts --test artefacts
    suite kubernetes --test kube_live -- "${AT_ONCE[@]}"
    suite etcd-3.6-more --test etcd_live -- "${AT_ONCE[@]}" "${ONLY_3_6[@]}" "${MAIN[@]/#/--skip=}" \
        --skip="$AT_REST" --skip=several::
    suite etcd-3.5-3.7 --test etcd_live -- "${AT_ONCE[@]}" "${OLD_AND_NEW[@]}" --skip=several::
    # Up to seven members each, under a writer: nothing else runs beside them.
    suite several --test etcd_live -- --test-threads=2 several::
    suite backup-more --test backup_live -- "${AT_ONCE[@]}" "${ONLY_3_6[@]}" \
        "${MAIN_OF_BACKUP[@]/#/--skip=}"
    suite backup-3.5-3.7 --test backup_live -- "${AT_ONCE[@]}" "${OLD_AND_NEW[@]}"
    suite s3-both --test s3_live -- "${AT_ONCE[@]}"
    suite aarch64 --test aarch64
    # `quick` has booted it with the cgroups that are here. The memory controller may be version 1's alone.
    suite systemd-memory --test systemd_live -- memory
    step systemd-cgroup2 tests/tools/cgroup2.sh cargo test --test systemd_live -- --skip=memory
}

"$part"
echo
echo "$part: $(($(date +%s) - begun)) s on $(nproc) cores"
if [ -s target/skipped ]; then
    echo "skipped: $(wc -l < target/skipped)"
    sort -u target/skipped | sed 's/^/  /'
else
    echo "skipped: nothing"
fi
