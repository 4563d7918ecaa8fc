//! A ping-pong over bare sockets on one host, with `std::net` alone: the latency that a user knows
//! already, over TCP on loopback or over a Unix socket.
//!
//! Both sides send without delay (`TCP_NODELAY`). They block in the kernel while they wait, as ordinary
//! socket programs do, or read again and again, as a poller does that never sleeps. No RPC runs on
//! top: there is no framing, encoding or dispatch. The receiver reads a word of each cache line.

use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::unrecorded_puts;
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::role::Role;
use crate::slices::{Side, Stopwatch, UNRECORDED};

/// What both sides of a ping-pong are told.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SocketArgs {
    /// Bytes of a message.
    pub message_len: usize,
    /// Bytes of the answer to a message.
    pub answer_len: usize,
    /// Whether both sides read again and again instead of blocking.
    pub busy: bool,
    /// The path of a Unix socket; without one, TCP over the loopback interface.
    pub path: Option<PathBuf>,
    /// The server's core, which the client chooses.
    pub core: usize,
}

impl SocketArgs {
    /// Runs the server process: answers each message with its first bytes, until the client closes the
    /// connection.
    ///
    /// # Errors
    ///
    /// If the socket cannot be set up, or the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let mut stream = match &self.path {
            Some(path) => {
                let listener = UnixListener::bind(path)?;
                child::write_line_to_parent("ready")?;
                Stream::unix(listener.accept()?.0, self.busy)?
            }
            None => {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
                child::write_line_to_parent(&listener.local_addr()?.to_string())?;
                Stream::tcp(listener.accept()?.0, self.busy)?
            }
        };
        let mut message = vec![0; self.message_len];
        loop {
            stream.read(&mut message)?;
            black_box(word_of_each_line(&message));
            stream.write(&message[..self.answer_len])?;
        }
    }
}

trait Socket: Read + Write {}

impl<S: Read + Write> Socket for S {}

/// A socket, which blocks or not.
struct Stream(Box<dyn Socket>);

impl Stream {
    fn tcp(socket: TcpStream, busy: bool) -> Outcome<Self> {
        socket.set_nodelay(true)?;
        socket.set_nonblocking(busy)?;
        Ok(Self(Box::new(socket)))
    }

    fn unix(socket: UnixStream, busy: bool) -> Outcome<Self> {
        socket.set_nonblocking(busy)?;
        Ok(Self(Box::new(socket)))
    }

    fn read(&mut self, mut bytes: &mut [u8]) -> Outcome<()> {
        while !bytes.is_empty() {
            match self.0.read(bytes) {
                Ok(0) => return Err("the peer closed the connection".into()),
                Ok(len) => bytes = &mut bytes[len..],
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }

    fn write(&mut self, mut bytes: &[u8]) -> Outcome<()> {
        while !bytes.is_empty() {
            match self.0.write(bytes) {
                Ok(len) => bytes = &bytes[len..],
                Err(error) => again(error)?,
            }
        }
        Ok(())
    }
}

/// Returns an error other than those after which a side tries again.
fn again(error: io::Error) -> io::Result<()> {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(()),
        _ => Err(error),
    }
}

/// The client side, with its server process.
pub struct SocketPingPong {
    // Before the server, so that the connection ends before its peer does.
    end: End,
    server: Process,
}

/// The client's end of the connection, and what goes over it.
struct End {
    stream: Stream,
    message: Vec<u8>,
    answer: Vec<u8>,
}

impl End {
    fn exchange(&mut self) -> Outcome<()> {
        self.stream.write(&self.message)?;
        self.stream.read(&mut self.answer)
    }
}

impl SocketPingPong {
    /// Starts the server process and connects. Both sides wait in the same way. Leaves the server
    /// paused until the first turn. The calling thread should be pinned before.
    ///
    /// # Errors
    ///
    /// If either side cannot be set up.
    pub fn start(cores: Cores, args: SocketArgs) -> Outcome<Self> {
        let args = SocketArgs {
            core: cores.server,
            ..args
        };
        let (server, address) = Process::start(&Role::Socket(args.clone()))?;
        let mut end = End {
            stream: match &args.path {
                Some(path) => Stream::unix(UnixStream::connect(path)?, args.busy)?,
                None => Stream::tcp(TcpStream::connect(address)?, args.busy)?,
            },
            message: payload(args.message_len).to_vec(),
            answer: vec![0; args.answer_len],
        };
        end.exchange()?;
        server.pause()?;
        Ok(Self { end, server })
    }

    /// Sends messages one after the other without waiting for the answers, which are short, and
    /// returns the bytes per second until all are answered.
    ///
    /// # Errors
    ///
    /// If the connection fails.
    pub fn rate(&mut self, messages: usize) -> Outcome<f64> {
        let Self { end, server } = self;
        server.in_turn(|| {
            end.exchange()?;
            let start = Instant::now();
            for _ in 0..messages {
                end.stream.write(&end.message)?;
            }
            for _ in 0..messages {
                end.stream.read(&mut end.answer)?;
            }
            let bytes = messages * end.message.len();
            Outcome::Ok(bytes as f64 / start.elapsed().as_secs_f64())
        })
    }
}

impl Side for SocketPingPong {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { end, server } = self;
        // Long messages need fewer to be warm.
        let unrecorded = match end.message.len() {
            len if len < 4096 => UNRECORDED,
            _ => unrecorded_puts(calls),
        };
        server.in_turn(|| stopwatch.time(unrecorded, calls, || end.exchange()))
    }
}
