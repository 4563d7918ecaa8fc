//! One context: what it has behind its owner word.

pub(super) mod completion_channel;
pub(super) mod domain;
pub(super) mod event_queue;
pub(super) mod general_send;
pub(super) mod owner;
pub(super) mod queue_pair;
pub(super) mod regions;
pub(super) mod window_table;
pub(super) mod work_queues;
