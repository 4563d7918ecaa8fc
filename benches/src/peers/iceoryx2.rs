//! iceoryx2: zero-copy messages through shared memory, as a request and its response, and as two
//! publish-subscribe services, one for each direction. Both sides poll.
//!
//! It is no RPC: payloads are plain memory of a fixed layout, which is neither encoded nor checked.

use std::collections::VecDeque;
use std::hint;
use std::process;
use std::time::Instant;

use iceoryx2::node::{Node, NodeBuilder};
use iceoryx2::port::client::Client;
use iceoryx2::port::publisher::Publisher;
use iceoryx2::port::subscriber::Subscriber;
use iceoryx2::prelude::{LogLevel, ipc, set_log_level};
use iceoryx2::service::port_factory::{publish_subscribe, request_response};
use serde::{Deserialize, Serialize};

use crate::Outcome;
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::in_flight::Period;
use crate::rates::Rated;
use crate::role::Role;
use crate::slices::{Side, Stopwatch, UNRECORDED, histogram};

/// The same 64 bytes as the message of eight `fixed64`.
type Message = [u64; 8];

/// Requests that a client may have in flight.
const IN_FLIGHT: usize = 64;

/// The pattern of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pattern {
    /// A request and its response.
    RequestResponse,
    /// A publish-subscribe service in each direction.
    PublishSubscribe,
}

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IceoryxArgs {
    /// Core to pin to.
    pub core: usize,
    /// Pattern of messages.
    pub pattern: Pattern,
    /// Name that the services begin with.
    pub name: String,
}

type Requests = request_response::PortFactory<ipc::Service, Message, (), Message, ()>;
type Topic = publish_subscribe::PortFactory<ipc::Service, Message, ()>;

pub(super) fn node() -> Outcome<Node<ipc::Service>> {
    // Servers end by being killed, about which the next node would warn.
    set_log_level(LogLevel::Error);
    Ok(NodeBuilder::new().create::<ipc::Service>()?)
}

fn requests(node: &Node<ipc::Service>, name: &str) -> Outcome<Requests> {
    let builder = node.service_builder(&name.try_into()?);
    let service = builder.request_response::<Message, Message>();
    let service = service.max_active_requests_per_client(IN_FLIGHT);
    Ok(service.open_or_create()?)
}

fn topic(node: &Node<ipc::Service>, name: &str, direction: &str) -> Outcome<Topic> {
    let name = format!("{name}-{direction}");
    let builder = node.service_builder(&name.as_str().try_into()?);
    Ok(builder.publish_subscribe::<Message>().open_or_create()?)
}

impl IceoryxArgs {
    /// Runs the server process: answers each message with the same message, until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if a port cannot be created, or if a message cannot be sent.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let node = node()?;
        match self.pattern {
            Pattern::RequestResponse => {
                let server = requests(&node, &self.name)?.server_builder().create()?;
                child::write_line_to_parent("ready")?;
                loop {
                    match server.receive()? {
                        Some(request) => {
                            let response = request.loan_uninit()?;
                            response.write_payload(*request.payload()).send()?;
                        }
                        None => hint::spin_loop(),
                    }
                }
            }
            Pattern::PublishSubscribe => {
                let publisher = topic(&node, &self.name, "back")?
                    .publisher_builder()
                    .create()?;
                let subscriber = topic(&node, &self.name, "there")?
                    .subscriber_builder()
                    .create()?;
                child::write_line_to_parent("ready")?;
                loop {
                    match subscriber.receive()? {
                        Some(message) => {
                            let answer = publisher.loan_uninit()?;
                            answer.write_payload(*message.payload()).send()?;
                        }
                        None => hint::spin_loop(),
                    }
                }
            }
        }
    }
}

/// A client on this thread, with its own server process.
pub struct Iceoryx {
    // Declared first: the node of a server that was killed is removed when the client's node ends.
    server: Process,
    client: Caller,
    _node: Node<ipc::Service>,
}

struct Caller {
    ports: Ports,
    message: Message,
}

enum Ports {
    RequestResponse(Client<ipc::Service, Message, (), Message, ()>),
    PublishSubscribe(
        Publisher<ipc::Service, Message, ()>,
        Subscriber<ipc::Service, Message, ()>,
    ),
}

impl Iceoryx {
    /// Starts the server process, and pauses it until the first turn. Pin the calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(pattern: Pattern, cores: Cores) -> Outcome<Self> {
        let name = format!("verbline-{}-{pattern:?}", process::id());
        let (server, _ready) = Process::start(&Role::Iceoryx(IceoryxArgs {
            core: cores.server,
            pattern,
            name: name.clone(),
        }))?;
        let node = node()?;
        let ports = match pattern {
            Pattern::RequestResponse => {
                Ports::RequestResponse(requests(&node, &name)?.client_builder().create()?)
            }
            Pattern::PublishSubscribe => Ports::PublishSubscribe(
                topic(&node, &name, "there")?.publisher_builder().create()?,
                topic(&node, &name, "back")?.subscriber_builder().create()?,
            ),
        };
        let mut client = Caller {
            ports,
            message: [7; 8],
        };
        client.exchange()?;
        server.pause()?;
        Ok(Self {
            server,
            client,
            _node: node,
        })
    }
}

impl Caller {
    /// Sends a message and waits for the same message.
    #[inline]
    fn exchange(&mut self) -> Outcome<()> {
        // Each message is a different one.
        self.message[0] = self.message[0].wrapping_add(2);
        let message = self.message;
        let answer = match &self.ports {
            Ports::RequestResponse(client) => {
                let response = client.loan_uninit()?.write_payload(message).send()?;
                loop {
                    if let Some(answer) = response.receive()? {
                        break *answer.payload();
                    }
                    hint::spin_loop();
                }
            }
            Ports::PublishSubscribe(publisher, subscriber) => {
                publisher.loan_uninit()?.write_payload(message).send()?;
                loop {
                    if let Some(answer) = subscriber.receive()? {
                        break *answer.payload();
                    }
                    hint::spin_loop();
                }
            }
        };
        assert_eq!(answer, message, "the server must echo the message");
        Ok(())
    }
}

impl Side for Iceoryx {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let Self { client, server, .. } = self;
        server.in_turn(|| stopwatch.time(UNRECORDED, calls, || client.exchange()))
    }
}

/// Requests in flight from this thread.
pub struct IceoryxRate {
    side: Iceoryx,
    in_flight: usize,
}

impl IceoryxRate {
    /// Starts the server process, and pauses it until the first turn. Pin the calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(cores: Cores, in_flight: usize) -> Outcome<Self> {
        Ok(Self {
            side: Iceoryx::start(Pattern::RequestResponse, cores)?,
            in_flight: in_flight.min(IN_FLIGHT),
        })
    }
}

impl Rated for IceoryxRate {
    fn take_turn(&mut self) -> Outcome<f64> {
        let Ports::RequestResponse(client) = &self.side.client.ports else {
            return Err("internal error: rates are those of requests".into());
        };
        self.side.server.resume()?;
        let period = Period::turn();
        let mut counted = histogram();
        let mut waiting = VecDeque::with_capacity(self.in_flight);
        loop {
            while waiting.len() < self.in_flight {
                let request = client
                    .loan_uninit()?
                    .write_payload(self.side.client.message);
                waiting.push_back((Instant::now(), request.send()?));
            }
            // The server answers in order.
            let Some((began, response)) = waiting.pop_front() else {
                return Err("no request may be in flight".into());
            };
            let answer = loop {
                if let Some(answer) = response.receive()? {
                    break answer;
                }
                hint::spin_loop();
            };
            assert_eq!(
                *answer.payload(),
                self.side.client.message,
                "the server must echo"
            );
            if period.add(began, &mut counted) {
                break;
            }
        }
        drop(waiting);
        self.side.server.pause()?;
        Ok(period.rate(&counted))
    }
}
