//! Device attributes: `ibv_query_device(3)`.

use std::fmt;
use std::time::Duration;

use super::device_capabilities::DeviceCapabilities;
use super::guid::Guid;
use super::lines::{Bytes, Lines};

/// The attributes and limits of a device (`struct ibv_device_attr`). A limit that the driver does
/// not know is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceAttributes {
    /// Firmware version.
    pub fw_ver: FirmwareVersion,
    /// GUID of the device.
    pub node_guid: Guid,
    /// GUID of the system that the device belongs to: the same for all devices of one card.
    pub sys_image_guid: Guid,
    /// The vendor's IEEE number (OUI).
    pub vendor_id: u32,
    /// The vendor's part number.
    pub vendor_part_id: u32,
    /// Hardware version.
    pub hw_ver: u32,
    /// Optional features.
    pub capabilities: DeviceCapabilities,
    /// The scope within which atomic operations are atomic.
    pub atomic_cap: AtomicCapability,
    /// Page sizes with which the device can map memory.
    pub page_sizes: PageSizes,
    /// Longest time that the device takes to acknowledge a packet.
    pub local_ca_ack_delay: Duration,
    /// Number of ports.
    pub port_count: u8,
    /// Queue pairs per context.
    pub max_qp: usize,
    /// Work requests per send or receive queue.
    pub max_qp_wr: usize,
    /// Scatter/gather elements per work request.
    pub max_sge: usize,
    /// Scatter/gather elements per RDMA READ.
    pub max_sge_rd: usize,
    /// Completion queues per context.
    pub max_cq: usize,
    /// Entries per completion queue.
    pub max_cqe: usize,
    /// Completion vectors, which are the device's interrupts: see
    /// [`create_cq_on`](crate::Context::create_cq_on). Kernel verbs report it with the open device
    /// (`struct ibv_context`).
    pub num_comp_vectors: usize,
    /// Shared receive queues per context; 0 if the device has none.
    pub max_srq: usize,
    /// Work requests per shared receive queue.
    pub max_srq_wr: usize,
    /// Scatter/gather elements per receive of a shared receive queue.
    pub max_srq_sge: usize,
    /// Memory regions per context.
    pub max_mr: usize,
    /// Bytes per memory region.
    pub max_mr_len: usize,
    /// Bytes that this process could still lock when the device was opened, according to the locked
    /// memory limit. `usize::MAX` if there is no limit.
    pub max_locked_len: usize,
    /// Memory windows; 0 if the device has none.
    pub max_mw: usize,
    /// Protection domains.
    pub max_pd: usize,
    /// Bytes that a send can carry inline. Found by trying a few lengths, since kernel verbs do not
    /// report it.
    pub max_inline_data: usize,
    /// Incoming RDMA READs and atomics that a queue pair can serve at a time.
    pub max_qp_rd_atomic: u8,
    /// RDMA READs and atomics that a queue pair can have outstanding.
    pub max_qp_init_rd_atomic: u8,
    /// Incoming RDMA READs and atomics that the device can serve at a time, over all queue pairs.
    pub max_res_rd_atomic: usize,
    /// Partition keys per port.
    pub max_pkeys: u16,
    /// Address handles.
    pub max_ah: usize,
    /// Multicast groups.
    pub max_mcast_grp: usize,
    /// Queue pairs per multicast group.
    pub max_mcast_qp_attach: usize,
    /// Attachments of queue pairs to multicast groups, over all groups.
    pub max_total_mcast_qp_attach: usize,
    /// Queue pairs for raw IPv6 datagrams.
    pub max_raw_ipv6_qp: usize,
    /// Queue pairs for raw Ethernet frames.
    pub max_raw_ethy_qp: usize,
    /// End-to-end contexts. They belong to reliable datagrams, which no device implements.
    pub max_ee: usize,
    /// Incoming RDMA READs and atomics that an end-to-end context can serve at a time.
    pub max_ee_rd_atomic: usize,
    /// RDMA READs and atomics that an end-to-end context can have outstanding.
    pub max_ee_init_rd_atomic: usize,
    /// Reliable datagram domains.
    pub max_rdd: usize,
    /// Fast memory regions of the older kind (FMR), which kernels no longer support.
    pub max_fmr: usize,
    /// Times that such a region can be remapped before it has to be unmapped.
    pub max_map_per_fmr: usize,
}

/// Writes one line per attribute.
impl fmt::Display for DeviceAttributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = Lines::new(f, 25);
        match self.fw_ver.as_str() {
            "" => lines.line("fw_ver", "unknown")?,
            version => lines.line("fw_ver", version)?,
        }
        lines.line("node_guid", self.node_guid)?;
        lines.line("sys_image_guid", self.sys_image_guid)?;
        lines.line("vendor_id", format_args!("{:#08x}", self.vendor_id))?;
        lines.line("vendor_part_id", self.vendor_part_id)?;
        lines.line("hw_ver", format_args!("{:#x}", self.hw_ver))?;
        lines.line("capabilities", self.capabilities)?;
        lines.line("atomic_cap", self.atomic_cap)?;
        lines.line("page_sizes", self.page_sizes)?;
        let delay = self.local_ca_ack_delay;
        match delay.is_zero() {
            true => lines.line("local_ca_ack_delay", "none")?,
            false => lines.line("local_ca_ack_delay", format_args!("{delay:.3?}"))?,
        }
        lines.line("port_count", self.port_count)?;
        let endless_or = |bytes: usize| match bytes {
            usize::MAX => "any".to_owned(),
            bytes => Bytes(bytes as u64).to_string(),
        };
        lines.line("max_mr_len", endless_or(self.max_mr_len))?;
        lines.line("max_locked_len", endless_or(self.max_locked_len))?;
        lines.line("max_inline_data", Bytes(self.max_inline_data as u64))?;
        for (name, value) in self.counts() {
            lines.line(name, value)?;
        }
        Ok(())
    }
}

impl DeviceAttributes {
    /// Returns the limits that are counts, each with the name of its field.
    pub fn counts(&self) -> [(&'static str, usize); 29] {
        macro_rules! fields {
            ($($name:ident),* $(,)?) => { [$((stringify!($name), usize::from(self.$name))),*] };
        }
        fields![
            max_qp,
            max_qp_wr,
            max_sge,
            max_sge_rd,
            max_cq,
            max_cqe,
            num_comp_vectors,
            max_srq,
            max_srq_wr,
            max_srq_sge,
            max_mr,
            max_mw,
            max_pd,
            max_ah,
            max_pkeys,
            max_qp_rd_atomic,
            max_qp_init_rd_atomic,
            max_res_rd_atomic,
            max_mcast_grp,
            max_mcast_qp_attach,
            max_total_mcast_qp_attach,
            max_raw_ipv6_qp,
            max_raw_ethy_qp,
            max_ee,
            max_ee_rd_atomic,
            max_ee_init_rd_atomic,
            max_rdd,
            max_fmr,
            max_map_per_fmr,
        ]
    }
}

/// The version of a device's firmware: at most 64 bytes of text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct FirmwareVersion([u8; 64]);

impl FirmwareVersion {
    /// Wraps text that ends at the first zero byte, as in C.
    pub const fn from_bytes(bytes: [u8; 64]) -> Self {
        Self(bytes)
    }

    /// Returns the text, up to the first byte that is not UTF-8. Empty if the version is unknown.
    pub fn as_str(&self) -> &str {
        let text = self.0.split(|byte| *byte == 0).next().unwrap_or_default();
        match std::str::from_utf8(text) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&text[..error.valid_up_to()]).unwrap_or_default(),
        }
    }
}

impl Default for FirmwareVersion {
    fn default() -> Self {
        Self([0; 64])
    }
}

impl fmt::Display for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for FirmwareVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FirmwareVersion({:?})", self.as_str())
    }
}

/// The scope within which a device's atomic operations are atomic (`enum ibv_atomic_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AtomicCapability {
    /// The device has no atomic operations.
    #[default]
    None,
    /// Atomic with other atomic operations through the same device.
    Device,
    /// Atomic with every access to the memory, including those by processors and other devices.
    Global,
    /// A scope unknown to this layer, by its number.
    Unknown(u32),
}

impl AtomicCapability {
    /// Returns the scope with this number.
    pub const fn from_code(code: u32) -> Self {
        match code {
            0 => Self::None,
            1 => Self::Device,
            2 => Self::Global,
            other => Self::Unknown(other),
        }
    }
}

impl fmt::Display for AtomicCapability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Device => f.write_str("within the device (HCA)"),
            Self::Global => f.write_str("global (GLOB)"),
            Self::Unknown(code) => write!(f, "capability {code}"),
        }
    }
}

/// The page sizes with which a device can map memory: a mask of powers of two (`page_size_cap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PageSizes(pub u64);

impl PageSizes {
    /// Returns each size in bytes, smallest first.
    pub fn iter(self) -> impl Iterator<Item = u64> {
        (0..u64::BITS)
            .map(|bit| 1 << bit)
            .filter(move |size| self.0 & size != 0)
    }
}

impl fmt::Display for PageSizes {
    /// Writes consecutive sizes as a range: `4 KiB to 2 GiB`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has = |size: Option<u64>| size.is_some_and(|size| self.0 & size != 0);
        let mut separator = "";
        for size in self.iter() {
            let (before, after) = (size.checked_shr(1).filter(|s| *s != 0), size.checked_mul(2));
            if has(before) && has(after) {
                continue;
            }
            if has(before) {
                write!(f, " to {}", Bytes(size))?;
            } else {
                write!(f, "{separator}{}", Bytes(size))?;
            }
            separator = ", ";
        }
        if self.0 == 0 {
            f.write_str("unknown")?;
        }
        Ok(())
    }
}

/// Returns 4.096 µs × 2^code, the encoding of most times in verbs. Valid codes have 5 bits; codes
/// above 51 count as 51.
#[cfg(any(test, feature = "rdma"))]
pub(crate) fn time_of_code(code: u8) -> Duration {
    Duration::from_nanos(4096 << code.min(51))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Context;

    #[test]
    fn firmware_is_text_up_to_what_is_none() {
        let version = |text: &[u8]| {
            let mut bytes = [0; 64];
            bytes[..text.len()].copy_from_slice(text);
            FirmwareVersion::from_bytes(bytes)
        };
        assert_eq!(version(b"20.31.1014").as_str(), "20.31.1014");
        assert_eq!(version(b"").as_str(), "");
        assert_eq!(version(b"a\0b").as_str(), "a");
        assert_eq!(version(b"1.2\xff3").as_str(), "1.2");
        assert_eq!(version(&[b'x'; 64]).as_str().len(), 64, "without a zero");
    }

    #[test]
    fn page_sizes_that_follow_each_other_are_a_range() {
        assert_eq!(PageSizes(0xffff_f000).to_string(), "4 KiB to 2 GiB");
        assert_eq!(PageSizes(0x1000).to_string(), "4 KiB");
        assert_eq!(PageSizes(0x3000).to_string(), "4 KiB to 8 KiB");
        assert_eq!(PageSizes(0x20_1000).to_string(), "4 KiB, 2 MiB");
        assert_eq!(PageSizes(0).to_string(), "unknown");
        assert_eq!(PageSizes(u64::MAX).to_string(), "1 bytes to 8 EiB");
        assert_eq!(PageSizes(0x5).iter().collect::<Vec<_>>(), [1, 4]);
    }

    #[test]
    fn numbers_that_nobody_knows_are_kept() {
        assert_eq!(AtomicCapability::from_code(1), AtomicCapability::Device);
        let unknown = AtomicCapability::from_code(9);
        assert_eq!(unknown.to_string(), "capability 9");
        for code in 0..=u8::MAX {
            assert!(time_of_code(code) >= Duration::from_nanos(4096));
        }
        assert_eq!(time_of_code(15).as_nanos(), 4096 << 15);
    }

    #[test]
    fn the_software_device_says_what_it_is() {
        let attributes = Context::open("soft").unwrap().query_device();
        let message = attributes.to_string();
        for line in [
            "fw_ver                    0.1.0",
            "max_inline_data           ",
            "max_locked_len            any",
            "port_count                1",
        ] {
            assert!(message.contains(line), "'{line}' is not in\n{message}");
        }
        assert_ne!(attributes.node_guid, Guid::default());
        assert_eq!(attributes.atomic_cap, AtomicCapability::Global);
        for (what, count) in attributes.counts() {
            let has_none = ["raw", "ee", "rdd", "fmr"];
            let has_it = !has_none.iter().any(|none| what.contains(none));
            assert_eq!(count > 0, has_it, "{what} = {count}");
        }
        assert_eq!(message.lines().count(), 14 + attributes.counts().len());
    }
}
