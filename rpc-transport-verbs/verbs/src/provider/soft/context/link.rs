//! What connects a reliable queue pair to its peer: two rings in shared memory, or a TCP connection.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Instant;

use rustix::net::RecvFlags;

use super::peer::Peer;
use super::send_queue::Units;
use super::tcp_link::TcpLink;
use crate::provider::soft::shared::memory::Mapping;
use crate::provider::soft::shared::ring::{RingReceiver, RingSender};
use crate::types::Gid;

/// The link of a queue pair.
#[derive(Debug, Default)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every queue pair has rings, and a box would be a line more to fetch in each call"
)]
pub(crate) enum Link {
    /// There is none: the queue pair has not reached RTR, has failed, or is unreliable.
    #[default]
    Down,
    Rings(Rings),
    Tcp(Tcp),
}

/// The two rings, and the peer.
#[derive(Debug)]
pub(crate) struct Rings {
    /// This side's ring.
    pub(crate) receiver: RingReceiver,
    /// The peer's ring; present once the peer has also reached RTR and its message has arrived.
    pub(crate) sender: Option<RingSender>,
    pub(crate) peer: Arc<Peer>,
    /// What has been written to the peer's ring since the last doorbell.
    pub(crate) unannounced: Unannounced,
    /// RNR NAKs noticed on the peer's ring.
    pub(crate) naks: u64,
    /// READ pieces requested into staging memory, and READ pieces copied out of it, since the ring
    /// was created.
    pub(crate) staged: u64,
    pub(crate) unstaged: u64,
    /// The peer's arena that the last descriptor named; a cache. It does not keep an arena mapped
    /// that the peer has withdrawn.
    pub(crate) arena: Option<(u64, Weak<Mapping>)>,
    /// The peer's arena of the last READ that was executed in place; a cache, as `arena`.
    pub(crate) read_arena: Option<(u64, Weak<Mapping>)>,
    /// When a READ last found the peer alive.
    pub(crate) seen_alive: Option<Instant>,
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

/// The link of a queue pair that is connected to another over TCP.
#[derive(Debug, Default)]
pub(crate) struct Tcp {
    /// The TCP connection, once there is one.
    pub(crate) connection: Option<Box<TcpLink>>,
    /// Requests were posted inline since the last doorbell.
    pub(crate) is_doorbell_due: bool,
}

/// What peers that reached RTR first have sent to a queue pair that has not.
#[derive(Debug, Default)]
pub(crate) struct Early {
    pub(crate) rings: Vec<NewRing>,
    pub(crate) connections: Vec<NewTcpLink>,
    /// The remote queue pair whose process refused this side's ring: it was announced before the
    /// transition to RTR.
    pub(crate) refused_by: Option<(Gid, u32)>,
}

/// A ring to send into, as received over a link of two processes.
#[derive(Debug)]
pub(crate) struct NewRing {
    pub(crate) gid: Gid,
    pub(crate) qp_num: u32,
    pub(crate) sender: RingSender,
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

impl NewTcpLink {
    /// Returns true if the peer has closed its end.
    pub(crate) fn has_closed(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        let first = rustix::net::recv(&self.socket, &mut [0; 1], flags);
        matches!(first, Ok((_, 0)))
    }
}

impl Link {
    #[inline]
    pub(crate) fn rings(&self) -> Option<&Rings> {
        match self {
            Self::Rings(rings) => Some(rings),
            Self::Down | Self::Tcp(_) => None,
        }
    }

    #[inline]
    pub(crate) fn rings_mut(&mut self) -> Option<&mut Rings> {
        match self {
            Self::Rings(rings) => Some(rings),
            Self::Down | Self::Tcp(_) => None,
        }
    }

    #[inline]
    pub(crate) fn sender(&self) -> Option<&RingSender> {
        self.rings()?.sender.as_ref()
    }

    #[inline]
    pub(crate) fn sender_mut(&mut self) -> Option<&mut RingSender> {
        self.rings_mut()?.sender.as_mut()
    }

    /// Returns the TCP connection, once there is one.
    #[inline]
    pub(crate) fn tcp(&self) -> Option<&TcpLink> {
        match self {
            Self::Tcp(tcp) => tcp.connection.as_deref(),
            Self::Down | Self::Rings(_) => None,
        }
    }

    #[inline]
    pub(crate) fn tcp_mut(&mut self) -> Option<&mut TcpLink> {
        match self {
            Self::Tcp(tcp) => tcp.connection.as_deref_mut(),
            Self::Down | Self::Rings(_) => None,
        }
    }

    /// Returns true if a request that finds no receive is sent again from this side, which keeps it until
    /// it completes. In a ring, it stays in its slot.
    #[inline]
    pub(crate) fn repeats_requests(&self) -> bool {
        matches!(self, Self::Tcp(_))
    }

    /// Returns true if the peer has not acknowledged everything in its ring.
    pub(crate) fn has_unacked(&self) -> bool {
        self.sender().is_some_and(|sender| sender.unacked() > 0)
    }

    /// Returns true if the peer's process is gone, or its connection has ended.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Self::Down => false,
            Self::Rings(rings) => rings.peer.is_gone(),
            Self::Tcp(_) => self.tcp().is_some_and(TcpLink::has_ended),
        }
    }

    /// Returns true if the peer's queue pair takes messages.
    pub(super) fn is_heard(&self) -> bool {
        match self {
            Self::Down => false,
            Self::Rings(_) => self.sender().is_some_and(RingSender::is_ready),
            Self::Tcp(_) => self.tcp().is_some_and(TcpLink::is_open),
        }
    }

    /// Returns how far the peer has come with this side's requests.
    pub(crate) fn units(&self) -> Option<Units> {
        match self {
            Self::Down => None,
            Self::Rings(rings) => rings.sender.as_ref().map(|sender| Units {
                acked: sender.acked() + 1,
                next: sender.next(),
            }),
            Self::Tcp(tcp) => tcp.connection.as_ref().map(|link| Units {
                acked: link.outbound.acked,
                next: link.outbound.next,
            }),
        }
    }

    /// Returns the sequence number of the first request that the peer expects, once it is known.
    pub(super) fn expected_psn(&self) -> Option<u32> {
        match self {
            Self::Down => None,
            Self::Rings(rings) => rings.sender.as_ref().map(RingSender::expected_psn),
            Self::Tcp(tcp) => tcp.connection.as_ref()?.expected_psn(),
        }
    }
}

impl Unannounced {
    /// Adds what a request makes the peer do.
    #[inline]
    pub(crate) fn add(&mut self, what: Self) {
        if what == Self::OneSided || *self == Self::Nothing {
            *self = what;
        }
    }
}

impl Rings {
    pub(crate) fn new(receiver: RingReceiver, peer: Arc<Peer>) -> Self {
        Self {
            receiver,
            sender: None,
            peer,
            unannounced: Unannounced::Nothing,
            naks: 0,
            staged: 0,
            unstaged: 0,
            arena: None,
            read_arena: None,
            seen_alive: None,
        }
    }
}
