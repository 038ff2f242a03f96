//! The places where the power may go in the middle of a restore, or of a change of version.

/// Where the power may go: between any two of these. A debug build ends itself at the one that
/// `ETCD_OPERATOR_CRASH_AT` names; the tests go through the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum CrashPoint {
    RequestWritten,
    Unpacked,
    DataMade,
    PreparedWritten,
    SwappingWritten,
    EtcdStopped,
    OldDataAside,
    NewDataInPlace,
    IdentityWritten,
    StartingWritten,
    Served,
    ReportWritten,
    UndoingWritten,
    NewDataAside,
    OldDataBack,
    DowngradeWritten,
    VersionWritten,
    VersionNoted,
    VersionFinal,
    VersionFailed,
    VersionTakenBack,
}

impl CrashPoint {
    /// All of a restore that succeeds.
    pub const FORTH: [CrashPoint; 12] = [
        CrashPoint::RequestWritten,
        CrashPoint::Unpacked,
        CrashPoint::DataMade,
        CrashPoint::PreparedWritten,
        CrashPoint::SwappingWritten,
        CrashPoint::EtcdStopped,
        CrashPoint::OldDataAside,
        CrashPoint::NewDataInPlace,
        CrashPoint::IdentityWritten,
        CrashPoint::StartingWritten,
        CrashPoint::Served,
        CrashPoint::ReportWritten,
    ];
    /// Those of one that is undone.
    pub const BACK: [CrashPoint; 3] = [
        CrashPoint::UndoingWritten,
        CrashPoint::NewDataAside,
        CrashPoint::OldDataBack,
    ];

    /// Those of a change of version.
    pub const VERSION: [CrashPoint; 3] = [
        CrashPoint::VersionWritten,
        CrashPoint::VersionNoted,
        CrashPoint::VersionFinal,
    ];
    /// Those of one to an older line.
    pub const DOWNGRADE: [CrashPoint; 3] = [
        CrashPoint::DowngradeWritten,
        CrashPoint::VersionWritten,
        CrashPoint::VersionFinal,
    ];
    /// Those of one that is taken back.
    pub const VERSION_BACK: [CrashPoint; 4] = [
        CrashPoint::VersionFailed,
        CrashPoint::VersionTakenBack,
        CrashPoint::VersionNoted,
        CrashPoint::VersionFinal,
    ];

    /// Goes on, or ends this process as a power cut would.
    pub fn pass(self) {
        #[cfg(debug_assertions)]
        if std::env::var("ETCD_OPERATOR_CRASH_AT").is_ok_and(|it| it == format!("{self:?}")) {
            std::process::abort();
        }
        let _ = self;
    }
}
