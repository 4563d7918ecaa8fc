//! The work of a decode: what takes long is decoded beside a poller's thread, and a decode on that thread
//! takes no longer than its estimate.

#![allow(
    clippy::print_stdout,
    reason = "prints measurements for the person who runs the test"
)]

use std::time::{Duration, Instant};

use generated::plain::fields::v3::{EachMap, Packed, Recursive, Unpacked};
use generated::plain::lists::Lists;
use generated::sorted;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::codegen::v1::bytes::Bytes;
use rpc_core::for_testing::decode_beside;
use rpc_core::{BegunDecode, Codec, ProstCodec};

/// Returns the least bound with which a message is decoded at once, in picoseconds.
fn estimate<M, C: Codec<M>>(bytes: &Bytes) -> u64 {
    let (mut low, mut high) = (0, 1 << 40);
    while low < high {
        let middle = (low + high) / 2;
        decode_beside(middle);
        match C::begin_decode(bytes, 4096) {
            BegunDecode::Done(_) => high = middle,
            BegunDecode::Beside(_) => low = middle + 1,
        }
    }
    low
}

/// Prints how long decodes and drops take, and what was estimated.
fn measure<M, C: Codec<M>>(name: &str, element: impl Fn(u32) -> Vec<u8>) {
    let mut encoded = Vec::new();
    let mut count = 0;
    while encoded.len() < 3 << 20 && count < 300_000 {
        encoded.extend(element(count));
        count += 1;
    }
    let bytes = Bytes::from(encoded);
    let mut times: Vec<[Duration; 2]> = (0..5)
        .map(|_| {
            let begin = Instant::now();
            let decoded = C::decode_shared(&bytes, 4096);
            let decode = begin.elapsed();
            let begin = Instant::now();
            drop(decoded);
            [decode, begin.elapsed()]
        })
        .collect();
    times.sort();
    let estimate = Duration::from_nanos(estimate::<M, C>(&bytes) / 1000);
    let [decode, drop] = times[2];
    println!(
        "{name:32} {count:7} in {:7} bytes: {:7.1} ns each, decode {decode:9.1?} (most {:9.1?}), estimate {estimate:9.1?}, \
         ratio {:5.2}, drop {drop:9.1?}",
        bytes.len(),
        decode.as_nanos() as f64 / f64::from(count),
        times[4][0],
        decode.as_secs_f64() / estimate.as_secs_f64(),
    );
}

fn varint(mut value: u32) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}

fn delimited(number: u32, value: &[u8]) -> Vec<u8> {
    [
        &varint(number << 3 | 2)[..],
        &varint(value.len() as u32),
        value,
    ]
    .concat()
}

fn entry(number: u32, key: &[u8], value: &[u8]) -> Vec<u8> {
    delimited(number, &[key, value].concat())
}

const UNKNOWN: [u8; 3] = [0xf8, 0x7f, 1];

/// `cargo test --release -p rpc-codegen --test codec -- --ignored --nocapture what_a_decode_takes`
#[test]
#[ignore = "it prints measurements, on which the constants of `codec/budget.rs` are based"]
fn what_a_decode_takes() {
    let name = |index: u32| format!("n{index:06}").into_bytes();
    let numbers = |index: u32| entry(4, &[&[8][..], &varint(index)].concat(), &[16, 1]);
    let scattered = |index: u32| numbers(index.wrapping_mul(2_654_435_761));
    let texts = |index| entry(12, &delimited(1, &name(index)), &[16, 1]);
    let long_texts = |index| delimited(15, &name(index).repeat(10));
    measure::<EachMap, GeneratedCodec>("map<uint64, uint32>", numbers);
    measure::<EachMap, GeneratedCodec>("map<uint64, uint32>, scattered", scattered);
    measure::<EachMap, GeneratedCodec>("map<string, uint32>", texts);
    measure::<EachMap, ProstCodec>("map<string, uint32>, prost", texts);
    measure::<EachMap, GeneratedCodec>("map<int32, string>", |index| {
        entry(
            1,
            &[&[8][..], &varint(index)].concat(),
            &delimited(2, &name(index)),
        )
    });
    type Sorted = sorted::fields::v3::EachMap;
    measure::<Sorted, GeneratedCodec>("map<uint64, uint32>, BTreeMap", scattered);
    measure::<Sorted, GeneratedCodec>("map<string, uint32>, BTreeMap", texts);
    measure::<EachMap, GeneratedCodec>("map<string, uint32>, empty", |_| delimited(12, &[]));
    measure::<EachMap, GeneratedCodec>("map<int32, Fixed>", |index| {
        entry(37, &[&[8][..], &varint(index)].concat(), &[0x12, 0])
    });
    measure::<EachMap, GeneratedCodec>("unknown, map<string, uint32>", |index| {
        [texts(index), UNKNOWN.to_vec()].concat()
    });
    measure::<Unpacked, GeneratedCodec>("repeated int32", |_| vec![0x18, 1]);
    measure::<Unpacked, ProstCodec>("repeated int32, prost", |_| vec![0x18, 1]);
    measure::<Unpacked, GeneratedCodec>("repeated string, empty", |_| vec![0x7a, 0]);
    measure::<Unpacked, GeneratedCodec>("repeated string, 7", |index| delimited(15, &name(index)));
    measure::<Unpacked, GeneratedCodec>("repeated string, 70", long_texts);
    measure::<Unpacked, ProstCodec>("repeated string, 7, prost", |index| {
        delimited(15, &name(index))
    });
    measure::<Unpacked, ProstCodec>("repeated string, 70, prost", long_texts);
    measure::<Unpacked, GeneratedCodec>("repeated bytes, 70", |index| {
        delimited(16, &name(index).repeat(10))
    });
    measure::<Unpacked, GeneratedCodec>("repeated Scalars, empty", |_| vec![0x8a, 1, 0]);
    measure::<Unpacked, GeneratedCodec>("alternating", |_| vec![0x18, 1, 0x68, 1]);
    measure::<Lists, GeneratedCodec>("repeated Reading", |index| {
        delimited(
            3,
            &[delimited(3, &name(index)), delimited(4, &name(index))].concat(),
        )
    });
    measure::<Lists, GeneratedCodec>("repeated Vessel, named", |index| {
        let papers = delimited(1, &delimited(1, &name(index).repeat(4)));
        delimited(4, &papers)
    });
    measure::<Lists, ProstCodec>("repeated Vessel, named, prost", |index| {
        delimited(4, &delimited(1, &delimited(1, &name(index).repeat(4))))
    });
    measure::<Lists, GeneratedCodec>("repeated Lists", |_| vec![0x4a, 0]);
    measure::<Recursive, GeneratedCodec>("recursive", |_| {
        delimited(
            2,
            &(0..20).fold(Vec::new(), |inner, _| delimited(1, &inner)),
        )
    });
    for (name, number, byte) in [
        ("double", 1, 1),
        ("int32", 3, 1),
        ("int32, 10 bytes", 3, 0xff),
        ("bool", 13, 1),
    ] {
        measure::<Packed, GeneratedCodec>(&format!("packed {name}"), |_| {
            let mut values = vec![byte; 10 * 8 * 4000];
            if byte == 0xff {
                values
                    .iter_mut()
                    .skip(9)
                    .step_by(10)
                    .for_each(|last| *last = 1);
            }
            delimited(number, &values)
        });
    }
    measure::<Packed, ProstCodec>("packed int32, prost", |_| delimited(3, &vec![1; 320_000]));
    for (name, text) in [
        ("ASCII", "text"),
        ("two bytes", "ääää"),
        ("three bytes", "語語"),
    ] {
        let text = text.repeat((3 << 20) / text.len());
        let text = text.as_bytes();
        measure::<Unpacked, GeneratedCodec>(&format!("string, {name}"), |_| delimited(15, text));
        measure::<Unpacked, ProstCodec>(&format!("string, {name}, prost"), |_| delimited(15, text));
    }
    measure::<Unpacked, GeneratedCodec>("bytes, Vec", |_| delimited(16, &vec![1; 3 << 20]));
    type Shared = sorted::fields::v3::EachRepeated;
    measure::<Shared, GeneratedCodec>("bytes, Bytes (unknown field)", |_| {
        delimited(16, &vec![1; 3 << 20])
    });
    measure::<Recursive, GeneratedCodec>("unknown varints", |_| UNKNOWN.to_vec());
    measure::<Recursive, ProstCodec>("unknown varints, prost", |_| UNKNOWN.to_vec());
}
