// The services of this repository's protos, and the packages in target/grpc/node.
"use strict";

const { createRequire } = require("node:module");
const path = require("node:path");

const ROOT = path.resolve(__dirname, "../../..");
const installed = createRequire(path.join(ROOT, "target/grpc/node/"));
const grpc = installed("@grpc/grpc-js");
const protoLoader = installed("@grpc/proto-loader");

// Returns the services of a proto file, by package.
function load(file) {
  const options = { keepCase: true, defaults: true, enums: String, includeDirs: [path.join(ROOT, "proto")] };
  return grpc.loadPackageDefinition(protoLoader.loadSync(file, options));
}

module.exports = { grpc, load };
