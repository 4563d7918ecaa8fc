//! [`ServerBuilder::bind`]: starts the pollers' threads, then the listener.

use std::sync::Arc;

use crossbeam_channel::bounded;

use super::admission::ServerAdmission;
use super::builder::ServerBuilder;
use super::thread::{Opened, PollerSetup};
use super::threads::PollerThreads;
use super::watchdog::Watchdog;
use super::{Running, Server, ServerError};
use crate::poller::idle;
use crate::stats::{ServerCounters, StatsReader};
use crate::transport::{Fabric, FabricError};

impl<F: Fabric> ServerBuilder<F> {
    /// Starts the pollers' threads and listens at `host:port`. With port 0 the system chooses the
    /// port.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if any part cannot be started. Nothing is left running.
    pub fn bind(self, address: &str) -> Result<Server, ServerError> {
        self.check_names()?;
        self.check_deadlines()?;
        // Count the cores before any thread is pinned.
        idle::cores();
        let (threads, pollers) = self.start_pollers()?;
        self.intents.warn_of_little_memory();
        self.listen(address, threads, pollers)
    }

    /// Rejects two services with the same name.
    fn check_names(&self) -> Result<(), ServerError> {
        for (index, service) in self.services.iter().enumerate() {
            let earlier = &self.services[..index];
            let name = service.name();
            if earlier.iter().any(|other| other.name() == name) {
                return Err(ServerError::DuplicateService { name });
            }
        }
        Ok(())
    }

    /// Rejects times with which no call could succeed.
    fn check_deadlines(&self) -> Result<(), FabricError> {
        for (setting, time) in [
            ("DeadlinePolicy::default", self.deadlines.default),
            ("DeadlinePolicy::cap", self.deadlines.cap),
        ] {
            if time.is_some_and(|time| time.is_zero()) {
                return Err(FabricError::Intent {
                    setting,
                    value: 0,
                    reason: "every call takes some time. Leave it `None` for no limit".to_owned(),
                });
            }
        }
        Ok(())
    }

    /// Starts the pollers' threads and waits until each has opened its transport.
    #[allow(clippy::type_complexity)]
    fn start_pollers(&self) -> Result<(PollerThreads, Vec<Opened<F::Port>>), ServerError> {
        let mut threads = PollerThreads::new(self.pollers, self.shutdown);
        let cores = self.cores_of_pollers();
        let (ready, reports) = bounded(self.pollers);
        for index in 0..self.pollers {
            threads.spawn(PollerSetup {
                index,
                core: (!cores.is_empty()).then(|| cores[index % cores.len()]),
                fabric: self.fabric.clone(),
                services: self.services.clone(),
                executor: self.executor.clone(),
                intents: self.intents.clone(),
                max_concurrent_calls: self.max_concurrent_calls,
                deadlines: self.deadlines,
                ready: ready.clone(),
                started: threads.started(),
                stop_signal: Arc::clone(&threads.stop_signal),
            })?;
        }
        // Without this sender, the reports end if all threads do.
        drop(ready);
        let pollers = threads.wait_until_open(&reports)?;
        Ok((threads, pollers))
    }

    /// Opens the listener, which distributes clients over the pollers.
    fn listen(
        &self,
        address: &str,
        threads: PollerThreads,
        pollers: Vec<Opened<F::Port>>,
    ) -> Result<Server, ServerError> {
        let counters = pollers.iter().map(|poller| Arc::clone(&poller.counters));
        let counters = counters.collect();
        let wakeups = pollers.iter().map(|poller| Arc::clone(&poller.wakeup));
        let wakeups = wakeups.collect();
        // All pollers have the same sizes and methods, and there is at least one: see
        // `ServerBuilder::pollers`.
        let (limits, methods) = (pollers[0].limits.clone(), pollers[0].methods.clone());

        let (ports, watched) = pollers
            .into_iter()
            .map(|poller| (poller.port, poller.watched))
            .unzip();
        let watchdog = Watchdog::start(watched, &methods)?;
        let mut admission = ServerAdmission::new(&limits, methods, self.pollers);
        admission.limit_connections(self.max_connections);
        let stats_reader = StatsReader::for_server(
            counters,
            ServerCounters {
                refused: Arc::clone(&admission.refused),
                blocked: watchdog.counters(),
            },
        );
        let listener = self.fabric.listen(address, ports, Arc::new(admission))?;
        Ok(Server {
            running: Running {
                local_addr: listener.local_addr(),
                limits,
                listener: Some(listener),
                wakeups,
                threads,
                watchdog,
                stats_reader,
            },
        })
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
