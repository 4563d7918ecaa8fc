//! [`Gateway`] and its builder.

use std::io;
use std::time::Duration;

use tokio::net::{TcpListener, ToSocketAddrs};
use verbline::Channel;

use crate::limits::GatewayLimits;
use crate::security::Security;
use crate::server;
use crate::upstream::Upstream;

/// HTTP/2 gRPC in front of a Verbline server: see the [crate].
#[derive(Debug)]
pub struct Gateway;

impl Gateway {
    /// Starts a gateway to the server of this channel. All settings have defaults.
    pub fn builder(channel: Channel) -> GatewayBuilder {
        GatewayBuilder {
            channel,
            limits: GatewayLimits::default(),
            security: Security::default(),
        }
    }
}

/// The settings of a gateway: who its clients are, and what they may take.
#[derive(Debug)]
#[must_use = "a gateway serves while the future of `serve` is polled"]
pub struct GatewayBuilder {
    channel: Channel,
    limits: GatewayLimits,
    security: Security,
}

impl GatewayBuilder {
    /// Serves HTTP/2 over TLS 1.3, and refuses clients without TLS. Each connection takes the identity
    /// and the roots that the files have then. Default: plain text.
    ///
    /// What a client's certificate says goes to the server with each call, as
    /// [`Forwarded::certificate`](verbline::server::Forwarded::certificate).
    #[cfg(feature = "tls")]
    pub fn tls(mut self, tls: verbline::tls::ServerTls) -> Self {
        self.limits.has_tls = true;
        self.security = Security::Tls(tls);
        self
    }

    /// Sets how many connections may be open at a time. Further ones are closed at once. Default:
    /// 1024.
    pub fn max_connections(mut self, connections: usize) -> Self {
        self.limits.max_connections = connections;
        self
    }

    /// Sets how many calls may be open at a time, on all connections: a call ends when its last
    /// response has been written. Further ones fail with `RESOURCE_EXHAUSTED`, and say that they were
    /// never sent. Default: 8192.
    pub fn max_calls(mut self, calls: usize) -> Self {
        self.limits.max_calls = calls;
        self
    }

    /// Sets how many calls one connection may have open at a time. Further ones wait at the client.
    /// Default: 256.
    pub fn max_streams(mut self, streams: u32) -> Self {
        self.limits.max_streams = streams;
        self
    }

    /// Sets the length in bytes of the longest message of a request. The server's own limit, and
    /// the channel's, apply too. Default: 4 MiB, as in gRPC.
    pub fn max_message_len(mut self, len: usize) -> Self {
        self.limits.max_message_len = len;
        self
    }

    /// Sets how many bytes the long messages of requests may take, those from 16 KiB on. One
    /// connection may use a quarter of it, or one message; further messages wait. Long messages of
    /// responses are in the channel's memory ([`Intents::message_memory`](verbline::Intents)).
    /// Default: 256 MiB.
    pub fn message_memory(mut self, bytes: u64) -> Self {
        self.limits.message_memory = bytes;
        self
    }

    /// Sets how many bytes the headers of a request may have: its metadata, and 32 more for each
    /// header. Default: 16 KiB.
    pub fn max_header_len(mut self, bytes: u32) -> Self {
        self.limits.max_header_len = bytes;
        self
    }

    /// Sets how often a connection is probed with a ping of HTTP/2, and how long the answer may take
    /// before the connection is closed. Default: every 30 seconds, 20 seconds.
    pub fn keepalive(mut self, interval: Duration, timeout: Duration) -> Self {
        self.limits.keepalive_interval = interval;
        self.limits.keepalive_timeout = timeout;
        self
    }

    /// Sets the age, ± 10 %, at which a connection takes no further calls, and how long its calls may
    /// still go on. Its client connects again, and so finds gateways that are new behind the same
    /// name. Default: no limit.
    pub fn max_connection_age(mut self, age: Duration, grace: Duration) -> Self {
        self.limits.max_connection_age = Some(age);
        self.limits.connection_grace = grace;
        self
    }

    /// Sets how long a connection may take for its first bytes: the handshake of TLS, if there is one,
    /// and the preface of HTTP/2. Default: 5 seconds.
    pub fn preface_time(mut self, time: Duration) -> Self {
        self.limits.preface_time = time;
        self
    }

    /// Sets how long a message of a request may take from its first byte to its last, and a request with
    /// one message from the beginning of the call to the end. Default: a minute.
    pub fn message_time(mut self, time: Duration) -> Self {
        self.limits.message_time = time;
        self
    }

    /// Sets how long a client may read nothing of a long message of a response, one from 8 KiB on, before
    /// its call ends: the stream is reset, and the connection's other calls go on. If that does not help
    /// for half of this time, the connection is closed. Progress is 64 KiB, or the end of the message. A
    /// client that reads its socket slowly has to answer pings, too ([`keepalive`](Self::keepalive)).
    /// Default: a minute.
    pub fn stall_time(mut self, time: Duration) -> Self {
        self.limits.stall_time = time;
        self
    }

    /// Sets how long calls in flight may go on after the shutdown has begun. Default: 30 seconds.
    pub fn drain_time(mut self, time: Duration) -> Self {
        self.limits.drain_time = time;
        self
    }

    /// Returns the limits that follow from the settings.
    #[must_use]
    pub fn limits(&self) -> GatewayLimits {
        self.limits.clone().fitted()
    }

    /// Listens at an address, and serves until `shutdown` completes. Then it takes no further
    /// connections and calls, and waits for the calls in flight, for
    /// [`drain_time`](Self::drain_time) at most.
    ///
    /// The future runs on tokio, with its timers and its I/O. Dropping it ends all calls at once.
    ///
    /// # Errors
    ///
    /// Returns the error of the system if the address cannot be listened at. Later errors are those
    /// of single connections, and are logged.
    pub async fn serve(
        self,
        address: impl ToSocketAddrs,
        shutdown: impl Future<Output = ()>,
    ) -> io::Result<()> {
        let listener = TcpListener::bind(address).await?;
        self.serve_on(listener, shutdown).await;
        Ok(())
    }

    /// Serves as [`serve`](Self::serve) does, on a socket that listens already.
    pub async fn serve_on(self, listener: TcpListener, shutdown: impl Future<Output = ()>) {
        let limits = self.limits();
        let upstream = Upstream::new(self.channel, &limits);
        server::serve(upstream, limits, self.security, listener, shutdown).await;
    }
}
