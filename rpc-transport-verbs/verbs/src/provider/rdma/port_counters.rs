//! Port counters of the kernel, in sysfs.

use std::fs;

use crate::types::RnrCounters;

/// Counters of messages that found no receive on this side: those of rxe and of mlx5.
const NAK_SENT: [&str; 2] = ["send_rnr_err", "out_of_buffer"];

/// Counters of sent messages that found no receive at the peer: those of rxe and of mlx5.
const NAK_RECEIVED: [&str; 2] = ["rcvd_rnr_err", "rnr_nak_retry_err"];

/// Returns how often a receiver was not ready since the port was created. `None` if the driver
/// counts neither direction.
pub(super) fn rnr(device: &str, port: u8) -> Option<RnrCounters> {
    let sent = read(device, port, &NAK_SENT);
    let received = read(device, port, &NAK_RECEIVED);
    if sent.is_none() && received.is_none() {
        return None;
    }
    Some(RnrCounters {
        nak_sent: sent.unwrap_or(0),
        nak_received: received.unwrap_or(0),
    })
}

/// Reads the first of these counters that exists.
fn read(device: &str, port: u8, names: &[&str]) -> Option<u64> {
    names.iter().find_map(|name| {
        let path = format!("/sys/class/infiniband/{device}/ports/{port}/hw_counters/{name}");
        fs::read_to_string(path).ok()?.trim().parse().ok()
    })
}
