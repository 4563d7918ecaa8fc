//! A queue pair of the device: its attributes, its queues and its link.

use std::time::{Duration, Instant};

use super::general_send::Outstanding;
use super::link::{Early, Link};
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use crate::provider::limits::WrongValue;
use crate::provider::soft::context::waiting::Waiting;
use crate::types::{AddressVector, Attribute, Gid, QpAttributes, QpNum, QpState, QpType};

/// One queue pair.
#[derive(Debug)]
pub(crate) struct SoftQueuePair {
    pub(crate) core: Core,
    pub(crate) sends: SendQueue,
    /// Sends not carried out yet; used only by unreliable queue pairs.
    pub(crate) waiting: Waiting,
    pub(crate) receives: ReceiveQueue,
    pub(crate) link: Link,
    pub(crate) early: Early,
    /// True if the peer expects other sequence numbers than this side sends: it would silently drop
    /// every message.
    pub(crate) has_psn_mismatch: bool,
    pub(crate) retry: Retry,
    pub(crate) outstanding: Outstanding,
    /// Membership in the lists of `Common`.
    pub(crate) is_hot: bool,
    pub(crate) is_awaiting: bool,
    pub(crate) is_unacked: bool,
    /// Set on the way to SQD: raise `SqDrained` when nothing is in flight.
    pub(crate) draining: Option<NotifyDrained>,
    pub(crate) established: bool,
}

/// What a queue pair is: only verbs, and its failure, change it.
#[derive(Debug)]
pub(crate) struct Core {
    /// The queue pair's index in the context's table.
    pub(crate) index: u32,
    pub(crate) number: QpNum,
    pub(crate) qp_type: QpType,
    pub(crate) domain: u32,
    pub(crate) state: QpState,
    /// The attributes as last set. `state` and the attributes that are only valid in a call are
    /// `None`.
    pub(crate) attributes: QpAttributes,
    pub(crate) send_cq: usize,
    pub(crate) recv_cq: usize,
    pub(crate) srq: Option<usize>,
    pub(crate) sq_sig_all: bool,
}

/// True if the application requested a `SqDrained` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotifyDrained(pub(crate) bool);

/// Retry state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// RNR NAKs since the last progress.
    pub(crate) rnr_count: u32,
    /// Time at which the receiver may be asked to retry.
    pub(crate) rnr_until: Option<Instant>,
    /// Start of the peer's silence: it is dead or does not accept messages.
    pub(crate) silent_since: Option<Instant>,
    /// Time for which a peer over TCP has answered nothing that waits for an answer. The time in which
    /// this process did not run does not count.
    pub(crate) ignored_for: Duration,
}

impl Core {
    pub(crate) fn is_reliable(&self) -> bool {
        self.qp_type == QpType::ReliableConnection
    }

    /// Returns true if messages are received in this state.
    pub(crate) fn receives_now(&self) -> bool {
        matches!(
            self.state,
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe
        )
    }

    /// Returns true if this is the remote queue pair of the attributes.
    pub(super) fn is_connected_to(&self, (gid, qp_num): (Gid, u32)) -> bool {
        self.attributes.dest_qp_num == Some(QpNum(qp_num))
            && self
                .attributes
                .address
                .is_some_and(|address| address.gid == gid)
    }

    /// Checks the values of the attributes that are present, on a port with `gid_count` GIDs. The
    /// caller has checked which are present.
    pub(crate) fn check_values(
        &self,
        attributes: &QpAttributes,
        gid_count: u8,
    ) -> Result<(), WrongValue> {
        crate::provider::soft::capacities::ATTRIBUTE_LIMITS.check(attributes)?;
        let wrong = |attribute, value, reason| {
            Err(WrongValue {
                attribute,
                value,
                reason,
            })
        };
        if let Some(path) = attributes.alternate_path {
            let reason = "the device has one path";
            return wrong(Attribute::AlternatePath, path.port.into(), reason);
        }
        if let Some(key) = attributes.qkey.filter(|key| key >> 31 != 0) {
            let reason = "the top bit is for privileged programs";
            return wrong(Attribute::Qkey, key.into(), reason);
        }
        match attributes.address {
            Some(address) => self.check_address(address, attributes, gid_count),
            None => Ok(()),
        }
    }

    fn check_address(
        &self,
        address: AddressVector,
        attributes: &QpAttributes,
        gid_count: u8,
    ) -> Result<(), WrongValue> {
        let wrong = |value: u8, reason| {
            Err(WrongValue {
                attribute: Attribute::Address,
                value: u64::from(value),
                reason,
            })
        };
        if !address.is_global {
            return wrong(0, "is_global has to be set: the device has no LIDs");
        }
        if address.sgid_index >= gid_count {
            let reason = "sgid_index: the port has no such GID";
            return wrong(address.sgid_index, reason);
        }
        let port = attributes.port.or(self.attributes.port);
        if Some(address.port) != port {
            return wrong(address.port, "port: another than the queue pair's");
        }
        if self.state == QpState::Sqd
            && self
                .attributes
                .address
                .is_some_and(|now| now.gid != address.gid)
        {
            return wrong(
                address.port,
                "gid: a connection cannot be moved to another process",
            );
        }
        Ok(())
    }

    /// Adopts the attributes that are present.
    pub(super) fn set(&mut self, new: &QpAttributes) {
        let old = &mut self.attributes;
        *old = QpAttributes {
            state: None,
            current_state: None,
            notify_drained: None,
            access: new.access.or(old.access),
            pkey_index: new.pkey_index.or(old.pkey_index),
            port: new.port.or(old.port),
            qkey: new.qkey.or(old.qkey),
            address: new.address.or(old.address),
            path_mtu: new.path_mtu.or(old.path_mtu),
            timeout: new.timeout.or(old.timeout),
            retry_cnt: new.retry_cnt.or(old.retry_cnt),
            rnr_retry: new.rnr_retry.or(old.rnr_retry),
            rq_psn: new.rq_psn.or(old.rq_psn),
            max_rd_atomic: new.max_rd_atomic.or(old.max_rd_atomic),
            alternate_path: None,
            min_rnr_timer: new.min_rnr_timer.or(old.min_rnr_timer),
            sq_psn: new.sq_psn.or(old.sq_psn),
            max_dest_rd_atomic: new.max_dest_rd_atomic.or(old.max_dest_rd_atomic),
            path_migration: new.path_migration.or(old.path_migration),
            dest_qp_num: new.dest_qp_num.or(old.dest_qp_num),
            sq_draining: None,
        };
    }
}

impl SoftQueuePair {
    /// Compares the sequence numbers of both sides, to detect that the peer would drop every
    /// message. Call this when both are known and nothing has been sent.
    pub(super) fn compare_sequence_numbers(&mut self) {
        self.has_psn_mismatch = match (self.link.expected_psn(), self.core.attributes.sq_psn) {
            (Some(expected), Some(psn)) => expected != psn.get(),
            _ => false,
        };
    }
}
