//! Lists as honest peers send them are decoded with the default budget: 10,000 elements that are as wide
//! as those of well-known services, as such services fill them, and with a name alone.

use std::fmt::Debug;

use generated::plain::lists::vessel::{Papers, Plan, State};
use generated::plain::lists::{
    Address, Berth, Cabin, Hold, Lists, Parcel, Reading, Terms, Vessel, lists,
};
use rpc_core::codegen::v1::{GeneratedCodec, GeneratedMessage};
use rpc_core::{Codec, ProstCodec};

const COUNT: usize = 10_000;

#[test]
fn the_elements_are_as_wide_as_those_of_well_known_services() {
    for (width, expected) in [
        (size_of::<Parcel>(), 792),
        (size_of::<Berth>(), 696),
        (size_of::<Reading>(), 184),
        (size_of::<Vessel>(), 2600),
        (size_of::<Cabin>(), 2600),
        (size_of::<Hold>(), 3400),
    ] {
        assert!(width.abs_diff(expected) < 100, "{width}, {expected}");
    }
}

#[test]
fn lists_of_elements_with_a_name_alone_are_decoded() {
    decoded(Lists {
        parcels: list(|name| Parcel {
            name,
            ..Default::default()
        }),
        ..Default::default()
    });
    decoded(Lists {
        berths: list(|name| Berth {
            path: name.into(),
            ..Default::default()
        }),
        ..Default::default()
    });
    decoded(Lists {
        readings: list(|text| Reading {
            text,
            ..Default::default()
        }),
        ..Default::default()
    });
    decoded(Lists {
        vessels: list(sparse_vessel),
        ..Default::default()
    });
    decoded(Lists {
        cabins: list(|name| Cabin {
            name,
            ..Default::default()
        }),
        ..Default::default()
    });
    decoded(Lists {
        holds: list(|name| Hold {
            name,
            ..Default::default()
        }),
        ..Default::default()
    });
}

#[test]
fn lists_as_services_return_them_are_decoded() {
    decoded(Lists {
        parcels: list(parcel),
        ..Default::default()
    });
    decoded(Lists {
        berths: list(berth),
        ..Default::default()
    });
    decoded(Lists {
        readings: list(reading),
        ..Default::default()
    });
    decoded(Lists {
        vessels: list(vessel),
        ..Default::default()
    });
}

#[test]
fn maps_and_lists_of_lists_are_decoded() {
    let numbered = 0..COUNT as i32;
    decoded(Lists {
        by_name: list(|name| (name.clone(), parcel(name)))
            .into_iter()
            .collect(),
        ..Default::default()
    });
    decoded(Lists {
        by_number: numbered
            .map(|number| {
                (
                    number,
                    Hold {
                        size: 1,
                        ..Default::default()
                    },
                )
            })
            .collect(),
        ..Default::default()
    });
    let inner = Lists {
        vessels: list(sparse_vessel).split_off(COUNT - 100),
        ..Default::default()
    };
    let lists = Lists {
        lists: vec![inner; 100],
        ..Default::default()
    };
    decoded(Lists {
        only: Some(lists::Only::Inner(Box::new(lists))),
        ..Default::default()
    });
}

fn list<T>(element: impl Fn(String) -> T) -> Vec<T> {
    (0..COUNT)
        .map(|index| element(format!("n{index}")))
        .collect()
}

/// Checks that both codecs decode the message: straight, and with an unknown field, for which prost
/// decodes it.
#[track_caller]
fn decoded<M: GeneratedMessage + PartialEq + Debug>(message: M) {
    let mut bytes = message.encode_to_vec();
    let straight: Option<M> = GeneratedMessage::decode(&bytes, 32);
    assert!(straight.is_some_and(|straight| straight == message));
    for _ in 0..2 {
        let generated: Result<M, _> = GeneratedCodec::decode(&bytes);
        assert!(generated.unwrap() == message);
        let prost: Result<M, _> = ProstCodec::decode(&bytes);
        assert!(prost.unwrap() == message);
        bytes.extend([0xf8, 0x7f, 1]);
    }
}

fn sparse_vessel(name: String) -> Vessel {
    Vessel {
        papers: Some(Papers {
            name,
            ..Default::default()
        }),
        ..Default::default()
    }
}

fn address() -> Address {
    Address {
        street: "Am Kai 1".to_owned(),
        city: "Hamburg".to_owned(),
        country: "DE".to_owned(),
        code: "20457".to_owned(),
    }
}

fn terms() -> Terms {
    Terms {
        from: Some(address()),
        note: "by noon".to_owned(),
        ..Default::default()
    }
}

fn parcel(name: String) -> Parcel {
    Parcel {
        name,
        outward: Some(terms()),
        owner: Some(address()),
        weight: 1200,
        sent: 1_764_000_000,
        ..Default::default()
    }
}

fn berth(name: String) -> Berth {
    Berth {
        path: name.into(),
        kind: 2,
        length: 134_217_728,
        owner: "harbour".to_owned(),
        changed: 1_764_000_000_000,
        ..Default::default()
    }
}

fn reading(text: String) -> Reading {
    Reading {
        time: 1_764_000_000_000_000_000,
        observed: 1_764_000_000_000_000_000,
        level: "INFO".to_owned(),
        text,
        trace: vec![7; 16],
        place: Some(address()),
    }
}

/// A vessel takes 2,600 bytes, its cabin as many, and its hold 3,400.
fn vessel(name: String) -> Vessel {
    Vessel {
        papers: Some(Papers {
            name,
            labels: [("flag".to_owned(), "DE".to_owned())].into(),
            terms: Some(terms()),
            port: "Hamburg".to_owned(),
        }),
        plan: Some(Plan {
            cabins: vec![Cabin {
                name: "first".to_owned(),
                booked: Some(terms()),
                guest: Some(address()),
                ..Default::default()
            }],
            holds: vec![Hold {
                name: "aft".to_owned(),
                owner: Some(address()),
                size: 90_000,
                ..Default::default()
            }],
            agent: Some(address()),
            ..Default::default()
        }),
        state: Some(State {
            phase: "at sea".to_owned(),
            readings: vec![reading("calm".to_owned())],
            claimed: Some(terms()),
            ..Default::default()
        }),
    }
}
