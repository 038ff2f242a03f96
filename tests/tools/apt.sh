#!/usr/bin/env bash
# apt.sh PACKAGE...: installs Debian packages that tests want, where apt and root are to be had.
# Nothing happens for what is there. Tests say themselves what they skip without a package.
set -euo pipefail
missing=()
for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2> /dev/null | grep -q 'ok installed' || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get > /dev/null; then
    echo "apt: not installed, since this needs root and apt-get: ${missing[*]}"
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq > /dev/null || true
if apt-get install -y -qq --no-install-recommends "${missing[@]}" > /dev/null; then
    echo "apt: installed ${missing[*]}"
else
    echo "apt: could not install ${missing[*]}"
fi
