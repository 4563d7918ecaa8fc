//! Messages that do not fit a slot: their lengths, and how they travel in a seed.

use std::time::Duration;

use rpc_core::Intents;
use rpc_core::stats::PollerStats;
use rpc_core_testing::Random;
use rpc_transport_verbs::Sizing;
use rpc_transport_verbs::verbs::ReadExecution;

/// Bytes of a message that fit a slot.
pub(crate) const SLOT: u32 = 700;

/// Bytes of fragments that a sender sends before its receiver has memory for the message.
const FREE_FRAGMENTS: u32 = 64 * 1024;

/// The longest time for which a message waits for memory without a deadline, and a little less.
pub(crate) const LONGEST_WAIT: Duration = Duration::from_millis(14_900);

/// The long messages of a seed.
#[derive(Clone, Debug)]
pub(crate) struct LongMessages {
    /// How many messages are long, in thousandths.
    share: u16,
    /// The length of the longest.
    longest: u32,
    form: Form,
    pub(crate) read_execution: ReadExecution,
    /// Bytes that are copied at a time.
    piece_len: Option<usize>,
    /// Bytes of memory of each process, if it is scarce.
    memory: Option<u32>,
    waits_for_memory: bool,
}

/// How the processes of a seed read long messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Reads,
    Fragments,
    /// Some have no READs.
    Mixed,
}

impl LongMessages {
    pub(crate) fn random(random: &Random) -> Self {
        let longest = match random.below(40) {
            0 => 1 << 20,
            1 | 2 => 4 * FREE_FRAGMENTS,
            3..=8 => 2 * FREE_FRAGMENTS,
            9..=20 => 5000,
            _ => 0,
        };
        Self {
            share: match longest {
                0 => 0,
                5000 => [50, 300, 800][random.below(3) as usize],
                _ => [20, 50, 200][random.below(3) as usize],
            },
            longest,
            form: [Form::Reads, Form::Reads, Form::Fragments, Form::Mixed]
                [random.below(4) as usize],
            read_execution: match random.happens(250) {
                true => ReadExecution::ByTarget,
                false => ReadExecution::InPlace,
            },
            piece_len: [None, Some(1000), Some(16 * 1024)][random.below(3) as usize],
            memory: random.happens(400).then(|| match random.below(5) as u32 {
                // The longest messages never get any.
                0 => longest / 2,
                messages => messages * (longest + 1000).next_power_of_two(),
            }),
            waits_for_memory: random.happens(700),
        }
    }

    /// Returns true if a receiver may have no memory for a message, which waits for it or is refused.
    pub(crate) fn memory_is_scarce(&self) -> bool {
        self.memory.is_some()
    }

    /// Returns true if a message is refused only after it has waited.
    pub(crate) fn waits_for_memory(&self) -> bool {
        self.waits_for_memory && self.may_get_memory(self.longest)
    }

    /// Returns true if there may be memory for a message of `len` bytes at some time.
    fn may_get_memory(&self, len: u32) -> bool {
        self.memory.is_none_or(|memory| len <= memory)
    }

    /// Returns true if a message of `len` bytes may be received. A short one in fragments needs no
    /// registered memory.
    pub(crate) fn may_arrive(&self, len: usize) -> bool {
        len <= FREE_FRAGMENTS as usize || self.may_get_memory(len as u32)
    }

    /// Sets what a process needs for these messages.
    pub(crate) fn set_up(&self, random: &Random, intents: &mut Intents, sizing: &mut Sizing) {
        sizing.slot_message_len = Some(SLOT as usize);
        sizing.piece_len = self.piece_len;
        let has_reads = match self.form {
            Form::Reads => true,
            Form::Fragments => false,
            Form::Mixed => random.happens(500),
        };
        sizing.read_depth = match has_reads {
            true => [None, Some(1)][random.below(2) as usize],
            false => Some(0),
        };
        intents.max_message_len = (self.longest + 1000) as usize;
        if let Some(memory) = self.memory {
            intents.message_memory = memory.into();
        }
        intents.waits_for_memory = self.waits_for_memory;
    }

    /// Returns the length of a message, if it is to be a long one: around that of a slot, around the
    /// bytes that are sent without memory, or any.
    pub(crate) fn len(&self, random: &Random) -> Option<u32> {
        if !random.happens(self.share) {
            return None;
        }
        let around = |len: u32| len - 200 + random.below(400) as u32;
        let len = match random.below(4) {
            0 => around(SLOT),
            1 => around(FREE_FRAGMENTS),
            _ => random.below(u64::from(self.longest) + 1) as u32,
        };
        Some(len.min(self.longest))
    }
}

/// What happened to long messages, for the summary: by index.
pub(crate) const TRANSFERS: [&str; 6] = [
    "long messages sent",
    "long messages received",
    "long messages waited for memory",
    "long messages refused",
    "long messages stopped",
    "READs of long messages",
];

/// Returns the counts of one process.
pub(crate) fn counts(stats: &PollerStats) -> [u64; TRANSFERS.len()] {
    let transfers = &stats.transfers;
    [
        transfers.sent,
        transfers.received,
        transfers.waited,
        transfers.refused,
        transfers.stopped,
        transfers.reads,
    ]
}
