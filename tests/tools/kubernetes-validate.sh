#!/usr/bin/env bash
# kubernetes-validate.sh DEST: makes DEST a folder whose bin/kubernetes-validate checks manifests
# against the schemas of Kubernetes' minors, which it carries: no server, no network.
#
# It comes from PyPI into a virtual environment of its own, once; the cache lies outside the checkout
# ($ETCD_OPERATOR_CACHE, else ~/.cache/etcd-operator) and is keyed by version. Where it is not to be
# had, the tests say what they skip.
set -euo pipefail
dest=$(realpath -ms "$1") # a link stays one: what it leads to is the cache
version=1.37.0
python=$(command -v python3) || { echo "kubernetes-validate: not to be had without Python 3"; exit 0; }
# An environment is bound to its Python and to its place.
key=$version-$("$python" -c 'import platform; print("python" + platform.python_version())')
cache=${ETCD_OPERATOR_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/etcd-operator}/kubernetes-validate
from="from the cache"
# Its last file: what was interrupted is made again.
if [ ! -f "$cache/$key/complete" ]; then
    rm -rf "${cache:?}/$key"
    mkdir -p "$cache"
    if ! { "$python" -m venv "$cache/$key" \
        && "$cache/$key/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$version"; } > /dev/null 2>&1; then
        rm -rf "${cache:?}/$key"
        echo "kubernetes-validate: not to be had: python3 -m venv or PyPI does not answer"
        exit 0
    fi
    touch "$cache/$key/complete"
    from="from PyPI"
fi
mkdir -p "$(dirname "$dest")"
ln -sfn "$cache/$key" "$dest"
echo "kubernetes-validate: $version, $from"
