#!/usr/bin/env bash
# build.sh TARGET...: builds the static release binary for each TARGET and prints their paths.
#
# TARGET: x86_64-unknown-linux-musl, aarch64-unknown-linux-musl. Several are built by one cargo, which
# shares what runs on this machine and links them side by side. It takes the first way that there is
# (CROSS=installed|cross|source forces one; cross/README.md tells them apart):
#   installed  rustc has a std for every TARGET; zig compiles C and links
#   cross      cross with a container engine, Cross.toml
#   source     neither: std from source, with the rustc of cross/toolchain.sh
#
# SYMBOLS=1 keeps the symbols, for cross/sizes.py; the file is then called etcd-operator.symbols.
#
# This is the one place for flags; optimisation is [profile.release] of Cargo.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
name=etcd-operator
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$checkout/target/cross}
[ $# -gt 0 ] || { echo "usage: $0 TARGET..." >&2; exit 2; }
for target in "$@"; do
    case $target in
        x86_64-unknown-linux-musl | aarch64-unknown-linux-musl) ;;
        arm* | thumb* | i?86* | x86-*)
            echo "build: no build for $target: etcd does not support 32-bit systems, its database can be damaged" \
                "there, so the operator refuses them too. A Raspberry Pi from the 3 on runs a 64-bit system" >&2
            exit 2 ;;
        *)
            echo "build: no build for $target: only x86_64-unknown-linux-musl and aarch64-unknown-linux-musl" >&2
            exit 2 ;;
    esac
done

has_std() {
    local target libdir
    for target in "$@"; do
        libdir=$("${RUSTC:-rustc}" --print target-libdir --target "$target" 2> /dev/null) || return 1
        compgen -G "$libdir/libstd-*.rlib" > /dev/null || return 1
    done
}
has_engine() {
    command -v cross > /dev/null || return 1
    docker info > /dev/null 2>&1 || podman info > /dev/null 2>&1
}
way=${CROSS:-}
if [ -z "$way" ]; then
    if has_std "$@"; then way=installed; elif has_engine; then way=cross; else way=source; fi
fi

tests/tools/protoc.sh target/tools/protoc >&2
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(cross/epoch.sh)}
export SOURCE_DATE_EPOCH
cargo=cargo
flags=()
case $way in
    installed | source)
        zig=$(cross/toolchain.sh zig)
        export PATH=$zig/bin:$PATH CARGO_ZIGBUILD_ZIG_PATH=$zig/zig/zig
        build=(cargo-zigbuild zigbuild) ;;
    cross) build=(cross build) ;;
    *) echo "build: CROSS=$way: one of installed, cross, source" >&2; exit 2 ;;
esac
std=
if [ "$way" = source ]; then
    # rustc finds its libraries by LD_LIBRARY_PATH, for the packages are not in /usr.
    rust=$(cross/toolchain.sh rust)
    export LD_LIBRARY_PATH=$rust/lib-host${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PATH=$rust/usr/bin:$PATH
    export RUSTC=$rust/usr/bin/rustc RUSTDOC=$rust/usr/bin/rustdoc CARGO=$rust/usr/bin/cargo
    export RUSTC_BOOTSTRAP=1 CARGO_UNSTABLE_BUILD_STD=std,panic_abort
    unset RUSTUP_TOOLCHAIN
    cargo=$CARGO
    std=$rust/usr/lib/rustlib/src/rust
    # zig brings crt1.o and libc.a here, not rustc.
    flags+=(-Clink-self-contained=no)
fi
# panic = abort needs no unwind tables, and a backtrace of a stripped binary says nothing: a tenth
# of the file.
flags+=(-Cforce-unwind-tables=no)
# No path of this machine in the binary, and the same binary from another checkout. The last that
# matches counts.
if [ "$way" != cross ]; then
    "$cargo" fetch --quiet --locked >&2
    cargo_home=${CARGO_HOME:-$HOME/.cargo}
    flags+=("--remap-path-prefix=$cargo_home=/cargo")
    for registry in "$cargo_home"/registry/src/*/; do
        flags+=("--remap-path-prefix=${registry%/}=/crates")
    done
    case $cargo_home$std$checkout$CARGO_TARGET_DIR in
        *[[:space:]]*) echo "build: not below a path with blanks: $checkout, $cargo_home, ${std:-}" >&2; exit 1 ;;
    esac
    [ -z "$std" ] || flags+=("--remap-path-prefix=$std=/rust")
    flags+=("--remap-path-prefix=$checkout=/$name" "--remap-path-prefix=$CARGO_TARGET_DIR=/target")
fi

echo "build: $* with $("${RUSTC:-rustc}" --version | cut -d ' ' -f 1,2), std: $way" >&2
# These two would win over the flags here.
unset RUSTFLAGS CARGO_ENCODED_RUSTFLAGS
arguments=()
for target in "$@"; do
    own=("${flags[@]}")
    # A Pi 5 has pages of 16 KiB, others of 64 KiB.
    [ "$target" != aarch64-unknown-linux-musl ] || own+=("-Clink-arg=-Wl,-z,max-page-size=65536")
    variable=CARGO_TARGET_$(tr a-z- A-Z_ <<< "$target")_RUSTFLAGS
    export "$variable=${own[*]}"
    arguments+=(--target "$target")
done
if [ -n "${SYMBOLS:-}" ] && [ "$way" != cross ]; then
    # The dependencies are those of the real build; only the link is another.
    build=(cargo-zigbuild rustc)
    arguments+=(-- -Cstrip=none)
fi
"${build[@]}" --release --locked --bin "$name" "${arguments[@]}" >&2
for target in "$@"; do
    binary=$CARGO_TARGET_DIR/$target/release/$name
    if [ -n "${SYMBOLS:-}" ]; then
        mv "$binary" "$binary.symbols"
        binary=$binary.symbols
    fi
    echo "$binary"
done
