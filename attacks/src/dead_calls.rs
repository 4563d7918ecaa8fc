//! Calls whose deadline passes while the server's poller is blocked. No handler should run for
//! them, and a handler should run for a call that is sent just before the poller comes back.

use std::cell::Cell;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use proto::bench::{BenchClient, Fixed};
use rpc_core::{CallError, LocalChannel, LocalPoller, Request, Response};
use rpc_transport_verbs::Device;
use verbline_load::TaskSet;

use crate::attack::Target;
use benches::Outcome;
use benches::spin::Work;

/// Number of calls whose deadline passes.
pub(crate) const CALLS: usize = 8;

/// Phase of those calls.
pub(crate) const PHASE: usize = 1;

/// Time for which the poller is blocked.
const BLOCKED: Duration = Duration::from_secs(3);

/// Deadline of the calls.
const DEADLINE: Duration = Duration::from_millis(100);

/// Time before the end of the block at which the last call is sent.
const BEFORE_THE_END: Duration = Duration::from_millis(40);

/// Blocks the server's poller, and makes the calls.
///
/// # Errors
///
/// Fails if the server cannot be reached.
pub(crate) fn run(target: &Target) -> Outcome<String> {
    let (poller, client) = connect(target)?;
    let (blocks, blocked) = mpsc::channel();
    let its_target = target.clone();
    let blocker = thread::spawn(move || {
        let (poller, client) = connect(&its_target)?;
        // The receiver waits.
        let _ = blocks.send(Instant::now());
        let outcome = poller.block_on(call(&client, 0, BLOCKED));
        outcome.map(drop).map_err(|error| error.to_string())
    });
    let end = blocked.recv()? + BLOCKED;
    thread::sleep(Duration::from_millis(100));
    let (start, expired) = (Instant::now(), Cell::new(0));
    poller.block_on(TaskSet::new((0..CALLS).map(|_| async {
        if call(&client, PHASE, Duration::ZERO).await.is_err() {
            expired.set(expired.get() + 1);
        }
    })));
    let after = start.elapsed();
    thread::sleep((end - BEFORE_THE_END).saturating_duration_since(Instant::now()));
    let last = poller.block_on(call(&client, 0, Duration::ZERO));
    match blocker.join() {
        Ok(outcome) => outcome?,
        Err(_) => return Err("the blocking client panicked".into()),
    }
    Ok(format!(
        "{} of {CALLS} calls expired at the client after {} ms; a call just before the end: {}",
        expired.get(),
        after.as_millis(),
        last.map_or_else(|error| error.to_string(), |_| "served".to_owned())
    ))
}

/// Connects and makes a first call.
fn connect(target: &Target) -> Result<(LocalPoller, BenchClient<LocalChannel>), String> {
    let device = Device::open(&target.device).map_err(|error| error.to_string())?;
    let poller = LocalPoller::new(&device).map_err(|error| error.to_string())?;
    let channel = poller
        .connect(&target.address)
        .map_err(|error| error.to_string())?;
    let client = BenchClient::new(channel);
    let first = poller.block_on(call(&client, 0, Duration::ZERO));
    first.map_err(|error| error.to_string())?;
    Ok((poller, client))
}

/// Makes a call whose handler spins. Calls whose handlers do not spin have the deadline.
async fn call(
    client: &BenchClient<LocalChannel>,
    phase: usize,
    spin: Duration,
) -> Result<Response<Fixed>, CallError> {
    let work = Work { phase, spin };
    let request = Request::new(work.to_message());
    let request = match spin {
        Duration::ZERO => request.with_timeout(DEADLINE),
        _ => request,
    };
    client.echo_fixed(request).await
}
