// The route guide: a method of each kind, against the features of the examples.
"use strict";

const { load } = require("./protos");
const { all, deadline, expect, sendAll, streaming, unary } = require("./calls");

const { RouteGuide } = load("routeguide.proto").routeguide;

const EIGER = { latitude: 465776000, longitude: 80053000 };
const NOWHERE = { latitude: 1, longitude: 1 };
const OBERLAND = {
  lo: { latitude: 465000000, longitude: 75000000 },
  hi: { latitude: 468000000, longitude: 81000000 },
};
const IN_THE_OBERLAND = ["Jungfraujoch", "Eiger", "Lauterbrunnen church", "Harder Kulm", "Thun castle"];
// Along these, in meters.
const ROUTE_LENGTH = 41723;

async function get_feature(client) {
  for (const [point, name] of [[EIGER, "Eiger"], [NOWHERE, ""]]) {
    const { response } = await unary(client, "GetFeature", point);
    expect("feature", [response.name, { ...response.location }], [name, point]);
  }
  return "a feature, and none";
}

function featuresOfTheOberland(client) {
  return all(streaming(client.ListFeatures(OBERLAND, deadline())));
}

async function list_features(client) {
  const features = await featuresOfTheOberland(client);
  expect("features", features.map((feature) => feature.name), IN_THE_OBERLAND);
  return `${features.length} features`;
}

async function record_route(client) {
  const points = (await featuresOfTheOberland(client)).map((feature) => feature.location);
  const { response } = await unary(client, "RecordRoute", null, undefined, sendAll(points));
  const found = [response.point_count, response.feature_count, response.distance];
  expect("points, features and meters", found, [points.length, IN_THE_OBERLAND.length, ROUTE_LENGTH]);
  return `${points.length} points`;
}

async function route_chat(client) {
  // Where nobody has left a note.
  const [latitude, longitude] = [0, 0].map(() => Math.floor(Math.random() * 2 ** 31));
  const stream = streaming(client.RouteChat(deadline()));
  sendAll(["first", "second", "third"].map((message) => ({ location: { latitude, longitude }, message })))(stream.call);
  const earlier = await all(stream);
  expect("earlier notes", earlier.map((note) => note.message), ["first", "first", "second"]);
  return "3 notes";
}

module.exports = { CASES: { get_feature, list_features, record_route, route_chat }, SERVICE: RouteGuide };
