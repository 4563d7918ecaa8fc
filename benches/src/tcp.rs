//! A ping-pong over TCP on loopback, with `std::net` alone: the latency that a user knows already.
//!
//! Both sides block in the kernel while they wait, as ordinary socket programs do, and send without
//! delay (`TCP_NODELAY`). No RPC runs on top: there is no framing, encoding or dispatch.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use clap::Args;

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
}

impl TcpArgs {
    fn to_args(&self) -> Vec<String> {
        vec![
            format!("--core={}", self.core),
            format!("--message-len={}", self.message_len),
        ]
    }

    /// Runs the server process: returns each message, until the client closes the connection.
    ///
    /// # Errors
    ///
    /// If the socket cannot be set up, or the connection fails.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        child::write_line_to_parent(&listener.local_addr()?.to_string())?;
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut message = vec![0; self.message_len];
        loop {
            stream.read_exact(&mut message)?;
            stream.write_all(&message)?;
        }
    }
}

/// The client side, with its server process.
pub struct TcpPingPong {
    // Before the server, so that the connection ends before its peer does.
    stream: TcpStream,
    message: Vec<u8>,
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
        let remote = TcpArgs {
            core: server_core,
            message_len,
        };
        let mut role = vec![SERVE.to_owned()];
        role.extend(remote.to_args());
        let mut server = Process::start(&role)?;
        let stream = TcpStream::connect(server.read_line()?)?;
        stream.set_nodelay(true)?;
        let mut this = Self {
            stream,
            message: vec![0; message_len],
            server,
        };
        this.exchange()?;
        this.server.pause()?;
        Ok(this)
    }

    fn exchange(&mut self) -> Outcome<()> {
        self.stream.write_all(&self.message)?;
        self.stream.read_exact(&mut self.message)?;
        Ok(())
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
