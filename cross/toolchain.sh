#!/usr/bin/env bash
# toolchain.sh PART: prints the directory of one part of what makes the artefacts, and makes it first
# where it is not there: from packages alone, without root, rustup or a container engine.
#
#   zig    zig (musl, C compiler, linker) and cargo-zigbuild, from PyPI by checksum
#   rust   rustc, cargo and the source of std, from Debian: one matched set, so that cargo can build
#          std itself. Wanted only where the installed rustc has no std for the target.
#   deb    cargo-deb, built from its crate
#
# Nothing is installed: the parts lie in the cache, outside the checkout ($ETCD_OPERATOR_CACHE, else
# ~/.cache/etcd-operator), keyed by version. Needs Python 3 and, for rust or without pip, apt and dpkg.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/cross
pinned() { sed -n "s/^$1==\([^ ]*\).*/\1/p" "$here/requirements.txt"; }
part=${1:-}
# The last number changes with the way a part is made.
case $part in
    zig) dir=$cache/zig-$(pinned ziglang)-zigbuild-$(pinned cargo-zigbuild)-$(uname -m)-1 ;;
    # The version is what apt has; the file `version` in it says which.
    rust) dir=$cache/rust-web-$(. /etc/os-release && echo "${VERSION_CODENAME:-$ID}")-$(uname -m)-1 ;;
    deb) cargo_deb=3.8.0 dir=$cache/cargo-deb-3.8.0-$(uname -m)-1 ;;
    *) echo "usage: $0 zig|rust|deb" >&2; exit 2 ;;
esac
if [ -e "$dir/version" ]; then
    echo "$dir"
    exit 0
fi
case $(uname -m) in
    x86_64) multiarch=x86_64-linux-gnu ;;
    aarch64) multiarch=aarch64-linux-gnu ;;
    *) echo "toolchain: builds run on x86_64 and aarch64 hosts, not on $(uname -m)" >&2; exit 1 ;;
esac

# The machine's own apt sources, with lists of our own: works as any user, and the system's lists stay.
apt() {
    local tool=$1 state=$work/apt
    shift
    "$tool" -o Dir::State="$state" -o Dir::State::status=/var/lib/dpkg/status -o Dir::Cache="$state" \
        -o Acquire::Languages=none -o APT::Sandbox::User="$(id -un)" "$@"
}
apt_update() {
    [ ! -d "$work/apt" ] || return 0
    if ! { command -v apt-get && command -v dpkg; } > /dev/null; then
        echo "toolchain: this needs apt-get and dpkg; without them see the other ways in cross/README.md" >&2
        return 1
    fi
    mkdir -p "$work/apt/lists/partial" "$work/apt/archives/partial"
    apt apt-get -qq update >&2
}
unpack() { # unpack DIR PACKAGE...
    local into=$1 deb
    shift
    mkdir -p "$work/debs"
    (cd "$work/debs" && apt apt-get -qq download "$@" >&2)
    for deb in "$work"/debs/*.deb; do
        dpkg -x "$deb" "$into"
        rm "$deb"
    done
}
depends() { # depends PACKAGE=VERSION PATTERN
    apt apt-cache depends "$1" | awk -v want="^($2)" '$1 == "Depends:" && $2 ~ want { print $2 }'
}

zig() {
    local into=$1 pip=(python3 -m pip) wheel
    if ! "${pip[@]}" --version > /dev/null 2>&1; then
        apt_update
        unpack "$work/pip" python3-pip-whl
        wheel=$(echo "$work"/pip/usr/share/python-wheels/pip-*.whl)
        pip=(python3 "$wheel/pip")
    fi
    "${pip[@]}" download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
        --requirement "$here/requirements.txt" --dest "$work/wheels" >&2
    for wheel in "$work"/wheels/*.whl; do
        python3 -m zipfile -e "$wheel" "$work/unpacked"
    done
    mkdir "$into/bin"
    mv "$work/unpacked/ziglang" "$into/zig"
    install -m 755 "$work"/unpacked/cargo_zigbuild-*.data/scripts/cargo-zigbuild "$into/bin/"
    chmod 755 "$into/zig/zig"
    echo "zig $("$into/zig/zig" version)" > "$into/version"
}

rust() {
    local into=$1 version abi llvm libs tls
    apt_update
    # rustc and the source of std must be of one version.
    version=$(apt apt-cache policy rust-web-src | awk '$1 == "Candidate:" { print $2 }')
    case $version in
        "" | "(none)") echo "toolchain: apt offers no rust-web-src; see the other ways in cross/README.md" >&2; return 1 ;;
    esac
    abi=$(echo "$version" | cut -d . -f 1,2)
    llvm=$(depends "libstd-rust-web-$abi=$version" libllvm)
    libs=$(depends "cargo-web=$version" 'libgit2|libhttp-parser')
    tls=$(for lib in $libs; do depends "$lib" 'libhttp-parser|libmbed'; done)
    # shellcheck disable=SC2086 # lists of packages
    unpack "$into" "rustc-web=$version" "cargo-web=$version" "libstd-rust-web-dev=$version" \
        "libstd-rust-web-$abi=$version" "rust-web-src=$version" $llvm $libs $tls
    ln -s "usr/lib/$multiarch" "$into/lib-host"
    LD_LIBRARY_PATH=$into/lib-host "$into/usr/bin/rustc" --version | cut -d ' ' -f 1,2 > "$into/version"
}

deb() {
    # Static: the machine's liblzma may be any. What a package costs is its compression, not Rust.
    CARGO_TARGET_DIR=$work/target CARGO_PROFILE_RELEASE_OPT_LEVEL=1 CARGO_PROFILE_RELEASE_LTO=off \
        cargo install --quiet --locked --root "$1" --no-default-features --features static-lzma \
        "cargo-deb@$cargo_deb" >&2
    echo "cargo-deb $cargo_deb" > "$1/version"
}

# It fills a directory beside the final one, which is renamed when it is complete.
mkdir -p "$cache"
work=$(mktemp -d "$cache/part.XXXXXX")
trap 'rm -rf "$work"' EXIT
mkdir "$work/$part"
"$part" "$work/$part"
mv -T "$work/$part" "$dir" 2> /dev/null || [ -e "$dir/version" ]
echo "toolchain: $(cat "$dir/version") is in $dir" >&2
echo "$dir"
