//! iceoryx2: zero-copy messages through shared memory, as a request and its response, as two
//! publish-subscribe services, one for each direction, and as uploads: requests with a slice, into
//! whose loan the client copies the payload, and a number back. Both sides poll.
//!
//! It is no RPC: payloads are plain memory of a fixed layout, which is neither encoded nor checked.

use std::collections::VecDeque;
use std::hint;
use std::process;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use iceoryx2::node::{Node, NodeBuilder};
use iceoryx2::port::client::Client;
use iceoryx2::prelude::{LogLevel, ipc, set_log_level};
use iceoryx2::service::port_factory::{publish_subscribe, request_response};
use serde::{Deserialize, Serialize};
use verbline_load::histogram;

use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::unrecorded_puts;
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::role::Role;
use crate::slices::{Side, Stopwatch, UNRECORDED};

/// The same 64 bytes as the message of eight `fixed64`.
type Message = [u64; 8];

/// Requests that a client may have in flight.
const IN_FLIGHT: usize = 64;

/// What a server process answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Pattern {
    /// A request, with the same message.
    RequestResponse,
    /// A message of a publish-subscribe service, with the same one on another service.
    PublishSubscribe,
    /// An upload, with the sum of a word of each line.
    Put,
}

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IceoryxArgs {
    core: usize,
    pattern: Pattern,
    /// Name that the services begin with.
    name: String,
}

type Requests<Q, R> = request_response::PortFactory<ipc::Service, Q, (), R, ()>;
type Topic = publish_subscribe::PortFactory<ipc::Service, Message, ()>;

fn node() -> Outcome<Node<ipc::Service>> {
    // Servers end by being killed, about which the next node would warn.
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new().create::<ipc::Service>()?)
}

fn requests(node: &Node<ipc::Service>, name: &str) -> Outcome<Requests<Message, Message>> {
    let builder = node.service_builder(&name.try_into()?);
    let service = builder.request_response::<Message, Message>();
    let service = service.max_active_requests_per_client(IN_FLIGHT);
    Ok(service.open_or_create()?)
}

fn uploads(node: &Node<ipc::Service>, name: &str) -> Outcome<Requests<[u8], u64>> {
    let builder = node.service_builder(&name.try_into()?);
    Ok(builder.request_response::<[u8], u64>().open_or_create()?)
}

fn topic(node: &Node<ipc::Service>, name: &str, direction: &str) -> Outcome<Topic> {
    let name = format!("{name}-{direction}");
    let builder = node.service_builder(&name.as_str().try_into()?);
    Ok(builder.publish_subscribe::<Message>().open_or_create()?)
}

impl IceoryxArgs {
    /// Runs the server process: answers each message until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if a port cannot be created, or if a message cannot be sent.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let (node, name) = (node()?, self.name.as_str());
        match self.pattern {
            Pattern::RequestResponse => {
                let server = requests(&node, name)?;
                let server = server.server_builder().create()?;
                answer_all(|| {
                    let request = wait(|| Ok(server.receive()?))?;
                    let response = request.loan_uninit()?;
                    Ok(response.write_payload(*request.payload()).send()?)
                })
            }
            Pattern::PublishSubscribe => {
                let there = topic(&node, name, "there")?;
                let back = topic(&node, name, "back")?;
                let subscriber = there.subscriber_builder().create()?;
                let publisher = back.publisher_builder().create()?;
                answer_all(|| {
                    let message = wait(|| Ok(subscriber.receive()?))?;
                    let answer = publisher.loan_uninit()?;
                    answer.write_payload(*message.payload()).send()?;
                    Ok(())
                })
            }
            Pattern::Put => {
                let server = uploads(&node, name)?;
                let server = server.server_builder().create()?;
                answer_all(|| {
                    let request = wait(|| Ok(server.receive()?))?;
                    Ok(request.send_copy(word_of_each_line(request.payload()))?)
                })
            }
        }
    }
}

fn answer_all(mut answer: impl FnMut() -> Outcome<()>) -> Outcome<()> {
    child::write_line_to_parent("ready")?;
    loop {
        answer()?;
    }
}

/// Polls until a message arrives.
#[inline]
fn wait<M>(mut receive: impl FnMut() -> Outcome<Option<M>>) -> Outcome<M> {
    loop {
        if let Some(message) = receive()? {
            return Ok(message);
        }
        hint::spin_loop();
    }
}

/// A client on this thread, with its own server process.
struct Iceoryx<C> {
    // Declared first: the node of a server that was killed is removed when the client's node ends.
    server: Process,
    client: C,
    _node: Node<ipc::Service>,
}

/// The servers that this process has started.
static STARTED: AtomicUsize = AtomicUsize::new(0);

impl<C> Iceoryx<C> {
    /// Starts the server process, connects a client, and pauses the server until the first turn.
    fn start(
        pattern: Pattern,
        cores: Cores,
        connect: impl FnOnce(&Node<ipc::Service>, &str) -> Outcome<C>,
    ) -> Outcome<Self> {
        // A server of the same pattern may still be cleaned up.
        let started = STARTED.fetch_add(1, Ordering::Relaxed);
        let name = format!("verbline-{}-{pattern:?}-{started}", process::id());
        let (server, _ready) = Process::start(&Role::Iceoryx(IceoryxArgs {
            core: cores.server,
            pattern,
            name: name.clone(),
        }))?;
        let node = node()?;
        let client = connect(&node, &name)?;
        server.pause()?;
        Ok(Self {
            server,
            client,
            _node: node,
        })
    }
}

/// Starts a client that sends requests, with its server process, which is paused until the first turn.
/// Pin the calling thread first.
///
/// # Errors
///
/// Fails if either side cannot be set up.
pub fn request_response(cores: Cores) -> Outcome<impl Side> {
    Iceoryx::start(Pattern::RequestResponse, cores, |node, name| {
        let client = requests(node, name)?;
        let client = client.client_builder().create()?;
        let exchange = echoed(move |message| {
            let response = client.loan_uninit()?.write_payload(message).send()?;
            Ok(*wait(|| Ok(response.receive()?))?.payload())
        });
        Ok((exchange, |_| UNRECORDED))
    })
}

/// Starts a client with a publish-subscribe service in each direction, as [`request_response`] does.
///
/// # Errors
///
/// Fails if either side cannot be set up.
pub fn publish_subscribe(cores: Cores) -> Outcome<impl Side> {
    Iceoryx::start(Pattern::PublishSubscribe, cores, |node, name| {
        let (there, back) = (topic(node, name, "there")?, topic(node, name, "back")?);
        let publisher = there.publisher_builder().create()?;
        let subscriber = back.subscriber_builder().create()?;
        let exchange = echoed(move |message| {
            publisher.loan_uninit()?.write_payload(message).send()?;
            Ok(*wait(|| Ok(subscriber.receive()?))?.payload())
        });
        Ok((exchange, |_| UNRECORDED))
    })
}

/// Makes each exchange with a different message, and checks that the same one comes back.
fn echoed(mut exchange: impl FnMut(Message) -> Outcome<Message>) -> impl FnMut() -> Outcome<()> {
    let mut message: Message = [7; 8];
    move || {
        message[0] = message[0].wrapping_add(2);
        assert_eq!(exchange(message)?, message, "the server must echo");
        Ok(())
    }
}

/// Starts a client that uploads `size` bytes at a time, as [`request_response`] does.
///
/// # Errors
///
/// Fails if either side cannot be set up.
pub fn puts(cores: Cores, size: usize) -> Outcome<impl Side> {
    let payload = payload(size);
    Iceoryx::start(Pattern::Put, cores, |node, name| {
        let service = uploads(node, name)?;
        let client = service.client_builder();
        let client = client.initial_max_slice_len(size).create()?;
        let sum = word_of_each_line(&payload);
        let put = move || {
            let loan = client.loan_slice_uninit(payload.len())?;
            let pending = loan.write_from_slice(&payload).send()?;
            let answer = *wait(|| Ok(pending.receive()?))?.payload();
            assert_eq!(answer, sum, "the server must read what was sent");
            Ok(())
        };
        Ok((put, unrecorded_puts))
    })
}

/// An exchange, and how many of them a turn of some begins with that are not recorded.
impl<E: FnMut() -> Outcome<()>, U: Fn(usize) -> usize> Side for Iceoryx<(E, U)> {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let (exchange, unrecorded) = &mut self.client;
        self.server
            .in_turn(|| stopwatch.time(unrecorded(calls), calls, exchange))
    }
}

/// Starts a client with requests in flight from this thread, as [`request_response`] does.
///
/// # Errors
///
/// Fails if either side cannot be set up.
pub fn rate(cores: Cores, in_flight: usize) -> Outcome<impl Rated> {
    Iceoryx::start(Pattern::RequestResponse, cores, |node, name| {
        let client = requests(node, name)?.client_builder().create()?;
        let in_flight = in_flight.min(IN_FLIGHT);
        Ok(InFlight { client, in_flight })
    })
}

/// A client with requests in flight.
struct InFlight {
    client: Client<ipc::Service, Message, (), Message, ()>,
    in_flight: usize,
}

impl Rated for Iceoryx<InFlight> {
    fn take_turn(&mut self) -> Outcome<f64> {
        let InFlight { client, in_flight } = &self.client;
        let message = [7; 8];
        self.server.in_turn(|| {
            let period = Period::turn();
            let mut counted = histogram();
            let mut waiting = VecDeque::with_capacity(*in_flight);
            loop {
                while waiting.len() < *in_flight {
                    let request = client.loan_uninit()?.write_payload(message);
                    waiting.push_back((Instant::now(), request.send()?));
                }
                // The server answers in order.
                let Some((began, response)) = waiting.pop_front() else {
                    return Err("no request may be in flight".into());
                };
                let answer = wait(|| Ok(response.receive()?))?;
                assert_eq!(*answer.payload(), message, "the server must echo");
                if period.add(began, &mut counted) {
                    return Outcome::Ok(period.rate(&counted));
                }
            }
        })
    }
}
