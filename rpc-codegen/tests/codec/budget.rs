//! The budget of decoding: what expands to more memory than it may take is refused, before the
//! memory is allocated.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use generated::plain::fields::v3::{Packed, Recursive, Unpacked};
use generated::plain::lists::{Hold, Lists, Reading, Vessel};
use generated::{MESSAGES, plain, sorted};
use proptest::collection::vec;
use proptest::prelude::*;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::codegen::v1::bytes::Bytes;
use rpc_core::codegen::v1::prost::Message;
use rpc_core::{Codec, DecodeError, ProstCodec};

thread_local! {
    /// The bytes that this thread has allocated and not freed, and the most that it ever had.
    static LIVE: Cell<(isize, isize)> = const { Cell::new((0, 0)) };
}

struct Counting;

fn count(change: isize) {
    LIVE.with(|live| {
        let (now, most) = live.get();
        live.set((now + change, most.max(now + change)));
    });
}

// SAFETY: every method passes its arguments on to `System`, whose contract is the same, and returns
// what that returns. Counting neither allocates nor panics: the thread's variable has no
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc` for `layout`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller upholds the contract: `block` came from `alloc`, thus from `System`.
        unsafe { System.dealloc(block, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Returns what `run` returns, and the most bytes that it had allocated at a time.
fn most_allocated<T>(run: impl FnOnce() -> T) -> (T, usize) {
    LIVE.with(|live| live.set((0, 0)));
    let result = run();
    (result, LIVE.with(|live| live.get().1) as usize)
}

/// What a message of `len` bytes may take: the numbers of `docs/memory.md`.
fn limit(len: usize) -> usize {
    (512 * len).min(192 << 20).max(48 * len) + (256 << 10)
}

/// A field with a length, `times` times.
fn repeated(number: u8, value: &[u8], times: usize) -> Vec<u8> {
    let mut field = vec![number << 3 | 2, value.len() as u8];
    field.extend(value);
    field.repeat(times)
}

const UNKNOWN: [u8; 3] = [0xf8, 0x7f, 1];

/// Checks that a message is refused, with and without an unknown field behind it or before it, for
/// which prost has to decode it.
#[track_caller]
fn refused<M: Message + Default, C: Codec<M>>(bytes: &[u8]) {
    for encoded in [
        bytes.to_vec(),
        [bytes, &UNKNOWN].concat(),
        [&UNKNOWN, bytes].concat(),
        // prost finds the mistake at the end.
        [bytes, &[7]].concat(),
    ] {
        let (results, allocated) = most_allocated(|| {
            let shared = Bytes::from_owner(&*encoded.leak());
            [C::decode(&shared).err(), C::decode_shared(&shared, 1).err()]
        });
        for error in results {
            let error = error.expect("refused");
            let is_over_budget = matches!(error, DecodeError::OverBudget { .. });
            assert!(is_over_budget, "{error}");
        }
        let len = bytes.len();
        assert!(allocated <= limit(len), "{allocated} bytes for {len}");
    }
}

#[test]
fn a_message_that_expands_is_refused_before_its_memory_is_allocated() {
    // Two bytes become 2,600, and four.
    refused::<Lists, GeneratedCodec>(&repeated(4, &[], 20_000));
    refused::<Lists, GeneratedCodec>(&repeated(4, &[0x1a, 0], 60_000));
    // Four bytes become an entry of a map.
    refused::<Lists, GeneratedCodec>(&repeated(8, &[0x08, 1], 20_000));
    // In lists of lists.
    refused::<Lists, GeneratedCodec>(&repeated(9, &repeated(6, &[], 60), 2_000));
    // Without generated code too.
    refused::<Unpacked, ProstCodec>(&repeated(15, &[], 100_000));
    refused::<Unpacked, ProstCodec>(&[0x8a, 0x01, 0].repeat(100_000));
    refused::<Lists, ProstCodec>(&repeated(4, &[], 100_000));
}

/// prost decoded an entry of a map whatever its wire type is: 0.14.4 does, 0.14.6 does not.
#[test]
fn an_entry_with_another_wire_type_is_counted() {
    for wire_type in [0, 1, 3, 5] {
        let entry = [8 << 3 | wire_type, 2, 0x08, 1];
        refused::<Lists, GeneratedCodec>(&entry.repeat(20_000));
    }
}

/// A message of full length is no exception.
#[test]
fn a_long_message_that_expands_is_refused() {
    // A wide element for each nine bytes.
    let sparse = repeated(4, &[0x1a, 5, 0x0a, 3, b'a', b'b', b'c'], (4 << 20) / 9);
    refused::<Lists, GeneratedCodec>(&sparse);
    refused::<Lists, ProstCodec>(&sparse);
}

/// prost lets a nested message extend past the one that contains it, and finds the mistake later.
#[test]
fn a_message_that_extends_past_its_parent_is_counted() {
    let inner = repeated(2, &[], 100_000);
    // A child of four bytes, whose child is longer.
    let mut bytes = vec![1 << 3 | 2, 4, 1 << 3 | 2];
    prost::encoding::encode_varint(inner.len() as u64, &mut bytes);
    bytes.extend(&inner);
    let (result, allocated) = most_allocated(|| GeneratedCodec::decode(&bytes));
    let result: Result<Recursive, _> = result;
    assert!(result.is_err());
    assert!(allocated <= 2 * limit(bytes.len()), "{allocated}");
    let (result, allocated) = most_allocated(|| ProstCodec::decode(&bytes));
    let result: Result<Recursive, _> = result;
    assert!(result.is_err());
    assert!(allocated <= 2 * limit(bytes.len()), "{allocated}");
}

#[test]
fn what_is_dense_is_decoded() {
    let packed = Packed {
        // One byte each becomes eight.
        int64: vec![1; 200_000],
        ..Default::default()
    };
    let unpacked = Unpacked {
        string: vec!["text".to_owned(); 50_000],
        bytes: vec![vec![1; 100_000]; 3],
        ..Default::default()
    };
    let (encoded, unpacked_bytes) = (packed.encode_to_vec(), unpacked.encode_to_vec());
    for bytes in [encoded.clone(), [&encoded[..], &UNKNOWN].concat()] {
        assert_eq!(GeneratedCodec::decode(&bytes), Ok(packed.clone()));
        assert_eq!(ProstCodec::decode(&bytes), Ok(packed.clone()));
    }
    for bytes in [
        unpacked_bytes.clone(),
        [&unpacked_bytes[..], &UNKNOWN].concat(),
    ] {
        assert_eq!(GeneratedCodec::decode(&bytes), Ok(unpacked.clone()));
        assert_eq!(ProstCodec::decode(&bytes), Ok(unpacked.clone()));
    }
}

#[test]
fn a_limit_is_exact() {
    // Besides 256 KiB, 512 bytes are free for each byte, of which one is for the byte itself.
    let element = size_of::<Vessel>();
    let count = (256 << 10) / (element - 2 * 511);
    let decode = |count| -> Result<Lists, _> { GeneratedCodec::decode(&repeated(4, &[], count)) };
    assert_eq!(decode(count).map(|lists| lists.vessels.len()), Ok(count));
    decode(count + 1).unwrap_err();
}

/// What is just permitted takes the documented multiple, at each length. With prost it is up to three
/// times as much for a moment, because vectors grow by doubling.
#[test]
fn a_message_takes_what_the_documents_say() {
    for about in [2000, 50_000, 500_000, 4 << 20, 5 << 20] {
        // As many wide elements as are permitted, and a narrow one that makes the message long.
        let count = limit(about) / size_of::<Hold>();
        let encode = |count| {
            let text = "a".repeat(about - 2 * count);
            let reading = Reading {
                text,
                ..Default::default()
            };
            let lists = Lists {
                readings: vec![reading],
                holds: vec![Hold::default(); count],
                ..Default::default()
            };
            lists.encode_to_vec()
        };
        let bytes = encode(count - about / size_of::<Hold>() - 2);
        let most = limit(bytes.len());
        let decode =
            |bytes: &[u8]| most_allocated(|| -> Result<Lists, _> { GeneratedCodec::decode(bytes) });
        let (lists, allocated) = decode(&bytes);
        lists.unwrap();
        assert!(
            allocated <= most && allocated > most - most / 50 - 4 * size_of::<Hold>(),
            "{allocated} of {most}"
        );
        let (lists, allocated) = decode(&[&bytes[..], &UNKNOWN].concat());
        lists.unwrap();
        assert!(allocated <= 3 * most, "{allocated} of {most}");
        refused::<Lists, GeneratedCodec>(&encode(count + 10));
    }
}

#[test]
fn long_fields_are_encoded_and_decoded_without_a_copy() {
    let long = Bytes::from(vec![7; 1 << 20]);
    let message = sorted::fields::v3::Unpacked {
        bytes: vec![long.clone(), Bytes::from_static(b"short"), long.clone()],
        ..Default::default()
    };
    let len = message.encoded_len();
    let (chunks, allocated) =
        most_allocated(|| GeneratedCodec::encode_chunks(&message, len, &mut |_| None));
    let chunks = chunks.unwrap();
    assert_eq!(chunks.by_reference_len(), 2 << 20);
    assert!(allocated < 2000, "{allocated}");
    let encoded = Bytes::from(message.encode_to_vec());
    let (decoded, allocated) = most_allocated(|| GeneratedCodec::decode_shared(&encoded, 100));
    let decoded: rpc_core::Decoded<sorted::fields::v3::Unpacked> = decoded.unwrap();
    assert_eq!(decoded.message, message);
    assert_eq!(decoded.copied_len, len - (2 << 20));
    assert!(allocated < 2000, "{allocated}");
    // What was copied keeps nothing of the message.
    let sorted::fields::v3::Unpacked { bytes, .. } = decoded.message;
    assert!(!encoded.is_unique());
    let [first, short, second] = bytes.try_into().unwrap();
    drop((first, second));
    assert!(encoded.is_unique());
    drop(short);
}

#[test]
fn a_long_slice_is_copied_once() {
    let message = plain::fields::v3::Scalars {
        bytes: vec![7; 1 << 20],
        ..Default::default()
    };
    let len = message.encoded_len();
    let (chunks, allocated) =
        most_allocated(|| GeneratedCodec::encode_chunks(&message, len, &mut |_| None));
    assert_eq!(chunks.unwrap().len(), len);
    assert!(allocated < len + 2000, "{allocated}");
    let (chunks, allocated) =
        most_allocated(|| ProstCodec::encode_chunks(&message, len, &mut |_| None));
    assert_eq!(chunks.unwrap().len(), len);
    assert!(allocated < len + 2000, "{allocated}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Whatever the bytes are, decoding allocates no more than a few times what it may: a map keeps
    /// space free, and prost lets vectors grow by doubling.
    #[test]
    fn allocations_are_bounded(
        fields in vec((1u8..20, vec(any::<u8>(), 0..6), 1usize..3000), 1..6),
        tail in vec(any::<u8>(), 0..4),
    ) {
        let mut bytes: Vec<u8> = fields
            .iter()
            .flat_map(|(number, value, times)| repeated(*number % 16, value, *times))
            .collect();
        bytes.extend(&tail);
        for message in MESSAGES {
            let (_, allocated) = most_allocated(|| (message.decode)(&bytes));
            let most = 4 * limit(bytes.len());
            prop_assert!(allocated <= most, "{}: {allocated} for {}", message.name, bytes.len());
        }
    }
}
