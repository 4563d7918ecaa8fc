//! Options of the software device.

/// Options of the software device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SoftOptions {
    /// Whether sends to a dead process fail at once. By default they fail after timeout ×
    /// (retry_cnt + 1), as on a network device.
    pub detect_death_at_once: bool,
}
