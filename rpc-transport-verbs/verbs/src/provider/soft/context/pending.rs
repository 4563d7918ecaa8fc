//! What a poll has to do besides looking at the hot rings, as one word: a poll that finds the word
//! empty and no message is over.

/// A reason for a poll to leave the straight path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Matter {
    /// Queue pairs await acknowledgements or room: `Lists::awaiting` is not empty.
    Awaiting = 1,
    /// The sleep note tells peers that no thread polls: see `wake`.
    Asleep = 2,
    /// Peers have to wake the engine for one-sided requests, because no thread has polled since its
    /// last tick.
    Unattended = 4,
    /// A completion queue may hold completions, be armed, or have overrun.
    Completions = 8,
    /// The context has links over TCP.
    TcpLinks = 16,
}

/// The set of matters that are pending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Pending(u32);

impl Pending {
    #[inline]
    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns true if nothing else is pending.
    #[inline]
    pub(crate) fn is_only(self, matter: Matter) -> bool {
        self.0 == matter as u32
    }

    #[inline]
    pub(crate) fn has(self, matter: Matter) -> bool {
        self.0 & matter as u32 != 0
    }

    #[inline]
    pub(crate) fn add(&mut self, matter: Matter) {
        self.0 |= matter as u32;
    }

    pub(crate) fn remove(&mut self, matter: Matter) {
        self.0 &= !(matter as u32);
    }

    /// Returns true if completion queues are armed and no thread polls: see `Matter::Asleep`.
    #[inline]
    pub(crate) fn is_asleep(self) -> bool {
        self.has(Matter::Asleep)
    }

    /// Returns true if a thread polls the context.
    pub(crate) fn is_polled(self) -> bool {
        !self.is_asleep() && !self.has(Matter::Unattended)
    }
}
