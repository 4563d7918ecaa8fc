//! Uploads through iceoryx2: a request with a slice, into whose loan the client copies the payload,
//! and a number back. Both sides poll.

use std::{hint, process};

use iceoryx2::node::Node;
use iceoryx2::port::client::Client;
use iceoryx2::prelude::ipc;
use iceoryx2::service::port_factory::request_response::PortFactory;
use serde::{Deserialize, Serialize};

use super::iceoryx2::node;
use crate::Outcome;
use crate::bandwidth::pattern::{payload, word_of_each_line};
use crate::bandwidth::puts::{puts_in_a_turn, unrecorded_puts};
use crate::child::{self, Process};
use crate::cores::{self, Cores};
use crate::role::Role;
use crate::slices::{Side, Stopwatch};

/// What a server process is told.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct IceoryxPutArgs {
    /// Core to pin to.
    pub core: usize,
    /// Name of the service.
    pub name: String,
}

fn service(
    node: &Node<ipc::Service>,
    name: &str,
) -> Outcome<PortFactory<ipc::Service, [u8], (), u64, ()>> {
    let builder = node.service_builder(&name.try_into()?);
    Ok(builder.request_response::<[u8], u64>().open_or_create()?)
}

impl IceoryxPutArgs {
    /// Runs the server process: takes puts until it is killed.
    ///
    /// # Errors
    ///
    /// Fails if the port cannot be created, or if a response cannot be sent.
    pub fn serve(&self) -> Outcome<()> {
        child::end_with_parent()?;
        cores::pin_current_thread(self.core)?;
        let node = node()?;
        let server = service(&node, &self.name)?.server_builder().create()?;
        child::write_line_to_parent("ready")?;
        loop {
            match server.receive()? {
                Some(request) => {
                    let sum = word_of_each_line(request.payload());
                    request.send_copy(sum)?;
                }
                None => hint::spin_loop(),
            }
        }
    }
}

/// Puts payloads of one size, one at a time.
pub struct IceoryxPuts {
    // Declared first: the node of a server that was killed is removed when the client's node ends.
    server: Process,
    client: Client<ipc::Service, [u8], (), u64, ()>,
    payload: Vec<u8>,
    sum: u64,
    _node: Node<ipc::Service>,
}

impl IceoryxPuts {
    /// Starts the server process, and pauses it until the first turn. Pin the calling thread first.
    ///
    /// # Errors
    ///
    /// Fails if either side cannot be set up.
    pub fn start(cores: Cores, size: usize) -> Outcome<Self> {
        let name = format!("verbline-{}-puts-{size}", process::id());
        let (server, _ready) = Process::start(&Role::IceoryxPuts(IceoryxPutArgs {
            core: cores.server,
            name: name.clone(),
        }))?;
        let node = node()?;
        let client = service(&node, &name)?
            .client_builder()
            .initial_max_slice_len(size)
            .create()?;
        let payload = payload(size).to_vec();
        let this = Self {
            server,
            client,
            sum: word_of_each_line(&payload),
            payload,
            _node: node,
        };
        this.put()?;
        this.server.pause()?;
        Ok(this)
    }

    fn put(&self) -> Outcome<()> {
        let loan = self.client.loan_slice_uninit(self.payload.len())?;
        let pending = loan.write_from_slice(&self.payload).send()?;
        loop {
            if let Some(answer) = pending.receive()? {
                assert_eq!(
                    *answer.payload(),
                    self.sum,
                    "the server must read what was sent"
                );
                return Ok(());
            }
            hint::spin_loop();
        }
    }
}

impl Side for IceoryxPuts {
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let puts = puts_in_a_turn(self.payload.len()).min(calls);
        self.server
            .in_turn(|| stopwatch.time(unrecorded_puts(puts), puts, || self.put()))
    }
}
