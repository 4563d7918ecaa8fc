//! Reads a port's GID table, in one call if the library supports it (`ibv_query_gid_table(3)`).

use std::os::raw::c_int;

use super::check;
use super::context::Context;
use super::raw_structs::RawGidEntry;
use crate::types::{Gid, GidEntry, GidType, VerbsError};

/// GID table entries that an address vector can name: its index has 8 bits.
const MAX_GIDS: usize = 256;

impl Context {
    pub(crate) fn query_gid_table(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let Some(query_gid_table) = self.handle.library.query_gid_table else {
            return self.query_gids_one_by_one(port);
        };
        self.handle.fork_guard.check()?;
        // The entries of all ports together; the kernel rejects a table that is too small.
        let mut count = 0;
        for port in 1..=self.handle.limits.port_count {
            count += self.query_port(port)?.gid_count as usize;
        }
        let mut entries: Vec<RawGidEntry> = Vec::with_capacity(count);
        // SAFETY: the vector has capacity for `count` entries of the size that is passed.
        let filled = unsafe {
            query_gid_table(
                self.handle.raw(),
                entries.as_mut_ptr(),
                count,
                0,
                size_of::<RawGidEntry>(),
            )
        };
        let Ok(filled) = usize::try_from(filled) else {
            check(
                "query_gid_table",
                c_int::try_from(filled).unwrap_or(c_int::MIN),
            )?;
            return Ok(Vec::new());
        };
        // SAFETY: the library has written `filled` entries, and at most as many as the capacity.
        unsafe { entries.set_len(filled.min(count)) };
        let of_this_port = entries
            .into_iter()
            .filter(|entry| entry.port_num == u32::from(port));
        Ok(of_this_port
            .filter_map(|entry| {
                Some(GidEntry {
                    index: u8::try_from(entry.gid_index).ok()?,
                    gid: Gid(entry.gid),
                    gid_type: match entry.gid_type {
                        0 => GidType::InfiniBand,
                        1 => GidType::RoceV1,
                        2 => GidType::RoceV2,
                        _ => GidType::Unknown,
                    },
                    netdev: netdev_name(entry.ndev_ifindex),
                })
            })
            .collect())
    }

    /// Reads the table entry by entry, for older libraries. Types and network devices remain
    /// unknown.
    fn query_gids_one_by_one(&self, port: u8) -> Result<Vec<GidEntry>, VerbsError> {
        let count = (self.query_port(port)?.gid_count as usize).min(MAX_GIDS);
        let mut entries = Vec::new();
        for index in (0..=u8::MAX).take(count) {
            let gid = self.query_gid(port, index)?;
            if gid != Gid([0; 16]) {
                entries.push(GidEntry {
                    index,
                    gid,
                    gid_type: GidType::Unknown,
                    netdev: None,
                });
            }
        }
        Ok(entries)
    }
}

/// Returns the name of a network device; `None` if the index is 0, or if the device is not in this
/// network namespace.
fn netdev_name(index: u32) -> Option<String> {
    if index == 0 {
        return None;
    }
    let devices = std::fs::read_dir("/sys/class/net").ok()?;
    for device in devices.flatten() {
        let is_it = std::fs::read_to_string(device.path().join("ifindex"))
            .is_ok_and(|text| text.trim().parse() == Ok(index));
        if is_it {
            return device.file_name().into_string().ok();
        }
    }
    None
}
