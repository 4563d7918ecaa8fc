//! [`Node`]: a poller over any transport that is stepped by hand.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::admission;
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::Limits;
use crate::poller::LocalPoller;
use crate::server::shutdown::{Shutdown, ShuttingDown};
use crate::service::dispatch::Methods;
use crate::transport::{Admission, Transport};

/// A poller that serves and makes calls, and that takes a turn on request.
pub struct Node<T: Transport> {
    driver: Rc<Driver<T>>,
    poller: LocalPoller,
    admission: Arc<dyn Admission>,
    shutting_down: RefCell<Option<ShuttingDown>>,
    is_shutting_down: Cell<bool>,
}

impl<T: Transport> Node<T> {
    /// Creates a node over `transport` that serves the methods that `register` adds and uses
    /// `clock`.
    pub fn over(transport: T, clock: &Clock, register: impl FnOnce(&mut Methods)) -> Self {
        let mut methods = Methods::new();
        methods.set_clock(clock);
        register(&mut methods);
        let admission = admission(transport.limits(), methods.numbered().collect());
        let driver = Rc::new(Driver::new(transport, methods, clock.clone()));
        let poller = LocalPoller::stepped(Rc::clone(&driver) as Rc<_>);
        Self {
            driver,
            poller,
            admission,
            shutting_down: RefCell::default(),
            is_shutting_down: Cell::new(false),
        }
    }

    /// Returns the node's poller, for `connect`.
    #[must_use]
    pub fn poller(&self) -> &LocalPoller {
        &self.poller
    }

    /// Returns the node's admission, its side of a handshake.
    #[must_use]
    pub fn admission(&self) -> &Arc<dyn Admission> {
        &self.admission
    }

    /// Returns the node's sizes.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.poller.limits()
    }

    /// Takes one turn. Returns true if any event arrived.
    pub fn step(&self) -> bool {
        self.step_with(|driver| {
            let found_any = driver.turn();
            if self.is_shutting_down.get()
                && let Some(shutting_down) = &mut *self.shutting_down.borrow_mut()
            {
                let is_complete = shutting_down.after_turn(driver, found_any);
                self.is_shutting_down.set(!is_complete);
            }
            found_any
        })
    }

    /// Returns true if the node has work for which nothing would wake it: it would not sleep.
    #[must_use]
    pub fn has_undone_work(&self) -> bool {
        self.driver.connections.state.borrow().has_undone_work()
    }

    /// Begins to shut the node's server down, as a server's handle does. Further steps continue it.
    pub fn shut_down(&self, shutdown: Shutdown) {
        let shutting_down = ShuttingDown::begin(&self.driver, shutdown);
        *self.shutting_down.borrow_mut() = Some(shutting_down);
        self.is_shutting_down.set(true);
    }

    /// Returns true if the shutdown is complete.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shutting_down.borrow().is_some() && !self.is_shutting_down.get()
    }

    /// Returns the number of receives that the node has promised to its peers.
    #[must_use]
    pub fn promised_receives(&self) -> u32 {
        self.driver
            .connections
            .state
            .borrow()
            .links
            .budget
            .promised()
    }

    /// Expires deadlines and detects idle connections, as a poller does periodically.
    pub fn check_timers(&self) {
        self.step_with(|driver| {
            driver.run_in_turn(|| driver.expire_deadlines());
            driver.connections.wake_collected();
            driver
                .connections
                .state
                .borrow_mut()
                .on_idle(driver.connections.clock.now());
        });
    }

    /// Describes everything that is in flight: empty when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.driver.leftovers()
    }

    /// Accesses the node's transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.driver.connections.state.borrow_mut().links.transport)
    }

    /// Drops the node's services and their running handlers. A handler may own a channel of its own
    /// node, and a channel keeps its node alive.
    pub fn discard_services(&self) {
        self.driver
            .serving
            .discard_all_tasks(&self.driver.connections);
        // Dropping the methods also drops the handlers that have no task, after a turn that
        // panicked.
        let services = self.driver.serving.handlers.methods.replace(Methods::new());
        drop(services);
    }

    #[inline]
    fn step_with<R>(&self, act: impl FnOnce(&Driver<T>) -> R) -> R {
        let _current = Current::set(&self.poller);
        act(&self.driver)
    }
}

/// Marks a poller as the current thread's until dropped, even by a panic.
struct Current;

impl Current {
    #[inline]
    fn set(poller: &LocalPoller) -> Self {
        LocalPoller::set_current(Some(poller.clone()));
        Self
    }
}

impl Drop for Current {
    fn drop(&mut self) {
        LocalPoller::set_current(None);
    }
}
