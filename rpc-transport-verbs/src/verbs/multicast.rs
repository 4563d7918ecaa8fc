//! Multicast groups: datagrams for whoever has joined.

use super::queue_pair::QueuePair;
use super::types::error::VerbsError;
use super::types::gid::Gid;
use super::types::queue_pair_attributes::QpNum;
use super::types::queue_pair_state::QpType;

impl Gid {
    /// Whether it names a group of ports: `ff00::/8`, and IPv4's groups on networks of that.
    pub fn is_multicast(&self) -> bool {
        let address = std::net::Ipv6Addr::from(self.0);
        let is_ipv4_group = |address: std::net::Ipv4Addr| address.is_multicast();
        address.is_multicast() || address.to_ipv4_mapped().is_some_and(is_ipv4_group)
    }
}

impl QpNum {
    /// What a datagram to a group is addressed to: all queue pairs of the port that are in it.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
}

impl QueuePair {
    /// Joins a group (`ibv_attach_mcast`): datagrams to its GID and [`QpNum::MULTICAST`] are received here as well, if
    /// their key is this queue pair's. Nothing happens if it is in the group already. It leaves its groups
    /// when it ends.
    ///
    /// The network has to bring the group's packets to this port: a subnet manager on InfiniBand, which gives the
    /// group a LID as well; on Ethernet what programs do who join IP groups, and `lid` is 0.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the queue pair is not of datagrams, or the GID names no group; or what
    /// the device says.
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        const CALL: &str = "attach_mcast";
        self.check_group(CALL, gid)?;
        self.raw.attach_multicast(gid, lid)
    }

    /// Leaves a group (`ibv_detach_mcast`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if it is not in the group.
    pub fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        const CALL: &str = "detach_mcast";
        self.check_group(CALL, gid)?;
        if self.raw.detach_multicast(gid, lid)? {
            return Ok(());
        }
        Err(wrong_group(
            CALL,
            gid,
            "the queue pair is not in this group",
        ))
    }

    fn check_group(&self, call: &'static str, gid: Gid) -> Result<(), VerbsError> {
        let qp_type = self.qp_type();
        if qp_type != QpType::UnreliableDatagram {
            return Err(VerbsError::InvalidArgument {
                call,
                argument: "qp_type",
                value: qp_type as u64,
                reason: "only queue pairs of type UD (4) join multicast groups",
            });
        }
        if gid.is_multicast() {
            return Ok(());
        }
        Err(wrong_group(call, gid, "it names no multicast group"))
    }
}

/// The error about a GID; its lower half is the value.
fn wrong_group(call: &'static str, gid: Gid, reason: &'static str) -> VerbsError {
    let [.., a, b, c, d, e, f, g, h] = gid.0;
    VerbsError::InvalidArgument {
        call,
        argument: "gid",
        value: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_told_by_their_first_bits() {
        let is_group = |text: &str| {
            let address: std::net::Ipv6Addr = text.parse().expect("an address");
            Gid(address.octets()).is_multicast()
        };
        assert!(is_group("ff12::1"));
        assert!(is_group("::ffff:224.0.0.9"));
        assert!(is_group("::ffff:239.255.0.1"));
        assert!(!is_group("::ffff:192.0.2.1"));
        assert!(!is_group("fe80::1"));
        assert!(!is_group("::"));
    }
}
