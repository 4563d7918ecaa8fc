//! Optional features of a queue pair, requested at creation (`ibv_create_qp_ex(3)`).

use std::fmt;
use std::ops::BitOr;

use super::queue_pair_attributes::QpNum;
use super::queue_pair_state::QpType;
use super::verbs_error::VerbsError;

/// Defines a set of bits with the names of the C header.
macro_rules! flags {
    ($(#[$doc:meta])* $flags:ident($bits:ty), $field:literal;
        $($(#[$flag_doc:meta])* $name:ident = $bit:literal, $verbs:literal;)*) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        pub struct $flags($bits);

        impl $flags {
            /// No flags.
            pub const NONE: Self = Self(0);
            $($(#[$flag_doc])* pub const $name: Self = Self(1 << $bit);)*

            /// Each flag, with its name in the header, and with that name after the name of its
            /// field.
            const NAMED: &'static [(Self, &'static str, &'static str)] = &[
                $((Self::$name, $verbs, concat!($field, ": ", $verbs)),)*
            ];

            /// Returns the bits, as in the header.
            pub fn bits(self) -> $bits {
                self.0
            }

            /// Returns true if all flags of `other` are set.
            pub fn contains(self, other: Self) -> bool {
                self.0 & other.0 == other.0
            }

            fn named(self) -> impl Iterator<Item = (Self, &'static str)> {
                Self::NAMED
                    .iter()
                    .filter(move |(flag, ..)| self.contains(*flag))
                    .map(|&(flag, _, name)| (flag, name))
            }
        }

        impl BitOr for $flags {
            type Output = Self;

            fn bitor(self, other: Self) -> Self {
                Self(self.0 | other.0)
            }
        }

        /// Writes the names in the header, separated by `|`.
        impl fmt::Debug for $flags {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                for (flag, name, _) in Self::NAMED {
                    if self.contains(*flag) {
                        write!(f, "{separator}{name}")?;
                        separator = "|";
                    }
                }
                if separator.is_empty() {
                    f.write_str("NONE")?;
                }
                Ok(())
            }
        }
    };
}

flags! {
    /// Creation flags of a queue pair (`enum ibv_qp_create_flags`).
    CreateFlags(u32), "create_flags";
    /// Does not deliver the queue pair's own multicast packets back to it.
    BLOCK_SELF_MCAST_LB = 1, "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB";
    /// Receives the checksum (FCS) of an Ethernet frame along with the frame.
    SCATTER_FCS = 8, "IBV_QP_CREATE_SCATTER_FCS";
    /// Removes the VLAN tag of a received Ethernet frame.
    CVLAN_STRIPPING = 9, "IBV_QP_CREATE_CVLAN_STRIPPING";
    /// Sends packets with the number in [`source_qpn`](ExtendedConfig::source_qpn). Setting that
    /// field sets this flag.
    SOURCE_QPN = 10, "IBV_QP_CREATE_SOURCE_QPN";
    /// Pads received data to whole cache lines.
    PCI_WRITE_END_PADDING = 11, "IBV_QP_CREATE_PCI_WRITE_END_PADDING";
}

flags! {
    /// Operations that the send queue must support (`enum ibv_qp_create_send_ops_flags`).
    SendOps(u64), "send_ops_flags";
    /// RDMA WRITE.
    RDMA_WRITE = 0, "IBV_QP_EX_WITH_RDMA_WRITE";
    /// RDMA WRITE with immediate.
    RDMA_WRITE_WITH_IMM = 1, "IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM";
    /// SEND.
    SEND = 2, "IBV_QP_EX_WITH_SEND";
    /// SEND with immediate.
    SEND_WITH_IMM = 3, "IBV_QP_EX_WITH_SEND_WITH_IMM";
    /// RDMA READ.
    RDMA_READ = 4, "IBV_QP_EX_WITH_RDMA_READ";
    /// Compare-and-swap.
    ATOMIC_CMP_AND_SWP = 5, "IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP";
    /// Fetch-and-add.
    ATOMIC_FETCH_AND_ADD = 6, "IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD";
    /// Local invalidate.
    LOCAL_INV = 7, "IBV_QP_EX_WITH_LOCAL_INV";
    /// Binding of memory windows.
    BIND_MW = 8, "IBV_QP_EX_WITH_BIND_MW";
    /// SEND with invalidate.
    SEND_WITH_INV = 9, "IBV_QP_EX_WITH_SEND_WITH_INV";
    /// TCP segmentation by the device.
    TSO = 10, "IBV_QP_EX_WITH_TSO";
}

impl SendOps {
    /// Returns all operations that queue pairs of this type can support.
    pub fn of_type(qp_type: QpType) -> Self {
        let datagrams = Self::SEND | Self::SEND_WITH_IMM;
        let unreliable = datagrams | Self::RDMA_WRITE | Self::RDMA_WRITE_WITH_IMM | Self::BIND_MW;
        match qp_type {
            QpType::UnreliableDatagram => datagrams,
            QpType::UnreliableConnection => unreliable,
            QpType::ReliableConnection => {
                unreliable
                    | Self::RDMA_READ
                    | Self::ATOMIC_CMP_AND_SWP
                    | Self::ATOMIC_FETCH_AND_ADD
                    | Self::LOCAL_INV
                    | Self::SEND_WITH_INV
            }
        }
    }
}

/// Creation options of a queue pair beyond [`QueuePairConfig`](crate::QueuePairConfig): the
/// fields of `struct ibv_qp_init_attr_ex` that apply to the types in [`QpType`]. Devices lack most
/// of them; [`create_qp_ex`](crate::ProtectionDomain::create_qp_ex) returns an error that
/// names the missing one.
///
/// The other fields belong to types that this layer does not support: `xrcd` to XRC, `rwq_ind_tbl`
/// and `rx_hash_conf` to raw packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedConfig {
    /// Creation flags.
    pub create_flags: CreateFlags,
    /// Bytes of header that the device puts before each TCP segment; `None` disables segmentation.
    pub max_tso_header: Option<u16>,
    /// Source queue pair number in its packets, in place of its own. Only for type UD.
    pub source_qpn: Option<QpNum>,
    /// Operations that the queue pair must support. You may also post others if the device supports
    /// them.
    pub send_ops: SendOps,
}

impl ExtendedConfig {
    /// Rejects combinations that are invalid on every device.
    pub(crate) fn check(&self, qp_type: QpType) -> Result<(), VerbsError> {
        let wrong = |argument, value, reason| {
            Err(VerbsError::InvalidArgument {
                call: "create_qp_ex",
                argument,
                value,
                reason,
            })
        };
        match self.source_qpn {
            Some(number) if qp_type != QpType::UnreliableDatagram => {
                let reason = "only queue pairs of type UD send with another's number";
                wrong("source_qpn", number.0.into(), reason)
            }
            Some(number) if number.0 >> 24 != 0 => {
                let reason = "queue-pair numbers have 24 bits";
                wrong("source_qpn", number.0.into(), reason)
            }
            None if self.create_flags.contains(CreateFlags::SOURCE_QPN) => {
                let reason = "the flag SOURCE_QPN needs the field source_qpn";
                wrong("create_flags", self.create_flags.bits().into(), reason)
            }
            _ => Ok(()),
        }
    }

    /// Returns true if no option is set.
    #[cfg(feature = "rdma")]
    pub(crate) fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Returns one configuration per requested option, with the name of its field and flag.
    pub(crate) fn fields(&self) -> impl Iterator<Item = (Self, &'static str)> {
        let nothing = Self::default();
        let with_flag = move |(create_flags, name)| {
            let alone = Self {
                create_flags,
                ..nothing
            };
            (alone, name)
        };
        let with_op = move |(send_ops, name)| {
            (
                Self {
                    send_ops,
                    ..nothing
                },
                name,
            )
        };
        let header = self.max_tso_header.map(|len| {
            let max_tso_header = Some(len);
            let alone = Self {
                max_tso_header,
                ..nothing
            };
            (alone, "max_tso_header")
        });
        let number = self.source_qpn.map(|number| {
            let source_qpn = Some(number);
            let alone = Self {
                source_qpn,
                ..nothing
            };
            (alone, "source_qpn")
        });
        // Skips SOURCE_QPN, which is invalid without its field; the field is tested below.
        let flags = self.create_flags.named();
        let flags = flags.filter(|(flag, _)| *flag != CreateFlags::SOURCE_QPN);
        flags
            .map(with_flag)
            .chain(header)
            .chain(number)
            .chain(self.send_ops.named().map(with_op))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_thing_that_is_asked_for_is_named() {
        let config = ExtendedConfig {
            create_flags: CreateFlags::SCATTER_FCS | CreateFlags::SOURCE_QPN,
            max_tso_header: Some(64),
            source_qpn: Some(QpNum(7)),
            send_ops: SendOps::SEND | SendOps::TSO,
        };
        let names: Vec<_> = config.fields().map(|(_, name)| name).collect();
        let expected = [
            "create_flags: IBV_QP_CREATE_SCATTER_FCS",
            "max_tso_header",
            "source_qpn",
            "send_ops_flags: IBV_QP_EX_WITH_SEND",
            "send_ops_flags: IBV_QP_EX_WITH_TSO",
        ];
        assert_eq!(names, expected);
        let nothing = ExtendedConfig::default();
        assert!(config.fields().all(|(alone, _)| alone != nothing));
        assert_eq!(ExtendedConfig::default().fields().count(), 0);
    }

    #[test]
    fn a_source_number_is_for_datagrams_and_has_24_bits() {
        let with = |source_qpn, create_flags| ExtendedConfig {
            source_qpn,
            create_flags,
            ..ExtendedConfig::default()
        };
        let number = with(Some(QpNum(7)), CreateFlags::default());
        assert!(number.check(QpType::UnreliableDatagram).is_ok());
        let text = |config: ExtendedConfig, qp_type| config.check(qp_type).unwrap_err().to_string();
        assert!(text(number, QpType::ReliableConnection).contains("source_qpn = 7"));
        let long = with(Some(QpNum(1 << 24)), CreateFlags::default());
        assert!(text(long, QpType::UnreliableDatagram).contains("24 bits"));
        let flag_alone = with(None, CreateFlags::SOURCE_QPN);
        assert!(text(flag_alone, QpType::UnreliableDatagram).contains("create_flags"));
    }

    #[test]
    fn flags_are_shown_by_the_names_of_the_header() {
        let flags = CreateFlags::BLOCK_SELF_MCAST_LB | CreateFlags::PCI_WRITE_END_PADDING;
        assert_eq!(flags.bits(), 1 << 1 | 1 << 11);
        assert_eq!(
            format!("{flags:?}"),
            "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB|IBV_QP_CREATE_PCI_WRITE_END_PADDING"
        );
        assert_eq!(format!("{:?}", SendOps::default()), "NONE");
    }
}
