//! The device under test, as a case sees it: what it is held to.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::sync::Mutex;

use super::deviations::Reason;
use super::verbs_side;

/// What a device is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// To the specification, whole.
    Soft,
    /// To the specification, but for [`deviations`](super::deviations).
    Rxe,
    /// To the specification: a device of which nothing is known.
    Other,
}

/// The device, and which deviations a case has seen of it.
pub(crate) struct Device {
    pub(crate) kind: Kind,
    seen: Mutex<BTreeSet<&'static str>>,
}

/// What a case that the device does not support ends with.
pub(crate) struct NotSupported(pub(crate) &'static str);

impl Device {
    pub(crate) fn new() -> Self {
        let kind = match verbs_side::device() {
            "soft" => Kind::Soft,
            _ if verbs_side::is_rxe() => Kind::Rxe,
            _ => Kind::Other,
        };
        Self {
            kind,
            seen: Mutex::default(),
        }
    }

    /// What the specification says, or what Soft-RoCE is known to do instead: the case goes on to insist on
    /// it.
    pub(crate) fn deviates<T>(&self, reason: &'static Reason, specified: T, rxe: T) -> T {
        if self.kind != Kind::Rxe {
            return specified;
        }
        self.seen.lock().unwrap().insert(reason.key);
        rxe
    }

    /// Ends the case, unless the device can do what the case is about.
    pub(crate) fn needs(&self, is_there: bool, reason: &'static Reason) {
        if !is_there {
            let payload: Box<dyn Any + Send> = Box::new(NotSupported(reason.key));
            // Not a panic: nobody is told but the runner.
            resume_unwind(payload);
        }
    }

    /// Ends the case, but on the software device: what it is about is not in the verbs.
    pub(crate) fn needs_soft(&self, reason: &'static Reason) {
        self.needs(self.kind == Kind::Soft, reason);
    }

    /// The keys of the deviations that were seen.
    pub(crate) fn into_seen(self) -> Vec<&'static str> {
        self.seen.into_inner().unwrap().into_iter().collect()
    }
}
