//! `certs list`, `certs accept` and `certs remove`.

mod issue;

use serde::Serialize;

use super::print::{self, Output};
use super::{Context, DONE, FAILED, Failure, HELD, Outcome};
use crate::clock;
use crate::clock::rfc3339;
use crate::cluster::ADMIN;
use crate::tls::{Certificates, Leaf, Usability};

pub(super) use issue::issue;

/// One certificate, for people and programs.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Row {
    name: String,
    kind: &'static str,
    state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_before: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    not_after: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    days_left: Option<i64>,
    provisional: bool,
}

fn row(name: &str, kind: &'static str, leaf: &Result<Leaf, Usability>) -> Row {
    let now = clock::now();
    let state = match leaf {
        Ok(leaf) if now > leaf.not_after => "expired".to_owned(),
        Ok(leaf) if now < leaf.not_before => "not valid yet".to_owned(),
        Ok(_) => "valid".to_owned(),
        Err(why) => why.to_string(),
    };
    let leaf = leaf.as_ref().ok();
    Row {
        name: name.to_owned(),
        kind,
        state,
        not_before: leaf.map(|it| rfc3339(it.not_before)),
        not_after: leaf.map(|it| rfc3339(it.not_after)),
        days_left: leaf.map(|it| it.not_after.seconds_since(now).div_euclid(86_400)),
        provisional: leaf.is_some_and(Leaf::is_provisional),
    }
}

pub(super) fn list(context: &Context, output: Output) -> Outcome {
    let certificates = Certificates::at(context.paths.tls());
    let leaves = certificates.leaves();
    let mut rows: Vec<Row> = leaves
        .iter()
        .map(|(role, leaf)| row(role, "in use", leaf))
        .collect();
    for name in certificates.clients() {
        rows.push(row(&name, "client", &certificates.client_leaf(&name)));
    }
    rows.extend(certificates.signer().map(|it| Row {
        name: it.public(),
        kind: "signs snapshots",
        state: "valid".to_owned(),
        not_before: None,
        not_after: None,
        days_left: None,
        provisional: false,
    }));
    if output != Output::Table {
        print::value(output, &rows)?;
        return Ok(DONE);
    }
    let mut table = vec![["NAME", "KIND", "STATE", "DAYS", "ENDS"].map(str::to_owned)];
    for it in rows {
        let days = it
            .days_left
            .map_or_else(|| "-".to_owned(), |it| it.to_string());
        let state = if it.provisional {
            format!("{} (provisional)", it.state)
        } else {
            it.state
        };
        table.push([
            it.name,
            it.kind.to_owned(),
            state,
            days,
            it.not_after.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    print::table(&table)?;
    Ok(DONE)
}

/// A person knows of a new CA.
pub(super) fn accept(context: &Context) -> Outcome {
    if !Certificates::at(context.paths.tls()).accept()? {
        let text = "there is no CA that can be read: see etcd-operator status";
        return Err(Failure::new(HELD, text));
    }
    print::text("the CA is accepted as it is now\n")?;
    Ok(DONE)
}

/// Ends the renewal of a client and removes its files here.
pub(super) fn remove(context: &Context, name: &str) -> Outcome {
    let spec = context.document()?;
    if name == ADMIN || spec.clients.iter().any(|it| it == name) {
        let text = format!(
            "the document lists the client {name}, so the operator would issue it again; remove it from spec.clients"
        );
        return Err(Failure::new(HELD, text));
    }
    if !Certificates::at(context.paths.tls()).remove_client(name)? {
        let text = format!("there is no client {name}: see etcd-operator certs list");
        return Err(Failure::new(FAILED, text));
    }
    print::text(&format!(
        "{name} is removed and no longer renewed; copies elsewhere stay valid until they expire\n"
    ))?;
    Ok(DONE)
}
