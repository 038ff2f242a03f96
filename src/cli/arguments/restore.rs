//! The arguments of `restore`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::cli::print::Output;

#[expect(clippy::struct_excessive_bools, reason = "each is a flag")]
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(in crate::cli) struct RestoreArgs {
    #[command(subcommand)]
    pub(in crate::cli) command: Option<RestoreCommand>,
    /// latest (the newest verified one), a snapshot's name or its beginning, a revision such as r1234, a file,
    /// s3://BUCKET/KEY, or the whole data directory of a box that died
    #[arg(long, value_name = "SNAPSHOT", default_value = "latest")]
    pub(in crate::cli) from: String,
    /// The file with the secret key of age, for a snapshot that is encrypted
    #[arg(long, value_name = "FILE")]
    pub(in crate::cli) identity: Option<PathBuf>,
    /// Also accepts a snapshot of another cluster of the same name, or the data of another cluster
    #[arg(long)]
    pub(in crate::cli) other_cluster: bool,
    /// Also accepts a snapshot, and CAs, that this key signed; or `unsigned`: those that nobody has signed. The key
    /// is shown by --dry-run, and by etcd-operator certs list on the box that took the snapshot
    #[arg(long, value_name = "KEY")]
    pub(in crate::cli) trust: Vec<String>,
    /// Undoes the last restore: puts back the data that it set aside, with its cluster id and its
    /// revisions; the data written since is set aside in turn
    #[arg(long, conflicts_with_all = ["from", "identity", "other_cluster", "trust"])]
    pub(in crate::cli) undo: bool,
    /// Only shows what would be done, and what would be lost
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// For a Pod of the controller: takes its input from the environment
    #[arg(long, hide = true)]
    pub(in crate::cli) pod: bool,
    /// In such a Pod: only if there is no data yet
    #[arg(long, hide = true)]
    pub(in crate::cli) bootstrap: bool,
    /// In such a Pod: only finishes an interrupted restore
    #[arg(long, hide = true)]
    pub(in crate::cli) resume: bool,
    /// In such a Pod: only starts etcd on a copy of the data, and tells how that went
    #[arg(long, hide = true)]
    pub(in crate::cli) rehearse: bool,
    /// The last revision that the live data was seen to have
    #[arg(long, hide = true, value_name = "REVISION")]
    pub(in crate::cli) live_revision: Option<i64>,
    /// Does it without asking
    #[arg(long)]
    pub(in crate::cli) yes: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(in crate::cli) output: Output,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum RestoreCommand {
    /// Removes data that restores and interrupted first starts set aside; asks first
    #[command(
        after_help = "Nothing is removed while a restore is under way, or if the data itself is incomplete.\n\nExamples:\n  etcd-operator restore clean --dry-run\n  etcd-operator restore clean --yes"
    )]
    Clean(CleanArgs),
}

#[derive(Debug, Args)]
pub(in crate::cli) struct CleanArgs {
    /// Only lists what would be removed
    #[arg(long)]
    pub(in crate::cli) dry_run: bool,
    /// Does it without asking
    #[arg(long)]
    pub(in crate::cli) yes: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(in crate::cli) output: Output,
}
