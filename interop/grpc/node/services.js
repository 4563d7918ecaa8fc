// The services that tools and probes call: health, and reflection by the newer of its versions.
"use strict";

const { grpc, load } = require("./protos");
const { Failure, all, connect, deadline, expect, expectError, isCallError, sendAll, streaming, unary } = require("./calls");

const { ServerReflection } = load("grpc/reflection/v1/reflection.proto").grpc.reflection.v1;
const { Health } = load("grpc/health/v1/health.proto").grpc.health.v1;

async function reflection_of_symbols(_, target) {
  const client = connect(ServerReflection, target);
  for (const name of ["TestService", "Payload"]) {
    const stream = streaming(client.ServerReflectionInfo(deadline()));
    sendAll([{ file_containing_symbol: `grpc.testing.${name}` }])(stream.call);
    const [answer] = await all(stream);
    if (answer.error_response) throw new Failure(`${name}: ${answer.error_response.error_message}`);
    const [file] = answer.file_descriptor_response.file_descriptor_proto;
    expect(`the file has ${name}`, file.includes(name), true);
  }
  client.close();
  return "a service and a message";
}

function watch(client, service) {
  return streaming(client.Watch({ service }, deadline()));
}

async function expectStatus(stream, expected) {
  const { done, value } = await stream.messages.next();
  expect("status", done ? "the end of the stream" : value.status, expected);
}

async function health_check(_, target) {
  const client = connect(Health, target);
  for (const service of ["", "grpc.testing.TestService"]) {
    const { response } = await unary(client, "Check", { service });
    expect(`status of '${service}'`, response.status, "SERVING");
  }
  await expectError(grpc.status.NOT_FOUND, unary(client, "Check", { service: "no.such.Service" }));
  const stream = watch(client, "no.such.Service");
  await expectStatus(stream, "SERVICE_UNKNOWN");
  stream.call.cancel();
  await expectError(grpc.status.CANCELLED, all(stream));
  client.close();
  return "the server, a service, and an unknown one";
}

// Stops the server. A watcher must know of it before a call fails, and then see its stream end.
async function health_watch_over_shutdown(_, target) {
  const client = connect(Health, target);
  const watches = ["", "grpc.testing.TestService"].map((service) => watch(client, service));
  for (const stream of watches) await expectStatus(stream, "SERVING");
  process.kill(Number(process.env.SERVER_PID), "SIGTERM");
  for (const stream of watches) await expectStatus(stream, "NOT_SERVING");
  // In its lame-duck time, it still answers.
  const { response } = await unary(client, "Check", {});
  expect("status", response.status, "NOT_SERVING");
  const codes = [];
  for (const stream of watches) {
    const ended = await Promise.allSettled([all(stream)]);
    if (ended[0].status === "rejected" && !isCallError(ended[0].reason)) throw ended[0].reason;
    expect("statuses after NOT_SERVING", ended[0].value ?? [], []);
    const { code } = await stream.status;
    if (code === grpc.status.DEADLINE_EXCEEDED) throw new Failure("the stream has not ended with the server");
    codes.push(grpc.status[code]);
  }
  client.close();
  return `SERVING, NOT_SERVING, then the streams end with ${codes.join(" and ")}`;
}

module.exports = { CASES: { reflection_of_symbols, health_check, health_watch_over_shutdown }, SERVICE: Health };
