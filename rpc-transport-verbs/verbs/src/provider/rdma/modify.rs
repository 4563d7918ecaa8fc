//! Queries and changes a queue pair's state and attributes (`ibv_query_qp(3)`, `ibv_modify_qp(3)`).

use std::io;
use std::net::Ipv6Addr;
use std::os::raw::c_int;

use rdma_sys::{ibv_qp_attr, ibv_qp_attr_mask as mask, ibv_qp_init_attr};

use super::super::limits::WrongValue;
use super::handle::Handle;
use super::queue_pair::QueuePair;
use super::raw_attributes::{from_raw, state_of, to_raw};
use crate::types::{
    AddressVector, Attribute, Gid, LinkLayer, ModifyError, QpAttributes, QpState, QpType,
    VerbsError,
};

impl QueuePair {
    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        let (attributes, _) = self.query_raw(mask::IBV_QP_STATE)?;
        state_of(attributes.qp_state)
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        let all = mask::IBV_QP_STATE
            | mask::IBV_QP_ACCESS_FLAGS
            | mask::IBV_QP_PKEY_INDEX
            | mask::IBV_QP_PORT
            | mask::IBV_QP_QKEY
            | mask::IBV_QP_AV
            | mask::IBV_QP_PATH_MTU
            | mask::IBV_QP_TIMEOUT
            | mask::IBV_QP_RETRY_CNT
            | mask::IBV_QP_RNR_RETRY
            | mask::IBV_QP_RQ_PSN
            | mask::IBV_QP_MAX_QP_RD_ATOMIC
            | mask::IBV_QP_ALT_PATH
            | mask::IBV_QP_MIN_RNR_TIMER
            | mask::IBV_QP_SQ_PSN
            | mask::IBV_QP_MAX_DEST_RD_ATOMIC
            | mask::IBV_QP_PATH_MIG_STATE
            | mask::IBV_QP_DEST_QPN;
        let (raw, _) = self.query_raw(all)?;
        from_raw(&raw)
    }

    fn query_raw(&self, attr_mask: mask) -> Result<(ibv_qp_attr, ibv_qp_init_attr), VerbsError> {
        const CALL: &str = "query_qp";
        let handle = &self.domain.handle;
        handle.fork_guard.check()?;
        let Some(raw) = self.raw else {
            return Err(VerbsError::Os {
                call: CALL,
                source: rustix::io::Errno::INVAL.into(),
            });
        };
        // SAFETY: plain structs of numbers and pointers, for which all zeros is a valid value.
        let (mut attributes, mut init) =
            unsafe { std::mem::zeroed::<(ibv_qp_attr, ibv_qp_init_attr)>() };
        // SAFETY: the queue pair is alive while `self` holds it, and both structs are local
        // variables.
        let returned = unsafe {
            (handle.library.ibv_query_qp)(
                raw.as_ptr(),
                &mut attributes,
                attr_mask.0 as c_int,
                &mut init,
            )
        };
        super::check(CALL, returned)?;
        Ok((attributes, init))
    }

    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        let handle = &self.domain.handle;
        handle.fork_guard.check()?;
        let refused = |wrong: WrongValue| wrong.at(from, to);
        handle.attribute_limits.check(attributes).map_err(refused)?;
        let os = |source| ModifyError::Os {
            action: action(from, to),
            source,
        };
        // Queried before the transition: by the time it has failed, draining may have ended. Some
        // drivers also delay a RESET until draining has ended.
        let is_draining = from == QpState::Sqd && self.is_draining();
        if is_draining && to == QpState::Rts {
            return Err(ModifyError::Draining);
        }
        let raw = self
            .raw
            .ok_or_else(|| os(rustix::io::Errno::INVAL.into()))?;
        let (mut values, attr_mask) = to_raw(to, attributes);
        // SAFETY: the queue pair is alive while `self` holds it; the driver reads only the fields
        // in the mask.
        let returned = unsafe {
            (handle.library.ibv_modify_qp)(raw.as_ptr(), &mut values, attr_mask.0 as c_int)
        };
        if returned != 0 {
            let source = io::Error::from_raw_os_error(returned.saturating_abs());
            // RoCE resolves the neighbor's link-layer address in this call.
            let is_unreachable = matches!(
                source.kind(),
                io::ErrorKind::TimedOut
                    | io::ErrorKind::HostUnreachable
                    | io::ErrorKind::NetworkUnreachable
            );
            return Err(match attributes.address {
                Some(address) if is_unreachable => ModifyError::Unreachable {
                    gid: address.gid,
                    action: "be reached over the network",
                    source,
                },
                _ if is_draining => ModifyError::Draining,
                _ => match self.invalid_value(attributes) {
                    Some(wrong) => wrong.at(from, to),
                    None => os(source),
                },
            });
        }
        self.state = to;
        if let Some(port) = attributes.port
            && self.qp_type == QpType::UnreliableDatagram
        {
            // A port whose attributes cannot be queried is treated as down: no datagram fits.
            let port = self.domain.handle.query_port(port);
            self.datagram_len = port.map_or(0, |port| port.active_mtu.usable().bytes() as usize);
        }
        Ok(())
    }

    /// Returns true if the send queue has been told to drain and is not drained yet.
    fn is_draining(&self) -> bool {
        self.query_raw(mask::IBV_QP_STATE)
            .is_ok_and(|(attributes, _)| attributes.sq_draining != 0)
    }

    /// Finds the value that the device rejected, as far as the port's attributes show it. Called
    /// only after a rejection, since it needs several queries.
    fn invalid_value(&self, attributes: &QpAttributes) -> Option<WrongValue> {
        let wrong = |attribute, value: u64, reason| {
            Some(WrongValue {
                attribute,
                value,
                reason,
            })
        };
        let handle = &self.domain.handle;
        let (raw, _) = self.query_raw(mask::IBV_QP_PORT).ok()?;
        let port = attributes.port.unwrap_or(raw.port_num);
        let port_attributes = handle.query_port(port).ok()?;
        let is_roce = port_attributes.link_layer == LinkLayer::Ethernet;
        if let Some(path) = attributes.alternate_path
            && is_roce
        {
            let reason = "a connection over Ethernet has one path";
            return wrong(Attribute::AlternatePath, path.port.into(), reason);
        }
        if let Some(key) = attributes.qkey.filter(|key| key >> 31 != 0) {
            let reason = "the top bit is for privileged programs";
            return wrong(Attribute::Qkey, key.into(), reason);
        }
        if let Some(mtu) = attributes.path_mtu
            && mtu > port_attributes.active_mtu.usable()
        {
            return wrong(Attribute::PathMtu, mtu as u64, "more than the port's MTU");
        }
        address_refused(handle, port, &attributes.address?)
    }
}

/// Finds out why the device rejected an address for this port.
pub(super) fn address_refused(
    handle: &Handle,
    port: u8,
    address: &AddressVector,
) -> Option<WrongValue> {
    let wrong = |value: u64, reason| {
        Some(WrongValue {
            attribute: Attribute::Address,
            value,
            reason,
        })
    };
    let is_roce = handle.query_port(port).ok()?.link_layer == LinkLayer::Ethernet;
    if address.port != port {
        let reason = "port: another than the queue pair's";
        return wrong(address.port.into(), reason);
    }
    if !address.is_global && is_roce {
        let reason = "is_global has to be set: there are no LIDs on Ethernet";
        return wrong(0, reason);
    }
    let index = u64::from(address.sgid_index);
    let sgid = handle.query_gid(port, address.sgid_index);
    let Some(sgid) = sgid.ok().filter(|gid| *gid != Gid([0; 16])) else {
        return wrong(index, "sgid_index: the port has no GID there");
    };
    let is_ipv4 = |gid: Gid| Ipv6Addr::from(gid.0).to_ipv4_mapped().is_some();
    if is_roce && is_ipv4(sgid) != is_ipv4(address.gid) {
        let reason = "sgid_index: of the two GIDs one is of IPv4 and one of IPv6";
        return wrong(index, reason);
    }
    None
}

/// Describes the purpose of a rejected transition.
fn action(from: QpState, to: QpState) -> &'static str {
    match (from, to) {
        (_, QpState::Reset) => "reset the queue pair",
        (_, QpState::Init) => "bring the queue pair to INIT",
        (_, QpState::Rtr) => {
            "bring the queue pair to RTR (the device refuses an address that its GID cannot reach)"
        }
        (_, QpState::Rts) => "bring the queue pair to RTS",
        (_, QpState::Sqd) => "drain the queue pair",
        (_, QpState::Sqe) => "bring the queue pair to SQE",
        (_, QpState::Error) => "put the queue pair in error",
    }
}
