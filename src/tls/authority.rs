//! Which CAs these are, and which of them a person has accepted.

use std::path::PathBuf;

use super::{Certificates, TlsError, check};
use crate::state;

impl Certificates {
    /// The CAs' fingerprint: sha256 over both certificates. None where one cannot be read.
    pub fn authorities(&self) -> Option<String> {
        let der = ["peer-ca", "client-ca"].map(|it| check::der(&self.dir.join(it).join("ca.crt")));
        let [peers, clients] = der;
        Some(state::sha256(&[peers?, clients?].concat()))
    }

    fn accepted_path(&self) -> PathBuf {
        self.dir.join("accepted.json")
    }

    /// Whether these are other CAs than those with this fingerprint, and nobody has accepted them.
    pub fn replaced(&self, known: &str) -> bool {
        let accepted = || state::load::<String>(&self.accepted_path()).ok().flatten();
        self.authorities()
            .is_some_and(|it| it != known && Some(it) != accepted())
    }

    /// A person knows of them. False where there are none that can be read.
    pub fn accept(&self) -> Result<bool, TlsError> {
        let Some(authorities) = self.authorities() else {
            return Ok(false);
        };
        state::save(&self.accepted_path(), &authorities)?;
        Ok(true)
    }
}
