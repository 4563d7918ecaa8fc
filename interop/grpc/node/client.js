// Calls a gRPC server as any Node program does, with @grpc/grpc-js.
//
//     client.js CASE@HOST:PORT...       runs these cases
//     client.js CASE@HOST:PORT=CODE...  runs them against servers that they must not accept, because a call ends with
//                                       this status code, or with one of several, as in UNAVAILABLE|INTERNAL; with
//                                       OK, because of something else that the server does
//
// It prints a line for each, and ends with exit code 1 if one has not ended as it should. Any other
// exit code is an error of this program.
"use strict";

const cases = require("./cases");
const routes = require("./routes");
const services = require("./services");
const { Failure, connect, isCallError } = require("./calls");
const { grpc } = require("./protos");

function why(error) {
  if (isCallError(error)) return `a call ended with ${grpc.status[error.code]}: ${error.details}`;
  if (error instanceof Failure) return error.message;
  throw error;
}

// Runs a case. Returns whether it has ended as it should.
async function run(name, target, mustEndWith) {
  const { CASES, SERVICE } = [cases, routes, services].find((module) => name in module.CASES);
  const begun = process.hrtime.bigint();
  const client = connect(SERVICE, target);
  let what;
  let code;
  try {
    what = await CASES[name](client, target);
  } catch (error) {
    what = why(error);
    code = grpc.status[error.code];
  }
  client.close();
  const seconds = Number(process.hrtime.bigint() - begun) / 1e9;
  let outcome = "refused";
  if (!mustEndWith) {
    outcome = code ? "FAILED " : "passed ";
  } else if (!mustEndWith.split("|").includes(code)) {
    outcome = "FAILED ";
    what = `expected the end ${mustEndWith}: ${what}`;
  }
  console.log(`${outcome}  node    ${name.padEnd(28)} ${seconds.toFixed(2).padStart(6)} s  ${what}`);
  return outcome !== "FAILED ";
}

async function main() {
  let status = 0;
  for (const word of process.argv.slice(2)) {
    const [name, target, code] = word.split(/[@=]/);
    if (!(await run(name, target, code))) status = 1;
  }
  process.exit(status);
}

main().catch((error) => {
  console.error(error);
  process.exit(2);
});
