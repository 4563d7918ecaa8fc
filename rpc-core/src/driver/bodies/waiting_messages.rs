//! [`WaitingMessages`]: the messages that wait for memory.

use std::collections::BTreeMap;

use super::super::link::LinkKey;
use super::super::link_bodies::IncomingKey;
use super::super::waiting::Waiting;

/// The messages that wait for memory. Those of about the same length are a class, in which connections take
/// turns.
#[derive(Debug, Default)]
pub(super) struct WaitingMessages {
    /// By the exponent of their length.
    classes: BTreeMap<u32, Waiting<LinkKey, IncomingKey>>,
    len: usize,
}

impl WaitingMessages {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, link: LinkKey, key: IncomingKey, len: u32) {
        let class = self.classes.entry(class_of(len)).or_default();
        self.len += usize::from(class.insert(link, key));
    }

    pub(super) fn has_class_of(&self, len: u32) -> bool {
        let class = self.classes.get(&class_of(len));
        class.is_some_and(|class| class.len() > 0)
    }

    /// Returns the first class, from this one on, of which messages wait.
    pub(super) fn class_from(&self, class: u32) -> Option<u32> {
        let mut classes = self.classes.range(class..);
        let waiting = classes.find(|(_, waiting)| waiting.len() > 0);
        waiting.map(|(class, _)| *class)
    }

    /// Returns the number of connections with messages of a class.
    pub(super) fn links_of(&self, class: u32) -> usize {
        self.classes.get(&class).map_or(0, Waiting::groups)
    }

    /// Returns the first message of the connection whose turn it is.
    pub(super) fn first(&mut self, class: u32) -> Option<IncomingKey> {
        self.classes.get_mut(&class)?.first()
    }

    /// Ends the turn of a connection.
    pub(super) fn end_turn(&mut self, class: u32) {
        if let Some(class) = self.classes.get_mut(&class) {
            class.next_group();
        }
    }

    /// Returns true if messages of another connection wait.
    pub(super) fn has_others_than(&self, link: LinkKey) -> bool {
        let mut classes = self.classes.values();
        classes.any(|class| class.len() > class.len_of(link))
    }

    /// Removes a message of this length, which no longer waits.
    pub(super) fn leave(&mut self, key: IncomingKey, len: u32) {
        let class = class_of(len);
        let Some(waiting) = self.classes.get_mut(&class) else {
            return;
        };
        self.len -= usize::from(waiting.remove(key));
    }
}

/// Returns the class of a length in bytes: a message is less than twice as long as another one of its
/// class.
fn class_of(len: u32) -> u32 {
    len.ilog2()
}
