//! Uploads of one size, one at a time.

use super::calls::Calls;
use crate::Outcome;
use crate::rpc::Client;
use crate::slices::{Side, Stopwatch};

/// Bytes that one turn puts in small messages.
const BYTES: usize = 32 << 20;

/// The largest number of puts in a turn.
pub const MOST: usize = 4096;

/// Returns the number of puts in a turn: at least 16, since large ones take long.
#[must_use]
pub fn puts_in_a_turn(size: usize) -> usize {
    (BYTES / size).clamp(16, MOST)
}

/// Returns the number of puts at the beginning of a turn that are not recorded.
#[must_use]
pub fn unrecorded_puts(puts: usize) -> usize {
    puts.div_ceil(8)
}

/// Puts payloads of one size, one at a time.
pub struct Puts<'a> {
    calls: Calls<'a>,
    /// The number of puts in a turn.
    puts: usize,
}

impl<'a> From<Calls<'a>> for Puts<'a> {
    fn from(calls: Calls<'a>) -> Self {
        let puts = puts_in_a_turn(calls.size());
        Self { calls, puts }
    }
}

impl Side for Puts<'_> {
    /// Makes as many puts as their size suggests, which may be fewer than `calls`.
    fn take_turn(&mut self, calls: usize, stopwatch: &mut Stopwatch) -> Outcome<()> {
        let rpc = self.calls.rpc();
        let puts = self.puts.min(calls);
        let upload = async || self.calls.upload().await;
        rpc.in_turn(stopwatch.time_async(unrecorded_puts(puts), puts, upload))
    }
}
