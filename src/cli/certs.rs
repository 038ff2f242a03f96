//! `certs list` and `certs issue`.

use serde::Serialize;

use super::print::{self, Output};
use super::{Context, DONE, FAILED, Failure, Outcome, USAGE, runtime};
use crate::agent::socket::{Request, ask};
use crate::agent::{self, Locking};
use crate::api::status::rfc3339;
use crate::clock;
use crate::member::{place, records};
use crate::tls::{Certificates, ClientFiles, Leaf, TlsError, Usability, Validity, is_client_name};

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

pub(super) fn issue(context: &Context, name: &str, output: Output) -> Outcome {
    if !is_client_name(name) {
        return Err(Failure::new(
            USAGE,
            TlsError::ClientName(name.to_owned()).to_string(),
        ));
    }
    let files: ClientFiles = match runtime()?.block_on(ask(
        &context.paths.socket(),
        &Request::Issue(name.to_owned()),
    )) {
        Some(Ok(text)) => serde_json::from_str(&text)?,
        Some(Err(why)) => return Err(Failure::new(FAILED, why)),
        None => {
            let spec = context.document()?;
            let _lock = agent::lock(&context.paths, Locking::Act)?;
            let certificates = Certificates::at(context.paths.tls());
            // Without an agent nobody vouches for the clock: valid from 1970 on, whatever it says.
            let data = records::data_dir(&place::resolve(&context.paths, &spec).storage_dir);
            let newest = clock::newest_known(&data, Some(clock::now()));
            certificates.ensure_authorities(&spec.name, newest)?;
            certificates.issue(name, Validity::provisional(newest, spec.leaf_seconds))?
        }
    };
    if output != Output::Table {
        print::value(output, &files)?;
        return Ok(DONE);
    }
    print::text(&format!(
        "ca    {}\ncert  {}\nkey   {}\n",
        files.ca.display(),
        files.cert.display(),
        files.key.display()
    ))?;
    Ok(DONE)
}
