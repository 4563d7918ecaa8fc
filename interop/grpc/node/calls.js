// Calls as promises, and what a case expects of them.
"use strict";

const assert = require("node:assert");
const fs = require("node:fs");
const { grpc } = require("./protos");

// For every call, so that none hangs.
const TIMEOUT_MS = 60_000;

// A server has not done what a case expects. `code` is that of the call which has ended in another way than it should,
// and OK if all have ended well.
class Failure extends Error {
  constructor(message, code = grpc.status.OK) {
    super(message);
    this.code = code;
  }
}

function expect(what, found, expected) {
  try {
    assert.deepStrictEqual(found, expected);
  } catch {
    throw new Failure(`${what}: expected ${JSON.stringify(expected)}, got ${JSON.stringify(found)}`);
  }
}

function expectCode(found, expected) {
  if (found === expected) return;
  throw new Failure(`status code: expected ${grpc.status[expected]}, got ${grpc.status[found]}`, found);
}

// Returns the error with which a call must end.
async function expectError(code, call) {
  try {
    await call;
  } catch (error) {
    if (!isCallError(error)) throw error;
    expectCode(error.code, code);
    return error;
  }
  throw new Failure(`a call succeeded instead of ending with ${grpc.status[code]}`);
}

function isCallError(error) {
  return error.metadata instanceof grpc.Metadata;
}

// The bytes of the file that an environment variable names, if it is set.
function read(variable) {
  const path = process.env[variable];
  return path ? fs.readFileSync(path) : null;
}

// Connects: with TLS if TLS_ROOTS names a file, and as the client of TLS_CERTIFICATE and TLS_KEY, if they do.
function connect(service, target, options = {}) {
  // By default, the channels of a process share their connections.
  const own = { "grpc.use_local_subchannel_pool": 1 };
  const roots = read("TLS_ROOTS");
  const credentials = roots
    ? grpc.credentials.createSsl(roots, read("TLS_KEY"), read("TLS_CERTIFICATE"))
    : grpc.credentials.createInsecure();
  return new service(target, credentials, { ...own, ...options });
}

function deadline(ms = TIMEOUT_MS) {
  return { deadline: Date.now() + ms };
}

// Calls a method with one response. `send` gets the call, to send a stream of requests.
function unary(client, method, request, metadata = new grpc.Metadata(), send = () => {}) {
  return new Promise((resolve, reject) => {
    let initial;
    let outcome;
    const done = (error, response) => (error ? reject(error) : (outcome = response));
    const requests = request === null ? [] : [request];
    const call = client[method](...requests, metadata, deadline(), done);
    call.on("metadata", (received) => (initial = received));
    call.on("status", (status) => resolve({ response: outcome, initial, trailing: status.metadata }));
    send(call);
  });
}

function sendAll(requests) {
  return (call) => {
    for (const request of requests) call.write(request);
    call.end();
  };
}

// Starts a call with a stream of responses. Iterate over `messages`; then `status` is there.
function streaming(call) {
  const stream = { call, messages: call[Symbol.asyncIterator]() };
  call.on("metadata", (received) => (stream.initial = received));
  stream.status = new Promise((resolve) => call.on("status", resolve));
  return stream;
}

async function all(stream) {
  const messages = [];
  for await (const message of stream.messages) messages.push(message);
  return messages;
}

module.exports = { Failure, all, connect, deadline, expect, expectCode, expectError, isCallError, sendAll, streaming, unary };
