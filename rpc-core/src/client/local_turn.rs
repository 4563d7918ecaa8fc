//! How streams reach the [`LocalPoller`](crate::LocalPoller) of their thread.
//!
//! A stream is [`Send`], so it cannot hold its poller. It holds the poller's number instead, and each
//! thread lists its pollers. A client's stream that would have to wait, on the thread of its poller and
//! outside its turns, takes a turn: nothing else on this thread would. On another thread, and inside
//! a turn, it waits. A message that is alone is sent through the poller in the same way, on both sides.

use std::cell::RefCell;
use std::rc::{Rc, Weak};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::driver::handle::Poller;
use crate::stream::turns::{LocalTurns, LoneMessage};

/// The number of the next poller. A number is never used again.
static NEXT: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// The pollers of this thread.
    static POLLERS: RefCell<Vec<Entry>> = const { RefCell::new(Vec::new()) };
}

struct Entry {
    number: u64,
    /// Does not keep the poller alive.
    poller: Weak<dyn Poller>,
}

/// Lists a poller of this thread, and tells it how its streams reach it.
pub(crate) fn register(poller: &Rc<dyn Poller>) {
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    // While the thread's variables are destroyed, no turn is taken for a stream: only `block_on` takes
    // turns then.
    let _ = POLLERS.try_with(|pollers| {
        let mut pollers = pollers.borrow_mut();
        pollers.retain(|entry| entry.poller.strong_count() > 0);
        pollers.push(Entry {
            number,
            poller: Rc::downgrade(poller),
        });
    });
    poller.set_local_turns(LocalTurns {
        poller: number,
        take,
        send,
    });
}

/// Takes a turn of a poller of this thread, unless this thread is inside one. Returns true if it
/// did.
#[cold]
fn take(number: u64) -> bool {
    let Some(poller) = find(number) else {
        return false;
    };
    if poller.turning().get() {
        return false;
    }
    poller.turn();
    true
}

/// Sends a message through a poller of this thread, if it can be sent at once. Returns true if it was
/// sent.
fn send(number: u64, message: &mut LoneMessage<'_>) -> bool {
    find(number).is_some_and(|poller| poller.send_alone(message))
}

fn find(number: u64) -> Option<Rc<dyn Poller>> {
    let find = |pollers: &RefCell<Vec<Entry>>| {
        let pollers = pollers.borrow();
        let entry = pollers.iter().find(|entry| entry.number == number)?;
        entry.poller.upgrade()
    };
    // A stream may be used while the thread's variables are destroyed.
    POLLERS.try_with(find).ok().flatten()
}
