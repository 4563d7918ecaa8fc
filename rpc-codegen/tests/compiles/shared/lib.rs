//! Uses items whose names are shared. `tests/compiles.rs` builds it.
#![deny(warnings, missing_debug_implementations, unreachable_pub, nonstandard_style)]
#![forbid(unsafe_code)]

use all::ledger::{BookClient, BookServer, Entry, Ledger, LedgerClient, LedgerServer, book_client, journal_server};
use all::ledger::{Journal, JournalClient, Page1top, Page1topClient, ledger_client, page_1top_server};
use all::plant::valve::{Command, State, state};
use rpc_core::codegen::v1::{BoxStream, Caller};
use rpc_core::{Request, Response, Status, Stream};

/// Every package, as the include file nests them.
pub mod all {
    rpc_core::include_protos!("packages.rs");
}

/// Packages that a user nests.
pub mod by_hand {
    /// Has no messages below `mill.gear` but those nested in `Gear`.
    pub mod mill {
        rpc_core::include_proto!("mill");
        /// Has the types nested in `Gear`.
        pub mod gear {
            rpc_core::include_proto!("mill.gear");
            /// Has those nested in `Gear.Tooth`, too.
            pub mod tooth {
                rpc_core::include_proto!("mill.gear.tooth");
            }
        }
    }
}

/// Implements services whose traits are re-exported, and one whose trait is not.
#[derive(Debug)]
pub struct Clerk;

impl Ledger for Clerk {
    async fn post(&self, request: Request<Entry>) -> Result<Response<Entry>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

impl LedgerClient for Clerk {
    async fn notify(
        &self,
        _: Request<Entry>,
    ) -> Result<Response<impl Stream<Item = Result<BookClient, Status>>>, Status> {
        Err::<Response<BoxStream<BookClient>>, _>(Status::unimplemented("not here"))
    }
}

impl journal_server::Journal for Clerk {
    async fn turn(&self, request: Request<Journal>) -> Result<Response<Journal>, Status> {
        let Journal { page } = request.into_inner();
        Ok(Response::new(Journal { page: page + 1 }))
    }
}

/// Of two services with the same names, the first in alphabetical order is re-exported.
impl Page1top for Clerk {
    async fn turn(&self, request: Request<Journal>) -> Result<Response<Journal>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

impl page_1top_server::Page1top for Clerk {
    async fn turn(&self, request: Request<Journal>) -> Result<Response<Journal>, Status> {
        Ok(Response::new(request.into_inner()))
    }
}

/// Clients that are re-exported, and others at their own paths, among which are messages.
pub async fn call(caller: impl Caller + Clone) -> Result<(), Box<dyn std::error::Error>> {
    drop(LedgerServer::new(Clerk));
    let entry = ledger_client::LedgerClient::new(caller.clone()).post(Entry { cents: 1 }).await?;
    let client = BookClient { name: entry.into_inner().cents.to_string() };
    let BookServer {} = book_client::BookClient::new(caller.clone()).open(client).await?.into_inner();
    JournalClient::new(caller.clone()).turn(Journal { page: 1 }).await?;
    Page1topClient::new(caller).turn(Journal { page: 1 }).await?;
    Ok(())
}

/// Types nested in messages, beside those of packages.
pub fn nested() -> Command {
    let flow = state::Flow { litres: 1, unit: state::Unit::Second.into() };
    let position = state::Position::Partly(flow);
    let state = State { flow: Some(flow), position: Some(position) };
    let history = state::History { states: vec![state], last: None };
    let edge = all::mill::gear::tooth::Edge { angle: 90 };
    let tooth = by_hand::mill::gear::Tooth { edge: None };
    let wear = by_hand::mill::gear::tooth::Wear { percent: edge.angle };
    let gear = by_hand::mill::Gear { kind: by_hand::mill::gear::Kind::Spur.into(), wear: Some(wear) };
    let line = all::ledger::Line { entry: None };
    drop((history, tooth, gear, all::Ledger { last: Some(line) }));
    Command { state: Some(state), ..Command::default() }
}
