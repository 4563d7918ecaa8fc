//! The files through which a peer wakes a sleeping context, and the engine of its process.
//!
//! Each pair of a context and a peer process has a pair of connected sockets, made by the context's
//! process. The context keeps one end, which no other process ever has, and waits for it; the peer
//! gets the other end and sends a byte through it.
//!
//! Nothing that the peer does with its end blocks the context's process, and the other way around:
//! every send and receive is non-blocking by a flag of the call. The flag of a file, `O_NONBLOCK`,
//! would not do: it belongs to the open file, which both processes have, so either could clear it.
//! A send into a full socket fails, and the socket is readable already. A peer can fill its own
//! socket, or shut it down, and then does not wake the context any more; the sockets of other peers
//! are not concerned.
//!
//! A peer can send files beside its bytes, which no correct peer does. A file that is received
//! without room for it is closed by the receiving thread, and closing it can block that thread for
//! as long as the peer likes. So the kernel is told to refuse such a send. Where it cannot do that,
//! the files are received, and closed by another thread. A socket's own queue may hold files as
//! well, so the sockets, too, are closed by that thread.

use std::collections::HashMap;
use std::io::{self, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketFlags,
    SocketType, recvmsg, send, socketpair, sockopt,
};

use super::peer_file::{PeerFile, set_takes_files};
use crate::fork_sockets::keep_from_children;
use crate::system_error::epoll_add;

/// The peer's end of a pair: wakes the context.
#[derive(Debug)]
pub(crate) struct WakeSender(PeerFile);

impl WakeSender {
    /// Adopts a file from a peer after checking that it is a Unix stream socket: a send to it does
    /// not block. Writes nothing to the file.
    pub(crate) fn from_peer(file: impl Into<PeerFile>) -> io::Result<Self> {
        let file = file.into();
        let is_stream = sockopt::socket_domain(&file) == Ok(AddressFamily::UNIX)
            && sockopt::socket_type(&file) == Ok(SocketType::STREAM);
        if !is_stream {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the peer sent a file that is not a Unix stream socket, to be woken with",
            ));
        }
        Ok(Self(file))
    }

    /// Wakes the context.
    pub(crate) fn wake(&self) {
        // This fails if the socket is full, which wakes the context as well; or if the context is
        // gone.
        let _ = send_now(self.0.as_fd(), &[1]);
    }
}

/// Sends without blocking, whatever the peer has done to the socket.
fn send_now(socket: BorrowedFd<'_>, bytes: &[u8]) -> io::Result<usize> {
    Ok(send(
        socket,
        bytes,
        SendFlags::DONTWAIT | SendFlags::NOSIGNAL,
    )?)
}

/// Takes bytes out of a socket, and the files beside them, without blocking. Returns the number of
/// bytes: 0 at the end.
fn receive_now(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> rustix::io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FILES))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, flags)?;
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(files) = message {
            files.map(PeerFile::from).for_each(drop);
        }
    }
    Ok(received.bytes)
}

/// Maximum number of files that the kernel sends with a message (SCM_MAX_FD). A receive never
/// returns the files of two messages.
const MAX_FILES: usize = 253;
/// Bytes taken out of a socket at a time. A correct peer has seldom more than one on its way.
const DRAINED: usize = 512;
/// Sockets emptied at a time.
const SOCKETS_PER_DRAIN: usize = 32;

/// A context's ends of its pairs: a file that is readable while any of them is.
#[derive(Debug)]
pub(crate) struct WakeSockets {
    epoll: OwnedFd,
    sockets: Mutex<Sockets>,
}

#[derive(Debug)]
struct Sockets {
    by_token: HashMap<u64, PeerFile>,
    next_token: u64,
}

/// Identifies one of a context's sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WakeToken(u64);

impl WakeSockets {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            sockets: Mutex::new(Sockets {
                by_token: HashMap::new(),
                next_token: 0,
            }),
        })
    }

    fn sockets(&self) -> MutexGuard<'_, Sockets> {
        // The map is changed in one step, so a panic under the lock leaves it consistent.
        self.sockets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes a pair for a peer and returns the peer's end.
    pub(crate) fn add(&self) -> io::Result<(WakeToken, OwnedFd)> {
        let flags = SocketFlags::CLOEXEC;
        let (own, peers) = socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        keep_from_children(&own)?;
        // On older kernels this has no effect: `drain` receives the files.
        set_takes_files(&own, false)?;
        // Without this, an urgent byte that is not read is dropped, with the files beside it.
        sockopt::set_socket_oobinline(&own, true)?;
        let mut sockets = self.sockets();
        let token = sockets.next_token;
        sockets.next_token += 1;
        let data = epoll::EventData::new_u64(token);
        epoll_add(&self.epoll, &own, data, epoll::EventFlags::IN)?;
        sockets.by_token.insert(token, PeerFile::from(own));
        Ok((WakeToken(token), peers))
    }

    /// Closes the socket of a peer.
    pub(crate) fn remove(&self, token: WakeToken) {
        self.remove_from(&mut self.sockets(), token.0);
    }

    fn remove_from(&self, sockets: &mut Sockets, token: u64) {
        if let Some(socket) = sockets.by_token.remove(&token) {
            // Closing the file would leave it in the epoll set while there is a copy of it: a child
            // of a fork has one.
            let deleted = epoll::delete(&self.epoll, &socket);
            debug_assert!(deleted.is_ok(), "{deleted:?}");
        }
    }

    /// Empties the sockets, so that the file is not readable until the next byte: up to
    /// `SOCKETS_PER_DRAIN` of them, and `DRAINED` bytes of each. What is left keeps the file
    /// readable. Closes the sockets that have come to their end.
    pub(crate) fn drain(&self) {
        let mut space = [MaybeUninit::uninit(); SOCKETS_PER_DRAIN];
        let at_once = Timespec::default();
        // This fails only if a signal interrupts it: then the next wait returns at once.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut space[..], Some(&at_once)) else {
            return;
        };
        if events.is_empty() {
            return;
        }
        let mut sockets = self.sockets();
        for event in events {
            let token = event.data.u64();
            let Some(socket) = sockets.by_token.get(&token) else {
                continue;
            };
            let mut bytes = [0; DRAINED];
            // Other errors say nothing about the peer: its bytes stay, and are tried again.
            if let Ok(0) | Err(Errno::CONNRESET) = receive_now(socket.as_fd(), &mut bytes) {
                self.remove_from(&mut sockets, token);
            }
        }
    }
}

impl AsFd for WakeSockets {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }
}

/// Handle that wakes the engine of a peer's process, by a message on the link to it. It has no effect
/// while there is no link.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineCaller(Arc<Mutex<Option<EngineCall>>>);

/// The link, and the message.
#[derive(Debug)]
struct EngineCall {
    link: Arc<PeerFile>,
    message: Vec<u8>,
}

impl EngineCaller {
    fn call_slot(&self) -> MutexGuard<'_, Option<EngineCall>> {
        // Assigned in one step, so a panic under the lock leaves it consistent.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Uses a new link from now on.
    pub(crate) fn set_link(&self, link: Arc<PeerFile>, message: Vec<u8>) {
        *self.call_slot() = Some(EngineCall { link, message });
    }

    /// Releases the link.
    pub(crate) fn clear(&self) {
        *self.call_slot() = None;
    }

    /// Returns true if the link's other side has ended, or if there is no link. A system call.
    pub(crate) fn has_ended(&self) -> bool {
        let call = self.call_slot();
        let Some(call) = &*call else { return true };
        let mut polled = [PollFd::new(&*call.link, PollFlags::RDHUP)];
        let ends = PollFlags::RDHUP | PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
            && polled[0].revents().intersects(ends)
    }

    /// Wakes the engine.
    pub(crate) fn call(&self) {
        if let Some(call) = &*self.call_slot() {
            // If the link is full, its messages wake the engine; the engine's next tick finds what
            // this call was for.
            let _ = send_now(call.link.as_fd(), &call.message);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::net::TcpStream;
    use std::time::{Duration, Instant};

    use rustix::fs::{MemfdFlags, OFlags, fcntl_setfl, fstat, memfd_create};
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, Shutdown, sendmsg, shutdown};

    use super::*;
    use crate::provider::soft::shared::peer_file::tests::lingering;

    fn is_readable(sockets: &WakeSockets) -> bool {
        let mut files = [PollFd::new(sockets, PollFlags::IN)];
        poll(&mut files, Some(&Timespec::default())).unwrap() == 1
    }

    fn pair(sockets: &WakeSockets) -> (WakeToken, WakeSender) {
        let (token, file) = sockets.add().unwrap();
        (token, WakeSender::from_peer(file).unwrap())
    }

    #[test]
    fn a_byte_of_any_peer_makes_the_file_readable_until_it_is_drained() {
        let sockets = WakeSockets::new().unwrap();
        let peers: Vec<_> = (0..40).map(|_| pair(&sockets).1).collect();
        assert!(!is_readable(&sockets), "adopting a file does not write it");
        for peer in &peers {
            peer.wake();
            peer.wake();
        }
        assert!(is_readable(&sockets));
        sockets.drain();
        assert!(is_readable(&sockets), "more sockets than one drain empties");
        sockets.drain();
        assert!(!is_readable(&sockets));
        sockets.drain();
    }

    /// A peer clears the flag of its file and fills it: nobody blocks, and the context is woken.
    #[test]
    fn a_full_or_blocking_socket_blocks_nobody() {
        let sockets = WakeSockets::new().unwrap();
        let (_, peer) = pair(&sockets);
        fcntl_setfl(&peer.0, OFlags::empty()).unwrap();
        let start = Instant::now();
        let mut sent = 0;
        while send_now(peer.0.as_fd(), &[0; 4096]).is_ok() {
            sent += 4096;
        }
        assert!(sent > DRAINED, "{sent} bytes fit");
        peer.wake();
        let mut drains = 0;
        while is_readable(&sockets) {
            sockets.drain();
            drains += 1;
        }
        assert!(drains >= sent / DRAINED);
        assert!(start.elapsed() < Duration::from_secs(60));
    }

    #[test]
    fn a_socket_at_its_end_does_not_stay_readable_and_the_others_work() {
        let sockets = WakeSockets::new().unwrap();
        let (_, shut) = pair(&sockets);
        let (_, closed) = sockets.add().unwrap();
        let (gone, removed) = pair(&sockets);
        let (_, good) = pair(&sockets);
        shutdown(&shut.0, Shutdown::Both).unwrap();
        drop(closed);
        sockets.remove(gone);
        sockets.drain();
        assert!(!is_readable(&sockets));
        assert_eq!(sockets.sockets().by_token.len(), 1);
        shut.wake();
        removed.wake();
        assert!(!is_readable(&sockets));
        good.wake();
        assert!(is_readable(&sockets));
    }

    /// The child of a fork has a copy of each socket, and so does this test.
    #[test]
    fn a_socket_at_its_end_is_not_watched_although_there_is_a_copy() {
        let sockets = WakeSockets::new().unwrap();
        let (token, peer) = sockets.add().unwrap();
        let copy = own_end(&sockets, token);
        drop(peer);
        assert!(is_readable(&sockets));
        sockets.drain();
        assert!(!is_readable(&sockets));
        let (token, peer) = sockets.add().unwrap();
        let another = own_end(&sockets, token);
        sockets.remove(token);
        drop(peer);
        assert!(!is_readable(&sockets));
        drop((copy, another));
    }

    fn own_end(sockets: &WakeSockets, token: WakeToken) -> OwnedFd {
        let own = &sockets.sockets().by_token[&token.0];
        own.as_fd().try_clone_to_owned().unwrap()
    }

    /// Sends a byte, and a file whose close blocks. Returns the other end of the file, if the kernel
    /// has sent it.
    fn send_lingering(socket: &OwnedFd, flags: SendFlags) -> rustix::io::Result<TcpStream> {
        let (file, other) = lingering(Duration::from_secs(1000));
        let files = [file.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        ancillary.push(SendAncillaryMessage::ScmRights(&files));
        let flags = flags | SendFlags::DONTWAIT;
        let sent = sendmsg(socket, &[IoSlice::new(&[1])], &mut ancillary, flags);
        match sent {
            // The last copy is on its way.
            Ok(_) => drop(file),
            Err(_) => drop(PeerFile::from(file)),
        }
        sent.map(|_| other)
    }

    fn kernel_refuses_files() -> bool {
        let flags = SocketFlags::CLOEXEC;
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        set_takes_files(&here, false).unwrap();
        send_lingering(&there, SendFlags::empty()).is_err()
    }

    /// Runs on another thread. Fails if that takes long: it is blocked.
    fn within_time(what: impl FnOnce() + Send + 'static) {
        let (done, is_done) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            what();
            let _ = done.send(());
        });
        is_done
            .recv_timeout(Duration::from_secs(20))
            .expect("it does not block");
    }

    #[test]
    fn a_peer_cannot_send_files_that_block_the_receiver() {
        for flags in [SendFlags::empty(), SendFlags::OOB] {
            for is_old_kernel in [false, true] {
                for is_read in [false, true] {
                    let sockets = WakeSockets::new().unwrap();
                    let (token, peer) = sockets.add().unwrap();
                    if is_old_kernel {
                        set_takes_files(own_end(&sockets, token), true).unwrap();
                    }
                    let sent = send_lingering(&peer, flags);
                    assert_eq!(sent.is_ok(), is_old_kernel || !kernel_refuses_files());
                    within_time(move || {
                        if is_read {
                            sockets.drain();
                            assert!(!is_readable(&sockets));
                        }
                        sockets.remove(token);
                    });
                    // The file is closed: its data ends.
                    if let Ok(mut other) = sent {
                        let limit = Some(Duration::from_secs(20));
                        other.set_read_timeout(limit).unwrap();
                        io::copy(&mut other, &mut io::sink()).expect("the end of the data");
                    }
                }
            }
        }
    }

    /// The peer has the other end, and so can put files into the socket that it sends.
    #[test]
    fn a_socket_of_a_peer_that_contains_files_does_not_block_its_holder() {
        let flags = SocketFlags::CLOEXEC;
        let (peer, sent) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        let _other = send_lingering(&peer, SendFlags::empty()).unwrap();
        within_time(|| drop(WakeSender::from_peer(sent).unwrap()));
        let (file, _other) = lingering(Duration::from_secs(1000));
        within_time(|| assert!(WakeSender::from_peer(file).is_err()));
    }

    #[test]
    fn what_is_no_stream_socket_is_refused_and_not_written() {
        let memory = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        let copy = memory.try_clone().unwrap();
        assert!(WakeSender::from_peer(memory).is_err());
        assert_eq!(fstat(&copy).unwrap().st_size, 0);
        let (reads, writes) = rustix::pipe::pipe().unwrap();
        drop(reads);
        assert!(WakeSender::from_peer(writes).is_err());
        for kind in [SocketType::DGRAM, SocketType::SEQPACKET] {
            let flags = SocketFlags::CLOEXEC;
            let (here, _there) = socketpair(AddressFamily::UNIX, kind, flags, None).unwrap();
            assert!(WakeSender::from_peer(here).is_err());
        }
        let tcp = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(WakeSender::from_peer(OwnedFd::from(tcp)).is_err());
    }
}
