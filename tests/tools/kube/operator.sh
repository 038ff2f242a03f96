#!/usr/bin/env bash
# operator.sh DEST PROGRAM: puts DEST/operator.tar, an image of the program that cargo built for tests,
# with the libraries that it needs: a newcomer's tests need no release artefact. images.sh with
# WITH_LIBC=1 puts the same libraries beside etcd, because the guard runs there.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
dest=$1
program=$2
mkdir -p "$dest"
version=$(sed -n 's/^version = "\(.*\)"/\1/p' "$here/../../../Cargo.toml" | head -n 1)
# The compiler's tables are two thirds of it.
strip -o "$dest/etcd-operator" "$program"
mapfile -t libraries < <(ldd "$program" | grep -o '/[^ ]*')
files=()
for library in "${libraries[@]}"; do files+=("$library=$library"); done
python3 "$here/image.py" "$dest/operator.part" "localhost/etcd-operator:$version" \
    "$dest/etcd-operator=/etcd-operator" "${files[@]}" --entrypoint /etcd-operator --user 65532:65532
mv "$dest/operator.part" "$dest/operator.tar"
