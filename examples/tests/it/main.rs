//! The examples and the documented behaviour of servers, channels and streams, as users see them. One program:
//! a module for each subject. Tests that run processes of their own program, or count their threads, have
//! programs beside this one.

mod blobs;
mod connection_age;
mod device_info;
mod failure_modes;
mod greeter_load;
mod health;
mod help;
mod latencies;
mod long_decodes;
mod observed_server;
mod program;
mod reflection;
mod refusals;
mod shared_channel;
mod shared_pollers;
mod stream_ends;
mod streams;
mod verbs_tutorial;
