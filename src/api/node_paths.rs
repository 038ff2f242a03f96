//! The directories of a node that a cluster may use in Kubernetes, and the rules on the paths that
//! its document names.
//!
//! [`refused`] is no row of [`super::rules`]: it needs the namespace, which the API server gives to
//! no rule of a CRD. A document on a host may name every path: its author owns the host.

use std::path::Path;

use super::{BackupDestination, EtcdClusterSpec, LocalDestination, S3Destination};
use crate::cluster::{Detail, detail};

/// Whose directories on the node these are; below it NAMESPACE/NAME.
pub const NODE_DIR: &str = "/var/lib/etcd-operator";
/// Where the claim with the snapshots is mounted.
pub const CLAIM_DIR: &str = "/claim";

/// The one directory of the node that a cluster may use.
pub fn node_dir(namespace: &str, name: &str) -> String {
    format!("{NODE_DIR}/{namespace}/{name}")
}

/// Where the operator keeps what it knows of a cluster, on the node.
pub fn state_dir(namespace: &str, name: &str) -> String {
    format!("{}/state", node_dir(namespace, name))
}

/// Why the paths of a document are refused in Kubernetes.
pub fn refused(namespace: &str, name: &str, wire: &EtcdClusterSpec) -> Option<Detail> {
    foreign_path(namespace, name, wire)
        .or_else(|| files_beside_a_claim(wire))
        .or_else(|| nested_paths(namespace, name, wire))
}

/// Where the document has snapshots kept.
pub fn destinations(wire: &EtcdClusterSpec) -> &[BackupDestination] {
    let backup = wire.backup.as_ref();
    backup.map_or(&[][..], |it| &it.destinations)
}

/// Those that are a directory of the node, or a claim.
pub fn local(wire: &EtcdClusterSpec) -> impl Iterator<Item = &LocalDestination> {
    destinations(wire).iter().filter_map(|it| it.local.as_ref())
}

fn s3(wire: &EtcdClusterSpec) -> impl Iterator<Item = &S3Destination> {
    destinations(wire).iter().filter_map(|it| it.s3.as_ref())
}

/// Files of the node that the document names for its buckets: CAs and access keys.
pub fn files(wire: &EtcdClusterSpec) -> impl Iterator<Item = &str> {
    let named = s3(wire).flat_map(|it| [&it.ca_file, &it.credentials]);
    named.filter_map(|it| it.as_deref())
}

/// Paths of the document that reach beyond what a namespace may use: which, and what it may.
fn foreign_path(namespace: &str, name: &str, wire: &EtcdClusterSpec) -> Option<Detail> {
    let own = node_dir(namespace, name);
    let of_namespace = node_dir(namespace, "");
    let bootstrap = wire.bootstrap.as_ref().map(|it| it.from.as_str());
    let mut paths: Vec<&str> = Vec::new();
    paths.extend(local(wire).filter_map(|it| it.path.as_deref()));
    paths.extend(files(wire));
    let below = |dir: &str, path: &str| {
        let rest = path.strip_prefix(dir).unwrap_or_default();
        rest.trim_start_matches('/') != rest && !rest.split('/').any(|it| it == "..")
    };
    // A snapshot may be another cluster's of the namespace, whoever may create this object may see it; so
    // may one on a claim, which is the namespace's.
    let source = bootstrap.filter(|it| it.starts_with('/') && !below(CLAIM_DIR, it));
    let source = source.filter(|it| !below(of_namespace.trim_end_matches('/'), it));
    let path = paths.into_iter().find(|it| !below(&own, it)).or(source)?;
    Some(detail(format_args!(
        "PathNotAllowed: {path} is not this cluster's: in Kubernetes it may use {own}/ of the node and nothing else"
    )))
}

/// A Pod that writes to a claim sees no file of the node.
fn files_beside_a_claim(wire: &EtcdClusterSpec) -> Option<Detail> {
    let claimed = local(wire).any(|it| it.claim_name.is_some());
    let names_files = files(wire).next().is_some();
    (claimed && names_files).then(|| {
        detail(format_args!(
            "spec.backup.destinations: claimName excludes caFile and credentials: the Pod that writes to a claim sees no file of the node; use credentialsSecret"
        ))
    })
}

/// A directory inside of another one could be a link that somebody else made.
fn nested_paths(namespace: &str, name: &str, wire: &EtcdClusterSpec) -> Option<Detail> {
    let mut paths: Vec<&str> = local(wire).filter_map(|it| it.path.as_deref()).collect();
    // Nobody but the operator writes to its own records.
    let state = state_dir(namespace, name);
    paths.push(&state);
    let inside = |one: &str, other: &str| Path::new(one).starts_with(other);
    // Who writes to a directory could make a link of a file's directory there, and a Pod mounts that.
    let written =
        files(wire).find_map(|file| Some((file, *paths.iter().find(|it| inside(file, it))?)));
    if let Some((file, path)) = written {
        return Some(detail(format_args!(
            "PathNotAllowed: {file} lies inside {path}, which the cluster's Pods write to"
        )));
    }
    let (one, other) = paths.iter().enumerate().find_map(|(index, one)| {
        let mut others = paths[index + 1..].iter();
        let other = others.find(|it| inside(one, it) || inside(it, one))?;
        Some((*one, *other))
    })?;
    Some(detail(format_args!(
        "PathNotAllowed: one of {one} and {other} lies inside the other"
    )))
}
