//! One context: the state that its lock guards.

pub(super) mod channel_events;
pub(super) mod check;
pub(super) mod cold_rings;
pub(super) mod completion_queues;
pub(super) mod core;
pub(super) mod element_list;
pub(super) mod event_queue;
pub(super) mod general_send;
pub(super) mod initiator;
pub(super) mod link;
pub(super) mod link_stream;
pub(super) mod lists;
pub(super) mod memory;
pub(super) mod parts;
pub(super) mod peer;
pub(super) mod pending;
mod posting;
mod publishing;
pub(super) mod queue_pair;
pub(super) mod queue_pairs;
pub(super) mod ready_peers;
pub(super) mod receive_queue;
pub(super) mod regions;
pub(super) mod responder;
pub(super) mod retry;
mod sealed_stream;
pub(super) mod send_queue;
pub(super) mod state;
pub(super) mod tcp_link;
pub(super) mod tcp_links;
#[cfg(test)]
pub(super) mod test_records;
pub(super) mod waiting;
pub(super) mod window_table;
