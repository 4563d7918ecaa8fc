//! [`Node`]: a poller that is stepped by hand, over any transport.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::loopback::{Loopback, Places};
use crate::clock::Clock;
use crate::driver::Driver;
use crate::limits::Limits;
use crate::poller::LocalPoller;
use crate::server::admission::ServerAdmission;
use crate::server::shutdown::{Shutdown, ShuttingDown};
use crate::service::dispatch::Methods;
use crate::transport::{Admission, ConnectionId, Transport};

/// A poller that serves and calls, and that takes a turn when it is told to.
pub struct Node<T: Transport = Loopback> {
    driver: Rc<Driver<T>>,
    poller: LocalPoller,
    admission: Arc<dyn Admission>,
    shutting_down: RefCell<Option<ShuttingDown>>,
    is_shutting_down: Cell<bool>,
}

impl<T: Transport> Node<T> {
    /// A node over `transport` that serves what `register` adds, with the time of `clock`.
    pub fn over(transport: T, clock: &Clock, register: impl FnOnce(&mut Methods)) -> Self {
        let mut methods = Methods::new();
        register(&mut methods);
        let numbered = methods.numbered().collect();
        let admission = Arc::new(ServerAdmission::new(transport.limits(), numbered, 1));
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

    /// Its poller, for `connect`.
    #[must_use]
    pub fn poller(&self) -> &LocalPoller {
        &self.poller
    }

    /// Whom it lets in: its half of a handshake.
    #[must_use]
    pub fn admission(&self) -> &Arc<dyn Admission> {
        &self.admission
    }

    /// What it was sized to.
    #[must_use]
    pub fn limits(&self) -> Limits {
        self.poller.limits()
    }

    /// One turn; whether it found anything.
    pub fn step(&self) -> bool {
        self.step_with(|driver| {
            let found_any = driver.turn();
            if self.is_shutting_down.get()
                && let Some(shutting_down) = &mut *self.shutting_down.borrow_mut()
            {
                let is_over = shutting_down.after_turn(driver, found_any);
                self.is_shutting_down.set(!is_over);
            }
            found_any
        })
    }

    /// Begins to shut its server down, as a server's handle does; its steps carry that on.
    pub fn shut_down(&self, shutdown: Shutdown) {
        let shutting_down = ShuttingDown::begin(&self.driver, shutdown);
        *self.shutting_down.borrow_mut() = Some(shutting_down);
        self.is_shutting_down.set(true);
    }

    /// Whether that is over.
    #[must_use]
    pub fn is_shut_down(&self) -> bool {
        self.shutting_down.borrow().is_some() && !self.is_shutting_down.get()
    }

    /// Receives that it has promised to its peers.
    #[must_use]
    pub fn promised_receives(&self) -> u32 {
        self.driver.state.borrow().budget.promised()
    }

    /// Ends what is overdue, and looks which connections are idle, as a poller does now and then.
    pub fn look_at_the_clock(&self) {
        self.step_with(|driver| {
            driver.as_part_of_a_turn(|| driver.expire_deadlines());
            driver.wake_collected();
            driver.on_idle(driver.clock.now());
        });
    }

    /// What is under way, in words: nothing when all calls have ended.
    #[must_use]
    pub fn leftovers(&self) -> Vec<String> {
        self.driver.leftovers()
    }

    /// Looks at its transport, between two turns.
    pub fn with_transport<R>(&self, act: impl FnOnce(&mut T) -> R) -> R {
        act(&mut self.driver.state.borrow_mut().transport)
    }

    /// Drops its services, with the handlers under way: one of them may hold a channel of its own node,
    /// and so the node itself.
    pub fn discard_services(&self) {
        self.driver.discard_all_tasks();
        // With the methods also the handlers that no task knows of, after a turn that was unwound.
        let services = self.driver.methods.replace(Methods::new());
        drop(services);
    }

    fn step_with<R>(&self, act: impl FnOnce(&Driver<T>) -> R) -> R {
        let _current = Current::set(&self.poller);
        act(&self.driver)
    }
}

/// Marks a poller as this thread's until it is dropped, also by a panic.
struct Current;

impl Current {
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

impl Node {
    /// Where its slots are.
    #[must_use]
    pub fn places(&self) -> Places {
        self.with_transport(|loopback| loopback.places())
    }

    /// Its connections that are up, oldest first.
    #[must_use]
    pub fn connections(&self) -> Vec<ConnectionId> {
        self.with_transport(|loopback| loopback.connections())
    }

    /// Lets a frame arrive that no honest peer has sent.
    pub fn inject(&self, connection: ConnectionId, frame: Vec<u8>) {
        self.with_transport(|loopback| loopback.inject(connection, frame));
    }
}
