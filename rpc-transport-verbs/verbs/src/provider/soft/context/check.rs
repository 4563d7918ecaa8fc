//! Sums that hold whenever a batch of work has ended: each count that the state keeps, of what can be
//! counted anew. Builds with debug assertions check them, so a count that is not given back is found
//! where it happens, and not by a queue that is full one day. A check that holds allocates nothing.

use std::fmt;

use super::completion_queues::CompletionQueues;
use super::general_send::GeneralSend;
use super::link::{Link, Rings};
use super::pending::Matter;
use super::queue_pair::SoftQueuePair;
use super::receive_queue::ReceiveQueue;
use super::send_queue::SendQueue;
use super::state::State;
use super::tcp_link::TcpLink;
use crate::member_list::{Listed, MemberList};
use crate::provider::soft::shared::ring::{RingSender, STAGES};

/// The most requests, receives or queue pairs that are looked at one by one: more would make the builds
/// with debug assertions slow.
const MOST: usize = 64;

/// The name of the engine's thread, whose panics nobody sees.
const ENGINE: &str = "verbline-soft";

/// Fails, with what is said of it, unless something holds. The engine's thread would end silently, and
/// everything that waits for it would hang: there the process ends.
macro_rules! holds {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            fail(&format!($($message)+));
        }
    };
}

/// Checks everything of a context; of its queue pairs and their lists, if they are few.
pub(crate) fn check_state(state: &State) {
    if !cfg!(debug_assertions) {
        return;
    }
    check_completion_queues(&state.common.completion_queues);
    for (_, shared) in &state.common.shared_receive_queues {
        check_receives(
            &shared.queue,
            format_args!("shared receives {}", shared.number),
        );
    }
    if state.queue_pairs.len() <= MOST {
        for qp in state.queue_pairs.values() {
            check_queue_pair(qp);
        }
        check_lists(state);
        check_links(state);
    }
}

/// Checks what a queue pair counts.
#[inline]
pub(crate) fn check_queue_pair(qp: &SoftQueuePair) {
    if cfg!(debug_assertions) {
        check_counts(qp);
    }
}

fn check_counts(qp: &SoftQueuePair) {
    let number = qp.core.number;
    check_receives(
        &qp.receives,
        format_args!("receives of queue pair {number}"),
    );
    let sends = &qp.initiator.sends;
    check_sends(qp, sends);
    if !qp.core.is_reliable() || sends.posted - sends.acked > MOST as u64 {
        return;
    }
    match &qp.link {
        Link::Rings(rings) => {
            check_unwritten(qp, sends);
            check_rings(qp, sends, rings);
        }
        Link::Tcp(tcp) => {
            check_details(qp, sends);
            if let Some(link) = &tcp.connection {
                check_tcp(qp, sends, link);
            }
        }
        Link::Down => check_unwritten(qp, sends),
    }
    let is_writing = qp.link.tcp();
    let is_writing = is_writing.is_some_and(|link| link.outbound.is_writing_request());
    check_outstanding(qp, sends, is_writing);
}

/// Checks that each list has the queue pairs whose bits say so, and that polls look for what is awaited.
fn check_lists(state: &State) {
    let lists = &state.common.lists;
    let all = || state.queue_pairs.values();
    check_members(&lists.awaiting, all().map(|qp| (qp.core.index, &qp.listed)));
    check_members(&lists.unacked, all().map(|qp| (qp.core.index, &qp.listed)));
    let awaits = state.common.pending.has(Matter::Awaiting);
    holds!(
        awaits != lists.awaiting.is_empty(),
        "{:?} are awaited, and polls look for them: {awaits}",
        lists.awaiting
    );
    for qp in all() {
        let index = qp.core.index;
        let hot = lists.hot.iter().filter(|ring| ring.qp_index == index);
        let places = hot.count() + usize::from(lists.cold.contains(index));
        let has_ring = matches!(qp.link, Link::Rings(_));
        holds!(
            places == usize::from(has_ring),
            "queue pair {}: its ring is in {places} lists; it has one: {has_ring}",
            qp.core.number
        );
    }
}

/// Checks what is counted of the links over TCP, and their lists.
fn check_links(state: &State) {
    let tcp = &state.common.tcp;
    let links = || {
        let all = state.queue_pairs.values();
        let links = all.filter_map(|qp| Some((qp.core.index, qp.link.tcp()?)));
        links.filter(|(_, link)| !link.has_ended())
    };
    let blocked = links().filter(|(_, link)| link.is_watched_for_writing());
    let counted = (links().count(), blocked.count());
    let claimed = tcp.counts();
    holds!(
        claimed == counted,
        "there are {counted:?} links and links that are full, not {claimed:?}"
    );
    let is_looked_at = state.common.pending.has(Matter::TcpLinks);
    holds!(
        is_looked_at == (counted.0 > 0),
        "there are {} links, and polls look at them: {is_looked_at}",
        counted.0
    );
    let members = || links().map(|(index, link)| (index, &link.listed));
    check_members(&tcp.deferred, members());
    check_members(&tcp.acks_due, members());
    check_members(&tcp.acks_owed, members());
}

/// Does the same as `MemberList::assert_members`, in the engine's thread as well.
fn check_members<'a, const BIT: u8>(
    list: &MemberList<BIT>,
    all: impl Iterator<Item = (u32, &'a Listed)>,
) {
    let mut bits = 0;
    for (index, listed) in all {
        let places = list.as_slice().iter().filter(|&&other| other == index);
        let (places, bit) = (places.count(), list.contains(listed));
        holds!(
            places == usize::from(bit),
            "list {BIT} has queue pair {index} {places} times, and it has the bit: {bit}"
        );
        bits += usize::from(bit);
    }
    let len = list.len();
    holds!(
        len == bits,
        "list {BIT} has {len} members, and {bits} have its bit"
    );
}

/// Checks the counts of all completion queues of a context together.
fn check_completion_queues(queues: &CompletionQueues) {
    let (claimed, counted) = (queues.totals(), queues.count_totals());
    holds!(
        claimed == counted,
        "the completion queues have {counted:?} completions and watched queues, not {claimed:?}"
    );
}

fn check_receives(receives: &ReceiveQueue, name: fmt::Arguments<'_>) {
    let (len, capacity) = (receives.len(), receives.capacity());
    holds!(len <= capacity, "{name}: {len} of {capacity}");
    if len <= MOST {
        let filled = receives.filled();
        holds!(len == filled, "{name}: {len} posted, {filled} filled");
    }
}

fn check_sends(qp: &SoftQueuePair, sends: &SendQueue) {
    let number = qp.core.number;
    let counters = [sends.freed(), sends.acked, sends.started, sends.posted];
    let capacity = sends.capacity();
    holds!(
        counters.is_sorted() && sends.posted - sends.freed() <= capacity as u64,
        "queue pair {number}: freed, acked, started, posted are {counters:?} of {capacity}"
    );
    if sends.posted - sends.acked <= MOST as u64 {
        let unacked = sends.acked..sends.posted;
        let signaled = unacked.filter(|&send| sends.is_signaled(send)).count();
        let claimed = sends.signaled;
        holds!(
            claimed == signaled,
            "queue pair {number}: {signaled} sends are signaled, not {claimed}: {counters:?}"
        );
    }
}

/// Checks that every request waits that has not been written to the ring.
fn check_unwritten(qp: &SoftQueuePair, sends: &SendQueue) {
    let (waiting, unwritten) = (sends.unwritten_count(), sends.posted - sends.started);
    holds!(
        waiting as u64 == unwritten,
        "queue pair {}: {unwritten} sends are unwritten, {waiting} wait",
        qp.core.number
    );
}

fn check_rings(qp: &SoftQueuePair, sends: &SendQueue, rings: &Rings) {
    let number = qp.core.number;
    let (staged, unstaged) = (rings.staged, rings.unstaged);
    let expected = sends.general.iter().map(staged_pieces).sum::<u64>();
    holds!(
        unstaged <= staged && staged - unstaged <= STAGES && staged - unstaged == expected,
        "queue pair {number}: {staged} pieces staged, {unstaged} unstaged, {expected} expected"
    );
    if let Some(sender) = &rings.sender {
        check_slots(qp, sends, sender);
    }
}

/// Returns how many pieces of a READ are to come through staging memory.
fn staged_pieces(send: &GeneralSend) -> u64 {
    let requested = send
        .slots
        .as_ref()
        .map_or(0, |slots| slots.end - slots.start);
    if requested == 0 || !send.operation.is_read() || !send.piece(0).is_staged {
        return 0;
    }
    requested - send.pieces_received()
}

/// Checks that requests have taken the ring's slots one behind the other, and that every slot that is
/// not acknowledged belongs to one that is not complete.
fn check_slots(qp: &SoftQueuePair, sends: &SendQueue, sender: &RingSender) {
    let number = qp.core.number;
    let (next, acked) = (sender.next(), sender.acked());
    let mut first = next;
    for send in (sends.acked..=sends.started).rev() {
        match sends.general_at(send).map(|general| &general.slots) {
            Some(Some(slots)) => {
                holds!(
                    slots.end == first,
                    "queue pair {number}: send {send} has slots {slots:?}, before {first} of {next}"
                );
                first = slots.start;
            }
            Some(None) => holds!(
                send == sends.started,
                "queue pair {number}: send {send} is started and has no slots"
            ),
            // A plain message, or none.
            None => first -= u64::from(send < sends.started),
        }
    }
    holds!(
        first <= acked + 1,
        "queue pair {number}: slots {first}..{next} are of incomplete sends, acknowledged is {acked}"
    );
}

/// Checks that every request that is not complete has its details, as over TCP.
fn check_details(qp: &SoftQueuePair, sends: &SendQueue) {
    let numbers = sends.general.iter().map(|send| send.number);
    let waiting = sends.unwritten_count();
    holds!(
        numbers.clone().eq(sends.acked..sends.posted) && waiting == 0,
        "queue pair {}: sends {}..{} have details for {:?}, and {waiting} wait for a ring",
        qp.core.number,
        sends.acked,
        sends.posted,
        numbers.collect::<Vec<_>>()
    );
}

fn check_tcp(qp: &SoftQueuePair, sends: &SendQueue, link: &TcpLink) {
    let number = qp.core.number;
    let outbound = &link.outbound;
    let counters = [outbound.first(), outbound.acked, outbound.next];
    holds!(
        counters.is_sorted(),
        "queue pair {number}: first, acked, next to the peer are {counters:?}"
    );
    let inbound = &link.inbound;
    let (told, expected) = (inbound.acknowledged, inbound.expected);
    holds!(
        told <= expected,
        "queue pair {number}: {told} acknowledged of {expected}"
    );
    // Those that are to be sent again have been begun, too.
    let begun = (sends.acked..sends.started).rev();
    let units = begun.filter_map(|send| sends.general_at(send)?.slots.clone());
    let mut next = outbound.next;
    for slots in units {
        holds!(
            slots.end == next,
            "queue pair {number}: a send has the units {slots:?}, before {next}"
        );
        next = slots.start;
    }
}

/// Checks what begun requests hold of the depth of READs, and what holds READs up.
fn check_outstanding(qp: &SoftQueuePair, sends: &SendQueue, is_writing: bool) {
    let is_begun = |send: &&GeneralSend| {
        let is_going_on = send.number == sends.started && (send.requested > 0 || is_writing);
        send.number < sends.started || is_going_on
    };
    let begun = || sends.general.iter().filter(is_begun);
    let reads = begun().filter(|send| send.operation.has_response()).count();
    let unexecuted = begun().filter(|send| send.holds_up_reads()).count();
    let outstanding = &qp.initiator.outstanding;
    let claimed = (outstanding.reads, outstanding.unexecuted);
    holds!(
        (usize::from(claimed.0), claimed.1 as usize) == (reads, unexecuted),
        "queue pair {}: {reads} READs and {unexecuted} that hold them up, not {claimed:?}",
        qp.core.number
    );
}

#[cold]
fn fail(message: &str) {
    let thread = std::thread::current();
    if thread.name() == Some(ENGINE) || std::thread::panicking() {
        // Tests keep what a thread prints, unless it is written past them.
        let message = format!("a sum is wrong: {message}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), message.as_bytes());
        std::process::abort();
    }
    panic!("a sum is wrong: {message}");
}
