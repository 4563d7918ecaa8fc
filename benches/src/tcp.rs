//! A ping-pong over TCP on loopback, with `std::net` alone: the latency that a user knows already.
//!
//! Both sides send without delay (`TCP_NODELAY`). They block in the kernel while they wait, as ordinary
//! socket programs do, or read again and again, as a poller does that never sleeps. No RPC runs on
//! top: there is no framing, encoding or dispatch.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Instant;

use clap::Args;

use crate::bandwidth::pattern::word_of_each_line;
use crate::child::{self, Process};
use crate::slices::{Side, Stopwatch, UNRECORDED};
use crate::{Outcome, cores};

/// The name of the hidden command that runs [`TcpArgs::serve`].
pub const SERVE: &str = "serve-tcp";

/// The server process of a TCP ping-pong.
#[derive(Clone, Debug, Args)]
pub struct TcpArgs {
    /// Core to pin to.
    #[arg(long)]
    pub core: usize,
    /// Bytes of a message.
    #[arg(long)]
    pub message_len: usize,
    /// Bytes of the answer to a message.
    #[arg(long)]
    pub answer_len: usize,
    /// Whether the server reads again and again instead of blocking.
    #[arg(long)]
    pub busy: bool,
}

impl TcpArgs {
    fn to_args(&self) -> Vec<String> {
        let mut args = vec![
            format!("--core={}", self.core),
            format!("--message-len={}", self.message_len),
            format!("--answer-len={}", self.answer_len),
        ];
        if self.busy {
            args.push("--busy".to_owned());
        }
        args
    }

    /// Runs the server process: answers each message with its first bytes, until the client closes the connection.
    ///
    /// # Errors
    ///
    /// If the socket cannot be set up, or the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        child::write_line_to_parent(&listener.local_addr()?.to_string())?;
        let (stream, _) = listener.accept()?;
        let mut stream = Stream::new(stream, self.busy)?;
        let mut message = vec![0; self.message_len];
        loop {
            stream.read(&mut message)?;
            std::hint::black_box(word_of_each_line(&message));
            stream.write(&message[..self.answer_len])?;
        }
    }
}

/// A socket, and how to wait for it.
struct Stream {
    socket: TcpStream,
    busy: bool,
}

impl Stream {
    fn new(socket: TcpStream, busy: bool) -> Outcome<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(busy)?;
        Ok(Self { socket, busy })
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Outcome<()> {
        if !self.busy {
            return Ok(self.socket.read_exact(bytes)?);
        }
        while !bytes.is_empty() {
            match self.socket.read(bytes) {
                Ok(0) => return Err("the peer closed the connection".into()),
                Ok(len) => bytes = &mut bytes[len..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Outcome<()> {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

/// The client side, with its server process.
pub struct TcpPingPong {
    // Before the server, so that the connection ends before its peer does.
    stream: Stream,
    message: Vec<u8>,
    answer: Vec<u8>,
    server: Process,
}

impl TcpPingPong {
    /// Starts the server process and connects. Leaves the server paused until the first turn. The
    /// calling thread should be pinned before.
    ///
    /// # Errors
    ///
    /// If either side cannot be set up.
    pub fn start(message_len: usize, server_core: usize) -> Outcome<Self> {
        Self::start_with(&TcpArgs {
            core: server_core,
            message_len,
            answer_len: message_len,
            busy: false,
        })
    }

    /// Does the same with another way to wait, or other answers. Both sides wait in the same way.
    ///
    /// # Errors
    ///
    /// If either side cannot be set up.
    pub fn start_with(remote: &TcpArgs) -> Outcome<Self> {
        let mut role = vec![SERVE.to_owned()];
        role.extend(remote.to_args());
        let mut server = Process::start(&role)?;
        let socket = TcpStream::connect(server.read_line()?)?;
        let mut this = Self {
            stream: Stream::new(socket, remote.busy)?,
            message: vec![1; remote.message_len],
            answer: vec![0; remote.answer_len],
            server,
        };
        this.exchange()?;
        this.server.pause()?;
        Ok(this)
    }

    fn exchange(&mut self) -> Outcome<()> {
        self.stream.write(&self.message)?;
        self.stream.read(&mut self.answer)
    }

    /// Sends messages one after the other without waiting for the answers, which are short, and
    /// returns the bytes per second until all are answered.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn rate(&mut self, messages: usize) -> Outcome<f64> {
        self.server.resume()?;
        self.exchange()?;
        let start = Instant::now();
        for _ in 0..messages {
            self.stream.write(&self.message)?;
        }
        for _ in 0..messages {
            self.stream.read(&mut self.answer)?;
        }
        let rate = (messages * self.message.len()) as f64 / start.elapsed().as_secs_f64();
        self.server.pause()?;
        Ok(rate)
    }
}

impl Side for TcpPingPong {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        self.server.resume()?;
        for _ in 0..UNRECORDED {
            self.exchange()?;
        }
        stopwatch.start();
        for _ in 0..calls {
            self.exchange()?;
            stopwatch.lap();
        }
        Ok(self.server.pause()?)
    }
}
