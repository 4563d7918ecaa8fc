//! One context: the state that its owner word guards.

pub(super) mod channel_events;
pub(super) mod cold_rings;
pub(super) mod completion_queues;
pub(super) mod element_list;
pub(super) mod event_queue;
pub(super) mod general_send;
pub(super) mod link;
pub(super) mod memory;
pub(super) mod owner;
pub(super) mod peer;
pub(super) mod pending;
mod publishing;
pub(super) mod queue_pair;
pub(super) mod ready_peers;
pub(super) mod receive_queue;
pub(super) mod regions;
pub(super) mod remote_access;
pub(super) mod responder;
pub(super) mod send_queue;
pub(super) mod state;
pub(super) mod tcp_link;
pub(super) mod tcp_links;
pub(super) mod transitions;
pub(super) mod waiting;
pub(super) mod window_table;
