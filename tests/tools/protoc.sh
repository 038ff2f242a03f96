#!/usr/bin/env bash
# protoc.sh DEST: puts protoc and its include files into DEST/bin and DEST/include.
# etcd-client compiles its protocol files with it. Taken from the system where it is installed with
# its include files, else from the crates protoc-bin-vendored-*, fetched with cargo.
set -euo pipefail
dest=$1
[ -x "$dest/bin/protoc" ] && [ -e "$dest/include/google/protobuf/any.proto" ] && exit 0
mkdir -p "$dest/bin" "$dest/include"
if system=$(command -v protoc) && [ -e /usr/include/google/protobuf/any.proto ]; then
    ln -sfn "$system" "$dest/bin/protoc"
    ln -sfn /usr/include/google "$dest/include/google"
    echo "protoc: the system's, $system"
    exit 0
fi
case $(uname -m) in
    x86_64) crate=protoc-bin-vendored-linux-x86_64 ;;
    aarch64) crate=protoc-bin-vendored-linux-aarch_64 ;;
    *) echo "protoc: none for $(uname -m): install protobuf-compiler and libprotobuf-dev" >&2; exit 1 ;;
esac
version=3.3.0
source "$(dirname "$0")/crate.sh"
dir=$(crate_dir "$crate" "$version")
install -m 755 "$dir/bin/protoc" "$dest/bin/protoc"
cp -r "$dir/include/." "$dest/include/"
echo "protoc: from the crate $crate $version"
