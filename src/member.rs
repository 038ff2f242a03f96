//! The member's place on this host: its records, its addresses, its certificates, and the facts
//! that [`crate::start`] judges. Guard and agent both stand on it, so that both see the same.

pub mod certificates;
pub mod change;
pub mod contact;
pub mod counts;
pub mod crash;
mod ending;
pub mod examiner;
pub mod facts;
mod launch;
pub mod listen;
pub mod pause;
pub mod place;
pub mod pod;
pub mod records;
pub mod refused;
pub mod restore_record;
pub mod starts;
pub mod turn;
