//! What decoding takes of the stack: on a thread with a small one, wide messages that contain
//! themselves are decoded as prost does. An overflow ends the test program.
//!
//! The depths are those at which prost itself needs less: it takes up to 10 KiB for each level of
//! [`Tree`]s in a list.

use std::thread;

use generated::plain::deep::Tree;
use generated::plain::fields::v3::Recursive;
use generated::plain::lists::Lists;
use rpc_core::codegen::v1::GeneratedCodec;
use rpc_core::codegen::v1::prost::Message;
use rpc_core::{Codec, DecodeError};

use super::encodings::{delimited, key};

/// The stack of the thread in bytes.
const STACK: usize = 256 << 10;

#[test]
fn wide_messages_are_decoded_with_a_small_stack() {
    agree::<Tree>(31, |inner| delimited(3, &inner));
    agree::<Tree>(31, |inner| delimited(8, &inner));
    agree::<Tree>(16, |inner| delimited(5, &inner));
    agree::<Tree>(8, |inner| delimited(6, &delimited(2, &inner)));
    // An unknown field behind it, for which prost decodes.
    agree::<Tree>(31, |inner| {
        [delimited(4, &inner), vec![0xf8, 0x7f, 1]].concat()
    });
    // In a group.
    agree::<Tree>(31, |inner| {
        [key(7, 3), delimited(2, &inner), key(7, 4)].concat()
    });
    agree::<Lists>(8, |inner| delimited(9, &inner));
    agree::<Lists>(16, |inner| delimited(10, &inner));
}

#[test]
fn narrow_messages_of_any_depth_are_decoded_with_a_small_stack() {
    agree::<Recursive>(110, |inner| delimited(1, &inner));
    agree::<Recursive>(110, |inner| delimited(3, &delimited(2, &inner)));
}

/// prost's limit, beyond which both fail, on a stack that suffices.
#[test]
fn wide_messages_are_decoded_to_the_limit_of_prost() {
    for depth in 98..103 {
        let wrap = |inner: Vec<u8>| delimited(3, &inner);
        let bytes = (0..depth).fold(Vec::new(), |inner, _| wrap(inner));
        let agree = move |bytes: &[u8]| {
            let found = GeneratedCodec::decode(bytes);
            let expected: Result<Tree, _> = Tree::decode(bytes).map_err(DecodeError::from);
            assert!(found == expected, "{depth}");
            expected.is_ok()
        };
        assert_eq!(with_stack(16 << 20, bytes, agree), depth <= 100);
    }
}

/// Compares the generated codec, on the small stack, with prost on a large one.
fn agree<M>(deepest: usize, wrap: fn(Vec<u8>) -> Vec<u8>)
where
    M: Message + Default + PartialEq + 'static,
    GeneratedCodec: Codec<M>,
{
    let mut bytes = Vec::new();
    for depth in 0..=deepest {
        let found = with_stack(STACK, bytes.clone(), |bytes| {
            GeneratedCodec::decode(bytes).map(Box::new)
        });
        let agrees = move |bytes: &[u8]| {
            let expected = M::decode(bytes).map(Box::new);
            found == expected.map_err(DecodeError::from)
        };
        assert!(with_stack(16 << 20, bytes.clone(), agrees), "{depth}");
        bytes = wrap(bytes);
    }
}

fn with_stack<T: Send + 'static>(
    size: usize,
    bytes: Vec<u8>,
    run: impl FnOnce(&[u8]) -> T + Send + 'static,
) -> T {
    let thread = thread::Builder::new().stack_size(size);
    thread.spawn(move || run(&bytes)).unwrap().join().unwrap()
}
