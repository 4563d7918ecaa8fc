//! Datagrams: the addresses they can be sent to, and the header in front of them.

use super::message::Message;
use crate::provider::limits::WrongValue;
use crate::provider::soft::capacities::ATTRIBUTE_LIMITS;
use crate::types::{AddressVector, Attribute, Gid, RemoteOperation};

/// Bytes in front of a received datagram: its global route header.
pub(crate) const GLOBAL_ROUTE_LEN: usize = 40;

/// Value of the next-header field, an IP protocol number: InfiniBand transport.
const NEXT_HEADER_TRANSPORT: u8 = 0x1b;
/// Bytes of a datagram's transport headers (12 + 8) and of the checksum after its payload (4).
const TRANSPORT_LEN: usize = 24;
const IMMEDIATE_LEN: usize = 4;

/// Returns the header that a datagram would have on a wire.
///
/// ```text
///  ┌───────┬─────────┬──────────────────────┐
///  │ 6 (4) │ tclass  │ flow label (20 bits) │
///  ├───────┴─────────┼───────────┬──────────┤
///  │ payload length  │ next 0x1b │ hops     │
///  ├─────────────────┴───────────┴──────────┤
///  │ source GID (16 bytes)                  │
///  │ destination GID (16 bytes)             │
///  └────────────────────────────────────────┘
/// ```
pub(crate) fn global_route_header(
    address: &AddressVector,
    from: Gid,
    message: &Message,
) -> [u8; GLOBAL_ROUTE_LEN] {
    let first = 6 << 28 | u32::from(address.traffic_class) << 20 | address.flow_label & 0x000f_ffff;
    let imm_len = match message.operation {
        RemoteOperation::SendWithImm(_) => IMMEDIATE_LEN,
        _ => 0,
    };
    // 16 bits are enough: the length is at most an MTU and a few headers.
    let len = (message.payload.len().next_multiple_of(4) + imm_len + TRANSPORT_LEN) as u16;
    let mut header = [0; GLOBAL_ROUTE_LEN];
    header[..4].copy_from_slice(&first.to_be_bytes());
    header[4..6].copy_from_slice(&len.to_be_bytes());
    header[6] = NEXT_HEADER_TRANSPORT;
    header[7] = address.hop_limit;
    header[8..24].copy_from_slice(&from.0);
    header[24..].copy_from_slice(&address.gid.0);
    header
}

/// Rejects an address to which no datagram can be sent.
pub(crate) fn check_address(address: &AddressVector, own: Gid) -> Result<(), WrongValue> {
    ATTRIBUTE_LIMITS.check_address(address)?;
    let refuse = |value, reason| {
        Err(WrongValue {
            attribute: Attribute::Address,
            value,
            reason,
        })
    };
    if !address.is_global {
        return refuse(0, "is_global has to be set: the device has no LIDs");
    }
    if address.sgid_index != 0 {
        let reason = "sgid_index: the device has one GID";
        return refuse(address.sgid_index.into(), reason);
    }
    if address.gid != own && !address.gid.is_multicast() {
        let reason = "gid: another process's; UD on the software device reaches queue pairs of its own process";
        return refuse(interface_id(address.gid), reason);
    }
    Ok(())
}

/// Returns the lower half of a GID as a number, for use in an error.
pub(crate) fn interface_id(gid: Gid) -> u64 {
    let [.., a, b, c, d, e, f, g, h] = gid.0;
    u64::from_be_bytes([a, b, c, d, e, f, g, h])
}
