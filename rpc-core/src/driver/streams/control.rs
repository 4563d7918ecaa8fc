//! The grants of streams, which share control frames.

use super::super::link::LinkKey;
use super::super::links::Links;
use super::Streams;
use crate::protocol::frame::{ControlEntry, ControlRequest};
use crate::transport::Transport;

impl Streams {
    /// Makes entries of the grants that the streams of a connection owe, unless a message has carried
    /// them. Called only when a control frame may be sent.
    pub(in super::super) fn collect_grants<T: Transport>(
        &mut self,
        link: LinkKey,
        links: &mut Links<T>,
    ) {
        let entries = &mut links[link].entries;
        while let Some(key) = self.grants.pop(link) {
            let stream = &mut self.entries[key];
            let granted = stream.core.lock().inbound.take_due_grant();
            if let (Some(call), Some(bytes)) = (stream.phase.call(), granted) {
                let request = ControlRequest::Grant(bytes);
                entries.push(ControlEntry { call, request });
            }
        }
    }
}
