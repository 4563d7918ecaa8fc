//! [`Service`]: the method that is loaded, and the messages that it is sent.

use std::cell::Cell;

use prost_reflect::MessageDescriptor;
use verbline::Metadata;
use verbline::client::{MethodKind, MethodSpec};
use verbline::message::bytes::Bytes;
use verbline_load::sweep::Over;

use super::arguments::Bench;
use super::caller::{Calls, Unit};
use super::plan::{Load, Plan};
use super::random::{NoSuchLength, Random};
use crate::call::{kind_name, look_up};
use crate::failure::Failure;
use crate::input::Input;
use crate::schema::Schema;
use crate::target::Target;

/// Bytes of all random messages together, of which there are at least one and at most a thousand.
const RANDOM_BYTES: usize = 16 << 20;
const RANDOM_MESSAGES: usize = 1000;

/// The method, and where its requests come from.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) spec: &'static MethodSpec,
    /// The device over which the server was asked for its types, if it is a Verbline server.
    pub(crate) device: Option<String>,
    requests: Requests,
    metadata: Metadata,
}

#[derive(Debug)]
enum Requests {
    Given(Vec<Bytes>),
    Random(MessageDescriptor),
}

impl Service {
    /// Connects, and learns the types.
    pub(crate) async fn look_up(arguments: &Bench) -> Result<Self, Failure> {
        // What is wrong with files is told without a server.
        let files = match arguments.protos.files.is_empty() {
            true => None,
            false => Some(Schema::of_files(&arguments.protos)?),
        };
        let target = Target::connect(arguments.connection.clone()).await?;
        let schema = files.unwrap_or_else(|| Schema::of_server(&target));
        let (spec, method) = look_up(&arguments.method, &target, &schema).await?;
        if arguments.messages.is_some() && !spec.kind.client_streams() {
            return Err(Failure::OneRequest {
                path: spec.path,
                kind: kind_name(spec.kind),
            });
        }
        if arguments.each_message && !spec.kind.server_streams() {
            return Err(Failure::NoMessages {
                path: spec.path,
                kind: kind_name(spec.kind),
            });
        }
        if arguments.each_message && arguments.rate.is_some() && spec.kind != MethodKind::Streaming
        {
            return Err(Failure::NoRateOfResponses { path: spec.path });
        }
        let requests = match arguments.random {
            Some(_) => Requests::Random(method.input()),
            None => {
                let mut input = Input::open(arguments.data.clone(), method.input())?;
                let mut given = Vec::new();
                while let Some(message) = input.next(&schema).await? {
                    given.push(message);
                }
                if given.is_empty() {
                    if input.was_given() {
                        let path = spec.path.to_owned();
                        return Err(Failure::NoRequest { path });
                    }
                    given.push(Bytes::new());
                }
                Requests::Given(given)
            }
        };
        Ok(Self {
            spec,
            device: target.device(),
            requests,
            metadata: target.metadata().clone(),
        })
    }

    /// Says what is sent.
    pub(crate) fn describe(&self, arguments: &Bench, plan: &Plan, load: &Load) -> String {
        let mut text = match &self.requests {
            Requests::Random(of) => {
                let len = match (load.message_bytes, plan.over) {
                    (None, _) => "of any length".to_owned(),
                    (Some(_), Over::MessageBytes) => "of each length".to_owned(),
                    (Some(len), _) => format!("of {len} bytes"),
                };
                format!("random {} {len}, seed {}", of.name(), load.seed)
            }
            Requests::Given(given) => {
                let total: usize = given.iter().map(Bytes::len).sum();
                match given.len() {
                    1 => format!("one of {total} bytes"),
                    count => format!("{count} in turn, {} bytes on average", total / count),
                }
            }
        };
        if arguments.each_message {
            text.push_str("; each message counts");
        } else if self.spec.kind.client_streams() {
            text.push_str(&format!("; {} in each call", of_each_call(arguments)));
        }
        text
    }

    /// Makes the requests of a load.
    pub(crate) fn calls(&self, arguments: &Bench, load: &Load) -> Result<Calls, Failure> {
        let messages = match &self.requests {
            Requests::Given(messages) => messages.clone(),
            Requests::Random(of) => random(of, load)?,
        };
        Ok(Calls {
            spec: self.spec,
            messages,
            next: Cell::new(0),
            metadata: self.metadata.clone(),
            timeout: arguments.connection.timeout,
            unit: match arguments.each_message {
                true => Unit::Message,
                false => Unit::Call {
                    requests: of_each_call(arguments),
                },
            },
        })
    }
}

/// The requests of each call that has a stream of them.
fn of_each_call(arguments: &Bench) -> u32 {
    arguments.messages.unwrap_or(1)
}

fn random(of: &MessageDescriptor, load: &Load) -> Result<Vec<Bytes>, Failure> {
    let mut random = Random::new(of, load.seed);
    let Some(len) = load.message_bytes.map(|bytes| bytes as usize) else {
        return Ok((0..RANDOM_MESSAGES).map(|_| random.message()).collect());
    };
    let count = (RANDOM_BYTES / len.max(1)).clamp(1, RANDOM_MESSAGES);
    let messages = (0..count).map(|_| random.message_of(len));
    let messages: Result<_, NoSuchLength> = messages.collect();
    messages.map_err(|NoSuchLength { nearest }| Failure::OtherLength {
        message: of.full_name().to_owned(),
        wanted: len,
        nearest,
    })
}
