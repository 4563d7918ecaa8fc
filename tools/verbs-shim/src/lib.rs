//! libibverbs' functions over the software devices `soft` and `tcp`, which programs see as `soft0` and
//! `tcp0`. `LD_PRELOAD` puts them in front of libibverbs' own, so that programs which were written
//! for network cards run without one, and without root.
//!
//! The structs and numbers are those of `<infiniband/verbs.h>` on x86-64 (`abi`), and what each function
//! answers is what its man page says. Each object that a program gets is the head of a struct of this
//! library, which has the device's object behind it.
//!
//! What holds for every function here, since C has no way to check it: a pointer that the program passes
//! is null where the man page permits that, or points to what its type says; objects are those that
//! this library returned, and are used by no thread while one destroys them. "As the man page asks"
//! in a note on safety means this. Numbers, lengths, opcodes and states are checked. A panic ends at the
//! boundary and is the error `EIO` (`boundary`).

mod abi;
mod batch;
mod boundary;
mod devices;
mod events;
mod extended;
mod mapped;
mod memory;
mod modify;
mod pages;
mod poll;
mod post;
mod queue_pairs;
mod queues;
#[cfg(test)]
mod tests;
