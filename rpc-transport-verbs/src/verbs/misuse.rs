//! Misuse that does not compile, kept as tests.
//!
//! Each pair of programs differs in the lines that are marked: the first is wrong and must not compile, the second
//! is right and must. So the first fails for the reason that is given, and not because a name has changed.

/// A slot that was posted belongs to the device: it cannot be posted again.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn twice(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(one));
///     let _ = queue_pair.post_one(WorkRequest::send(one)); // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn twice(queue_pair: &mut QueuePair, one: Slot, other: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(one));
///     let _ = queue_pair.post_one(WorkRequest::send(other)); // right
/// }
/// ```
struct PostingASlotTwice;

/// Nor can its bytes be looked at or changed, until its completion gives it back.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn change(queue_pair: &mut QueuePair, mut slot: Slot) {
///     let _ = queue_pair.post_one(WorkRequest::send(slot));
///     slot[0] = 1; // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn change(queue_pair: &mut QueuePair, mut slot: Slot) {
///     slot[0] = 1; // right
///     let _ = queue_pair.post_one(WorkRequest::send(slot));
/// }
/// ```
struct TouchingASlotInFlight;

/// A slot is the only token of its bytes: there is no second one.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn second(slot: Slot) -> Slot {
///     slot.clone() // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn second(slot: Slot) -> Slot {
///     slot // right
/// }
/// ```
struct CloningASlot;

/// Nor does the region that was cut up into slots name their bytes any more.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn cut(region: MemoryRegion) -> (Vec<Slot>, Vec<Slot>) {
///     (region.into_slots(64).unwrap(), region.into_slots(128).unwrap()) // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn cut(region: MemoryRegion) -> (Vec<Slot>, Vec<Slot>) {
///     (region.into_slots(64).unwrap(), Vec::new()) // right
/// }
/// ```
struct CuttingARegionTwice;

/// A completion gives its memory back once.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn claim(queue: &SharedReceiveQueue, completion: WorkCompletion) {
///     let _ = queue.claim(completion);
///     let _ = queue.claim(completion); // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn claim(queue: &SharedReceiveQueue, completion: WorkCompletion) {
///     let _ = queue.claim(completion);
///     // right
/// }
/// ```
struct ClaimingACompletionTwice;

/// Nobody but the device makes completions.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn another(completion: &WorkCompletion) -> WorkCompletion {
///     completion.clone() // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn another(completion: &WorkCompletion) -> &WorkCompletion {
///     completion // right
/// }
/// ```
struct CloningACompletion;

/// A completion queue is polled by one thread at a time: two need a lock.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
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
/// # use rpc_transport_verbs::verbs::*;
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

/// A handle of a completion queue names it for queue pairs, and polls nothing.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn poll(queue: &mut CompletionQueue) {
///     let mut handle = queue.handle();
///     let _ = handle.poll(&mut Vec::new(), 1); // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn poll(queue: &mut CompletionQueue) {
///     let mut handle = queue.handle();
///     let _ = queue.poll(&mut Vec::new(), 1); // right
/// }
/// ```
struct PollingByAHandle;

/// A queue pair is posted to by one thread at a time.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
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
/// # use rpc_transport_verbs::verbs::*;
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

/// A local key is of no use to a peer.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn tell(memory: &ExposedMemory) -> RemoteMemory {
///     RemoteMemory { addr: memory.address(), key: memory.local_key() } // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn tell(memory: &ExposedMemory) -> RemoteMemory {
///     RemoteMemory { addr: memory.address(), key: memory.remote_key() } // right
/// }
/// ```
struct TellingALocalKey;

/// And a remote key is of no use in a request of one's own.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// # use std::ptr::NonNull;
/// fn element(memory: &ExposedMemory, addr: NonNull<u8>) -> Element {
///     // SAFETY: the caller's.
///     unsafe { Element::from_raw(addr, 8, memory.remote_key()) } // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// # use std::ptr::NonNull;
/// fn element(memory: &ExposedMemory, addr: NonNull<u8>) -> Element {
///     // SAFETY: the caller's.
///     unsafe { Element::from_raw(addr, 8, memory.local_key()) } // right
/// }
/// ```
struct UsingARemoteKeyHere;

/// Memory that nobody vouches for cannot be named without saying so.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// # use std::ptr::NonNull;
/// fn element(addr: NonNull<u8>, key: LocalKey) -> Element {
///     Element::from_raw(addr, 8, key) // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// # use std::ptr::NonNull;
/// fn element(addr: NonNull<u8>, key: LocalKey) -> Element {
///     // SAFETY: the caller's.
///     unsafe { Element::from_raw(addr, 8, key) } // right
/// }
/// ```
struct NamingAnyMemory;

/// Memory that a peer may write is no slice of bytes, which would have to stay the same while it is looked at.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn look(memory: &ExposedMemory) -> u8 {
///     let bytes: &[u8] = memory; // wrong
///     bytes[0]
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn look(memory: &ExposedMemory) -> u8 {
///     let bytes: &[u8] = &memory.to_vec(0..1).unwrap(); // right
///     bytes[0]
/// }
/// ```
struct BorrowingWhatAPeerWrites;

/// A queue pair that was destroyed is gone.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn end(queue_pair: QueuePair) {
///     queue_pair.destroy(&mut drop);
///     let _ = queue_pair.state(); // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn end(queue_pair: QueuePair) {
///     let _ = queue_pair.state(); // right
///     queue_pair.destroy(&mut drop);
/// }
/// ```
struct UsingADestroyedQueuePair;

/// Codes of verbs are no bare numbers: the one for acknowledgements is not the one for receivers that are not ready,
/// and none is out of range.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn attributes() -> RtsAttributes {
///     let timeout = RnrTimer::new(14).unwrap(); // wrong
///     RtsAttributes { timeout, ..RtsAttributes::new(Psn::new(0)) }
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn attributes() -> RtsAttributes {
///     let timeout = AckTimeout::new(14).unwrap(); // right
///     RtsAttributes { timeout, ..RtsAttributes::new(Psn::new(0)) }
/// }
/// ```
struct MixingUpTimers;

/// So are the numbers of queue pairs and packets.
///
/// ```compile_fail
/// # use rpc_transport_verbs::verbs::*;
/// fn peer(gid: Gid, qp_num: QpNum, psn: Psn) -> RemoteEndpoint {
///     RemoteEndpoint { gid, lid: 0, qp_num: psn, psn: qp_num } // wrong
/// }
/// ```
///
/// ```
/// # use rpc_transport_verbs::verbs::*;
/// fn peer(gid: Gid, qp_num: QpNum, psn: Psn) -> RemoteEndpoint {
///     RemoteEndpoint { gid, lid: 0, qp_num, psn } // right
/// }
/// ```
struct MixingUpNumbers;
