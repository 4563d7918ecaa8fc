//! Multicast groups: datagrams for all members (`ibv_attach_mcast(3)`).

use super::queue_pair::QueuePair;
use super::types::gid::Gid;
use super::types::queue_pair_attributes::QpNum;
use super::types::queue_pair_state::QpType;
use super::types::verbs_error::VerbsError;

impl Gid {
    /// Returns true for a multicast GID: `ff00::/8`, or an IPv4-mapped multicast address.
    pub fn is_multicast(&self) -> bool {
        let address = std::net::Ipv6Addr::from(self.0);
        let is_ipv4_group = |address: std::net::Ipv4Addr| address.is_multicast();
        address.is_multicast() || address.to_ipv4_mapped().is_some_and(is_ipv4_group)
    }
}

impl QpNum {
    /// The destination number of a multicast datagram: all queue pairs of the port that are in the
    /// group.
    pub const MULTICAST: Self = Self(0x00ff_ffff);
}

impl QueuePair {
    /// Joins a group (`ibv_attach_mcast(3)`). The queue pair then also receives datagrams for the
    /// group's GID and [`QpNum::MULTICAST`] whose Q_Key matches its own. Has no effect if it is
    /// already a member. A queue pair leaves its groups when it is destroyed.
    ///
    /// The network must deliver the group's packets to this port. On InfiniBand the subnet manager
    /// does that, and assigns a LID to the group. On Ethernet join the IP group as for any IP
    /// multicast, and pass 0 as `lid`.
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the queue pair is not of type UD, or the GID is not a
    /// multicast GID; [`VerbsError::NotSupported`] if the device has no multicast groups;
    /// [`VerbsError::Exhausted`] or [`VerbsError::Os`] if the device refuses;
    /// [`VerbsError::Forked`] in a forked child.
    pub fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        const CALL: &str = "attach_mcast";
        self.check_group(CALL, gid)?;
        self.raw.attach_multicast(gid, lid)
    }

    /// Leaves a group (`ibv_detach_mcast(3)`).
    ///
    /// # Errors
    ///
    /// [`VerbsError::InvalidArgument`] if the queue pair is not a member, is not of type UD, or the
    /// GID is not a multicast GID; [`VerbsError::Os`] if the device refuses; [`VerbsError::Forked`]
    /// in a forked child.
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

/// Returns the error for a GID, with the GID's lower half as the value.
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
