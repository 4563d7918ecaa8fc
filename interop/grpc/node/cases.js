// gRPC's interop cases, with the names and the semantics of its `interop-test-descriptions.md`.
//
// A case gets a client of the service and the address of the server. It returns the sizes that it has used, and
// throws a `Failure` or a call's error.
"use strict";

const { grpc, load } = require("./protos");
const {
  Failure, all, connect, deadline, expect, expectCode, expectError, isCallError, sendAll, streaming, unary,
} = require("./calls");

const { TestService, UnimplementedService } = load("grpc/testing/test.proto").grpc.testing;

const REQUEST_LENS = [27182, 8, 1828, 45904];
const RESPONSE_LENS = [31415, 9, 2653, 58979];
const LONG_REQUEST_LEN = 271828;
const LONG_RESPONSE_LEN = 314159;
// Calls at a time, calls of `rpc_soak`, and channels of `channel_soak`.
const CONCURRENT_CALLS = 100;
const SOAK_CALLS = 100;
const SOAK_CHANNELS = 20;
// Uploads that are cancelled. Some must reach the server before they are.
const TORN_UPLOADS = 50;
const INITIAL = ["x-grpc-test-echo-initial", "test_initial_metadata_value"];
const TRAILING = ["x-grpc-test-echo-trailing-bin", Buffer.from("ababab", "hex")];

function zeros(length) {
  return { body: Buffer.alloc(length) };
}

function lengthOf(payload) {
  const body = payload?.body ?? Buffer.alloc(0);
  expect("bytes of a payload that are not 0", body.filter((byte) => byte !== 0).length, 0);
  return body.length;
}

function longRequest() {
  return { response_size: LONG_RESPONSE_LEN, payload: zeros(LONG_REQUEST_LEN) };
}

function output(requestLen, responseLens) {
  return { payload: zeros(requestLen), response_parameters: responseLens.map((size) => ({ size })) };
}

function outputs() {
  return REQUEST_LENS.map((length, index) => output(length, [RESPONSE_LENS[index]]));
}

async function longUnary(client) {
  const { response } = await unary(client, "UnaryCall", longRequest());
  expect("length of the response", lengthOf(response.payload), LONG_RESPONSE_LEN);
}

async function expectMessages(stream, lengths) {
  const messages = await all(stream);
  expect("lengths of the responses", messages.map((message) => lengthOf(message.payload)), lengths);
}

async function expectMessage(stream, length) {
  const { done, value } = await stream.messages.next();
  if (done) throw new Failure("the stream has ended early");
  expect("length of the response", lengthOf(value.payload), length);
}

// Cancels a call that must not have ended.
async function expectCancelled(client, call, ended) {
  // The server has answered this one after it has got what was sent before.
  await unary(client, "EmptyCall", {});
  call.cancel();
  await expectError(grpc.status.CANCELLED, ended);
}

async function empty_unary(client) {
  const { response } = await unary(client, "EmptyCall", {});
  expect("response", { ...response }, {});
  return "0 bytes";
}

async function large_unary(client) {
  await longUnary(client);
  return `request ${LONG_REQUEST_LEN}, response ${LONG_RESPONSE_LEN} bytes`;
}

async function concurrent_large_unary(client) {
  await Promise.all(Array.from({ length: CONCURRENT_CALLS }, () => longUnary(client)));
  return `${CONCURRENT_CALLS} calls at a time`;
}

async function client_streaming(client) {
  const send = sendAll(REQUEST_LENS.map((length) => ({ payload: zeros(length) })));
  const { response } = await unary(client, "StreamingInputCall", null, undefined, send);
  const total = REQUEST_LENS.reduce((sum, length) => sum + length);
  expect("total length", response.aggregated_payload_size, total);
  return `requests ${REQUEST_LENS} bytes`;
}

async function server_streaming(client) {
  await expectMessages(streaming(client.StreamingOutputCall(output(0, RESPONSE_LENS), deadline())), RESPONSE_LENS);
  return `responses ${RESPONSE_LENS} bytes`;
}

async function ping_pong(client) {
  const stream = streaming(client.FullDuplexCall(deadline()));
  for (const [index, request] of outputs().entries()) {
    stream.call.write(request);
    await expectMessage(stream, RESPONSE_LENS[index]);
  }
  stream.call.end();
  await expectMessages(stream, []);
  return `requests ${REQUEST_LENS}, responses ${RESPONSE_LENS} bytes`;
}

async function empty_stream(client) {
  const stream = streaming(client.FullDuplexCall(deadline()));
  stream.call.end();
  await expectMessages(stream, []);
  return "no messages";
}

// Not among those that gRPC describes, but its service has the method: responses after the last request.
async function half_duplex(client) {
  const stream = streaming(client.HalfDuplexCall(deadline()));
  sendAll(outputs())(stream.call);
  await expectMessages(stream, RESPONSE_LENS);
  return `requests ${REQUEST_LENS}, responses ${RESPONSE_LENS} bytes`;
}

function metadata() {
  const metadata = new grpc.Metadata();
  metadata.set(...INITIAL);
  metadata.set(...TRAILING);
  return metadata;
}

function expectMetadata(initial, trailing) {
  expect("initial metadata", initial?.get(INITIAL[0]), [INITIAL[1]]);
  expect("trailing metadata", trailing.get(TRAILING[0]), [TRAILING[1]]);
}

async function custom_metadata(client) {
  const { response, initial, trailing } = await unary(client, "UnaryCall", longRequest(), metadata());
  expect("length of the response", lengthOf(response.payload), LONG_RESPONSE_LEN);
  expectMetadata(initial, trailing);
  const stream = streaming(client.FullDuplexCall(metadata(), deadline()));
  sendAll([output(LONG_REQUEST_LEN, [LONG_RESPONSE_LEN])])(stream.call);
  await expectMessages(stream, [LONG_RESPONSE_LEN]);
  expectMetadata(stream.initial, (await stream.status).metadata);
  return `request ${LONG_REQUEST_LEN}, response ${LONG_RESPONSE_LEN} bytes`;
}

function failingRequest(message) {
  return { response_status: { code: grpc.status.UNKNOWN, message } };
}

async function expectMessageOfUnary(client, message) {
  const error = await expectError(grpc.status.UNKNOWN, unary(client, "UnaryCall", failingRequest(message)));
  expect("status message", error.details, message);
}

async function status_code_and_message(client) {
  const message = "test status message";
  await expectMessageOfUnary(client, message);
  const stream = streaming(client.FullDuplexCall(deadline()));
  sendAll([failingRequest(message)])(stream.call);
  const error = await expectError(grpc.status.UNKNOWN, all(stream));
  expect("status message", error.details, message);
  return `message of ${message.length} characters`;
}

async function special_status_message(client) {
  const message = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n";
  await expectMessageOfUnary(client, message);
  return `message of ${message.length} characters`;
}

async function unimplemented_method(client) {
  await expectError(grpc.status.UNIMPLEMENTED, unary(client, "UnimplementedCall", {}));
  return "0 bytes";
}

async function unimplemented_service(_, target) {
  const client = connect(UnimplementedService, target);
  await expectError(grpc.status.UNIMPLEMENTED, unary(client, "UnimplementedCall", {}));
  client.close();
  return "0 bytes";
}

async function cancel_after_begin(client) {
  let call;
  const ended = unary(client, "StreamingInputCall", null, undefined, (begun) => (call = begun));
  ended.catch(() => {});
  await expectCancelled(client, call, ended);
  return "no messages";
}

async function cancel_after_first_response(client) {
  const stream = streaming(client.FullDuplexCall(deadline()));
  stream.call.write(output(REQUEST_LENS[0], [RESPONSE_LENS[0]]));
  await expectMessage(stream, RESPONSE_LENS[0]);
  const ended = all(stream);
  ended.catch(() => {});
  await expectCancelled(client, stream.call, ended);
  return `request ${REQUEST_LENS[0]}, response ${RESPONSE_LENS[0]} bytes`;
}

// Uploads that the client cancels: `run.py` asks a Verbline server whether it took one for complete.
async function torn_uploads(client) {
  for (let upload = 0; upload < TORN_UPLOADS; upload++) {
    let call;
    const ended = unary(client, "StreamingInputCall", null, undefined, (begun) => (call = begun));
    ended.catch(() => {});
    for (const length of REQUEST_LENS) call.write({ payload: zeros(length) });
    await expectCancelled(client, call, ended);
  }
  return `${TORN_UPLOADS} uploads, requests ${REQUEST_LENS} bytes`;
}

async function timeout_on_sleeping_server(client) {
  // gRPC's deadline, and one that only a server exceeds that does not end the call.
  for (const ms of [1, 500]) {
    const stream = streaming(client.FullDuplexCall(deadline(ms)));
    stream.call.write(output(REQUEST_LENS[0], []));
    await expectError(grpc.status.DEADLINE_EXCEEDED, all(stream));
  }
  return `request ${REQUEST_LENS[0]} bytes, timeouts 1 ms and 500 ms`;
}

// A server may lack gzip. Then it must say so with gRPC's status for it, and serve the next call.
async function compressed_request(client, target) {
  const compressing = connect(TestService, target, {
    "grpc.default_compression_algorithm": grpc.compressionAlgorithms.gzip,
  });
  let outcome = "was read";
  try {
    await longUnary(compressing);
  } catch (error) {
    if (!isCallError(error)) throw error;
    expectCode(error.code, grpc.status.UNIMPLEMENTED);
    outcome = `was refused: ${error.details}`;
  }
  compressing.close();
  await longUnary(client);
  return `the compressed request ${outcome}`;
}

async function rpc_soak(client) {
  for (let call = 0; call < SOAK_CALLS; call++) await longUnary(client);
  return `${SOAK_CALLS} calls, request ${LONG_REQUEST_LEN}, response ${LONG_RESPONSE_LEN} bytes`;
}

async function channel_soak(_, target) {
  for (let channel = 0; channel < SOAK_CHANNELS; channel++) {
    const client = connect(TestService, target);
    await longUnary(client);
    client.close();
  }
  return `${SOAK_CHANNELS} channels, request ${LONG_REQUEST_LEN}, response ${LONG_RESPONSE_LEN} bytes`;
}

const CASES = {
  empty_unary, large_unary, concurrent_large_unary, client_streaming, server_streaming, ping_pong, empty_stream,
  half_duplex, custom_metadata, status_code_and_message, special_status_message, unimplemented_method,
  unimplemented_service, cancel_after_begin, cancel_after_first_response, timeout_on_sleeping_server, rpc_soak,
  channel_soak, torn_uploads, compressed_request,
};

module.exports = { CASES, SERVICE: TestService };
