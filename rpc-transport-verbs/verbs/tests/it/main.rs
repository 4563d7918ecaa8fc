//! What the verbs layer adds to the verbs, one module for each subject. The conformance suite, a
//! program of its own, tests the verbs themselves, and `verbs_kernel` what only kernel devices have.

#[path = "../verbs_side/mod.rs"]
mod verbs_side;

mod verbs_explanations;
mod verbs_many;
mod verbs_one_sided;
mod verbs_reads;
mod verbs_send_receive;
