//! `env`: how a program connects to the etcd of this host, in the words of that program.

use std::path::{Path, PathBuf};

use super::arguments::{EnvArgs, EnvFor};
use super::show::{client_files, tell_which};
use super::{Context, DONE, FAILED, Failure, Outcome, print, runtime};
use crate::agent::Report;
use crate::agent::kept;
use crate::agent::socket::{Reply, Request, ask};
use crate::cluster::ADMIN;
use crate::error::shell_word;
use crate::member::place::{self, HostPlace};
use crate::member::records::Running;
use crate::render;
use crate::tls::{Certificates, ClientFiles};

impl EnvFor {
    /// The client whose certificate is taken, where there is one.
    fn client(self) -> &'static str {
        match self {
            EnvFor::Etcdctl => ADMIN,
            EnvFor::K3s => "k3s",
            EnvFor::Kubeadm => "kubeadm",
            EnvFor::Patroni => "patroni",
        }
    }
}

pub(super) fn env(context: &Context, args: &EnvArgs) -> Outcome {
    let etcd = etcd(context)?;
    let files = files(context, args)?;
    let paths = [&files.ca, &files.cert, &files.key];
    let has_blank = |it: &&PathBuf| it.to_string_lossy().contains(char::is_whitespace);
    if let (EnvFor::K3s, Some(path)) = (args.target, paths.into_iter().find(has_blank)) {
        let text = format!(
            "{}: a shell splits k3s' flags at the blank: copy the files to a directory without one",
            path.display()
        );
        return Err(Failure::new(FAILED, text));
    }
    warn(context, args, &etcd);
    print::text(&lines(args.target, &etcd.url, &files))?;
    Ok(DONE)
}

/// Where the etcd of this host is reached: as it runs, else as the document says.
pub(super) fn client_url(context: &Context, place: &HostPlace) -> String {
    let running = Running::load(&context.paths);
    running.map_or_else(|| place.client_url.clone(), |it| it.client_url())
}

/// Of the etcd that runs, whatever the document says by now; else of the one that would.
struct Etcd {
    url: String,
    /// It answers JSON over HTTP.
    gateway: bool,
    /// The document asks for that.
    asked: bool,
}

fn etcd(context: &Context) -> Result<Etcd, Failure> {
    let named = context.named.then(|| context.read()).transpose()?;
    let document = match kept::choose(&context.paths, &context.config) {
        Ok((accepted, _)) => Ok(accepted.document),
        Err(_) => context.read(),
    };
    let asked = document
        .as_ref()
        .is_ok_and(|it| it.spec.options.http_gateway);
    let running = Running::load(&context.paths);
    let gateway = running
        .as_ref()
        .map_or(asked, |it| render::has_gateway(&it.launch.conf));
    let status = runtime()?.block_on(ask(&context.paths.socket(), &Request::Status));
    let url = if let Reply::Answered(text) = status {
        let report = serde_json::from_str::<Report>(&text)?;
        if let Some(named) = &named {
            tell_which(context, named, &report)?;
        }
        report.host.etcd.client_url
    } else if let Some(running) = running {
        running.client_url()
    } else {
        place::resolve(&context.paths, &document?.spec).client_url
    };
    Ok(Etcd {
        url,
        gateway,
        asked,
    })
}

/// The certificate of the program, where it has one: the operator's own files, or the copies of them.
fn files(context: &Context, args: &EnvArgs) -> Result<ClientFiles, Failure> {
    let name = args.target.client();
    if let Some(dir) = &args.tls {
        return copies(name, dir);
    }
    let issued = Certificates::at(context.paths.tls())
        .client_leaf(name)
        .is_ok();
    client_files(context, if issued { name } else { ADMIN })
}

/// What `certs issue --out` wrote.
fn copies(name: &str, dir: &Path) -> Result<ClientFiles, Failure> {
    let dir = std::path::absolute(dir)?;
    let cert = dir.join(format!("{name}.crt"));
    // Where we may not look, the program's user may.
    if let Ok(false) = cert.try_exists() {
        let text = format!(
            "{} is not there: sudo etcd-operator certs issue {name} --out {} --owner USER",
            cert.display(),
            shell_word(&dir.to_string_lossy())
        );
        return Err(Failure::new(FAILED, text));
    }
    Ok(ClientFiles {
        ca: dir.join("ca.crt"),
        cert,
        key: dir.join(format!("{name}.key")),
        server_name: None,
    })
}

/// What the program would not say itself.
fn warn(context: &Context, args: &EnvArgs, etcd: &Etcd) {
    let warn = |text: &str| eprintln!("etcd-operator: warning: {text}");
    let embedded = context.paths.k3s_embedded_etcd();
    if args.target == EnvFor::K3s && embedded.exists() {
        // Rule A11: k3s says nothing when it ignores these flags.
        warn(&format!(
            "k3s ignores --datastore-endpoint while {} exists: move it aside first",
            embedded.display()
        ));
    }
    if args.target == EnvFor::Patroni && !etcd.gateway {
        let next = if etcd.asked {
            "it was started before that was asked for: restart it"
        } else {
            "remove options.httpGateway from the document"
        };
        warn(&format!(
            "Patroni speaks JSON over HTTP, and this etcd does not: {next}"
        ));
    }
    if args.target == EnvFor::Patroni && args.tls.is_none() {
        warn(
            "only root and etcd-operator can read these files. Copies for Patroni's user, renewed by a timer:\n  \
             sudo etcd-operator certs issue patroni --out /etc/patroni/tls --owner postgres\n  \
             etcd-operator env --for patroni --tls /etc/patroni/tls",
        );
    }
}

fn lines(target: EnvFor, url: &str, files: &ClientFiles) -> String {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let (ca, cert, key) = (text(&files.ca), text(&files.cert), text(&files.key));
    match target {
        EnvFor::Etcdctl => {
            let fields = [
                ("ENDPOINTS", url),
                ("CACERT", &ca),
                ("CERT", &cert),
                ("KEY", &key),
            ];
            fields
                .map(|(name, value)| format!("export ETCDCTL_{name}={}\n", shell_word(value)))
                .concat()
        }
        // Words, as a shell splits them: quotes would stay in them.
        EnvFor::K3s => format!(
            "--datastore-endpoint={url}\n--datastore-cafile={ca}\n--datastore-certfile={cert}\n--datastore-keyfile={key}\n"
        ),
        EnvFor::Kubeadm => {
            let [url, ca, cert, key] = [url, &ca, &cert, &key].map(render::quoted);
            format!(
                "apiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\netcd:\n  external:\n    endpoints: [{url}]\n    caFile: {ca}\n    certFile: {cert}\n    keyFile: {key}\n"
            )
        }
        EnvFor::Patroni => {
            let host = url.strip_prefix("https://").unwrap_or(url);
            let [host, ca, cert, key] = [host, &ca, &cert, &key].map(render::quoted);
            format!(
                "etcd3:\n  hosts: [{host}]\n  protocol: https\n  cacert: {ca}\n  cert: {cert}\n  key: {key}\n"
            )
        }
    }
}
