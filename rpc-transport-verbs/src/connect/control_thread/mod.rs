//! The control thread: it handles every TCP socket of the process, off the data path.
//!
//! One thread waits in epoll for all listeners, all handshakes in flight and the liveness sockets
//! of all connections. Each socket is a [`Source`] with its own state, so a slow or hostile peer
//! delays no other one. The thread sends its results to the pollers'
//! [`Mailbox`](crate::transport::mailbox::Mailbox)es.
//!
//! ```text
//!  Listener --accept--> Arrival --Ready--> Line --end of file, silence--> Notice::Ended
//!                       |  ^  |
//!                 hello |  |  +--rejected--> sends the reason; closes at its end or the deadline
//!                       v  |
//!                      preparer: creates its queue pair, on another thread
//! ```

mod arrival;
mod preparer;

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender};
use rpc_core::transport::Admission;
use rustix::event::{Timespec, epoll};

use self::arrival::{Arrival, Next};
use self::preparer::{Job, Prepared};
use super::handshake::TIMEOUT;
use super::liveness::{Line, is_transient, prepare_line};
use super::server::Port;
use crate::event_fd::EventFd;
use crate::transport::mailbox::LineEnd;

/// Maximum number of handshakes in flight in the whole process. Each takes a socket and at most 64
/// KiB of buffer; a thousand clients that start together fit.
const MAX_HANDSHAKES: usize = 1024;

/// The reason sent to clients above the limit.
const TOO_MANY: &str = "the server has too many handshakes under way; try again";

/// Maximum number of accepts each time a listener is ready, so a flood of clients does not starve
/// the other sockets.
const ACCEPT_BATCH: usize = 64;

/// Pause of a listener when the process is out of file descriptors. Without a pause, the connection
/// that cannot be accepted would wake the thread again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

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
pub(crate) struct Door {
    /// One port for each poller.
    pub(crate) ports: Vec<Port>,
    /// The core's decision on which clients are admitted.
    pub(crate) admission: Arc<dyn Admission>,
}

enum Command {
    Listen(TcpListener, Arc<Door>, Sender<Token>),
    /// Acknowledged by dropping the sender once the socket is closed.
    StopListening(Token, #[allow(dead_code)] Sender<()>),
    Watch(Line),
    Prepared(Token, Prepared),
}

/// Identifies a source. Tokens are never reused, so an event in the same batch as the removal of
/// its source refers to nothing.
type Token = u64;

/// The token of the eventfd that signals commands.
const WAKEUP: Token = 0;

impl Control {
    fn start() -> io::Result<Self> {
        let wakeup = Arc::new(EventFd::new()?);
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
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
        let mut sockets = Sockets {
            epoll,
            wakeup,
            commands: receiver,
            preparers: preparer::start(&control)?,
            sources: HashMap::new(),
            last_token: WAKEUP,
            arrivals: 0,
            deadlines: BinaryHeap::new(),
        };
        thread::Builder::new()
            .name("verbline-control".to_owned())
            .spawn(move || sockets.run())?;
        Ok(control)
    }

    /// Handles handshakes on a bound socket until the returned value is dropped.
    pub(crate) fn listen(&self, listener: TcpListener, door: Door) -> io::Result<Listening> {
        let local_addr = listener.local_addr()?;
        listener.set_nonblocking(true)?;
        let (sender, receiver) = crossbeam_channel::bounded(1);
        self.command(Command::Listen(listener, Arc::new(door), sender))?;
        let token = receiver.recv().map_err(|_| thread_is_gone())?;
        Ok(Listening {
            local_addr,
            token,
            control: self.clone(),
        })
    }

    /// Watches a connection whose handshake was done elsewhere.
    pub(crate) fn watch(&self, line: Line) -> io::Result<()> {
        prepare_line(&line.stream)?;
        self.command(Command::Watch(line))
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

/// The state of the thread.
struct Sockets {
    epoll: OwnedFd,
    wakeup: Arc<EventFd>,
    commands: Receiver<Command>,
    preparers: Sender<Job>,
    sources: HashMap<Token, Source>,
    last_token: Token,
    /// Number of sources that are arrivals.
    arrivals: usize,
    /// When each source needs attention next. Entries of removed sources are skipped.
    deadlines: BinaryHeap<Reverse<(Instant, Token)>>,
}

enum Source {
    Listener(TcpListener, Arc<Door>),
    Arrival(Box<Arrival>),
    Line(Line),
}

impl Sockets {
    fn run(&mut self) {
        let mut events = Vec::with_capacity(64);
        loop {
            events.clear();
            let timeout = self.until_deadline();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // The arguments never change, so a retry would fail too.
                    tracing::error!(%error, "the control thread cannot wait for its sockets");
                    return;
                }
            }
            for event in &events {
                match event.data.u64() {
                    WAKEUP => self.obey(),
                    token => self.look_at(token, event.flags),
                }
            }
            self.pass_deadlines();
        }
    }

    fn until_deadline(&self) -> Option<Timespec> {
        let Reverse((deadline, _)) = self.deadlines.peek()?;
        // Add one millisecond: the kernel rounds down and would wake the thread too early.
        let wait = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    fn obey(&mut self) {
        // Drain the counter before taking the commands: a later command raises it again.
        self.wakeup.empty();
        while let Ok(command) = self.commands.try_recv() {
            match command {
                Command::Listen(listener, door, reply) => {
                    if let Ok(token) = self.add(Source::Listener(listener, door)) {
                        let _ = reply.send(token);
                    }
                }
                Command::StopListening(token, _closed) => self.stop_listening(token),
                Command::Watch(line) => self.watch(line, &[]),
                Command::Prepared(token, prepared) => self.prepared(token, prepared),
            }
        }
    }

    /// Adds a line. `read` holds bytes that were already read from its socket.
    fn watch(&mut self, mut line: Line, read: &[u8]) {
        line.begin();
        let interval = line.interval();
        let end = line.hear(read);
        match self.add(Source::Line(line)) {
            Ok(token) => {
                self.schedule_beat(token, interval);
                self.end_line(token, end);
            }
            Err(Source::Line(line)) => line.report(LineEnd::Gone),
            Err(_) => {}
        }
    }

    /// Schedules the end of a line's interval, if it has one.
    fn schedule_beat(&mut self, token: Token, interval: Option<Duration>) {
        if let Some(next) = interval.and_then(|interval| Instant::now().checked_add(interval)) {
            self.deadlines.push(Reverse((next, token)));
        }
    }

    /// Handles the end of a line's interval.
    fn beat(&mut self, token: Token) {
        if let Some(Source::Line(line)) = self.sources.get_mut(&token) {
            let (end, interval) = (line.beat(), line.interval());
            self.schedule_beat(token, interval);
            self.end_line(token, end);
        }
    }

    /// Removes a line and reports how it ended, if it has ended.
    fn end_line(&mut self, token: Token, end: Option<LineEnd>) {
        if let Some(end) = end
            && let Some(Source::Line(line)) = self.remove(token)
        {
            line.report(end);
        }
    }

    /// Registers a source. On rare kernel errors (out of memory, the limit on watches), logs a
    /// warning and returns the source; the caller proceeds without it.
    fn add(&mut self, source: Source) -> Result<Token, Source> {
        self.last_token += 1;
        let token = self.last_token;
        let data = epoll::EventData::new_u64(token);
        let flags = epoll::EventFlags::IN;
        let added = match &source {
            Source::Listener(listener, _) => epoll::add(&self.epoll, listener, data, flags),
            Source::Arrival(arrival) => epoll::add(&self.epoll, &arrival.stream, data, flags),
            Source::Line(line) => epoll::add(&self.epoll, &line.stream, data, flags),
        };
        if let Err(error) = added {
            tracing::warn!(%error, "a socket cannot be watched, and is closed");
            return Err(source);
        }
        self.sources.insert(token, source);
        Ok(token)
    }

    /// Removes a source. Its socket is closed when the returned value is dropped.
    fn remove(&mut self, token: Token) -> Option<Source> {
        let source = self.sources.remove(&token)?;
        // Delete explicitly, because a line's descriptor stays open while the poller has a
        // reference to it.
        let deleted = match &source {
            Source::Listener(listener, _) => epoll::delete(&self.epoll, listener),
            Source::Arrival(arrival) => {
                self.arrivals -= 1;
                epoll::delete(&self.epoll, &arrival.stream)
            }
            Source::Line(line) => epoll::delete(&self.epoll, &line.stream),
        };
        if let Err(error) = deleted {
            tracing::warn!(%error, "a socket cannot be taken out of the watch");
        }
        Some(source)
    }

    fn stop_listening(&mut self, listener: Token) {
        self.remove(listener);
        // Keep clients that were welcomed: their pollers know them, and they may have sent calls
        // already while their `Ready` has not reached this thread.
        let orphans: Vec<_> = self
            .sources
            .iter()
            .filter(|(_, source)| {
                matches!(source, Source::Arrival(a) if a.listener == listener && !a.is_welcomed())
            })
            .map(|(token, _)| *token)
            .collect();
        for token in orphans {
            self.end_arrival(token, "the server stops listening");
        }
    }

    fn look_at(&mut self, token: Token, flags: epoll::EventFlags) {
        match self.sources.get_mut(&token) {
            None => {}
            Some(Source::Listener(..)) => self.accept(token),
            Some(Source::Arrival(arrival)) => {
                let next = arrival.look_at(flags);
                self.follow(token, next);
            }
            Some(Source::Line(line)) => {
                let end = line.look();
                self.end_line(token, end);
            }
        }
    }

    fn prepared(&mut self, token: Token, prepared: Prepared) {
        match self.sources.get_mut(&token) {
            Some(Source::Arrival(arrival)) => {
                let next = arrival.prepared(prepared);
                self.follow(token, next);
            }
            // The arrival was removed in the meantime.
            _ => prepared.forget(),
        }
    }

    fn follow(&mut self, token: Token, next: Next) {
        match next {
            Next::Close => {
                self.remove(token);
            }
            Next::Line(line, read) => {
                self.remove(token);
                // Report `Ready` before anything can end the line. The poller may have ended since
                // the welcome: then the socket is closed here, which tells the client.
                if line.report_ready() {
                    self.watch(line, &read);
                }
            }
            Next::Prepare(port, offer, admitted) => {
                if let Some(Source::Arrival(arrival)) = self.sources.get(&token) {
                    let job = Job {
                        token,
                        port,
                        offer,
                        admitted,
                        stream: Arc::clone(&arrival.stream),
                    };
                    if self.preparers.try_send(job).is_err() {
                        self.end_arrival(token, TOO_MANY);
                    }
                }
            }
            Next::Stay => {
                if let Some(Source::Arrival(arrival)) = self.sources.get(&token) {
                    let mut flags = epoll::EventFlags::IN;
                    if arrival.is_writing() {
                        flags |= epoll::EventFlags::OUT;
                    }
                    let data = epoll::EventData::new_u64(token);
                    if epoll::modify(&self.epoll, &arrival.stream, data, flags).is_err() {
                        self.end_arrival(token, "the server cannot watch the socket");
                    }
                }
            }
        }
    }

    fn accept(&mut self, token: Token) {
        for _ in 0..ACCEPT_BATCH {
            let Some(Source::Listener(listener, door)) = self.sources.get(&token) else {
                return;
            };
            let (stream, peer) = match listener.accept() {
                Ok(accepted) => accepted,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                // The client disconnected while it was in the backlog.
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted
                    ) =>
                {
                    continue;
                }
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a client; trying again soon");
                    let data = epoll::EventData::new_u64(token);
                    let none = epoll::EventFlags::empty();
                    if epoll::modify(&self.epoll, listener, data, none).is_ok() {
                        let resume = Instant::now() + ACCEPT_PAUSE;
                        self.deadlines.push(Reverse((resume, token)));
                    }
                    return;
                }
            };
            if let Err(error) = prepare_line(&stream) {
                tracing::debug!(%peer, %error, "a client's socket has ended already");
                continue;
            }
            let mut arrival = Box::new(Arrival::new(stream, peer, token, Arc::clone(door)));
            if self.arrivals >= MAX_HANDSHAKES {
                arrival.refuse(TOO_MANY);
                continue;
            }
            if let Ok(token) = self.add(Source::Arrival(arrival)) {
                self.arrivals += 1;
                let deadline = Instant::now() + TIMEOUT;
                self.deadlines.push(Reverse((deadline, token)));
            }
        }
    }

    fn pass_deadlines(&mut self) {
        let now = Instant::now();
        while let Some(&Reverse((deadline, token))) = self.deadlines.peek() {
            if deadline > now {
                break;
            }
            self.deadlines.pop();
            match self.sources.get(&token) {
                Some(Source::Listener(listener, _)) => {
                    let data = epoll::EventData::new_u64(token);
                    let _ = epoll::modify(&self.epoll, listener, data, epoll::EventFlags::IN);
                }
                Some(Source::Arrival(_)) => {
                    self.end_arrival(token, "the handshake took longer than 5 s");
                }
                Some(Source::Line(_)) => self.beat(token),
                None => {}
            }
        }
    }

    /// Ends a client's handshake now. Sends it the reason if the socket accepts it.
    fn end_arrival(&mut self, token: Token, reason: &str) {
        if let Some(Source::Arrival(mut arrival)) = self.remove(token)
            && !arrival.is_leaving()
        {
            arrival.refuse(reason);
        }
    }
}
