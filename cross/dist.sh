#!/usr/bin/env bash
# dist.sh DEST: fills DEST with what is published, for arm64 and amd64 from one commit: tarball, .deb,
# container image, the Helm chart, the manifest for Krew, and the checksums of them all. Binaries first: cross/build.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
checkout=$PWD
mkdir -p "$1"
dest=$(cd "$1" && pwd)
name=etcd-operator
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(cross/epoch.sh)}
export SOURCE_DATE_EPOCH CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$PWD/target/cross}
triple() { case $1 in arm64) echo aarch64-unknown-linux-musl ;; amd64) echo x86_64-unknown-linux-musl ;; esac; }

mapfile -t built < <(cross/build.sh "$(triple arm64)" "$(triple amd64)" || echo failed)
[ "${built[*]: -1}" != failed ] || exit 1
deb=$(cross/toolchain.sh deb)

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -f "$dest/$name"[-_]* "$dest/SHA256SUMS"

# What cargo-deb does not make: Debian's changelog, and the licences of what is linked in.
at=$checkout/target/cross/package
mkdir -p "$at"
date=$(date --utc --date "@$SOURCE_DATE_EPOCH" --rfc-email)
printf '%s (%s) stable; urgency=medium\n\n  * What changed: %s.\n\n -- %s  %s\n' "$name" "$version" \
    "CHANGELOG.md beside this file" "$(sed -n 's/^maintainer = "\(.*\)"/\1/p' Cargo.toml)" "$date" \
    | gzip -9n > "$at/changelog.gz"
gzip -9n < CHANGELOG.md > "$at/CHANGELOG.md.gz"
python3 cross/notices.py "$at/THIRD-PARTY.txt"
gzip -9nc "$at/THIRD-PARTY.txt" > "$at/THIRD-PARTY.txt.gz"
rm -rf "$at/man" "$at/doc"
mkdir "$at/man"
for page in systemd/man/*.8; do
    gzip -9nc "$page" > "$at/man/${page##*/}.gz"
done
cross/pages.py "$at/doc"

platforms=
for arch in arm64 amd64; do
    target=$(triple "$arch")
    binary=$CARGO_TARGET_DIR/$target/release/$name

    folder=$name-$version-linux-$arch
    mkdir -p "$work/$folder/systemd"
    install -m 755 "$binary" "$work/$folder/$name"
    install -m 644 CHANGELOG.md LICENSE "$at/THIRD-PARTY.txt" "$work/$folder"
    cp -R "$at/doc/." "$work/$folder"
    install -m 644 systemd/*.service systemd/*.conf systemd/*.rules "$work/$folder/systemd"
    cp -R systemd/man systemd/completions "$work/$folder/systemd"
    install -m 755 systemd/install.sh "$work/$folder/systemd"
    install -m 644 systemd/install.mk "$work/$folder/Makefile"
    tar -C "$work" --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
        --mode=u=rwX,go=rX -cf - "$folder" | gzip -9n > "$dest/$folder.tar.gz"

    # --no-strip: the binary is stripped; static: nothing to ask dpkg-shlibdeps.
    "$deb/bin/cargo-deb" --quiet --no-build --no-strip --target "$target" --locked \
        --output "$dest/${name}_${version}_$arch.deb" > /dev/null

    platforms+="
  - selector: {matchLabels: {os: linux, arch: $arch}}
    uri: $folder.tar.gz
    sha256: $(sha256sum < "$dest/$folder.tar.gz" | cut -d ' ' -f 1)
    files: [{from: \"*/$name\", to: .}]
    bin: $name"

    python3 cross/oci.py "$dest/$name-$version-image-$arch.tar" --binary "$binary" --arch "$arch" \
        --version "$version" --licence Apache-2.0 --epoch "$SOURCE_DATE_EPOCH" \
        --revision "$(git -C "$checkout" rev-parse HEAD 2> /dev/null || true)"
done
# As `helm package` does; what the chart shares with deploy/ are links.
tar -C deploy --format=gnu --sort=name --mtime="@$SOURCE_DATE_EPOCH" --owner=0 --group=0 --numeric-owner \
    --mode=u=rwX,go=rX --dereference --transform="s,^helm,$name," -cf - helm | gzip -9n > "$dest/$name-$version-chart.tgz"
# For `kubectl krew install --manifest=F --archive=F`: the link `kubectl-etcd` makes the binary kubectl's plugin.
cat > "$dest/$name-$version-krew.yaml" << EOF
apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: etcd
spec:
  version: v$version
  shortDescription: Shows etcd clusters of etcd-operator and their snapshots
  description: |
    status, plan, diff and backup of an EtcdCluster, as etcd-operator has them on a host.
  platforms:$platforms
EOF
(cd "$dest" && sha256sum "$name"[-_]* > SHA256SUMS)
(cd "$dest" && stat --printf '%10s  %n\n' "$name"[-_]* SHA256SUMS)
