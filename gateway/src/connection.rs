//! One connection of HTTP/2, from its handshake and its preface to its end.

use std::convert::Infallible;
use std::future::ready;
use std::hash::{BuildHasher, RandomState};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustix::net::sockopt::set_tcp_user_timeout;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use verbline::server::Forwarded;

use crate::call::answer;
use crate::client::{Client, MOST_EARLY_RESETS};
use crate::limits::{CONNECTION_WINDOW, GatewayLimits, SEND_BUFFER_LEN, STREAM_WINDOW};
use crate::preface::{self, NotHttp2, Opened};
use crate::security::Security;
#[cfg(feature = "tls")]
use crate::security::accept;
use crate::stalls::CallTasks;
use crate::upstream::Upstream;

/// What all connections of a gateway share.
#[derive(Clone)]
pub(crate) struct Shared {
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) limits: GatewayLimits,
    pub(crate) security: Security,
    pub(crate) stopped: watch::Receiver<()>,
}

/// How long a connection that is not open yet may still take when the gateway begins to end.
const LAST_PREFACE_TIME: Duration = Duration::from_millis(500);

/// Serves one connection, until it ends or has to.
pub(crate) async fn serve((stream, address): (TcpStream, SocketAddr), shared: Shared) {
    // Each fails only if the connection has failed.
    let _ = stream.set_nodelay(true);
    let _ = set_tcp_user_timeout(&stream, unread_millis(&shared.limits));
    // A client of a socket for IPv4 and IPv6 is called by its own address.
    let address = SocketAddr::new(address.ip().to_canonical(), address.port());
    let client = Forwarded::new(address);
    let served = match &shared.security {
        Security::Plain => open_and_serve(ready(Ok((stream, client))), &shared).await,
        #[cfg(feature = "tls")]
        Security::Tls(tls) => {
            // Most of it is the handshake's, which most connections have long behind them.
            open_and_serve(Box::pin(accept(stream, tls, client)), &shared).await
        }
    };
    if let Err(error) = served {
        tracing::debug!(%address, %error, "a connection did not become one of HTTP/2");
    }
}

/// Waits until a connection is open, within the time that it has for that, and serves it.
async fn open_and_serve<S>(
    opening: impl Future<Output = Result<(S, Forwarded), NotHttp2>>,
    shared: &Shared,
) -> Result<(), NotHttp2>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let unread = Arc::default();
    let counted = Arc::clone(&unread);
    let opening = async move {
        let (stream, client) = opening.await?;
        Ok((preface::open(stream, &counted).await?, client))
    };
    let mut opening = pin!(timeout(shared.limits.preface_time, opening));
    let mut stopped = shared.stopped.clone();
    let opened = tokio::select! {
        opened = opening.as_mut() => opened,
        // A client that is about to be open is told of the end. A silent one does not hold it up.
        _ = stopped.changed() => timeout(LAST_PREFACE_TIME, opening).await.and_then(|opened| opened),
    };
    let (opened, client) = opened.unwrap_or(Err(NotHttp2::Slow))?;
    let client = Client::new(client, unread, shared.upstream.memory());
    serve_opened(opened, &client, shared).await;
    Ok(())
}

async fn serve_opened<S>(opened: Opened<S>, client: &Arc<Client>, shared: &Shared)
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let Shared {
        upstream,
        limits,
        mut stopped,
        ..
    } = shared.clone();
    let service = service_fn({
        let client = Arc::clone(client);
        move |request| {
            let (upstream, client) = (Arc::clone(&upstream), Arc::clone(&client));
            async move { Ok::<_, Infallible>(answer(&upstream, &client, request).await) }
        }
    });
    let io = TokioIo::new(opened);
    let mut connection = pin!(http2_builder(&limits).serve_connection(io, service));
    let mut looks = interval(limits.look_interval());
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let age = limits.max_connection_age.map(jittered);
    let mut ends_at = age.and_then(|age| Instant::now().checked_add(age));
    let mut is_ending = false;
    let why = loop {
        tokio::select! {
            biased;
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection has failed");
                }
                return;
            }
            _ = stopped.changed(), if !is_ending => {
                is_ending = true;
                ends_at = None;
                connection.as_mut().graceful_shutdown();
            }
            () = client.attacks() => break "its client resets its calls",
            _ = looks.tick() => {
                if client.stalls().end(limits.stall_time) {
                    break "its client does not take its responses";
                }
                if ends_at.is_some_and(|at| at <= Instant::now()) {
                    if is_ending {
                        break "its calls have not ended in time";
                    }
                    is_ending = true;
                    ends_at = Instant::now().checked_add(limits.connection_grace);
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    };
    // Dropping the connection ends its calls.
    tracing::debug!("closed a connection: {why}");
}

/// For how long the system may fail to send anything to the client: as long as an answer to a ping may
/// take. Pings wait behind the responses, and hyper sends its last words before it closes a connection: a
/// client that reads nothing would keep it for ever.
fn unread_millis(limits: &GatewayLimits) -> u32 {
    let time = limits
        .keepalive_interval
        .saturating_add(limits.keepalive_timeout);
    // The system takes no more.
    time.as_millis().min(i32::MAX as u128) as u32
}

fn http2_builder(limits: &GatewayLimits) -> http2::Builder<CallTasks> {
    let mut builder = http2::Builder::new(CallTasks);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(SEND_BUFFER_LEN)
        // Those that are reset before h2 has handed them over. The rule about resets is `client.rs`'s.
        .max_pending_accept_reset_streams(MOST_EARLY_RESETS as usize)
        .max_concurrent_streams(limits.max_streams)
        .max_header_list_size(limits.max_header_len)
        .keep_alive_interval(limits.keepalive_interval)
        .keep_alive_timeout(limits.keepalive_timeout);
    builder
}

/// Returns the age ± 10 %, so that connections that were made together do not end together.
fn jittered(age: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 2001;
    let seconds = age.as_secs_f64() * (0.9 + random as f64 / 10_000.0);
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_differ_by_a_tenth_at_most() {
        let second = Duration::from_secs(1);
        for _ in 0..1000 {
            let age = jittered(second);
            assert!(
                age >= second.mul_f64(0.899) && age <= second.mul_f64(1.101),
                "{age:?}"
            );
            assert!(jittered(Duration::MAX) > Duration::MAX / 2);
        }
    }
}
