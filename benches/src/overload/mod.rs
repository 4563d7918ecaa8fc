//! Goodput against offered load: calls arrive by a schedule that does not wait for the server, and
//! each call is worth something only if its response arrives before its deadline.
//!
//! - [`timeline`]: when calls arrive, in phases of one rate each;
//! - [`offer`](mod@offer): makes the calls of a timeline over several connections;
//! - [`tally`]: how the calls of a phase ended;
//! - [`recovery`]: how soon all calls are good again after an overload.

pub mod offer;
pub mod recovery;
pub mod tally;
pub mod timeline;
