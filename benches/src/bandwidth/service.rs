//! The service for messages of any size.

use std::cell::RefCell;

use proto::bulk::bulk_server::LocalBulk;
use proto::bulk::{GetReply, GetRequest, PutReply, PutRequest, UploadReply};
use rpc_core::codegen::v1::bytes::Bytes;
use rpc_core::{Request, Response, Status, Streaming};

use super::pattern::{payload, word_of_each_line};

/// Takes and gives payloads.
#[derive(Debug, Default)]
pub struct Bulk {
    /// The payload of the latest `Get`, which later ones of the same length share.
    given: RefCell<Bytes>,
}

impl LocalBulk for Bulk {
    async fn put(&self, request: Request<PutRequest>) -> Result<Response<PutReply>, Status> {
        let sum = word_of_each_line(&request.into_inner().data);
        Ok(Response::new(PutReply { sum }))
    }

    async fn get(&self, request: Request<GetRequest>) -> Result<Response<GetReply>, Status> {
        let len = usize::try_from(request.into_inner().len)
            .map_err(|_| Status::out_of_range("the length does not fit an address space"))?;
        let mut given = self.given.borrow_mut();
        if given.len() != len {
            *given = payload(len);
        }
        let data = given.clone();
        Ok(Response::new(GetReply { data }))
    }

    // Reads one line of each message only. Reading 8 MiB would keep the poller from other calls for
    // half a millisecond, and the time of handlers is not to be measured here.
    async fn upload(
        &self,
        request: Request<Streaming<PutRequest>>,
    ) -> Result<Response<UploadReply>, Status> {
        let mut messages = request.into_inner();
        let mut reply = UploadReply::default();
        while let Some(PutRequest { data }) = messages.message().await? {
            let line = &data[..data.len().min(64)];
            std::hint::black_box(word_of_each_line(line));
            reply.count += 1;
            reply.bytes += data.len() as u64;
        }
        Ok(Response::new(reply))
    }
}
