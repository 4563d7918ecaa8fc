//! Settings whose effect is seen when the generated code is used: the crate `generated` has code with
//! all of them.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};

use generated::shop::shop_server::LocalShop;
use generated::shop::{Color, Order, Secret, Shop, ShopClient, ShopServer};
use rpc_core::codegen::v1::Methods;
use rpc_core::codegen::v1::prost::Name;
use rpc_core::codegen::v1::prost_types::Any;
use rpc_core::{Code, Request, Response, Service, Spawned, Status};

/// Returns the output of a future that does not wait.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future waits"),
    }
}

fn order() -> Order {
    Order {
        id: "7".to_owned(),
        color: Color::ColorRed.into(),
    }
}

#[test]
fn messages_with_type_names_go_into_an_any() {
    let any = Any::from_msg(&order()).unwrap();
    assert_eq!(any.type_url, "type.example.com/Shop.V1.Order");
    assert_eq!(any.to_msg::<Order>().unwrap(), order());
    assert!(any.to_msg::<Secret>().is_err());
    assert_eq!(Secret::type_url(), "/Shop.V1.Secret");
}

#[test]
fn a_message_without_a_derived_debug_has_the_users() {
    let secret = Secret {
        key: "hidden".to_owned(),
    };
    assert_eq!(format!("{secret:?}"), "Secret");
}

#[test]
fn a_client_has_the_attributes_that_are_set() {
    fn is_comparable<T: PartialEq>() {}
    is_comparable::<ShopClient<()>>();
}

/// A server of nothing.
struct Closed;

impl Shop for Closed {}

/// The same without `Send`.
struct LocalClosed(#[allow(dead_code)] std::rc::Rc<()>);

impl LocalShop for LocalClosed {}

fn is_unimplemented<T>(outcome: Result<Response<T>, Status>, method: &str) {
    let Err(status) = outcome else {
        panic!("{method} is not implemented");
    };
    assert_eq!(status.code(), Code::Unimplemented);
    assert_eq!(
        status.message(),
        format!("Shop.V1.Shop/{method} is not implemented")
    );
}

#[test]
fn methods_are_unimplemented_by_default() {
    let closed = Arc::new(Closed);
    let request = || Request::new(order());
    is_unimplemented(now(Shop::buy(Arc::clone(&closed), request())), "Buy");
    is_unimplemented(now(Shop::watch(closed, request())), "Watch");
    // The local trait takes an `Arc` too, although its services need not be `Send`.
    #[allow(clippy::arc_with_non_send_sync)]
    let local = Arc::new(LocalClosed(std::rc::Rc::new(())));
    is_unimplemented(now(local.watch(request())), "Watch");
}

/// A server that counts, in a task that outlives the call.
struct Counting(AtomicU32);

impl Shop for Counting {
    async fn buy(self: Arc<Self>, request: Request<Order>) -> Result<Response<Secret>, Status> {
        let task = move || self.0.fetch_add(1, Ordering::Relaxed);
        std::thread::spawn(task).join().unwrap();
        let key = request.into_inner().id;
        Ok(Response::new(Secret { key }))
    }
}

#[test]
fn methods_may_take_the_service_in_an_arc() {
    let counting = Arc::new(Counting(AtomicU32::new(0)));
    let bought = now(Shop::buy(Arc::clone(&counting), Request::new(order())));
    assert_eq!(bought.unwrap().into_inner().key, "7");
    assert_eq!(counting.0.load(Ordering::Relaxed), 1);

    let servers: [Box<dyn Service>; 3] = [
        Box::new(ShopServer::from_arc(Arc::clone(&counting))),
        Box::new(ShopServer::from_arc(counting).executor(drop::<Spawned>)),
        Box::new(ShopServer::per_poller(|| LocalClosed(std::rc::Rc::new(())))),
    ];
    for server in servers {
        let mut methods = Methods::new();
        server.register(&mut methods);
        assert_eq!(methods.len(), 4);
    }
}
