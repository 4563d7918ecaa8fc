//! Nothing on the data path allocates, once both sides are warm.

use rpc_core::Intents;
use rpc_core::transport::{ConnectionId, Event, Transport};
use rpc_transport_verbs::{Sizing, VerbsTransport};

use crate::transport_harness::Rig;
use crate::{allocations_of_this_thread, alone};

/// Sends a window of frames and receives all of them on the other side.
fn exchange(
    from: &mut VerbsTransport,
    connection: ConnectionId,
    to: &mut VerbsTransport,
    lens: &[usize],
) {
    for &len in lens {
        let mut buf = from.reserve(connection, len).unwrap();
        buf.as_mut()[0] = 1;
        from.send(connection, buf).unwrap();
    }
    from.flush();
    let mut received = 0;
    while received < lens.len() {
        while let Some(event) = to.poll() {
            if let Event::Received { buf, .. } = event {
                assert_eq!(buf.as_ref().len(), lens[received]);
                received += 1;
                to.release(buf);
            }
        }
        // Poll the sender's completions to free its slots.
        assert!(from.poll().is_none(), "nobody sends the other way");
    }
}

#[test]
fn frames_are_sent_and_received_without_allocating() {
    let _alone = alone();
    let mut rig = Rig::new(&Intents::default(), &Sizing::default());
    let (client_id, server_id) = rig.connect(1)[0];
    let (client, server) = (&mut rig.client.transport, &mut rig.server.transport);
    let lens = [64, 2000, 200, 4096, 88, 64, 64, 64, 64, 300];
    let mut round = |count: usize| {
        for _ in 0..count {
            exchange(client, client_id, server, &lens);
            exchange(server, server_id, client, &lens);
        }
    };
    round(200);
    let before = allocations_of_this_thread();
    round(1000);
    assert_eq!(
        allocations_of_this_thread() - before,
        0,
        "allocations for 20,000 frames"
    );
}
