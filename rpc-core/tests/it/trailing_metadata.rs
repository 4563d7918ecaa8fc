//! Both kinds of metadata of unary responses, over the loopback.

use rpc_core::{Caller, Channel, Intents, LocalChannel, MethodSpec, Methods, Request, Response};
use rpc_core_testing::{Faults, Network};

use crate::support::method;

/// Answers with as many bytes as the first number of the request says, and with initial and trailing
/// metadata if the second and the third are not zero.
const ANSWER: MethodSpec = method("test.Metadata/Answer");

fn register(methods: &mut Methods) {
    methods.unary(&ANSWER, async |request: Request<Vec<u8>>| {
        let request = request.into_inner();
        let mut response = Response::new(vec![7u8; request[0].into()]);
        if request[1] != 0 {
            let initial = response.metadata_mut();
            initial.insert("initial", "first").unwrap();
        }
        if request[2] != 0 {
            let trailing = response.trailing_metadata_mut();
            trailing.insert("trailing-bin", vec![0u8, 255]).unwrap();
        }
        Ok(response)
    });
}

fn served(faults: Faults, seed: u64) -> (Network, LocalChannel, Channel) {
    let intents = Intents {
        max_message_len: 256,
        max_in_flight: 4,
        connections: 4,
        ..Intents::default()
    };
    let mut network = Network::new(faults, seed);
    network.add("server", &intents, register);
    let client = network.add("client", &intents, |_| ());
    let shared = network.share("server", &intents);
    let channel = client.poller().connect("server").unwrap();
    (network, channel, shared.channel().clone())
}

fn check(network: &Network, caller: &impl Caller) {
    // A message that is sent inline, and one that is not.
    for len in [1, 200] {
        for (has_initial, has_trailing) in [(0, 0), (1, 0), (0, 1), (1, 1)] {
            let request = Request::new(vec![len, has_initial, has_trailing]);
            let call = caller.unary::<Vec<u8>, Vec<u8>>(&ANSWER, request);
            let response = network.try_run(call).unwrap().unwrap();
            let initial = response.metadata();
            assert_eq!(
                initial.get("initial"),
                (has_initial == 1).then_some("first")
            );
            assert_eq!(initial.len(), usize::from(has_initial));
            let trailing = response.trailing_metadata();
            let expected = (has_trailing == 1).then_some(&[0, 255][..]);
            assert_eq!(trailing.get_bin("trailing-bin"), expected);
            assert_eq!(trailing.len(), usize::from(has_trailing));
            assert_eq!(response.into_inner(), vec![7; len.into()]);
        }
    }
}

#[test]
fn a_unary_response_has_initial_and_trailing_metadata_in_both_flavours() {
    let (network, local, shared) = served(Faults::none(), 0);
    check(&network, &local);
    check(&network, &shared);
    network.assert_nothing_left();
}

#[test]
fn responses_that_wait_for_a_slot_keep_both_kinds_of_metadata() {
    for seed in 0..20 {
        let (network, local, shared) = served(Faults::rough(), seed);
        check(&network, &local);
        check(&network, &shared);
        network.assert_nothing_left();
    }
}
