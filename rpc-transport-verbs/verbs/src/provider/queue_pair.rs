//! A queue pair of either provider.

use std::io;

#[cfg(feature = "rdma")]
use super::rdma;
use super::{
    InlineError, LinkBytes, LinkTarget, ReceiveList, ReceiveWork, SendWork, Sge, WindowBinding,
    Work, forward, soft,
};
use crate::types::{
    Gid, ModifyError, PostError, QpAttributes, QpNum, QpState, QueuePairCapabilities, RemoteKey,
    VerbsError, WrId,
};

#[derive(Debug)]
pub(crate) enum QueuePair {
    Soft(soft::QueuePair),
    #[cfg(feature = "rdma")]
    Rdma(rdma::QueuePair),
}

impl QueuePair {
    pub(crate) fn qp_num(&self) -> QpNum {
        forward!(self, qp => qp.qp_num())
    }

    pub(crate) fn capabilities(&self) -> QueuePairCapabilities {
        forward!(self, qp => qp.capabilities())
    }

    pub(crate) fn state(&self) -> Result<QpState, VerbsError> {
        forward!(self, qp => qp.state())
    }

    pub(crate) fn query(&self) -> Result<QpAttributes, VerbsError> {
        forward!(self, qp => qp.query())
    }

    /// Returns the target of the TCP connection that the peer dials, if the queue pair is connected
    /// over TCP.
    pub(crate) fn link_target(&self) -> Option<LinkTarget> {
        match self {
            Self::Soft(qp) => qp.link_target(),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => None,
        }
    }

    /// Returns the number of the message of which only a part has arrived over TCP.
    pub(crate) fn arriving_message(&self) -> Option<u64> {
        match self {
            Self::Soft(qp) => qp.arriving_message(),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => None,
        }
    }

    /// Uses the TCP connection that this side has dialed for the queue pair.
    pub(crate) fn adopt_link(&mut self, bytes: LinkBytes) -> io::Result<()> {
        match self {
            Self::Soft(qp) => qp.adopt_link(bytes),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Modifies the queue pair. The layer above has checked the transition from `from` to `to` and
    /// which attributes are present, but not their values.
    pub(crate) fn modify(
        &mut self,
        from: QpState,
        to: QpState,
        attributes: &QpAttributes,
    ) -> Result<(), ModifyError> {
        forward!(self, qp => qp.modify(from, to, attributes))
    }

    #[inline]
    pub(crate) fn post_send(&mut self, work: &[SendWork]) -> Result<(), PostError> {
        forward!(self, qp => qp.post_send(work))
    }

    /// Posts an inline send of `bytes`. The peer may receive it at once, or only after
    /// [`ring_doorbell`](Self::ring_doorbell). The layer above has checked that an entry of the send
    /// queue is free and that the length is within the limit of inline sends.
    #[inline]
    pub(crate) fn post_inline(
        &mut self,
        wr_id: WrId,
        bytes: &[u8],
        signaled: bool,
    ) -> Result<(), InlineError> {
        match self {
            Self::Soft(qp) => match qp.post_inline(wr_id, bytes, signaled) {
                Ok(()) => Ok(()),
                Err(error) => Err(InlineError::of_one(error)),
            },
            #[cfg(feature = "rdma")]
            Self::Rdma(qp) => qp.post_inline(wr_id, bytes, signaled),
        }
    }

    /// Notifies the device, or the peer, of the inline sends posted since the last doorbell.
    #[inline]
    pub(crate) fn ring_doorbell(&mut self) -> Result<(), InlineError> {
        match self {
            Self::Soft(qp) => match qp.ring_doorbell() {
                Ok(()) => Ok(()),
                Err(error) => Err(InlineError::of_one(error)),
            },
            #[cfg(feature = "rdma")]
            Self::Rdma(qp) => qp.ring_doorbell(),
        }
    }

    /// Posts requests of any kind; `elements` holds the elements of all of them.
    pub(crate) fn post(&mut self, work: &[Work], elements: &[Sge]) -> Result<(), PostError> {
        forward!(self, qp => qp.post(work, elements))
    }

    /// Binds a type 1 window and returns its new key.
    pub(crate) fn bind_mw(
        &mut self,
        wr_id: WrId,
        binding: WindowBinding,
        signaled: bool,
    ) -> Result<RemoteKey, PostError> {
        forward!(self, qp => qp.bind_mw(wr_id, binding, signaled))
    }

    #[inline]
    pub(crate) fn post_recv(&self, work: &[ReceiveWork]) -> Result<(), PostError> {
        forward!(self, qp => qp.post_recv(work))
    }

    pub(crate) fn post_recv_lists(
        &self,
        work: &[ReceiveList],
        elements: &[Sge],
    ) -> Result<(), PostError> {
        forward!(self, qp => qp.post_recv_lists(work, elements))
    }

    /// Joins a multicast group. The layer above has checked that `gid` is a group's GID and that
    /// the queue pair is of type UD.
    pub(crate) fn attach_multicast(&mut self, gid: Gid, lid: u16) -> Result<(), VerbsError> {
        forward!(self, qp => qp.attach_multicast(gid, lid))
    }

    /// Leaves a multicast group. Returns `false` if the queue pair was not in it.
    pub(crate) fn detach_multicast(&mut self, gid: Gid, lid: u16) -> Result<bool, VerbsError> {
        forward!(self, qp => qp.detach_multicast(gid, lid))
    }

    /// Destroys the queues. The device does not access their memory afterwards, unless this returns
    /// `false`.
    pub(crate) fn destroy(&mut self) -> bool {
        match self {
            Self::Soft(qp) => {
                qp.destroy();
                true
            }
            #[cfg(feature = "rdma")]
            Self::Rdma(qp) => qp.destroy(),
        }
    }
}
