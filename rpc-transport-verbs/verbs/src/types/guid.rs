//! The globally unique number of a device or port.

use std::fmt;

/// A globally unique identifier (EUI-64). Zero if the device has none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guid(pub u64);

impl fmt::Display for Guid {
    /// Writes four groups of four hexadecimal digits, as the RDMA tools do: `0002:c903:00ab:cdef`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = [48, 32, 16, 0].map(|shift| (self.0 >> shift) & 0xffff);
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}")
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guid({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_as_tools_write_it() {
        let guid = Guid(0x0002_c903_00ab_cdef);
        assert_eq!(guid.to_string(), "0002:c903:00ab:cdef");
        assert_eq!(Guid::default().to_string(), "0000:0000:0000:0000");
        assert_eq!(Guid(u64::MAX).to_string(), "ffff:ffff:ffff:ffff");
    }
}
