//! Attacks that another process can make on this device: through a ring alone, over a link, and
//! through all memory that it shares with a working device.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rpc_core::testing::hostile::Script;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::context::peer::Peer;
use super::process::greeting::{Agreed, Layouts, Limits, Refusal};
use super::process::inbound;
use super::process::link::{LinkSocket, Packet};
use super::process::link_message::LinkMessage;
use super::process::node::Node;
use super::process::outbound::Link;
use super::shared::memory::SharedMemory;
use super::shared::published::ContextNotes;
use super::shared::ring::hostile::scribble;
use super::shared::ring::{RING_LEN, RingReceiver};
use super::shared::wake::DomainReadyBits;
use super::shared::wake_socket::WakeSockets;
use crate::verbs::{
    Access, AckTimeout, Binding, CompletionChannel, CompletionQueue, CompletionStatus, Context,
    ExposedMemory, Gid, MemoryWindow, Psn, QpNum, QpState, QueuePair, QueuePairConfig,
    RemoteEndpoint, RetryCount, RnrTimer, RtrAttributes, RtsAttributes, SendRequest,
    SharedReceiveQueue, Slot, WindowType, WorkKind, WorkRequest,
};

pub use super::shared::ring::hostile::soft_ring;

const SLOT_LEN: usize = 512;
const PAGE: usize = 4096;
const SLOTS: usize = 48;
const PSN: u32 = 100;

/// Time limit for two queue pairs to connect over a link to their own process.
const PATIENCE: Duration = Duration::from_secs(20);

fn remote_access() -> Access {
    Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC
}

/// A context with one object of each kind.
struct Side {
    context: Context,
    channel: CompletionChannel,
    cq: CompletionQueue,
    srq: Option<SharedReceiveQueue>,
    qp: QueuePair,
    slots: Vec<Slot>,
    /// Memory that peers may access: one page.
    exposed: ExposedMemory,
    window: MemoryWindow,
}

impl Side {
    fn new(is_shared: bool) -> Self {
        let context = Context::open("soft").expect("a context");
        let domain = context.alloc_pd().expect("a protection domain");
        let channel = context.create_comp_channel().expect("a completion channel");
        let cq = context.create_cq_with_channel(256, &channel);
        let cq = cq.expect("a completion queue");
        let srq = is_shared.then(|| domain.create_srq(16, 1).expect("a shared receive queue"));
        let config = QueuePairConfig {
            srq: srq.as_ref(),
            max_send_sge: 2,
            max_inline_data: 64,
            ..QueuePairConfig::new(&cq, &cq)
        };
        let mut qp = domain.create_qp(config).expect("a queue pair");
        qp.to_init(1, remote_access()).expect("INIT");
        let access = remote_access() | Access::LOCAL_WRITE | Access::MW_BIND;
        let exposed = domain.expose(PAGE, access).expect("a region");
        let window = domain.alloc_mw(WindowType::Type2).expect("a window");
        let region = domain.register(SLOTS * SLOT_LEN, Access::LOCAL_WRITE);
        let slots = region
            .expect("a region")
            .into_slots(SLOT_LEN)
            .expect("slots");
        Self {
            context,
            channel,
            cq,
            srq,
            qp,
            slots,
            exposed,
            window,
        }
    }

    fn gid(&self) -> Gid {
        self.context.query_gid(1, 0).expect("the device's GID")
    }

    fn connect(&mut self, remote: QpNum) {
        let remote = RemoteEndpoint {
            gid: self.gid(),
            lid: 0,
            qp_num: remote,
            psn: Psn::new(PSN),
        };
        let rtr = RtrAttributes {
            min_rnr_timer: RnrTimer::new(1).expect("a code"),
            max_dest_rd_atomic: 4,
            ..RtrAttributes::new(remote)
        };
        self.qp.to_rtr(rtr).expect("RTR");
        let rts = RtsAttributes {
            timeout: AckTimeout::new(10).expect("a code"),
            retry_cnt: RetryCount::new(2).expect("a code"),
            max_rd_atomic: 4,
            ..RtsAttributes::new(Psn::new(PSN))
        };
        self.qp.to_rts(rts).expect("RTS");
    }

    /// Performs one step of the side's application. Errors are allowed, but every completion has to
    /// name a posted request.
    fn act(&mut self, step: u8, script: &mut Script<'_>) {
        match step % 4 {
            0 if step & 32 != 0 => self.request(step, script),
            0 => {
                let Some(slot) = self.slots.pop() else { return };
                let len = usize::from(script.byte()) * 2;
                let mut request = SendRequest::new(slot, len);
                request.signaled = step & 8 != 0;
                request.inline = step & 16 != 0 && len <= 64;
                let mut list = vec![request];
                let slots = &mut self.slots;
                let _ = self.qp.post_send(&mut list, &mut |slot| slots.push(slot));
                slots.extend(list.into_iter().map(|request| request.slot));
            }
            1 => {
                let count = usize::from(step >> 4).min(self.slots.len());
                let _ = match &self.srq {
                    Some(srq) => srq.post_recv(&mut self.slots, count),
                    None => self.qp.post_recv(&mut self.slots, count),
                };
            }
            2 => self.poll(),
            // Arms the queue and waits, as an application does before it sleeps.
            _ => {
                let _ = self.cq.arm(step & 8 != 0);
                let _ = self.channel.wait(Some(Duration::ZERO));
            }
        }
    }

    /// Posts a request of any kind, with a remote address that may or may not be valid.
    fn request(&mut self, step: u8, script: &mut Script<'_>) {
        let kind = script.byte();
        let len = usize::from(script.short()) % PAGE;
        // An address and key of this side's own region. If a queue pair is connected to itself,
        // this is also the peer's region. Otherwise the peer does not have this key, although both
        // contexts use the same key indices.
        let mut remote = self.exposed.remote(usize::from(script.short()) % PAGE);
        remote.key.0 ^= u32::from(kind >> 4);
        remote.addr ^= u64::from(step & 64) << 8;
        let bytes = || self.exposed.element(0..len).expect("inside");
        let number = || self.exposed.element(0..8).expect("inside");
        let key = self.window.next_key();
        let request = match kind % 9 {
            0 => WorkRequest::send_with_imm(bytes(), 7),
            1 => WorkRequest::send_with_invalidate(bytes(), self.window.key()),
            2 => WorkRequest::write(bytes(), remote),
            3 => WorkRequest::write_with_imm(bytes(), remote, 7),
            4 => WorkRequest::read(bytes(), remote),
            5 => WorkRequest::compare_and_swap(number(), remote, 0, 1),
            6 => WorkRequest::fetch_and_add(number(), remote, 1),
            7 => WorkRequest::local_invalidate(key),
            _ => {
                let binding = Binding::new(&self.exposed, 0..len, remote_access());
                WorkRequest::bind_window(&self.window, binding, key)
            }
        };
        let request = if step & 8 == 0 {
            request
        } else {
            request.signaled()
        };
        let request = if step & 16 == 0 {
            request
        } else {
            request.fenced()
        };
        let _ = self.qp.post_one(request);
    }

    fn poll(&mut self) {
        let mut completions = Vec::new();
        let _ = self.cq.poll(&mut completions, 16);
        for completion in completions {
            match completion.wr_id().kind() {
                Some(WorkKind::Send) => {
                    let slots = &mut self.slots;
                    let claimed = self
                        .qp
                        .complete_send(completion, &mut |slot| slots.push(slot));
                    claimed.expect("it was posted");
                }
                Some(WorkKind::Receive) => {
                    let status = completion.status();
                    let claimed = match &self.srq {
                        Some(srq) => srq.claim(completion),
                        None => self.qp.claim_recv(completion),
                    };
                    let (slot, len) = claimed.expect("it was posted");
                    assert!(len <= SLOT_LEN || status != CompletionStatus::Success);
                    self.slots.push(slot);
                }
                None => panic!("a completion of nothing"),
            }
        }
        while let Ok(Some(_)) = self.context.get_async_event(Some(Duration::ZERO)) {}
        assert!(self.slots.len() <= SLOTS.next_multiple_of(4096 / SLOT_LEN));
    }

    /// Waits until the peer's ring has arrived.
    fn wait_for_ring(&self) {
        let found = node().find_queue_pair(self.qp.qp_num().0);
        let (domain, qp_index) = found.expect("it is there");
        let start = Instant::now();
        let is_there = || {
            let state = domain.enter().expect("this process has not forked");
            state.queue_pairs[qp_index as usize].link.sender.is_some()
        };
        while !is_there() {
            assert!(start.elapsed() < PATIENCE, "no ring has come");
            std::thread::yield_now();
        }
    }

    /// Makes one forged write to memory that this side shares.
    fn forge(&self, step: u8, script: &mut Script<'_>) {
        let found = node().find_queue_pair(self.qp.qp_num().0);
        let (domain, qp_index) = found.expect("it is there");
        if step & 8 == 0 {
            let state = domain.enter().expect("this process has not forked");
            if let Some(receiver) = &state.queue_pairs[qp_index as usize].link.receiver {
                receiver.forge(script);
            }
        } else {
            let at = usize::from(script.short());
            let state = domain.enter().expect("this process has not forked");
            match step & 16 {
                0 => state.common.ready.scribble(at, script.piece()),
                // As the owner of the memory that the other side reads: all of its published table,
                // which is longer than two bytes count.
                _ => scribble(state.common.notes.mapping(), at * 4, script.piece()),
            }
        }
    }

    /// Moves the queue pair to ERROR and destroys it: everything posted has to come back, whatever
    /// was done to it.
    fn end(mut self) {
        if !matches!(self.qp.state(), Ok(QpState::Error)) {
            self.qp.to_error().expect("ERROR, from any state but RESET");
        }
        for _ in 0..4 {
            self.poll();
        }
        let slots = &mut self.slots;
        self.qp.destroy(&mut |slot| slots.push(slot));
    }
}

fn node() -> Arc<Node> {
    Node::get().expect("the device is open")
}

/// Connects two queue pairs while a third party writes to the memory between them.
pub fn soft_device(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let is_shared = script.byte().is_multiple_of(2);
    let mut sides = [Side::new(is_shared), Side::new(is_shared)];
    let numbers = [sides[1].qp.qp_num(), sides[0].qp.qp_num()];
    for (side, remote) in sides.iter_mut().zip(numbers) {
        side.connect(remote);
    }
    sides.iter().for_each(Side::wait_for_ring);
    while let Some(step) = script.step() {
        let side = &mut sides[usize::from(step >> 7)];
        match step % 8 {
            0..5 => side.act(step % 8, &mut script),
            5 => side.act(step & !7, &mut script),
            _ => side.forge(step, &mut script),
        }
    }
    sides.into_iter().for_each(Side::end);
}

/// Sends forged packets and files to a process with a queue pair that waits for a peer.
pub fn soft_link(bytes: &[u8]) {
    let mut script = Script::new(bytes);
    let mut side = Side::new(false);
    let own = side.qp.qp_num();
    // Connected to itself: this process may later create a queue pair with any other number.
    side.connect(own);
    // Before anything is forged: an invalid ring closes the link that it arrived on, which here is
    // this process's own.
    side.wait_for_ring();
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
    let (theirs, ours) = pair.expect("a pair of sockets");
    let raw = theirs.try_clone().expect("a descriptor");
    let outgoing = LinkSocket::adopt(theirs);
    // Not the node's own entry for this process, which would outlive this test.
    let peer = Arc::new(Peer::new(side.gid()));
    let link = Link::new(peer, u64::MAX, true, LinkSocket::adopt(ours), Agreed::OWN);
    let forged = RingReceiver::new(PSN, script.byte() & 1 == 0).expect("memory for a ring");
    forged.set_ready();
    while let Some(step) = script.step() {
        match step % 8 {
            0 => side.act(step >> 3, &mut script),
            1 => forged.forge(&mut script),
            2 => side.forge(step, &mut script),
            3 => drop(rustix::io::write(&raw, script.piece())),
            _ => {
                let message = message(step, own, &side, &mut script);
                let files = files(message, &forged, &mut script);
                let files: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                // If the socket is full, the loop below empties it.
                let _ = outgoing.send(message, &files);
            }
        }
        loop {
            match link.receive() {
                Ok(Packet::Empty) => break,
                Ok(Packet::End) | Err(_) => return side.end(),
                Ok(packet) => {
                    if inbound::handle(&node(), &link, packet).is_err() {
                        return side.end();
                    }
                }
            }
        }
        // What the link answers is not read; it must not make the link wait.
        let _ = link.flush(Instant::now());
    }
    side.end();
}

fn message(step: u8, own: QpNum, side: &Side, script: &mut Script<'_>) -> LinkMessage {
    let number = u64::from(script.byte());
    match step % 8 {
        4 => LinkMessage::Arena { number },
        5 if step & 8 == 0 => LinkMessage::ArenaGone { number },
        6 if step & 8 == 0 => refusal_or_greeting(step, own, side, script),
        7 if step & 64 != 0 => LinkMessage::ContextGone {
            number: u32::from(script.byte() % 4),
        },
        6 if step & 16 == 0 => LinkMessage::Wake,
        7 if step & 8 == 0 => LinkMessage::Context {
            number: u32::from(script.byte() % 4),
        },
        _ => LinkMessage::Attach {
            from: if step & 16 == 0 {
                own.0
            } else {
                u32::from(script.byte())
            },
            to: own.0,
            context: u32::from(script.byte() % 4),
            ready_index: u32::from(script.short()),
        },
    }
}

/// Returns a message that refuses something, or greets.
fn refusal_or_greeting(step: u8, own: QpNum, side: &Side, script: &mut Script<'_>) -> LinkMessage {
    let number = script.byte();
    let (layouts, limits) = (Layouts::OWN, Limits::OWN);
    match number % 8 {
        0 => LinkMessage::Hello {
            layout_version: layouts.max,
            gid: side.gid(),
        },
        1 => LinkMessage::Terms { layouts, limits },
        2 => LinkMessage::Welcome {
            layout: layouts.max,
            limits,
        },
        3 => LinkMessage::Refused(Refusal::OtherProcess),
        4 => LinkMessage::ArenaRefused {
            number: number.into(),
        },
        5 => LinkMessage::ContextRefused {
            number: number.into(),
        },
        _ => LinkMessage::AttachRefused {
            from: if step & 16 == 0 { own.0 } else { number.into() },
            to: own.0,
        },
    }
}

/// Returns files to send beside the message: mostly of the right kinds.
fn files(message: LinkMessage, forged: &RingReceiver, script: &mut Script<'_>) -> Vec<OwnedFd> {
    let shape = script.byte();
    let right: &[u8] = match message {
        LinkMessage::Attach { .. } => &[0],
        LinkMessage::Context { .. } => &[1, 5, 2],
        LinkMessage::Arena { .. } => &[3],
        _ => &[],
    };
    if shape < 128 {
        return right
            .iter()
            .map(|kind| file(*kind, forged, script))
            .collect();
    }
    let count = usize::from(shape % 5);
    let kinds: Vec<_> = (0..count).map(|_| script.byte() % 7).collect();
    kinds
        .into_iter()
        .map(|kind| file(kind, forged, script))
        .collect()
}

/// Returns a file: a ring, ready bits, a socket to wake with, an arena with arbitrary contents, a
/// context's notes, or memory that is too short or without seals.
fn file(kind: u8, forged: &RingReceiver, script: &mut Script<'_>) -> OwnedFd {
    let shared = |len| SharedMemory::for_writers("forged", len).expect("memory");
    let again = |file: &dyn AsFd| file.as_fd().try_clone_to_owned().expect("a descriptor");
    match kind {
        0 => again(&forged.fd()),
        1 => shared(size_of::<DomainReadyBits>()).fd,
        2 => {
            let sockets = WakeSockets::new().expect("an epoll set");
            sockets.add().expect("a pair of sockets").1
        }
        3 | 5 => {
            let memory = match kind {
                3 => SharedMemory::arena(RING_LEN),
                _ => SharedMemory::for_readers("forged", size_of::<ContextNotes>()),
            };
            let SharedMemory { mapping, fd } = memory.expect("memory");
            scribble(&mapping, usize::from(script.short()), script.piece());
            fd
        }
        4 => shared(64).fd,
        _ => memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).expect("a file"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::AsyncEvent;

    /// Sends the refusal of a queue pair's ring, as the process of its peer.
    fn refuse_ring(side: &Side) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let pair = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = LinkSocket::adopt(pair.expect("a pair of sockets").0);
        let peer = Arc::new(Peer::new(side.gid()));
        let link = Link::new(peer, u64::MAX, true, socket, Agreed::OWN);
        let own = side.qp.qp_num().0;
        let refused = LinkMessage::AttachRefused { from: own, to: own };
        let packet = Packet::Message(refused, Vec::new());
        inbound::handle(&node(), &link, packet).expect("it may be refused");
    }

    fn assert_failed(side: Side) {
        assert_eq!(side.qp.state().expect("a state"), QpState::Error);
        let event = side.context.get_async_event(Some(Duration::ZERO));
        let qp_num = side.qp.qp_num();
        let failed = AsyncEvent::QpFatal { qp_num };
        assert_eq!(event.expect("no error"), Some(failed));
        side.end();
    }

    /// The peer would never send, so waiting for it would have no end.
    #[test]
    fn a_queue_pair_whose_ring_was_refused_fails() {
        let mut side = Side::new(false);
        side.connect(side.qp.qp_num());
        refuse_ring(&side);
        assert_failed(side);
    }

    #[test]
    fn a_refusal_that_comes_before_rtr_counts_too() {
        let mut side = Side::new(false);
        refuse_ring(&side);
        let remote = RemoteEndpoint {
            gid: side.gid(),
            lid: 0,
            qp_num: side.qp.qp_num(),
            psn: Psn::new(PSN),
        };
        side.qp.to_rtr(RtrAttributes::new(remote)).expect("RTR");
        assert_failed(side);
    }
}
