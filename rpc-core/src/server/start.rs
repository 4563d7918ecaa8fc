//! Starts the pollers' threads.

use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;

use crossbeam_channel::bounded;

use super::admission::ServerAdmission;
use super::builder::ServerBuilder;
use super::thread::{Opened, PollerSetup, Stopping};
use super::watchdog::Watchdog;
use super::{Running, Server, ServerError};
use crate::limits::Limits;
use crate::poller::idle;
use crate::stats::{Observer, ServerCounts};
use crate::transport::Fabric;

impl<F: Fabric> ServerBuilder<F> {
    /// Starts the pollers' threads and listens at `host:port`. With port 0 the system chooses the
    /// port.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if any part cannot be started. Nothing is left running.
    pub fn bind(self, address: &str) -> Result<Server, ServerError> {
        // Count the cores before any thread is pinned.
        idle::cores();
        for (index, service) in self.services.iter().enumerate() {
            if self.services[..index]
                .iter()
                .any(|other| other.name() == service.name())
            {
                return Err(ServerError::DuplicateService {
                    name: service.name(),
                });
            }
        }
        let stopping = Arc::<Stopping>::default();
        let (start, started) = bounded(self.pollers);
        let mut running = Running {
            // Replaced below by the listener's address.
            local_addr: SocketAddr::from(([0, 0, 0, 0], 0)),
            limits: Limits::default(),
            start: Some(start),
            stopping,
            bells: Vec::new(),
            listener: None,
            watchdog: None,
            observer: None,
            threads: Vec::new(),
        };
        let cores = self.cores_of_pollers();
        let (ready, readied) = bounded(self.pollers);
        for index in 0..self.pollers {
            let setup = PollerSetup {
                index,
                core: (!cores.is_empty()).then(|| cores[index % cores.len()]),
                fabric: self.fabric.clone(),
                services: self.services.clone(),
                intents: self.intents.clone(),
                max_concurrent_calls: self.max_concurrent_calls,
                ready: ready.clone(),
                started: started.clone(),
                stopping: Arc::clone(&running.stopping),
            };
            let name = format!("verbline-poller-{index}");
            running
                .threads
                .push(thread::Builder::new().name(name).spawn(|| setup.run())?);
        }
        drop(ready);

        let mut ports: Vec<Option<F::Port>> = (0..self.pollers).map(|_| None).collect();
        let mut methods = Vec::new();
        let mut at_work = Vec::new();
        let mut tallies = Vec::new();
        for opened in readied.iter().take(self.pollers) {
            let opened: Opened<F::Port> = opened?;
            ports[opened.index] = Some(opened.port);
            running.limits = opened.limits;
            running.bells.push(opened.bell);
            at_work.push(opened.at_work);
            tallies.push((opened.index, opened.tally));
            methods = opened.methods;
        }
        let ports: Vec<F::Port> = ports.into_iter().flatten().collect();
        if ports.len() < self.pollers {
            // A thread ended without a report: it panicked.
            running.stop();
            running.join()?;
        }
        let watchdog = Watchdog::start(at_work, &methods)?;
        let mut admission = ServerAdmission::new(&running.limits, methods, self.pollers);
        admission.limit_connections(self.max_connections);
        tallies.sort_by_key(|(index, _)| *index);
        running.observer = Some(Observer::of_server(
            tallies.into_iter().map(|(_, tally)| tally).collect(),
            ServerCounts {
                refused: Arc::clone(&admission.refused),
                blocked: watchdog.counts(),
            },
        ));
        running.watchdog = Some(watchdog);
        let admission = Arc::new(admission);
        let listener = self.fabric.listen(address, ports, admission)?;
        running.local_addr = listener.local_addr();
        running.listener = Some(listener);
        Ok(Server { running })
    }

    fn cores_of_pollers(&self) -> Vec<usize> {
        let allowed = self.fabric.allowed_cores();
        match &self.cores {
            Some(cores) => cores.clone(),
            None if allowed.len() > self.pollers => {
                allowed.into_iter().rev().take(self.pollers).collect()
            }
            None => Vec::new(),
        }
    }
}
