//! Services and futures shared by the tests of calls.

pub(crate) mod made;
pub(crate) mod raw;
pub(crate) mod streams;

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::rc::Rc;
use std::task::{Poll, Waker};

use rpc_core::{CallError, Caller};
use rpc_core::{
    Idempotency, LocalChannel, MethodKind, MethodSpec, Methods, Request, Response, Status,
};

pub(crate) const fn method(path: &'static str) -> MethodSpec {
    MethodSpec::new(
        path,
        MethodKind::Unary,
        Idempotency::Unknown,
        "bytes",
        "bytes",
    )
}

pub(crate) const ECHO: MethodSpec = method("test.Test/Echo");
pub(crate) const HELD: MethodSpec = method("test.Test/Held");
pub(crate) const PANIC: MethodSpec = method("test.Test/Panic");
pub(crate) const FAIL: MethodSpec = method("test.Test/Fail");
pub(crate) const GROW: MethodSpec = method("test.Test/Grow");
pub(crate) const ABSENT: MethodSpec = method("test.Test/Absent");

/// A gate at which handlers wait until the test opens it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Rc<GateState>);

#[derive(Default)]
struct GateState {
    open: Cell<bool>,
    waiting: RefCell<Vec<Waker>>,
    entered: Cell<u32>,
    dropped: Cell<u32>,
}

impl Gate {
    pub(crate) fn open(&self) {
        self.0.open.set(true);
        for waker in self.0.waiting.take() {
            waker.wake();
        }
    }

    pub(crate) fn entered(&self) -> u32 {
        self.0.entered.get()
    }

    /// Returns the number of handlers that were dropped before they passed the gate.
    pub(crate) fn dropped(&self) -> u32 {
        self.0.dropped.get()
    }

    pub(crate) async fn pass(&self) {
        struct Count<'a>(&'a GateState, bool);
        impl Drop for Count<'_> {
            fn drop(&mut self) {
                if !self.1 {
                    self.0.dropped.set(self.0.dropped.get() + 1);
                }
            }
        }
        self.0.entered.set(self.0.entered.get() + 1);
        let mut count = Count(&self.0, false);
        poll_fn(|cx| {
            if self.0.open.get() {
                return Poll::Ready(());
            }
            self.0.waiting.borrow_mut().push(cx.waker().clone());
            Poll::Pending
        })
        .await;
        count.1 = true;
    }
}

/// Registers an echo, an echo behind a gate, a panic, a failure with a complete status, and a
/// response of a given length.
pub(crate) fn register(methods: &mut Methods, gate: &Gate) {
    methods.unary(&ECHO, |request: Request<Vec<u8>>| async {
        Ok(Response::new(request.into_inner()))
    });
    let gate = gate.clone();
    methods.unary(&HELD, move |request: Request<Vec<u8>>| {
        let gate = gate.clone();
        async move {
            gate.pass().await;
            Ok(Response::new(request.into_inner()))
        }
    });
    methods.unary(&PANIC, |request: Request<Vec<u8>>| async move {
        panic!("asked to panic with {} bytes", request.get_ref().len());
        #[allow(unreachable_code)]
        Ok(Response::new(Vec::<u8>::new()))
    });
    methods.unary(&FAIL, |request: Request<Vec<u8>>| async move {
        let mut metadata = request.metadata().clone();
        metadata
            .insert("seen-bin", vec![0u8, 1])
            .map_err(|error| Status::internal(error.to_string()))?;
        let status = Status::aborted("as asked")
            .with_details(request.into_inner())
            .with_metadata(metadata);
        Err::<Response<Vec<u8>>, _>(status)
    });
    methods.unary(&GROW, |request: Request<u64>| async move {
        let len = usize::try_from(request.into_inner()).unwrap();
        Ok(Response::new(vec![7u8; len]))
    });
}

pub(crate) async fn call(
    channel: &LocalChannel,
    method: &'static MethodSpec,
    request: impl Into<Vec<u8>>,
) -> Result<Vec<u8>, CallError> {
    send(channel, method, Request::new(request.into())).await
}

pub(crate) async fn send(
    channel: &LocalChannel,
    method: &'static MethodSpec,
    request: Request<Vec<u8>>,
) -> Result<Vec<u8>, CallError> {
    channel
        .unary::<Vec<u8>, Vec<u8>>(method, request)
        .await
        .map(Response::into_inner)
}
