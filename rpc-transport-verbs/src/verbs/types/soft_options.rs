//! Options of the software device.

/// Options of the software device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftOptions {
    /// Fail sends to a dead process at once, rather than after timeout × (retry_cnt + 1) as a
    /// device on a network would.
    pub detect_death_at_once: bool,
}
