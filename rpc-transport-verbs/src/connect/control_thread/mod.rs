//! The control thread: it handles every TCP socket of the process, off the data path.
//!
//! One thread waits in epoll for all listeners, all handshakes in flight and the liveness sockets
//! of all connections. Each socket is a [`Source`](sockets::Source) with its own state, so a slow
//! or hostile peer delays no other one. The thread sends its results to the pollers'
//! [`NoticeSender`](crate::transport::notices::NoticeSender)s.
//!
//! ```text
//!  Listener --accept--> IncomingClient --Ready--> LivenessConnection
//!                       |  ^  |                    |
//!          hello, claim |  |  |                    +--end of file, silence--> Notice::Ended
//!                       v  |  |
//!                  preparer:  +--rejected--> sends the reason; closes at its end or the deadline
//!                  creates its queue pair, on another thread
//! ```
//!
//! If the first byte is one of TLS, the handshake of TLS comes first. Each step of it is made by another
//! thread (`securer.rs`).
//!
//! Strangers can connect. The number of handshakes in flight is limited, in all and for each host
//! (`handshakes.rs`), and hosts share the connections that unfinished handshakes hold
//! (`places.rs`). When a server has no connection left, its pollers end some that nobody uses
//! (`making_room.rs`). Each stage in which a handshake waits for its client has a deadline, in time in
//! which this thread runs.

mod connections;
mod handshakes;
mod incoming_client;
mod making_room;
mod places;
mod preparer;
mod securer;
mod sockets;
#[cfg(test)]
mod tests;
mod waiting;
mod workers;

use std::collections::{BinaryHeap, HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;
use rpc_core::transport::{Admission, RoomMade};
use rustix::event::epoll;
use rustix::process::{Resource, getrlimit};
use verbline_verbs::for_transport::{
    EventFd, epoll_add, is_forked, keep_from_children, start_thread,
};

use self::handshakes::{Handshakes, limits_for_files};
use self::places::Places;
use self::preparer::{PREPARERS, Prepared};
use self::securer::SecuringStep;
use self::sockets::Sockets;
use self::workers::Workers;
use super::liveness::{LivenessConnection, configure_socket};
use super::server::Port;
use crate::transport::security::ServerSecurity;

/// Returns the control thread of this process, which starts at first use.
pub(crate) fn control() -> io::Result<Control> {
    static CONTROL: Mutex<Option<Control>> = Mutex::new(None);
    // A poisoned lock means that starting the thread panicked, which left nothing half done.
    let mut control = CONTROL.lock().unwrap_or_else(PoisonError::into_inner);
    match &*control {
        Some(control) => Ok(control.clone()),
        None => {
            let started = Control::start()?;
            *control = Some(started.clone());
            Ok(started)
        }
    }
}

/// A handle to the control thread.
#[derive(Clone, Debug)]
pub(crate) struct Control {
    commands: Sender<Command>,
    wakeup: Arc<EventFd>,
}

/// The configuration of a listener: which clients are admitted, and where they go.
pub(crate) struct ListenerConfig {
    /// One port for each poller.
    pub(crate) ports: Vec<Port>,
    /// The core's decision on which clients are admitted.
    pub(crate) admission: Arc<dyn Admission>,
    /// Secures the connections of clients that begin so.
    pub(crate) security: Option<Arc<dyn ServerSecurity>>,
    /// Clients whose connections are not secured are taken, too.
    pub(crate) takes_plain: bool,
}

enum Command {
    Listen(TcpListener, Arc<ListenerConfig>, Sender<io::Result<Token>>),
    /// Acknowledged by dropping the sender once the socket is closed.
    StopListening(Token, #[allow(dead_code)] Sender<()>),
    Watch(LivenessConnection),
    Prepared(Token, Prepared),
    Secured(Token, Box<SecuringStep>),
    /// A claim of the GID that a client offers has come: true if it is from the process of that
    /// GID, for the queue pair that the client offers.
    Claimed(Token, bool),
    /// The answer of a poller of this listener that was asked for connections.
    RoomMade(Token, usize, RoomMade),
}

/// Identifies a source. Tokens are never reused, so an event in the same batch as the removal of
/// its source refers to nothing.
type Token = u64;

/// The token of the eventfd that signals commands.
const WAKEUP: Token = 0;

impl Control {
    fn start() -> io::Result<Self> {
        let (control, mut sockets) = Self::new()?;
        start_thread("verbline-control", move || sockets.run())?;
        Ok(control)
    }

    fn new() -> io::Result<(Self, Sockets)> {
        let wakeup = Arc::new(EventFd::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll_add(
            &epoll,
            &*wakeup,
            epoll::EventData::new_u64(WAKEUP),
            epoll::EventFlags::IN,
        )?;
        let (sender, receiver) = crossbeam_channel::unbounded();
        let control = Self {
            commands: sender,
            wakeup: Arc::clone(&wakeup),
        };
        let sockets = Sockets {
            epoll,
            wakeup,
            control: control.clone(),
            commands: receiver,
            preparers: Workers::start(&control, "verbline-prepare", PREPARERS)?,
            securers: None,
            sources: HashMap::new(),
            last_token: WAKEUP,
            handshakes: Handshakes::new(limits_for_files(getrlimit(Resource::Nofile).current)),
            places: Places::default(),
            waiting: VecDeque::new(),
            returning: HashMap::new(),
            asked: HashMap::new(),
            awaited_links: HashMap::new(),
            deadlines: BinaryHeap::new(),
            failed_waits: 0,
        };
        Ok((control, sockets))
    }

    /// Handles handshakes on a listening socket until the returned value is dropped.
    pub(crate) fn listen(
        &self,
        listener: TcpListener,
        local_addr: SocketAddr,
        config: ListenerConfig,
    ) -> io::Result<Listening> {
        keep_from_children(&listener)?;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.command(Command::Listen(listener, Arc::new(config), sender))?;
        let token = receiver.recv().map_err(|_| thread_is_gone())??;
        Ok(Listening {
            local_addr,
            token,
            control: self.clone(),
        })
    }

    /// Watches a connection whose handshake was done elsewhere.
    pub(crate) fn watch(&self, liveness: LivenessConnection) -> io::Result<()> {
        configure_socket(liveness.stream.socket())?;
        self.command(Command::Watch(liveness))
    }

    fn command(&self, command: Command) -> io::Result<()> {
        self.commands.send(command).map_err(|_| thread_is_gone())?;
        self.wakeup.write();
        Ok(())
    }
}

fn thread_is_gone() -> io::Error {
    io::Error::other("the control thread has ended")
}

/// A listening socket, which is closed on drop.
#[derive(Debug)]
pub(crate) struct Listening {
    local_addr: SocketAddr,
    token: Token,
    control: Control,
}

impl rpc_core::transport::Listener for Listening {
    fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        // In the child of a fork, nobody answers, and the socket is the parent's.
        if is_forked() {
            return;
        }
        let (done, closed) = crossbeam_channel::bounded(1);
        if self
            .control
            .command(Command::StopListening(self.token, done))
            .is_ok()
        {
            // Wait until the socket is closed, so its address is free when this returns. With a
            // time limit, so this returns even if the thread has failed.
            let _ = closed.recv_timeout(Duration::from_secs(2));
        }
    }
}
