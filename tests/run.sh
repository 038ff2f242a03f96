#!/usr/bin/env bash
# run.sh STEP...: runs steps of the tests, one after the other, and ends with a table of them. A step that
# fails stops no other one. `.config/nextest.toml` says which tests a step has, and how they are run.
#
#   lint        rustfmt and clippy
#   core        what needs nothing but cargo
#   main        every promise of the README once, on real parts: etcd 3.6, an S3 server, systemd, one node
#               of Kubernetes, all with the unoptimised program that the tests are built with
#   dist        the release artefacts of both architectures
#   artefacts aarch64          what is released, on this machine and under emulation
#   kubernetes                 every test on nodes and API servers
#   etcd lines several         etcd 3.6; 3.5 and 3.7; clusters of several members
#   backup s3 systemd cgroup2  snapshots; two S3 servers; systemd with cgroups of version 1, and of 2 alone
#               artefacts, aarch64, kubernetes, systemd and cgroup2 run what is released: dist comes first
#   all         all of these but main, which is part of the others
#
# Tools are built and packages installed beside the compiler. What a step says is in target/log/STEP.log,
# what was only right when tried again in target/log/flaky.tsv. CI=1: a test that cannot run fails.
# RESUME=1 runs no step that was green before on these same files: a run that was cut off, or in which one step
# failed, goes on.
set -uo pipefail
cd "$(dirname "$0")/.."
readonly ALL="lint core dist artefacts kubernetes etcd lines several backup s3 systemd cgroup2 aarch64"
tools=$PWD/target/tools
log=$PWD/target/log
export PATH=$tools/prometheus/bin:$tools/containerd/bin:$PATH:/usr/sbin:/sbin
# What nobody builds a second time takes half the disk so.
[ -z "${CI:-}" ] || export CARGO_INCREMENTAL=0
export CARGO_TERM_COLOR=never

steps=()
for step in "$@"; do
    # shellcheck disable=SC2086
    case " all main $ALL " in
        *" $step "*) if [ "$step" = all ]; then steps+=($ALL); else steps+=("$step"); fi ;;
        *) echo "run.sh: no step $step; there are: $ALL, main, and all" >&2; exit 2 ;;
    esac
done
# The released artefacts are tested as they are built from this tree.
case " ${steps[*]} " in
    *" dist "*) ;;
    *" artefacts "* | *" kubernetes "* | *" systemd "* | *" cgroup2 "* | *" aarch64 "*) steps=(dist "${steps[@]}") ;;
esac
[ ${#steps[@]} -gt 0 ] || { echo "usage: run.sh STEP...: $ALL, main, or all" >&2; exit 2; }

mkdir -p "$log" "$tools"
# Where make runs two of its targets, the second goes on with the table of the first, and repeats no step.
times=$log/times.tsv
run=${RUN:-$$}
if [ "$(cut -d ' ' -f 1 "$log/run" 2> /dev/null)" != "$run" ]; then
    : > "$times"
    [ -n "${RESUME:-}" ] || rm -f target/skipped
    echo "$run $(date +%s)" > "$log/run"
fi
begun=$(cut -d ' ' -f 2 "$log/run")
free=$(($(df --output=avail -k . | tail -n 1) / 1048576))
[ "$free" -ge 12 ] || echo "warning: $free GiB are free here, and this takes some 12" >&2

# ---- What was green before

# Of all files that git knows or would take; nothing where there is no git.
files_now() {
    git rev-parse --is-inside-work-tree > /dev/null 2>&1 || return 0
    git ls-files -z --cached --others --exclude-standard | xargs -0 sha256sum 2> /dev/null | sha256sum | cut -c 1-16
}
files=$(files_now)
readonly green=$log/green.tsv
touch "$green"

# green_before STEP: its row, where it was green on these files; the newest row of a step counts.
green_before() {
    [ -n "${RESUME:-}" ] && [ -n "$files" ] || return 1
    awk -F '\t' -v OFS='\t' -v step="$1" -v files="$files" '
        $2 == step { row = $1 == files ? step OFS $3 OFS "ok" OFS "green before" ($5 == "" ? "" : ": " $5) : "" }
        END { if (row == "") exit 1; print row }' "$green"
}

# ---- One step

# step NAME COMMAND...: runs it with its output in a file, and writes its row: name, seconds, what came of it.
step() {
    local name=$1 from status=ok line
    shift
    from=$(date +%s)
    "$@" > "$log/$name.log" 2>&1 < /dev/null || status=FAILED
    line=$(printf '%s\t%s\t%s\t%s' "$name" $(($(date +%s) - from)) "$status" "$(results "$name")")
    echo "$line" >> "$times"
    printf '%s\t%s\n' "$([ $status != ok ] || [ "$(files_now)" != "$files" ] || echo "$files")" "$line" >> "$green"
    row <<< "$line"
    flaky "$name" | while read -r tries test; do
        printf '%s\t%s\t%s\t%s\t%s\n' "$(date -u +%FT%TZ)" "$(git rev-parse --short HEAD 2> /dev/null)" "$name" "$tries" "$test"
    done >> "$log/flaky.tsv"
    [ $status = ok ] || told "$name"
}

row() { awk -F '\t' '{ printf "%-18s %5d s   %s%s\n", $1, $2, $3 == "ok" ? "" : "FAILED  ", $4 }'; }

# As nextest sums it up: "295 tests run: 294 passed (1 flaky), 1 failed, 3 skipped".
results() { sed -n 's/^ *Summary \[[^]]*\] *//p' "$log/$1.log" | tail -n 1; }

# "2/3 BINARY TEST" for each test that passed only when it was tried again.
flaky() { sed -nE 's/^ *FLAKY ([0-9]+\/[0-9]+) \[[^]]*\] *(\([^)]*\) *)?(.*)/\1 \3/p' "$log/$1.log" | sort -u; }

# What a person needs of a step that failed, on standard error.
told() {
    {
        echo "--- $1 failed; of target/log/$1.log:"
        grep -A 12 -E "panicked at|^error" "$log/$1.log" | tail -n 150
        grep -E '^ *(TRY 3 )?(FAIL|TIMEOUT|TMT|ABRT|SIG[A-Z]+) \[' "$log/$1.log" | sort -u
        tail -n 40 "$log/$1.log"
    } >&2
}

# ---- What steps need

# Tools by name; each says itself what it cannot bring.
tool() {
    case $1 in
        packages)
            tests/tools/apt.sh libfaketime openssl e2fsprogs containerd runc containernetworking-plugins iptables \
                nftables iproute2 busybox-static gcc libc6-dev ;;
        more-packages)
            tests/tools/apt.sh lintian zsh fish && tests/tools/kubernetes-validate.sh "$tools/validate" \
                && tests/tools/containerd.sh "$tools/containerd" && tests/tools/qemu.sh "$tools/qemu" user ;;
        systemd-root) tests/tools/systemd-root.sh "$tools/systemd-root" ;;
        trixie) tests/tools/systemd-root.sh "$tools/systemd-root-trixie" trixie ;;
        prometheus) tests/tools/prometheus.sh "$tools/prometheus" ;;
        etcd) tests/tools/etcd.sh "$tools/etcd" 3.6 ;;
        lines) tests/tools/etcd.sh "$tools/etcd" 3.4 3.5 3.6-before 3.7 ;;
        arm64) tests/tools/etcd.sh --arch arm64 "$tools/etcd-arm64" 3.6 ;;
        s3s-fs) tests/tools/s3s-fs.sh "$tools/s3s-fs" ;;
        versitygw) tests/tools/versitygw.sh "$tools/versitygw" ;;
        clients) tests/tools/clients.sh "$tools/clients" ;;
        kubeadm) tests/tools/kubernetes.sh "$tools/kubeadm" kubeadm ;;
        kubernetes)
            tests/tools/kubernetes.sh "$tools/kubernetes" kube-apiserver kubectl kube-controller-manager kube-scheduler \
                kubelet kube-proxy coredns kine local-path-provisioner helm krew monitoring-crds ;;
    esac
}

needs() {
    case $1 in
        main) echo etcd packages systemd-root prometheus s3s-fs kubernetes ;;
        artefacts) echo etcd packages more-packages trixie kubernetes ;;
        kubernetes) echo etcd packages more-packages lines prometheus s3s-fs kubernetes ;;
        etcd) echo etcd packages lines prometheus s3s-fs kubernetes kubeadm clients ;;
        lines | several | backup) echo etcd packages lines ;;
        s3) echo etcd packages s3s-fs versitygw ;;
        systemd | cgroup2) echo etcd packages systemd-root trixie ;;
        aarch64) echo etcd packages more-packages arm64 ;;
    esac
}

jobs_of=()
declare -A begun_tools=()
begin_tools() {
    local name
    for name in $(for step in "${steps[@]}"; do needs "$step"; done); do
        [ -z "${begun_tools[$name]:-}" ] || continue
        begun_tools[$name]=yes
        step "tool-$name" tool "$name" > /dev/null &
        jobs_of+=($!)
    done
}
# Waits for the tools; shows only those that took their time.
tools_ready() {
    [ ${#jobs_of[@]} -gt 0 ] || return 0
    wait "${jobs_of[@]}"
    jobs_of=()
    awk -F '\t' '/^tool-/ && $2 > 2' "$times" | row
}
trap 'kill $(jobs -p) 2> /dev/null' EXIT

# ---- The steps

readonly NEXTEST=("$tools/cargo-nextest" nextest run --no-tests fail --cargo-quiet)

# once STEP: where this run has not done it.
once() {
    local line
    ! cut -f 1 "$times" | grep -qx "$1" || return 0
    if line=$(green_before "$1"); then
        tee -a "$times" <<< "$line" | row
    else
        run_step "$1"
    fi
}

run_step() {
    case $1 in
        lint) step lint bash -c 'cargo fmt --check && cargo clippy --quiet --all-targets -- -D warnings'; return ;;
        compile) step compile cargo test --quiet --no-run; return ;;
        dist) step dist nice -n 5 cross/dist.sh target/dist; return ;;
    esac
    once compile
    [ "$1" = core ] || tools_ready
    case $1 in
        core)
            step core "${NEXTEST[@]}" --profile core
            step doc cargo test --quiet --doc ;;
        main)
            step image tests/tools/kube/operator.sh "$tools/kubernetes-images" target/debug/etcd-operator
            ETCD_OPERATOR_IMAGE="$tools/kubernetes-images/operator.tar" LIBC_OF="$PWD/target/debug/etcd-operator" \
                step main "${NEXTEST[@]}" --profile main ;;
        cgroup2) step cgroup2 tests/tools/cgroup2.sh "${NEXTEST[@]}" --profile cgroup2 ;;
        *) step "$1" "${NEXTEST[@]}" --profile "$1" ;;
    esac
}

tests/tools/protoc.sh "$tools/protoc" > /dev/null || exit 1
tests/tools/nextest.sh "$tools/cargo-nextest" | grep -v "from the cache"
[ -x "$tools/cargo-nextest" ] || exit 1
begin_tools
for step in "${steps[@]}"; do once "$step"; done

# ---- The table

echo
awk -F '\t' '!/^tool-/ || $2 > 2' "$times" | row
echo "together $(($(date +%s) - begun)) s on $(nproc) cores"
cut -f 1 "$times" | while read -r step; do flaky "$step" | sed "s/^/flaky: $step: /"; done
if [ -s target/skipped ]; then
    echo "skipped: $(sort -u target/skipped | wc -l)"
    sort -u target/skipped | sed 's/^/  /'
else
    echo "skipped: nothing"
fi
failed=$(awk -F '\t' '$3 != "ok" { printf " %s", $1 }' "$times")
[ -z "$failed" ] || { echo "FAILED:$failed" >&2; exit 1; }
