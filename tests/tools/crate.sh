# crate_dir NAME VERSION: fetches a crate with cargo and prints where its files are.
crate_dir() {
    local work registry
    work=$(mktemp -d)
    mkdir "$work/src"
    : > "$work/src/lib.rs"
    printf '[package]\nname = "fetch"\nversion = "0.0.0"\nedition = "2021"\n[dependencies]\n%s = "=%s"\n[workspace]\n' \
        "$1" "$2" > "$work/Cargo.toml"
    (cd "$work" && cargo fetch --quiet) >&2
    rm -rf "$work"
    registry=${CARGO_HOME:-$HOME/.cargo}/registry/src
    find "$registry" -maxdepth 2 -type d -name "$1-$2" | head -n 1
}
