//! Lanes are polled in turn.

use rpc_core::transport::{Event, Transport};

use super::transport_harness::frame;
use super::{ROCE, SOFT, Server, exchange, side_with};

#[test]
fn a_busy_lane_does_not_delay_the_events_of_another() {
    let mut server = Server::with(&[ROCE, SOFT]);
    let mut clients = [ROCE, SOFT].map(|kind| {
        let mut client = side_with(&[kind]);
        let (at_client, at_server) = server.accept(&mut client);
        exchange(&mut server.side, at_server, &mut client, at_client);
        (client, at_client, at_server)
    });
    for (busy, calm) in [(0, 1), (1, 0)] {
        for (number, frames) in [(busy, 16), (calm, 1)] {
            let (client, at_client, _) = &mut clients[number];
            for frame_number in 0..frames {
                client.send(*at_client, &frame(frame_number, 64)).unwrap();
            }
            client.transport.flush();
        }
        let mut order = Vec::new();
        while order.len() < 17 {
            match server.side.transport.poll() {
                Some(Event::Received { connection, buf }) => {
                    order.push(connection);
                    server.side.transport.release(buf);
                }
                Some(other) => panic!("{other:?}"),
                None => std::thread::yield_now(),
            }
        }
        let place = order.iter().position(|&it| it == clients[calm].2);
        assert!(place.is_some_and(|place| place < 2), "{order:?}");
    }
}
