//! `spec.upgrade`: how another version of etcd is brought in.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::formats;

/// How another version of etcd is brought in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Upgrade {
    /// The members get this version, such as 3.6.16, without a trial on a copy of the data: for a device that has no room for a
    /// copy. A newer line still needs a verified snapshot of the last hour. It says nothing of any other version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 16), extend("pattern" = formats::VERSION))]
    pub skip_rehearsal: Option<String>,
}
