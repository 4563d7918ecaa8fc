//! The device under test, as the cases see it, and the standard it is held to.

use std::any::Any;
use std::collections::BTreeSet;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::{Mutex, OnceLock};

use super::cards::Provider;
use super::deviations::Reason;
use super::verbs_side;

/// The standard that a device is held to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// The whole specification.
    Soft,
    /// The specification, except for [`deviations`](super::deviations).
    Rxe,
    /// The specification, and differences from it are listed: a network card, which nobody has tried.
    Card,
}

/// Returns what stands for the provider of a card, in the suite's own tests: see [`trials`](super::trials).
fn pretended() -> Option<&'static str> {
    static PRETENDED: OnceLock<Option<String>> = OnceLock::new();
    PRETENDED
        .get_or_init(|| std::env::var(PRETENDED_CARD).ok())
        .as_deref()
}

/// The variable with which the suite's own tests have the software device count as a card of this
/// provider; of none that is known, if it is `unknown`.
pub(crate) const PRETENDED_CARD: &str = "CONFORMANCE_CARD";

/// Returns the provider of the card under test, if anything is known about it.
pub(crate) fn provider() -> Option<Provider> {
    match pretended() {
        Some(name) => Provider::ALL.into_iter().find(|it| it.name() == name),
        None => Provider::of_listed(Path::new("/sys/class/infiniband"), verbs_side::device()),
    }
}

/// The device, and the deviations that a case has observed.
pub(crate) struct Device {
    pub(crate) kind: Kind,
    seen: Mutex<BTreeSet<&'static str>>,
}

/// The panic payload of a case that the device does not support.
pub(crate) struct NotSupported(pub(crate) &'static str);

impl Device {
    pub(crate) fn new() -> Self {
        let kind = match verbs_side::device() {
            _ if pretended().is_some() => Kind::Card,
            "soft" | "tcp" => Kind::Soft,
            _ if verbs_side::is_rxe() => Kind::Rxe,
            _ => Kind::Card,
        };
        Self {
            kind,
            seen: Mutex::default(),
        }
    }

    /// Returns the specified value, or the value that Soft-RoCE is known to deviate to. The case
    /// then requires that value.
    pub(crate) fn deviates<T>(&self, reason: &'static Reason, specified: T, rxe: T) -> T {
        if self.kind != Kind::Rxe {
            return specified;
        }
        self.seen.lock().unwrap().insert(reason.key);
        rxe
    }

    /// Ends the case if the device does not support its subject.
    pub(crate) fn needs(&self, is_there: bool, reason: &'static Reason) {
        if !is_there {
            let payload: Box<dyn Any + Send> = Box::new(NotSupported(reason.key));
            // Unwind without the panic hook: only the runner handles this.
            resume_unwind(payload);
        }
    }

    /// Ends the case except on the software device: the verbs have no such feature.
    pub(crate) fn needs_soft(&self, reason: &'static Reason) {
        self.needs(self.kind == Kind::Soft, reason);
    }

    /// Returns the keys of the observed deviations.
    pub(crate) fn into_seen(self) -> Vec<&'static str> {
        self.seen.into_inner().unwrap().into_iter().collect()
    }
}
