//! Posts the one-sided requests of a lane's connections, and handles their completions.

use rpc_core::transport::{ConnectionId, Event, LongMessages, SendError};
use verbline_verbs::{CompletionStatus, WorkRequest};

use super::one_sided::Request;
use super::read_turns::Found;
use crate::transport::buf::RecvBuf;
use crate::transport::lane::Lane;
use crate::transport::pending::Pending;

impl Lane {
    /// Returns how long messages travel on a connection.
    pub(crate) fn long_messages(&self, id: ConnectionId) -> LongMessages {
        match self.connections.get_ref(id) {
            Some(connection) if connection.one_sided.has_reads() => LongMessages::Read,
            _ => LongMessages::Fragments,
        }
    }

    /// Posts one-sided requests, behind everything that was sent before. If `signals`, the last of
    /// them is signaled.
    pub(super) fn post_one_sided(
        &mut self,
        index: u32,
        requests: impl IntoIterator<Item = (Request, WorkRequest)>,
        signals: bool,
    ) -> Result<(), SendError> {
        self.post_chain(index);
        let Some((_, connection)) = self.connections.at(index) else {
            return Err(SendError);
        };
        if !connection.is_open() {
            return Err(SendError);
        }
        let mut chain = std::mem::take(&mut self.long_messages.requests);
        let first = connection.queue_pair.next_wr_id(0).number();
        let mut requests = requests.into_iter().peekable();
        let mut signaled_count = 0;
        while let Some((kind, request)) = requests.next() {
            let is_last = requests.peek().is_none();
            let one_sided = &mut connection.one_sided;
            let must_signal = signals && is_last || one_sided.needs_signal();
            let signaled = connection.sends.count_one_sided(must_signal);
            let number = first.wrapping_add(chain.len() as u32);
            one_sided.push(number, kind, signaled);
            signaled_count += u64::from(signaled);
            chain.push(match signaled {
                true => request.signaled(),
                false => request,
            });
        }
        let count = chain.len();
        let posted = match count {
            0 => Ok(()),
            // The requests have no slots.
            _ => connection.queue_pair.post(&mut chain, &mut drop),
        };
        if !chain.is_empty() {
            connection.sends.rejected(chain.len());
            chain.clear();
        }
        self.long_messages.requests = chain;
        self.counters.signaled.add(signaled_count);
        self.counters.count_doorbell(count);
        posted.map_err(|error| {
            self.post_failed(index, error);
            SendError
        })
    }

    /// Posts the invalidations and READs that are due. Called by polls, which pass the event that they
    /// have found.
    #[cold]
    #[inline(never)]
    pub(crate) fn advance_long_messages(&mut self, event: Option<&Event<RecvBuf>>) {
        let found = match event {
            None => Found::Nothing,
            Some(event) if self.is_call(event) => Found::Call,
            Some(_) => Found::Other,
        };
        // READs wait for calls. Without a message to fetch, a call is no reason for short READs later.
        // On the software device, no READ is outstanding between two polls.
        let found_for_reads = match found {
            Found::Call if self.long_messages.fetching == 0 => Found::Other,
            found => found,
        };
        self.long_messages.turns.after_poll(found_for_reads);
        self.post_invalidations_if_due(found);
        self.post_reads();
        let long_messages = &self.long_messages;
        let may_read = long_messages.reading < long_messages.max_reading;
        // A connection that is not in the ring waits for a completion. After the last READ, one
        // more poll has to allow READs: the next segment that is announced can then be read at
        // once.
        if long_messages.revoking.is_empty()
            && (long_messages.ring.is_empty() || !may_read)
            && long_messages.turns.has_all_left()
        {
            self.pending.clear(Pending::LONG_MESSAGES);
        }
    }

    /// Returns true if an event is a frame of a connection that fetches no message, and has no one-sided
    /// request outstanding or to be posted. Such a frame is taken for a call, which the long messages
    /// of other connections are not to delay.
    pub(crate) fn is_call(&self, event: &Event<RecvBuf>) -> bool {
        let Event::Received { connection, .. } = event else {
            return false;
        };
        let connection = self.connections.get_ref(*connection);
        connection.is_some_and(|connection| {
            connection.one_sided.fetches == 0 && !connection.one_sided.awaits_completion()
        })
    }

    /// Ends the requests that a successful completion of request `number` covers.
    #[cold]
    #[inline(never)]
    pub(crate) fn complete_one_sided(&mut self, index: u32, number: u32) {
        while let Some((_, connection)) = self.connections.at(index)
            && let Some(request) = connection.one_sided.take_completed(number)
        {
            match request {
                Request::Bind => {}
                Request::Invalidate(key) => self.end_exposure(key),
                Request::Read(key, ends_segment) => self.complete_read(index, key, ends_segment),
            }
        }
        self.take_turns_with(index);
        if let Some((_, connection)) = self.connections.at(index)
            && !connection.one_sided.to_invalidate.is_empty()
        {
            self.long_messages.revoking.push(index);
            self.pending.set(Pending::LONG_MESSAGES);
        }
        if !self.long_messages.ring.is_empty() {
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }

    /// Has later long messages sent in fragments if the failed request `number` is a binding: the device
    /// would fail the next ones too, and each ends its connection.
    #[cold]
    pub(crate) fn note_failed_binding(&mut self, index: u32, number: u32, status: u32) {
        let status = CompletionStatus::from_code(status);
        let Some((id, connection)) = self.connections.at(index) else {
            return;
        };
        // With another status, not the binding was at fault, but the connection or its peer. Over TCP, no
        // card binds: a binding waits for what was posted before it, and fails when the peer ends the
        // connection meanwhile.
        let is_refused = status == CompletionStatus::MemoryWindowBind
            && connection.is_open()
            && !connection.is_read_by_peer;
        if !is_refused || !connection.one_sided.is_bind(number) {
            return;
        }
        if self.long_messages.pools.give_windows_up() {
            let device = &self.plan.limits.device;
            tracing::warn!(device, connection = %id, %status, "the device failed to bind a memory window, although it bound some when it was opened: from now on, this poller sends long messages in fragments. The connection ends, and so do those of messages that have begun with windows. To try the windows again, open the device again");
        }
    }

    /// Frees the memory of a connection whose queue pair is gone, or cannot be destroyed if not
    /// `is_destroyed`.
    pub(crate) fn end_long_messages_of(&mut self, id: ConnectionId, is_destroyed: bool) {
        match is_destroyed {
            true => self.end_exposures_of(id),
            false => {
                self.long_messages.has_leaked = true;
                self.leak_exposures_of(id);
            }
        }
        // A queue pair that cannot be destroyed has its READs, and they have their memory.
        self.end_fetches_of(id);
        // READs of other connections may have waited for those of this one.
        if !self.long_messages.ring.is_empty() {
            self.pending.set(Pending::LONG_MESSAGES);
        }
    }
}
