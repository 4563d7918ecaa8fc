//! The gateway's listener: accepts connections, and lets them end in order.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::connection::{self, Shared};
use crate::limits::GatewayLimits;
use crate::security::Security;
use crate::upstream::Upstream;

/// The pause after an error of `accept` that is not one connection's, such as too many open files.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until `shutdown` completes, then lets the calls in flight finish.
pub(crate) async fn serve(
    upstream: Upstream,
    limits: GatewayLimits,
    security: Security,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) {
    let (stop, stopped) = watch::channel(());
    let shared = Shared {
        upstream: Arc::new(upstream),
        limits,
        security,
        stopped,
    };
    let limits = &shared.limits;
    // Dropping this future drops them, and so their calls.
    let mut connections = JoinSet::new();
    let mut shutdown = pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            () = &mut shutdown => break,
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        match accepted {
            Ok((_, address)) if connections.len() >= limits.max_connections => {
                tracing::debug!(%address, "refused a connection: as many as allowed are open");
            }
            Ok(accepted) => {
                connections.spawn(connection::serve(accepted, shared.clone()));
            }
            Err(error) => {
                tracing::debug!(%error, "cannot accept a connection");
                if !is_of_one_connection(&error) {
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    // There are receivers: at least the one here.
    let _ = stop.send(());
    let drained = timeout(limits.drain_time, async {
        while connections.join_next().await.is_some() {}
    });
    if drained.await.is_err() {
        let count = connections.len();
        tracing::warn!("closing {count} connections whose calls have not ended in time");
        connections.shutdown().await;
    }
}

fn is_of_one_connection(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::ConnectionAborted | Kind::ConnectionReset | Kind::Interrupted
    )
}
