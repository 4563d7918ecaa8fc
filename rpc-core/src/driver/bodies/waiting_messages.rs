//! [`WaitingMessages`]: the messages that wait for memory.

use std::collections::{BTreeMap, VecDeque};

use super::super::link_bodies::IncomingKey;

/// The messages that wait for memory.
#[derive(Debug, Default)]
pub(super) struct WaitingMessages {
    /// By the exponent of their length, in the order of their arrival.
    classes: BTreeMap<u32, VecDeque<IncomingKey>>,
    len: usize,
}

impl WaitingMessages {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, key: IncomingKey, len: u32) {
        self.classes
            .entry(class_of(len))
            .or_default()
            .push_back(key);
        self.len += 1;
    }

    pub(super) fn has_class_of(&self, len: u32) -> bool {
        self.classes.contains_key(&class_of(len))
    }

    /// Returns the first class, from this one on, of which messages wait.
    pub(super) fn class_from(&self, class: u32) -> Option<u32> {
        self.classes.range(class..).next().map(|(class, _)| *class)
    }

    /// Returns the message of a class before which so many wait.
    pub(super) fn get(&self, class: u32, at: usize) -> Option<IncomingKey> {
        self.classes.get(&class)?.get(at).copied()
    }

    /// Removes a message of this length, which no longer waits.
    pub(super) fn leave(&mut self, key: IncomingKey, len: u32) {
        let class = class_of(len);
        let mut keys = self.classes.get(&class).into_iter().flatten();
        if let Some(at) = keys.position(|other| *other == key) {
            self.remove_at(class, at);
        }
    }

    pub(super) fn remove_at(&mut self, class: u32, at: usize) {
        let Some(keys) = self.classes.get_mut(&class) else {
            return;
        };
        self.len -= usize::from(keys.remove(at).is_some());
        if keys.is_empty() {
            self.classes.remove(&class);
        }
    }
}

/// Returns the class of a length in bytes: a message is less than twice as long as another one of its
/// class.
fn class_of(len: u32) -> u32 {
    len.ilog2()
}
