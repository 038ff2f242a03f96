//! Flags of `backup`.

use clap::{Args, Subcommand};

use super::{ClusterArgs, OutputArgs};
use crate::cli::print::Output;

#[derive(Debug, Args)]
pub(in crate::cli) struct BackupArgs {
    #[command(flatten)]
    pub(in crate::cli) cluster: ClusterArgs,
    #[command(subcommand)]
    pub(in crate::cli) command: BackupCommand,
}

#[derive(Debug, Args)]
pub(in crate::cli) struct DeleteArgs {
    /// Their names, revisions such as r1234, or beginnings of names
    #[arg(required = true, value_name = "NAME")]
    pub(in crate::cli) names: Vec<String>,
    /// Only at this destination, such as /mnt/usb/etcd or s3://BUCKET/PREFIX; left out: all
    #[arg(long, value_name = "PLACE")]
    pub(in crate::cli) at: Option<String>,
    /// Deletes the newest verified one, too
    #[arg(long)]
    pub(in crate::cli) force: bool,
    /// Does it without asking
    #[arg(long)]
    pub(in crate::cli) yes: bool,
    /// How to print
    #[arg(short, long, value_enum, default_value_t = Output::Table)]
    pub(in crate::cli) output: Output,
}

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum BackupCommand {
    /// For a Pod of the controller: takes its input from the environment
    #[command(hide = true)]
    Worker,
    /// Takes a snapshot now and verifies it; it stays until `backup delete`, or for its --ttl
    #[command(
        after_help = "Example:\n  etcd-operator backup create\n  etcd-operator backup create --ttl 7d"
    )]
    Create {
        /// How long it stays, such as 24h or 7d; the newest verified one always stays
        #[arg(long, value_name = "DURATION")]
        ttl: Option<String>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Lists snapshots of every destination, newest first; for a bucket out of reach, those
    /// that were copied there
    #[command(after_help = "Example:\n  etcd-operator backup list -o json | jq .[0].name")]
    List {
        /// Only at this destination, such as /mnt/usb/etcd or s3://BUCKET/PREFIX; left out: all
        #[arg(long, value_name = "PLACE")]
        at: Option<String>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Deletes snapshots by name in every destination; asks first
    #[command(
        after_help = "The newest verified one of each destination stays, unless you add --force.\n\nExample:\n  etcd-operator backup delete edge-0-20261121T131500Z-r1234-9f3ab2c1"
    )]
    Delete(DeleteArgs),
    /// Prints the details of a snapshot
    #[command(after_help = "Example:\n  etcd-operator backup show latest")]
    Show {
        /// Its name, a revision such as r1234, the beginning of a name, or latest
        name: String,
        /// Only at this destination, such as /mnt/usb/etcd or s3://BUCKET/PREFIX; left out: all
        #[arg(long, value_name = "PLACE")]
        at: Option<String>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Checks one snapshot, or all; exits with 1 if one is damaged. Copies in a bucket are read back
    /// (level 2)
    #[command(after_help = "Example:\n  etcd-operator backup verify --level 3")]
    Verify {
        /// Its name, a revision such as r1234, the beginning of a name, or latest; left out: all
        name: Option<String>,
        /// 1 size, 2 hash, 3 structure, 4 a trial restore
        #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u8).range(1..=4))]
        level: u8,
        /// Only at this destination, such as /mnt/usb/etcd or s3://BUCKET/PREFIX; left out: all
        #[arg(long, value_name = "PLACE")]
        at: Option<String>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
    /// Copies the snapshots that wait for the document's other destinations
    #[command(after_help = "Example:\n  etcd-operator backup copy")]
    Copy(OutputArgs),
    /// Removes snapshots that the document no longer keeps, never the newest verified one
    #[command(after_help = "Example:\n  etcd-operator backup prune --dry-run")]
    Prune {
        /// Only lists what would be removed
        #[arg(long)]
        dry_run: bool,
        /// Only at this destination, such as /mnt/usb/etcd or s3://BUCKET/PREFIX; left out: all
        #[arg(long, value_name = "PLACE")]
        at: Option<String>,
        /// How to print
        #[arg(short, long, value_enum, default_value_t = Output::Table)]
        output: Output,
    },
}
