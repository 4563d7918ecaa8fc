//! Tests that misuse of the API does not compile.
//!
//! The programs of each pair differ only in the marked lines. The first one is wrong and must not
//! compile; the second one is right and must compile. This shows that the first one fails for the
//! stated reason, and not because a name has changed.

/// A posted slot belongs to the device and cannot be posted again.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn twice(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(one));
///     let _ = queue_pair.post_one(WorkRequest::send(one)); // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn twice(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(one));
///     let _ = queue_pair.post_one(WorkRequest::send(other)); // right
/// }
/// ```
struct PostingASlotTwice;

/// The bytes of a posted slot cannot be read or written until its completion returns the slot.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn change(queue_pair: &mut QueuePair, mut slot: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(slot));
///     slot[0] = 1; // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn change(queue_pair: &mut QueuePair, mut slot: Slot) {
///     slot[0] = 1; // right
///     let _ = queue_pair.post_one(WorkRequest::send(slot));
/// }
/// ```
struct TouchingASlotInFlight;

/// A slot is the only token for its bytes and cannot be cloned.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn second(slot: Slot) -> Slot {
///     slot.clone() // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn second(slot: Slot) -> Slot {
///     slot // right
/// }
/// ```
struct CloningASlot;

/// A region that has been divided into slots cannot be used again.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn cut(region: MemoryRegion) -> (Vec<Slot>, Vec<Slot>) {
///     (region.into_slots(64).unwrap(), region.into_slots(128).unwrap()) // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn cut(region: MemoryRegion) -> (Vec<Slot>, Vec<Slot>) {
///     (region.into_slots(64).unwrap(), Vec::new()) // right
/// }
/// ```
struct CuttingARegionTwice;

/// A completion returns its memory only once.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn claim(queue: &SharedReceiveQueue, completion: WorkCompletion) {
///     let _ = queue.claim(completion);
///     let _ = queue.claim(completion); // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn claim(queue: &SharedReceiveQueue, completion: WorkCompletion) {
///     let _ = queue.claim(completion);
///     // right
/// }
/// ```
struct ClaimingACompletionTwice;

/// Only the device creates completions.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn another(completion: &WorkCompletion) -> WorkCompletion {
///     completion.clone() // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn another(completion: &WorkCompletion) -> &WorkCompletion {
///     completion // right
/// }
/// ```
struct CloningACompletion;

/// Only one thread at a time may poll a completion queue; two threads need a lock.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// # use std::thread;
/// fn poll(queue: &mut CompletionQueue) {
///     thread::scope(|scope| {
///         scope.spawn(|| queue.poll(&mut Vec::new(), 1)); // wrong
///         scope.spawn(|| queue.poll(&mut Vec::new(), 1)); // wrong
///     });
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// # use std::{sync::Mutex, thread};
/// fn poll(queue: &mut CompletionQueue) {
///     let queue = Mutex::new(queue);
///     thread::scope(|scope| {
///         scope.spawn(|| queue.lock().unwrap().poll(&mut Vec::new(), 1)); // right
///         scope.spawn(|| queue.lock().unwrap().poll(&mut Vec::new(), 1)); // right
///     });
/// }
/// ```
struct PollingFromTwoThreads;

/// A handle of a completion queue serves to create queue pairs and cannot poll.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn poll(queue: &mut CompletionQueue) {
///     let mut handle = queue.handle();
///     let _ = handle.poll(&mut Vec::new(), 1); // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn poll(queue: &mut CompletionQueue) {
///     let mut handle = queue.handle();
///     let _ = queue.poll(&mut Vec::new(), 1); // right
/// }
/// ```
struct PollingByAHandle;

/// Only one thread at a time may post to a queue pair.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// # use std::thread;
/// fn post(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     thread::scope(|scope| {
///         scope.spawn(|| queue_pair.post_one(WorkRequest::send(one)).is_ok()); // wrong
///         scope.spawn(|| queue_pair.post_one(WorkRequest::send(other)).is_ok()); // wrong
///     });
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// # use std::thread;
/// fn post(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     thread::scope(|scope| {
///         scope.spawn(|| queue_pair.post_one(WorkRequest::send(one)).is_ok()); // right
///     });
///     thread::scope(|scope| {
///         scope.spawn(|| queue_pair.post_one(WorkRequest::send(other)).is_ok()); // right
///     });
/// }
/// ```
struct PostingFromTwoThreads;

/// A local key cannot be sent to a peer.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn tell(memory: &ExposedMemory) -> RemoteMemory {
///     RemoteMemory { addr: memory.address(), key: memory.local_key() } // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn tell(memory: &ExposedMemory) -> RemoteMemory {
///     RemoteMemory { addr: memory.address(), key: memory.remote_key() } // right
/// }
/// ```
struct TellingALocalKey;

/// A remote key cannot be used for an element of a local request.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// # use std::ptr::NonNull;
/// fn element(memory: &ExposedMemory, addr: NonNull<u8>) -> Element {
///     // SAFETY: the caller keeps the region registered until the request has completed.
///     unsafe { Element::from_raw(addr, 8, memory.remote_key()) } // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// # use std::ptr::NonNull;
/// fn element(memory: &ExposedMemory, addr: NonNull<u8>) -> Element {
///     // SAFETY: the caller keeps the region registered until the request has completed.
///     unsafe { Element::from_raw(addr, 8, memory.local_key()) } // right
/// }
/// ```
struct UsingARemoteKeyHere;

/// Arbitrary memory can only be named in an `unsafe` block.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// # use std::ptr::NonNull;
/// fn element(addr: NonNull<u8>, key: LocalKey) -> Element {
///     Element::from_raw(addr, 8, key) // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// # use std::ptr::NonNull;
/// fn element(addr: NonNull<u8>, key: LocalKey) -> Element {
///     // SAFETY: the caller keeps the region registered until the request has completed.
///     unsafe { Element::from_raw(addr, 8, key) } // right
/// }
/// ```
struct NamingAnyMemory;

/// Memory that a peer may write cannot be borrowed as a slice, whose bytes must not change while it
/// is borrowed.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn look(memory: &ExposedMemory) -> u8 {
///     let bytes: &[u8] = memory; // wrong
///     bytes[0]
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn look(memory: &ExposedMemory) -> u8 {
///     let bytes: &[u8] = &memory.to_vec(0..1).unwrap(); // right
///     bytes[0]
/// }
/// ```
struct BorrowingWhatAPeerWrites;

/// A destroyed queue pair cannot be used.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn end(queue_pair: QueuePair) {
///     queue_pair.destroy(&mut drop);
///     let _ = queue_pair.state(); // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn end(queue_pair: QueuePair) {
///     let _ = queue_pair.state(); // right
///     queue_pair.destroy(&mut drop);
/// }
/// ```
struct UsingADestroyedQueuePair;

/// Timer codes are distinct types, not plain numbers: an acknowledgement timeout is not an RNR
/// timer, and no code is out of range.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn attributes() -> RtsAttributes {
///     let timeout = RnrTimer::new(14).unwrap(); // wrong
///     RtsAttributes { timeout, ..RtsAttributes::new(Psn::new(0)) }
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn attributes() -> RtsAttributes {
///     let timeout = AckTimeout::new(14).unwrap(); // right
///     RtsAttributes { timeout, ..RtsAttributes::new(Psn::new(0)) }
/// }
/// ```
struct MixingUpTimers;

/// Queue pair numbers and packet sequence numbers are distinct types as well.
///
/// ```compile_fail
/// # use verbline_verbs::*;
/// fn peer(gid: Gid, qp_num: QpNum, psn: Psn) -> RemoteEndpoint {
///     RemoteEndpoint { gid, lid: 0, qp_num: psn, psn: qp_num } // wrong
/// }
/// ```
///
/// ```
/// # use verbline_verbs::*;
/// fn peer(gid: Gid, qp_num: QpNum, psn: Psn) -> RemoteEndpoint {
///     RemoteEndpoint { gid, lid: 0, qp_num, psn } // right
/// }
/// ```
struct MixingUpNumbers;
