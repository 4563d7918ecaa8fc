//! Clients that should not notice an attack.

use std::thread;
use std::time::{Duration, Instant};

use proto::bench::{BenchClient, Fixed};
use rpc_core::{CallError, LocalChannel, LocalPoller, Request};
use verbline_load::{add_time, histogram};

use crate::devices::ClientDevice;
use benches::{Outcome, child};

/// Latency above which a call counts as slow.
pub(crate) const SLOW: Duration = Duration::from_millis(10);

/// Deadline of a call.
const DEADLINE: Duration = Duration::from_secs(3);

/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(1);

/// Pause between two further connections of the good client.
const PAUSE_BETWEEN_CONNECTIONS: Duration = Duration::from_millis(50);

/// What a good client saw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    /// Calls that were answered.
    pub(crate) calls: u64,
    /// Calls that failed.
    pub(crate) errors: u64,
    /// Calls that took longer than [`SLOW`].
    pub(crate) slow: u64,
    /// Median latency.
    pub(crate) p50: Duration,
    /// The latency of all but one in a hundred.
    pub(crate) p99: Duration,
    /// Largest latency.
    pub(crate) max: Duration,
}

impl Seen {
    fn to_line(self) -> String {
        let Self {
            calls,
            errors,
            slow,
            p50,
            p99,
            max,
        } = self;
        let [p50, p99, max] = [p50, p99, max].map(|time| time.as_nanos());
        format!("{calls} {errors} {slow} {p50} {p99} {max}")
    }

    /// Parses the line that a good client prints at its end.
    ///
    /// # Errors
    ///
    /// Fails if it is another line.
    pub(crate) fn from_line(line: &str) -> Outcome<Self> {
        let numbers: Result<Vec<u64>, _> = line.split(' ').map(str::parse).collect();
        match numbers.as_deref() {
            Ok(&[calls, errors, slow, p50, p99, max]) => Ok(Self {
                calls,
                errors,
                slow,
                p50: Duration::from_nanos(p50),
                p99: Duration::from_nanos(p99),
                max: Duration::from_nanos(max),
            }),
            _ => Err(format!("the good client printed: {line}").into()),
        }
    }
}

/// Runs the good client: connects, prints a line, makes a call each millisecond for `time`, and
/// prints what it saw. If `reconnects`, another thread opens and closes further connections
/// meanwhile, and nobody minds if they fail.
///
/// # Errors
///
/// Fails if it cannot connect.
pub(crate) fn good_client(
    device: &ClientDevice,
    address: &str,
    time: Duration,
    reconnects: bool,
) -> Outcome<()> {
    child::end_with_parent()?;
    let poller = LocalPoller::new(&device.open()?)?;
    let client = BenchClient::new(poller.connect(address)?);
    call(&poller, &client)?;
    child::write_line_to_parent("connected")?;
    let end = Instant::now() + time;
    if reconnects {
        let (device, address) = (device.clone(), address.to_owned());
        thread::spawn(move || {
            while Instant::now() < end {
                let _ = connect_and_call(&device, &address);
                thread::sleep(PAUSE_BETWEEN_CONNECTIONS);
            }
        });
    }
    let mut latencies = histogram();
    let (mut errors, mut slow) = (0, 0);
    while Instant::now() < end {
        let began = Instant::now();
        let outcome = call(&poller, &client);
        let latency = began.elapsed();
        match outcome {
            Ok(()) => add_time(&mut latencies, latency),
            Err(_) => errors += 1,
        }
        slow += u64::from(latency > SLOW);
        thread::sleep(PAUSE);
    }
    let seen = Seen {
        calls: latencies.len(),
        errors,
        slow,
        p50: Duration::from_nanos(latencies.value_at_quantile(0.5)),
        p99: Duration::from_nanos(latencies.value_at_quantile(0.99)),
        max: Duration::from_nanos(latencies.max()),
    };
    child::write_line_to_parent(&seen.to_line())?;
    Ok(())
}

/// Runs a new client: connects, makes a call, and prints a sentence.
///
/// # Errors
///
/// Fails if the parent has ended.
pub(crate) fn new_client(device: &ClientDevice, address: &str) -> Outcome<()> {
    child::end_with_parent()?;
    let answer = match connect_and_call(device, address) {
        Ok(()) => SERVED.to_owned(),
        Err(error) => error.to_string().replace('\n', " "),
    };
    Ok(child::write_line_to_parent(&answer)?)
}

/// The line of a new client that got an answer.
pub(crate) const SERVED: &str = "served";

fn connect_and_call(device: &ClientDevice, address: &str) -> Outcome<()> {
    let poller = LocalPoller::new(&device.open()?)?;
    let client = BenchClient::new(poller.connect(address)?);
    Ok(call(&poller, &client)?)
}

fn call(poller: &LocalPoller, client: &BenchClient<LocalChannel>) -> Result<(), CallError> {
    let request = Request::new(Fixed::default()).with_timeout(DEADLINE);
    poller.block_on(client.echo_fixed(request)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_seen_is_parsed_again() {
        let seen = Seen {
            calls: 9,
            errors: 1,
            slow: 2,
            p50: Duration::from_micros(40),
            p99: Duration::from_micros(90),
            max: Duration::from_millis(12),
        };
        assert_eq!(
            Seen::from_line(&seen.to_line()).expect("its own line"),
            seen
        );
        assert!(Seen::from_line("served").is_err());
    }
}
