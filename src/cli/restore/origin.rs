//! Where a snapshot comes from: who signed it, of which cluster it is, whose CAs came with it.

use std::fmt::Write as _;

use serde::Serialize;

use super::names_a_place;
use crate::backup::source::Found;
use crate::backup::trust::{Trust, Whose};
use crate::cli::places::trusted_now;
use crate::cli::{Context, Failure, HELD, RestoreArgs};
use crate::spec::ClusterSpec;
use crate::tls::Certificates;

/// Whose snapshots count for this command.
pub(in crate::cli) fn trust(
    context: &Context,
    spec: &ClusterSpec,
    arguments: &RestoreArgs,
) -> Trust {
    let own = Certificates::at(context.paths.tls());
    Trust::of(&own, spec, trusted_now(context)).accepting(&arguments.trust)
}

/// Where a snapshot comes from.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Origin {
    /// The cluster's id, as far as a manifest gives it.
    #[serde(rename = "clusterID", skip_serializing_if = "Option::is_none")]
    cluster_id: Option<String>,
    /// The public key; none where nobody has signed it.
    #[serde(skip_serializing_if = "Option::is_none")]
    signed_by: Option<String>,
    /// Why that is enough, or why not.
    #[serde(rename = "origin")]
    why: String,
    /// It is enough for a restore without a person.
    trusted: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    authorities: Option<Authorities>,
}

/// CAs that came with it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Authorities {
    /// sha256 over their certificates.
    fingerprint: String,
    clients: Vec<String>,
    /// Why their origin does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    doubt: Option<String>,
    /// The key that signed the snapshot signed them, too.
    #[serde(skip)]
    same: bool,
}

impl Origin {
    pub(super) fn of(spec: &ClusterSpec, found: &Found, trust: &Trust) -> Self {
        let judged = found.judged(trust);
        let authorities = found.authorities(trust, &spec.name);
        Origin {
            cluster_id: found.file.cluster_id.clone(),
            signed_by: found.signer().map(str::to_owned),
            trusted: judged.is_ok(),
            why: match &judged {
                Ok(Whose::Own) => "is signed by this cluster's own key".to_owned(),
                Ok(Whose::Pinned) => "is signed by a key of backup.trustedSigners".to_owned(),
                Ok(Whose::Accepted) => "is accepted by --trust".to_owned(),
                Err(why) => why.to_string(),
            },
            authorities: authorities.map(|it| Authorities {
                fingerprint: it.fingerprint.unwrap_or_else(|| "unreadable".to_owned()),
                clients: it.clients,
                doubt: it.doubt.map(|it| it.to_string()),
                same: it.same,
            }),
        }
    }

    /// Refuses what a person has to know of before it is done: a yes beforehand has not seen it.
    pub(super) fn check(&self, context: &Context, arguments: &RestoreArgs) -> Result<(), Failure> {
        let seen = !arguments.yes || names_a_place(context, &arguments.from);
        if !self.trusted && !seen {
            let word = self.signed_by.as_deref().unwrap_or("unsigned");
            let text = format!(
                "the snapshot {}; next: if you know where it comes from, add --trust {word}; nothing was done",
                self.why
            );
            return Err(Failure::new(HELD, text));
        }
        // That the same key signed both is enough for a person who sees it, or where the snapshot counts: a path is a
        // word for data, and whoever can write there could have signed both.
        let asked = !arguments.yes || self.trusted;
        let doubted = self.authorities.as_ref().filter(|it| !(it.same && asked));
        if let Some(why) = doubted.and_then(|it| it.doubt.as_ref()) {
            let text = format!(
                "authorities.age, beside the snapshot, {why}: its CAs are not imported; next: add --trust KEY if you know that key, or remove the object (then the operator makes new CAs, and every client needs a new certificate)"
            );
            return Err(Failure::new(HELD, text));
        }
        Ok(())
    }

    pub(super) fn lines(&self) -> String {
        let mut text = String::new();
        if let Some(id) = &self.cluster_id {
            let _ = writeln!(text, "cluster    id {id}");
        }
        let _ = writeln!(text, "origin     it {}", self.why);
        if let Some(it) = &self.authorities {
            let _ = writeln!(
                text,
                "CAs        {}, with the clients {}",
                it.fingerprint,
                it.clients.join(", ")
            );
        }
        text
    }
}
