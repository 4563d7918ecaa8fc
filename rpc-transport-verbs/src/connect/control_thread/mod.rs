//! The control thread: every TCP socket of the process, off the data path.
//!
//! One thread waits in epoll for all listeners, all handshakes that are under way and all
//! connections' liveness channels; each socket is a [`Source`] with its own state, so that a slow or
//! hostile peer holds up nobody. What the thread learns goes to pollers through their
//! [`Mailbox`](crate::transport::mailbox::Mailbox)es.
//!
//! ```text
//!  Listener --accept--> Arrival --Ready--> Line --end of file, silence--> Notice::Ended
//!                       |  ^  |
//!                 hello |  |  +--refused--> told why; closed at its end, or at the deadline
//!                       v  |
//!                      preparer: makes its queue pair, on another thread
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

/// Handshakes that may be under way at a time, in the whole process. Each costs a socket and at
/// most 64 KiB of bytes; a thousand clients that start together fit.
const MAX_HANDSHAKES: usize = 1024;

/// What those are told who come on top.
const TOO_MANY: &str = "the server has too many handshakes under way; try again";

/// Accepts for one readiness of a listener, so that a flood of clients leaves room for the others.
const ACCEPT_BATCH: usize = 64;

/// How long a listener rests when the process is out of file descriptors: without a pause, the
/// connection that cannot be accepted would wake the thread again at once.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The control thread of this process, started at first use.
pub(crate) fn control() -> io::Result<Control> {
    static CONTROL: Mutex<Option<Control>> = Mutex::new(None);
    // A poisoned lock means that starting panicked, and left nothing half done.
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

/// Who is let in by a listener, and where they go.
pub(crate) struct Door {
    /// One for each poller.
    pub(crate) ports: Vec<Port>,
    /// The core's word on who may come.
    pub(crate) admission: Arc<dyn Admission>,
}

enum Command {
    Listen(TcpListener, Arc<Door>, Sender<Token>),
    /// Answered by dropping the sender once the socket is closed.
    StopListening(Token, #[allow(dead_code)] Sender<()>),
    Watch(Line),
    Prepared(Token, Prepared),
}

/// Names a source; never used twice, so that an event in the same batch as its source's end names
/// nothing.
type Token = u64;

/// Of the eventfd that says that there are commands.
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

    /// Takes handshakes at a bound socket until the returned value is dropped.
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

    /// Watches a connection whose handshake has been carried out elsewhere.
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

/// A listening socket; dropping it closes it.
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
            // Until the socket is closed, so that its address is free when this returns. Bounded,
            // so that this ends whatever has become of the thread.
            let _ = closed.recv_timeout(Duration::from_secs(2));
        }
    }
}

/// All that the thread owns.
struct Sockets {
    epoll: OwnedFd,
    wakeup: Arc<EventFd>,
    commands: Receiver<Command>,
    preparers: Sender<Job>,
    sources: HashMap<Token, Source>,
    last_token: Token,
    /// Sources that are arrivals.
    arrivals: usize,
    /// When to look at a source again. Entries of sources that have ended are skipped.
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
                    // Nothing that is passed can be wrong at one time and right at another.
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
        // One millisecond more, as the kernel rounds down and would wake the thread too early.
        let wait = deadline.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        Timespec::try_from(wait).ok()
    }

    fn obey(&mut self) {
        // Read before the commands are taken: one that comes later raises it again.
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

    /// Takes a line in, of which these bytes were read already.
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

    /// Lets a line's interval begin, if it has one.
    fn schedule_beat(&mut self, token: Token, interval: Option<Duration>) {
        if let Some(next) = interval.and_then(|interval| Instant::now().checked_add(interval)) {
            self.deadlines.push(Reverse((next, token)));
        }
    }

    /// A line's interval has ended.
    fn beat(&mut self, token: Token) {
        if let Some(Source::Line(line)) = self.sources.get_mut(&token) {
            let (end, interval) = (line.beat(), line.interval());
            self.schedule_beat(token, interval);
            self.end_line(token, end);
        }
    }

    /// Ends a line, if it has ended.
    fn end_line(&mut self, token: Token, end: Option<LineEnd>) {
        if let Some(end) = end
            && let Some(Source::Line(line)) = self.remove(token)
        {
            line.report(end);
        }
    }

    /// Registers a source. Edge cases of the kernel (no memory, the limit of watches) are logged
    /// and give the source back: the caller does without it.
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

    /// Takes a source out, so that its socket closes when the returned value is dropped.
    fn remove(&mut self, token: Token) -> Option<Source> {
        let source = self.sources.remove(&token)?;
        // Explicit, since a line's descriptor lives on while the poller holds it.
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
        // A client that was welcomed is let in: its poller knows of it, and it may have sent calls
        // already, while its `Ready` is still on its way to this thread.
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
            // It has gone away meanwhile.
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
                // Before anything that ends it again. Its poller may have ended since it was welcomed:
                // then its socket closes here, and the client knows.
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
                // The client has gone again while it was in the queue.
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

    /// Ends a client's way in now, with a last word if the socket takes it.
    fn end_arrival(&mut self, token: Token, reason: &str) {
        if let Some(Source::Arrival(mut arrival)) = self.remove(token)
            && !arrival.is_leaving()
        {
            arrival.refuse(reason);
        }
    }
}
