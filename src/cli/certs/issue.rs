//! `certs issue`: a client's certificate, and copies of it for those who use it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::super::edit::unanswered;
use super::super::owner::{ask_as_owner, become_user};
use super::super::print::{self, Output};
use super::super::{
    Context, DONE, FAILED, Failure, IssueArgs, Outcome, USAGE, protect_process, runtime,
};
use crate::accounts::user;
use crate::agent::socket::{Reply, Request, ask};
use crate::agent::{self, Locking};
use crate::clock;
use crate::clock::parse_rfc3339;
use crate::clock::rfc3339;
use crate::error::shell_word;
use crate::member::certificates::client_due;
use crate::member::{place, records};
use crate::observed::Clock;
use crate::state;
use crate::tls::{Certificates, ClientFiles, TlsError, Validity, is_client_name};

/// A client's certificate, for people and programs.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Answer {
    #[serde(flatten)]
    files: ClientFiles,
    /// It was made just now.
    issued: bool,
    not_after: String,
    /// PEM, for root's command alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    contents: Option<Contents>,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    ca: String,
    cert: String,
    key: String,
}

pub(in crate::cli) fn issue(context: &Context, arguments: &IssueArgs) -> Outcome {
    protect_process();
    let name = arguments.name.as_str();
    if !is_client_name(name) {
        let error = TlsError::ClientName(name.to_owned());
        return Err(Failure::new(USAGE, error.to_string()));
    }
    let Some(out) = &arguments.out else {
        let issued = make(context, arguments, None)?;
        return tell(arguments, &issued, None);
    };
    let out = std::path::absolute(out)?;
    if arguments.contents {
        let issued = make(context, arguments, Some(&out))?;
        print::value(Output::Json, &issued)?;
        return Ok(DONE);
    }
    let owner = owner(arguments)?;
    let mut words = ["certs", "issue", name, "--contents", "--out"]
        .map(OsStr::new)
        .to_vec();
    words.push(out.as_os_str());
    words.extend(arguments.renew.then_some(OsStr::new("--renew")));
    let issued = match ask_as_owner(context, &words)? {
        Some(text) => serde_json::from_slice(&text)?,
        None => make(context, arguments, Some(&out))?,
    };
    let copied = hand_out(&issued, name, &out, arguments, owner)?;
    tell(arguments, &issued, Some(copied))
}

/// The ids of whom the copies shall belong to; none: to whoever runs this.
fn owner(arguments: &IssueArgs) -> Result<Option<(u32, u32)>, Failure> {
    let Some(name) = &arguments.owner else {
        return Ok(None);
    };
    let ids = user(Path::new("/etc/passwd"), name)
        .ok_or_else(|| Failure::new(USAGE, format!("--owner {name}: there is no such user")))?;
    let own = rustix::process::geteuid();
    if !own.is_root() && own.as_raw() != ids.0 {
        let text = format!("only root can give files to {name}: run this with sudo");
        return Err(Failure::new(FAILED, text));
    }
    Ok(Some(ids))
}

/// The certificate, by the agent where one runs. What is good stays; `out`: where a copy is to lie.
fn make(context: &Context, arguments: &IssueArgs, out: Option<&Path>) -> Result<Answer, Failure> {
    let (name, renew) = (arguments.name.as_str(), arguments.renew);
    let certificates = Certificates::at(context.paths.tls());
    let folder = || fs::read_link(context.paths.tls().join("clients").join(name)).ok();
    let before = folder();
    let request = Request::Issue {
        name: name.to_owned(),
        renew,
    };
    let files: ClientFiles = match runtime()?.block_on(ask(&context.paths.socket(), &request)) {
        Reply::Answered(text) => serde_json::from_str(&text)?,
        Reply::Refused(why) => return Err(Failure::new(FAILED, why)),
        other @ (Reply::NotAllowed | Reply::Silent) => {
            return Err(unanswered(context, &other));
        }
        Reply::Nobody => without_agent(context, &certificates, name, renew)?,
    };
    let leaf = certificates.client_leaf(name).map_err(|why| {
        Failure::new(
            FAILED,
            format!("the certificate of {name} cannot be used: {why}"),
        )
    })?;
    certificates.note_issued(name, out.map(|it| (it, leaf.not_after)))?;
    let contents = match out {
        Some(_) => Some(Contents {
            ca: fs::read_to_string(&files.ca)?,
            cert: fs::read_to_string(&files.cert)?,
            key: fs::read_to_string(&files.key)?,
        }),
        None => None,
    };
    Ok(Answer {
        files,
        issued: before != folder(),
        not_after: rfc3339(leaf.not_after),
        contents,
    })
}

/// Without an agent nobody vouches for the clock: a new one is valid from 1970 on, whatever it says.
fn without_agent(
    context: &Context,
    certificates: &Certificates,
    name: &str,
    renew: bool,
) -> Result<ClientFiles, Failure> {
    let spec = context.document()?;
    let _lock = agent::lock(&context.paths, Locking::Act)?;
    let now = clock::now();
    if !renew && !client_due(certificates, name, now, Clock::Unsynchronised) {
        return Ok(certificates.client_files(name));
    }
    let data = records::data_dir(&place::resolve(&context.paths, &spec).storage_dir);
    let newest = clock::newest_known(&data, Some(now));
    certificates.ensure_authorities(&spec.name, newest)?;
    Ok(certificates.issue(name, Validity::provisional(newest, spec.leaf_seconds))?)
}

/// Writes the copies, with the rights of whom they are for: what that user has put there is not followed
/// with root's.
fn hand_out(
    issued: &Answer,
    name: &str,
    out: &Path,
    arguments: &IssueArgs,
    owner: Option<(u32, u32)>,
) -> Result<ClientFiles, Failure> {
    let Some(contents) = &issued.contents else {
        return Err(Failure::new(
            FAILED,
            "the certificate's files were not read",
        ));
    };
    if let Some((uid, gid)) = owner.filter(|_| rustix::process::geteuid().is_root()) {
        become_user(uid, gid)?;
    }
    if !out.is_dir() {
        create(out, arguments)?;
    }
    let file = |name: String| out.join(name);
    let files = ClientFiles {
        ca: file("ca.crt".to_owned()),
        cert: file(format!("{name}.crt")),
        key: file(format!("{name}.key")),
        server_name: None,
    };
    for (path, text) in [
        (&files.ca, &contents.ca),
        (&files.key, &contents.key),
        (&files.cert, &contents.cert),
    ] {
        // What is the same already stays the same file.
        if fs::read_to_string(path).is_ok_and(|it| it == *text) {
            continue;
        }
        state::write_file(path, text.as_bytes())?;
    }
    Ok(files)
}

fn create(out: &Path, arguments: &IssueArgs) -> Result<(), Failure> {
    use std::os::unix::fs::DirBuilderExt as _;
    match fs::DirBuilder::new().mode(0o700).create(out) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let (word, out) = (shell_word(&out.to_string_lossy()), out.display());
            let owner = arguments.owner.as_deref().unwrap_or("USER");
            let text = format!(
                "{owner} may not create {out}: sudo install -d -o {owner} -m 700 {word}, then run this again"
            );
            Err(Failure::new(FAILED, text))
        }
        Err(error) => {
            let text = format!("failed to create {}: {error}", out.display());
            Err(Failure::new(FAILED, text))
        }
    }
}

fn tell(arguments: &IssueArgs, issued: &Answer, copied: Option<ClientFiles>) -> Outcome {
    let copy = copied.is_some();
    let shown = Answer {
        files: copied.unwrap_or_else(|| issued.files.clone()),
        contents: None,
        not_after: issued.not_after.clone(),
        issued: issued.issued,
    };
    if arguments.output != Output::Table {
        print::value(arguments.output, &shown)?;
        return Ok(DONE);
    }
    let left = parse_rfc3339(&shown.not_after).map(|it| it.seconds_since(clock::now()));
    let days = left.map_or(0, |it| it.max(0) / 86_400);
    let made = if shown.issued {
        "issued"
    } else {
        "good already"
    };
    let renewal = if copy {
        "the operator renews its own; run this again, such as from a timer, to copy the new one"
    } else {
        "the operator renews it in time"
    };
    let path = |it: &PathBuf| it.display().to_string();
    print::text(&format!(
        "ca    {}\ncert  {}\nkey   {}\n{made}, valid for {days} days, until {}; {renewal}\n",
        path(&shown.files.ca),
        path(&shown.files.cert),
        path(&shown.files.key),
        shown.not_after,
    ))?;
    Ok(DONE)
}
