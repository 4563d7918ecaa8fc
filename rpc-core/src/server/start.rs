//! [`ServerBuilder::bind`] and [`ServerBuilder::listen_on`]: start the pollers' threads, then the
//! listener.

use std::net::TcpListener;
use std::sync::Arc;

use crossbeam_channel::bounded;

use super::admission::ServerAdmission;
use super::builder::ServerBuilder;
use super::thread::{Opened, PollerSetup};
use super::threads::PollerThreads;
use super::watchdog::Watchdog;
use super::{Running, Server, ServerError};
use crate::driver::age::ConnectionAge;
use crate::poller::{cores, idle};
use crate::stats::{ServerCounters, StatsReader};
use crate::transport::{Fabric, FabricError};

/// The pollers' threads, each of which has opened its transport.
type OpenPollers<F> = (PollerThreads, Vec<Opened<<F as Fabric>::Port>>);

impl<F: Fabric> ServerBuilder<F> {
    /// Starts the pollers' threads and listens at `host:port`. With port 0 the system chooses the
    /// port.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if any part cannot be started. Nothing is left running.
    pub fn bind(self, address: &str) -> Result<Server, ServerError> {
        let pollers = self.start_pollers()?;
        let socket = self.fabric.bind(address)?;
        self.listen(socket, pollers)
    }

    /// Starts the pollers' threads and listens on a socket that is bound already: one that systemd or
    /// another parent passes to this process, or that a test has bound to port 0. Closes it when the
    /// server stops.
    ///
    /// The socket becomes non-blocking, which other processes with the same socket see, and is closed
    /// on `exec`. If it does not listen yet, it does so from now on.
    ///
    /// # Errors
    ///
    /// Returns [`ServerError`] if any part cannot be started, also if this is no socket for TCP or
    /// one that is connected. Nothing is left running, and the socket is closed.
    pub fn listen_on(self, socket: TcpListener) -> Result<Server, ServerError> {
        let pollers = self.start_pollers()?;
        self.listen(socket, pollers)
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
    fn check_times(&self) -> Result<(), FabricError> {
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
        if self.connection_age.is_some_and(|it| it.age.is_zero()) {
            return Err(FabricError::Intent {
                setting: "max_connection_age",
                value: 0,
                reason: "no call would come before the end of its connection".to_owned(),
            });
        }
        if let Some(ConnectionAge { age, grace }) = self.connection_age
            && grace > age.mul_f64(0.9)
        {
            tracing::warn!(
                ?age,
                ?grace,
                "`max_connection_age`: the grace is longer than nine tenths of the age, so a second connection \
                 may be old before the first has ended. A channel with streams on both makes no third, and its \
                 further calls fail or wait. Give less grace"
            );
        }
        Ok(())
    }

    /// Starts the pollers' threads and waits until each has opened its transport.
    fn start_pollers(&self) -> Result<OpenPollers<F>, ServerError> {
        self.check_names()?;
        self.check_times()?;
        if F::is_forked() {
            return Err(ServerError::Forked);
        }
        idle::count_cores(&self.fabric);
        let mut threads = PollerThreads::new(self.pollers, self.shutdown, F::is_forked);
        let mut cores = cores::choose(&self.fabric, &self.intents, self.pollers).into_iter();
        let (ready, reports) = bounded(self.pollers);
        for index in 0..self.pollers {
            threads.spawn(PollerSetup {
                index,
                core: cores.next().flatten(),
                fabric: self.fabric.clone(),
                services: self.services.clone(),
                executor: self.executor.clone(),
                interceptors: self.interceptors.clone(),
                intents: self.intents.clone(),
                max_concurrent_calls: self.max_concurrent_calls,
                deadlines: self.deadlines,
                connection_age: self.connection_age,
                ready: ready.clone(),
                started: threads.started(),
                stop_signal: Arc::clone(&threads.stop_signal),
            })?;
        }
        // Without this sender, the reports end if all threads do.
        drop(ready);
        let pollers = threads.wait_until_open(&reports)?;
        self.intents.warn_of_little_memory();
        Ok((threads, pollers))
    }

    /// Starts the listener, which distributes clients over the pollers.
    fn listen(
        &self,
        socket: TcpListener,
        (threads, pollers): OpenPollers<F>,
    ) -> Result<Server, ServerError> {
        let counters = pollers.iter().map(|poller| Arc::clone(&poller.counters));
        let counters = counters.collect();
        let wakeups = pollers.iter().map(|poller| Arc::clone(&poller.wakeup));
        let wakeups = wakeups.collect();
        // All pollers have the same sizes and methods, and there is at least one: see
        // `ServerBuilder::pollers`.
        let (mut limits, methods) = (pollers[0].limits.clone(), pollers[0].methods.clone());
        limits.cores = pollers.iter().map(|poller| poller.core).collect();

        let (ports, watched) = pollers
            .into_iter()
            .map(|poller| (poller.port, poller.watched))
            .unzip();
        let watchdog = Watchdog::start(&self.fabric, watched, &methods)?;
        let mut admission = ServerAdmission::new(&limits, methods, self.pollers);
        admission.limit_connections(self.max_connections);
        admission.trust_forwarded(self.trust_forwarded.clone());
        admission.admit_by(self.admit.clone());
        let fabric = self.fabric.clone();
        let stats_reader = StatsReader::for_server(
            counters,
            ServerCounters {
                refused: Arc::clone(&admission.refused),
                certificate_expires: Arc::new(move || fabric.certificate_expires()),
                blocked: watchdog.counters(),
            },
        );
        let listener = self.fabric.listen(socket, ports, Arc::new(admission))?;
        let local_addr = listener.local_addr();
        threads.stop_signal.set_listener(listener);
        Ok(Server {
            running: Running {
                local_addr,
                limits,
                services: self.services.clone(),
                is_serving: false,
                wakeups,
                threads,
                watchdog,
                stats_reader,
            },
        })
    }
}
