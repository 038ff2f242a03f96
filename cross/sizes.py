#!/usr/bin/env python3
"""sizes.py BINARY: which crates the code of a binary comes from, as a table.

BINARY has its symbols: SYMBOLS=1 cross/build.sh x86_64-unknown-linux-musl. A generic function counts
for the first crate in its name that is not Rust's own; what the optimiser inlined counts for the caller.
Constants have no names and are one row. Needs nm and size (binutils).
"""
import collections
import re
import subprocess
import sys

OWN = {"core", "alloc", "std", "compiler_builtins", "rustc_demangle", "hashbrown", "gimli", "addr2line", "object",
       "miniz_oxide", "memchr", "adler2", "unwind", "panic_abort"}
CRATE = re.compile(r"(?<![\w:])([a-z_][a-z0-9_]*)(?:\[[0-9a-f]+\])?::")
# Rows of the table: crates that come and go together.
FAMILIES = {
    "etcd-client (tonic, prost, h2, hyper, axum, tower)": "etcd_client tonic tonic_prost prost h2 hyper hyper_util "
    "hyper_timeout http http_body http_body_util httparse httpdate axum axum_core tower tower_layer tower_service matchit "
    "indexmap tokio_stream tokio_util want pin_project slab sync_wrapper mime bytes atomic_waker percent_encoding",
    "TLS (rustls, webpki, ring)": "rustls webpki rustls_webpki tokio_rustls ring rustls_pki_types untrusted subtle "
    "rustls_native_certs zeroize once_cell",
    "certificates (rcgen, x509-parser)": "rcgen x509_parser asn1_rs der_parser oid_registry yasna pem nom num_bigint "
    "num_integer num_traits rusticata_macros base64 data_encoding lazy_static",
    "clap": "clap clap_builder clap_lex anstyle strsim terminal_size unicode_width",
    "YAML (serde-saphyr)": "serde_saphyr granit_parser annotate_snippets encoding_rs encoding_rs_io arraydeque "
    "simdutf8 nohash_hasher ordered_float",
    "CRD types (kube-core, k8s-openapi, schemars, jiff)": "kube kube_core k8s_openapi schemars jiff jiff_core dyn_clone "
    "ref_cast serde_value derive_more form_urlencoded",
    "serde, serde_json": "serde serde_core serde_json itoa ryu zmij",
    "tokio, mio": "tokio mio signal_hook_registry socket2 parking_lot parking_lot_core lock_api futures_util futures_core "
    "futures_channel futures_task smallvec",
    "tracing": "tracing tracing_core tracing_subscriber tracing_serde sharded_slab thread_local",
    "metrics (prometheus-client)": "prometheus_client dtoa",
    "time": "time time_core deranged powerfmt",
    "systemd (zbus, sd-notify)": "zbus zbus_names zvariant zvariant_utils sd_notify enumflags2 event_listener "
    "async_broadcast ordered_stream winnow uds_windows endi",
    "rustix, libc": "rustix libc linux_raw_sys errno getrandom",
    "etcd-operator": "etcd_operator heapless hash32 crc32c anyhow thiserror",
}
FAMILY = {crate: family for family, crates in FAMILIES.items() for crate in crates.split()}


def family(name):
    if name.startswith("ring_core") or re.match(r"(_?aes|gcm|ghash|chacha20|poly1305|sha\d|p256|p384|bn_|ecp_|x25519|vpaes|fiat)", name):
        return "TLS (rustls, webpki, ring)"
    for crate in CRATE.findall(name):
        if crate not in OWN:
            return FAMILY.get(crate, crate)
    return "Rust's std" if "::" in name else "C: musl, compiler's own"


def main():
    binary = sys.argv[1]
    text, files = collections.Counter(), subprocess.run(
        ["nm", "--defined-only", "--demangle", "--print-size", "--radix=d", binary],
        check=True, stdout=subprocess.PIPE, text=True).stdout
    seen = set()
    for line in files.splitlines():
        fields = line.split(" ", 3)
        if len(fields) == 4 and fields[2] in "tTwW" and fields[0] not in seen:
            seen.add(fields[0])
            text[family(fields[3])] += int(fields[1])
    sections = subprocess.run(["size", "-A", "-d", binary], check=True, stdout=subprocess.PIPE, text=True).stdout
    size = {it[0]: int(it[1]) for it in (line.split() for line in sections.splitlines()) if len(it) == 3 and it[1].isdigit()}
    size = {name: bytes for name, bytes in size.items() if not name.startswith((".debug", ".comment", ".bss", ".tbss"))}
    print("| code of | bytes |\n|---|---|")
    for name, bytes in text.most_common():
        if bytes >= 2000:
            print(f"| {name} | {bytes:,} |")
    print(f"| others | {sum(it for it in text.values() if it < 2000) + size['.text'] - sum(text.values()):,} |")
    data = sum(bytes for name, bytes in size.items() if name != ".text" and name.startswith((".rodata", ".data", ".got", ".tdata")))
    print(f"| constants and data of them all | {data:,} |")


if __name__ == "__main__":
    main()
