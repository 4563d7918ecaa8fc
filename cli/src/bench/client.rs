//! [`Client`]: the connections of a load, and the loops over them.

use std::future::Future;

use tokio::runtime::Handle;
use verbline::client::Caller;
use verbline::{Channel, Intents, LocalChannel, LocalPoller, Pollers};
use verbline_gateway::AnyChannel;
use verbline_load::{ClosedLoop, OpenLoop, Period, Record};

use super::arguments::Bench;
use super::caller::{Calls, NotAnswered, OneCaller};
use super::interrupt::Interrupt;
use super::plan::Load;
use super::{PATIENCE, SLICES};
use crate::failure::Failure;
use crate::target::{self, device, is_grpc};

/// The connections.
#[derive(Debug)]
pub(crate) enum Client {
    /// A poller on this thread.
    Local(LocalPoller, Vec<LocalChannel>),
    /// Pollers on threads of their own, or connections of HTTP/2.
    Shared(Vec<AnyChannel>),
}

impl Client {
    /// Connects. An interrupt ends it: many connections take their time.
    pub(crate) fn connect(
        arguments: &Bench,
        load: &Load,
        interrupt: &Interrupt,
        runtime: &Handle,
    ) -> Result<Self, Failure> {
        let connection = &arguments.connection;
        let address = &connection.address;
        let times = 0..load.connections;
        if is_grpc(address) {
            let connect = |_| {
                interrupt.check()?;
                let channel = runtime.block_on(target::connect_grpc(connection))?;
                Ok(AnyChannel::Grpc(channel))
            };
            return Ok(Self::Shared(
                times.map(connect).collect::<Result<_, Failure>>()?,
            ));
        }
        let device = device(connection)?;
        let intents = intents(arguments, load);
        let in_flight = intents.max_in_flight;
        if arguments.shared {
            let pollers = Pollers::builder(&device).intents(intents).start()?;
            let connect = |_| {
                interrupt.check()?;
                let builder = Channel::builder(&pollers, address).max_in_flight(in_flight);
                let builder = match connection.timeout {
                    Some(timeout) => builder.connect_timeout(timeout),
                    None => builder,
                };
                Ok(AnyChannel::Verbline(runtime.block_on(builder.connect())?))
            };
            return Ok(Self::Shared(
                times.map(connect).collect::<Result<_, Failure>>()?,
            ));
        }
        let builder = LocalPoller::builder(&device).intents(intents);
        let builder = match connection.timeout {
            Some(timeout) => builder.connect_timeout(timeout),
            None => builder,
        };
        let poller = builder.build()?;
        let connect = |_| {
            interrupt.check()?;
            Ok(poller.connect(address)?)
        };
        let channels = times.map(connect).collect::<Result<_, Failure>>()?;
        Ok(Self::Local(poller, channels))
    }

    /// Makes a first call. If it fails, so would the others, and its error is worth more than their number.
    pub(crate) fn try_first(
        &self,
        calls: &Calls,
        interrupt: &Interrupt,
        runtime: &Handle,
    ) -> Result<(), Failure> {
        match self {
            Self::Local(poller, channels) => poller.block_on(first(&channels[0], calls, interrupt)),
            Self::Shared(channels) => runtime.block_on(first(&channels[0], calls, interrupt)),
        }
    }

    /// Makes the calls of a load, on this thread.
    pub(crate) fn run(
        &self,
        calls: &Calls,
        load: &Load,
        arguments: &Bench,
        until: impl Future,
        runtime: &Handle,
    ) -> Record {
        match self {
            Self::Local(poller, channels) => {
                poller.block_on(run(channels, calls, load, arguments, until))
            }
            Self::Shared(channels) => {
                runtime.block_on(run(channels, calls, load, arguments, until))
            }
        }
    }
}

async fn first<C: Caller>(
    channel: &C,
    calls: &Calls,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let mut caller = OneCaller::new(channel, calls);
    tokio::select! {
        answered = caller.call() => answered.map_err(|why| match why {
            NotAnswered::Failed(error) => error.into(),
            NotAnswered::StreamEnded => Failure::NoMessage { path: calls.spec.path },
        }),
        () = interrupt.wait() => Err(Failure::Interrupted),
        () = tokio::time::sleep(PATIENCE) => Err(Failure::FirstCallWaits { waited: PATIENCE }),
    }
}

async fn run<C: Caller>(
    channels: &[C],
    calls: &Calls,
    load: &Load,
    arguments: &Bench,
    until: impl Future,
) -> Record {
    let callers = (0..load.in_flight as usize).map(|index| {
        let mut caller = OneCaller::new(&channels[index % channels.len()], calls);
        async move || caller.call().await
    });
    let period = Period {
        warm_up: arguments.warm_up,
        time: arguments.seconds,
        slices: SLICES,
    };
    match load.rate {
        Some(rate) => {
            let plan = OpenLoop::at(rate).arrivals(arguments.arrivals);
            let plan = plan.seed(load.seed).period(period).until(until);
            plan.run(callers).await
        }
        None => {
            let plan = ClosedLoop::new().period(period).until(until);
            plan.run(callers).await
        }
    }
}

/// The intents of most programs, which do not change them, besides what the load needs.
fn intents(arguments: &Bench, load: &Load) -> Intents {
    let mut intents = Intents {
        max_message_len: arguments.connection.max_message_len,
        connections: load.connections,
        ..Intents::default()
    };
    let of_each_connection = load.in_flight.div_ceil(load.connections);
    intents.max_in_flight = intents.max_in_flight.max(of_each_connection);
    intents.max_streams = intents.max_streams.max(of_each_connection);
    if let Some(waiting) = arguments.waiting {
        intents.waiting = waiting.into();
    }
    intents
}
