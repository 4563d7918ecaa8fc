//! A queue pair of the device: its attributes, its queues and its two rings.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::general_send::Outstanding;
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::tcp_link::TcpLink;
use crate::provider::limits::WrongValue;
use crate::provider::soft::context::peer::Peer;
use crate::provider::soft::context::waiting::Waiting;
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::types::{AddressVector, Attribute, Gid, QpAttributes, QpNum, QpState, QpType};

/// One queue pair.
#[derive(Debug)]
pub(crate) struct SoftQueuePair {
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
    pub(crate) sends: SendQueue,
    /// Sends not carried out yet; used only by unreliable queue pairs.
    pub(crate) waiting: Waiting,
    pub(crate) receives: ReceiveQueue,
    pub(crate) link: Link,
    pub(crate) retry: Retry,
    pub(crate) outstanding: Outstanding,
    /// What has been written to the peer's ring since the last doorbell.
    pub(crate) unannounced: Unannounced,
    /// Membership in the lists of `Common`.
    pub(crate) is_hot: bool,
    pub(crate) is_awaiting: bool,
    pub(crate) is_unacked: bool,
    /// Set on the way to SQD: raise `SqDrained` when nothing is in flight.
    pub(crate) draining: Option<NotifyDrained>,
    pub(crate) established: bool,
}

/// What a peer that does not poll has to be notified of by the next doorbell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Unannounced {
    #[default]
    Nothing,
    Messages,
    /// Requests that the peer's engine carries out if no thread of the peer polls.
    OneSided,
}

/// True if the application requested a `SqDrained` event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NotifyDrained(pub(crate) bool);

/// The two rings, once they exist, and the peer.
#[derive(Debug, Default)]
pub(crate) struct Link {
    /// This side's ring; present from RTR on.
    pub(crate) receiver: Option<RingReceiver>,
    /// The peer's ring; present once the peer has also reached RTR and its message has arrived.
    pub(crate) sender: Option<RingSender>,
    pub(crate) peer: Option<Arc<Peer>>,
    /// True if the peer expects other sequence numbers than this side sends: it would silently drop
    /// every message.
    pub(crate) has_psn_mismatch: bool,
    /// Rings of peers that reached RTR before this side did.
    pub(super) early: Vec<NewRing>,
    /// The remote queue pair whose process refused this side's ring before this side was in RTR.
    pub(super) refused_by: Option<(Gid, u32)>,
    /// The peer's arena that the last descriptor named; a cache. It does not keep an arena mapped
    /// that the peer has withdrawn.
    pub(crate) arena: Option<(u64, Weak<Mapping>)>,
    /// The peer's arena of the last READ that was executed in place; a cache, as `arena`.
    pub(crate) read_arena: Option<(u64, Weak<Mapping>)>,
    /// When a READ last found the peer alive.
    pub(crate) seen_alive: Option<Instant>,
    /// True if the queue pair is connected to another over TCP, and has no rings.
    pub(crate) is_tcp: bool,
    /// The TCP connection, once there is one.
    pub(crate) tcp: Option<Box<TcpLink>>,
    /// TCP links of peers that reached RTR before this side did.
    pub(super) early_tcp: Vec<NewTcpLink>,
}

/// Retry state of a queue pair.
#[derive(Debug, Default)]
pub(crate) struct Retry {
    /// RNR NAKs noticed on this ring.
    pub(crate) naks: u64,
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

/// A TCP connection that a peer has dialed for a queue pair.
#[derive(Debug)]
pub(crate) struct NewTcpLink {
    pub(crate) gid: Gid,
    pub(crate) qp_num: u32,
    pub(crate) socket: OwnedFd,
    /// The sequence number of the first request that the peer expects.
    pub(crate) peer_psn: u32,
}

/// A ring to send into, as received over a link.
#[derive(Debug)]
pub(crate) struct NewRing {
    pub(crate) gid: Gid,
    pub(crate) qp_num: u32,
    pub(crate) sender: RingSender,
}

impl SoftQueuePair {
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

    /// Compares the sequence numbers of both sides, to detect that the peer would drop every
    /// message. Call this when both are known and nothing has been sent.
    pub(super) fn compare_sequence_numbers(&mut self) {
        let of_ring = self.link.sender.as_ref().map(RingSender::expected_psn);
        let of_tcp = || self.link.tcp.as_ref().and_then(|link| link.expected_psn());
        self.link.has_psn_mismatch = match (of_ring.or_else(of_tcp), self.attributes.sq_psn) {
            (Some(expected), Some(psn)) => expected != psn.get(),
            _ => false,
        };
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
