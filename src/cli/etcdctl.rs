//! `etcdctl`: the store's, of the version that runs, as the client admin.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;

use super::env::client_url;
use super::show::client_files;
use super::{Context, FAILED, Failure, Outcome, runtime};
use crate::agent::Report;
use crate::agent::socket::{Reply, Request, ask};
use crate::cluster::ADMIN;
use crate::etcd::store;
use crate::member::{place, records};
use crate::tls::ClientFiles;
use crate::version::Version;

/// Becomes etcdctl, with the rights that this process has by now: never root's where the store is
/// another user's. Its exit code is ours.
pub(super) fn etcdctl(context: &Context, arguments: &[OsString]) -> Outcome {
    let (url, version) = endpoint(context)?;
    let ClientFiles { ca, cert, key, .. } = client_files(context, ADMIN)?;
    let program = store::folder(&context.paths.store(), version).join("etcdctl");
    if !program.exists() {
        let text = format!(
            "the store has no etcdctl {version}: sudo etcd-operator etcd install --from FILE {version}, where FILE is the release's .tar.gz"
        );
        return Err(Failure::new(FAILED, text));
    }
    #[expect(clippy::disallowed_methods, reason = "a person asks for etcdctl")]
    let mut command = std::process::Command::new(program);
    let error = command
        .args(arguments)
        .env("ETCDCTL_ENDPOINTS", url)
        .env("ETCDCTL_CACERT", ca)
        .env("ETCDCTL_CERT", cert)
        .env("ETCDCTL_KEY", key)
        .exec();
    Err(error.into())
}

/// Where etcd is reached, and its version. A running agent knows which document is in force.
fn endpoint(context: &Context) -> Result<(String, Version), Failure> {
    let answer = runtime()?.block_on(ask(&context.paths.socket(), &Request::Status));
    let told = match answer {
        Reply::Answered(text) => Some(serde_json::from_str::<Report>(&text)?.host.etcd),
        _ => None,
    };
    let version = told
        .as_ref()
        .and_then(|it| it.version.as_ref()?.parse().ok());
    if let (Some(told), Some(version)) = (told, version) {
        return Ok((told.client_url, version));
    }
    let spec = context.document()?;
    let place = place::resolve(&context.paths, &spec);
    let (identity, marker) = records::load_identities(&context.paths, &place.storage_dir)?;
    let born = identity
        .or(marker)
        .and_then(|it| it.member.version.parse().ok());
    let version = born.ok_or_else(|| {
        let text = "there is no cluster here yet: start the operator first";
        Failure::new(FAILED, text)
    })?;
    Ok((client_url(context, &place), version))
}
