//! A simulated process: its own instance of the software device, whose engine is stepped by hand.
//!
//! It has a GID, sockets and links like a real process. The process and its threads are simulated;
//! the device is not.

use std::cell::RefCell;
use std::io;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use super::super::fork_guard::ForkGuard;
use super::objects::Context;
use super::process::engine::Engine;
use super::process::node::Node;
use crate::provider::soft::process::node::domain::Domain;
use crate::types::{AsyncEvent, CompletionStatus, QpNum, QpState, SoftOptions};

/// One simulated process. Drop it after all of its contexts, because a process's sockets are closed
/// last.
pub struct SimulatedProcess {
    node: Arc<Node>,
    engine: Rc<RefCell<Engine>>,
}

thread_local! {
    /// The engines of the simulated processes of this thread.
    static ENGINES: RefCell<Vec<Weak<RefCell<Engine>>>> = const { RefCell::new(Vec::new()) };
}

/// Has every simulated process greet those that dial it. A process that dials waits for the answer,
/// and all processes run on its thread.
fn greet_dialers() {
    let engines: Vec<_> =
        ENGINES.with_borrow(|engines| engines.iter().filter_map(Weak::upgrade).collect());
    for engine in engines {
        // A process that dials within its own step of the engine would wait for itself.
        if let Ok(mut engine) = engine.try_borrow_mut() {
            engine.greet_dialers();
        }
    }
}

/// Handle that kills a simulated process. A killed process's calls to the device fail and have no
/// effect.
#[derive(Clone)]
pub struct Killer(Arc<Node>);

impl SimulatedProcess {
    /// Begins a process.
    ///
    /// # Errors
    ///
    /// If its node cannot be created: the real process has no file left.
    pub fn new() -> io::Result<Self> {
        let mut node = Node::new(ForkGuard::of_process()?)?;
        node.greet_dialers = Some(greet_dialers);
        let node = Arc::new(node);
        let engine = Rc::new(RefCell::new(Engine::new(Arc::clone(&node))));
        ENGINES.with_borrow_mut(|engines| {
            engines.retain(|engine| engine.strong_count() > 0);
            engines.push(Rc::downgrade(&engine));
        });
        Ok(Self { node, engine })
    }

    pub(crate) fn open(&self, options: SoftOptions) -> io::Result<Context> {
        Context::on(Arc::clone(&self.node), options)
    }

    /// Returns a handle that kills the process.
    pub fn killer(&self) -> Killer {
        Killer(Arc::clone(&self.node))
    }

    /// Does the work that the engine would do at this moment.
    pub fn step_engine(&self, now: Instant) {
        self.engine.borrow_mut().step(now);
    }

    /// Describes the parts of the process's device that are still in use.
    pub fn leftovers(&self) -> Vec<String> {
        let mut left = Vec::new();
        let connected = self.node.connected.load(Ordering::Relaxed);
        if connected > 0 {
            left.push(format!(
                "{connected} queue pairs for which the engine ticks"
            ));
        }
        let mut contexts = Vec::new();
        self.node.contexts(&mut contexts);
        for context in contexts {
            let Ok(state) = context.enter() else {
                continue;
            };
            for (count, what) in [
                (state.queue_pairs.len(), "queue pairs"),
                (state.common.lists.hot.len(), "hot rings"),
                (state.common.lists.cold.len(), "cold rings"),
                (state.common.lists.awaiting.len(), "awaiting queue pairs"),
                (
                    state.common.lists.unacked.len(),
                    "unacknowledged queue pairs",
                ),
            ] {
                if count > 0 {
                    left.push(format!("{count} {what} of the device"));
                }
            }
        }
        left
    }

    /// Returns true if the engine has nothing to do for any context; peers wake contexts that
    /// sleep.
    pub fn is_idle(&self) -> bool {
        let mut contexts = Vec::new();
        self.node.contexts(&mut contexts);
        let is_idle = |context: Arc<Domain>| context.enter().is_ok_and(|state| state.is_idle());
        contexts.into_iter().all(is_idle)
    }

    /// Fails a queue pair, as a device does on its own, and reports it with a completion, with an
    /// event, or not at all. Returns `false` if the queue pair is not connected any more.
    pub fn fail_queue_pair(
        &self,
        qp_num: QpNum,
        status: Option<CompletionStatus>,
        event: Option<AsyncEvent>,
    ) -> bool {
        let Some((domain, qp_index)) = self.node.find_queue_pair(qp_num.0) else {
            return false;
        };
        let Ok(mut state) = domain.enter() else {
            return false;
        };
        let is_up = |qp: &super::context::queue_pair::SoftQueuePair| {
            matches!(qp.core.state, QpState::Rtr | QpState::Rts)
        };
        if !state.queue_pairs.get(qp_index as usize).is_some_and(is_up) {
            return false;
        }
        let (qp, common) = state.split(qp_index);
        if let Some(event) = event {
            common.events.raise(event);
        }
        qp.fail(common, status);
        state.settle_overrun();
        true
    }
}

impl Killer {
    /// Kills the process.
    pub fn kill(&self) {
        self.0.set_killed();
    }

    /// Returns true if the process has been killed.
    pub fn has_killed(&self) -> bool {
        self.0.check().is_err()
    }
}
