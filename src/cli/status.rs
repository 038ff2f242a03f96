//! `status`, as a table for people and as a document for programs.

use super::print::{self, Output};
use super::show::{plan_lines, report};
use super::{Context, DONE, FAILED, Outcome};
use crate::agent::Report;

pub(super) fn status(context: &Context, output: Output) -> Outcome {
    let report = report(context)?;
    let available = report
        .status
        .conditions
        .iter()
        .any(|it| it.type_ == "Available" && it.status == "True");
    if output == Output::Table {
        table(&report)?;
    } else {
        print::value(output, &report)?;
    }
    Ok(if available { DONE } else { FAILED })
}

fn table(report: &Report) -> std::io::Result<()> {
    let (status, host) = (&report.status, &report.host);
    let pid =
        |pid: Option<u32>| pid.map_or_else(|| "not running".to_owned(), |it| format!("pid {it}"));
    print::text(&format!(
        "etcd      {} ({}, {} driver)\noperator  {}\nclients   {}\ndata      {}\n\n",
        host.etcd.version.as_deref().unwrap_or("-"),
        pid(host.etcd.pid),
        host.driver,
        pid(host.operator.pid),
        host.etcd.client_url,
        host.etcd.data_dir,
    ))?;
    let mut rows = vec![["CONDITION", "STATUS", "REASON", "MESSAGE"].map(str::to_owned)];
    for it in &status.conditions {
        rows.push([
            it.type_.clone(),
            it.status.clone(),
            it.reason.clone(),
            it.message.clone(),
        ]);
    }
    print::table(&rows)?;
    if !status.members.is_empty() {
        print::text("\n")?;
        let mut rows = vec![["MEMBER", "ID", "ROLE", "SERVING", "LEADER"].map(str::to_owned)];
        let yes = |it: bool| if it { "yes" } else { "no" }.to_owned();
        for it in &status.members {
            rows.push([
                it.name.clone(),
                it.id.clone(),
                it.role.clone(),
                yes(it.serving),
                yes(it.leader),
            ]);
        }
        print::table(&rows)?;
    }
    print::text("\n")?;
    plan_lines(report)?;
    let confirmed = status
        .confirmed_until
        .as_ref()
        .and_then(|it| serde_json::to_value(it).ok());
    let confirmed = confirmed.and_then(|it| it.as_str().map(str::to_owned));
    print::text(&format!(
        "confirmed until {}\n",
        confirmed.as_deref().unwrap_or("-")
    ))
}
