// The table of Swarms, which is absent if there are none.
import { byId, cell, chip, keyed, tableRow } from "./dom.js";

const STATES = { converged: "good", unknown: "unknown" };
const COLUMNS = { name: "Swarm", workers: "Workers", jobs: "Jobs", running: "Running", state: "State" };

export function renderSwarms(swarms) {
  byId("swarms-section").hidden = !swarms.rows.length;
  byId("swarms-more").textContent =
    swarms.all > swarms.rows.length ? `The first ${swarms.rows.length} of ${swarms.all}, those with problems first.` : "";
  keyed(
    byId("swarms"),
    swarms.rows.map((swarm) => [swarm.name, JSON.stringify(swarm)]),
    (text) => row(JSON.parse(text)),
  );
}

function row({ name, state, ...counts }) {
  const numbers = ["workers", "jobs", "running"].map((key) => cell(COLUMNS[key], counts[key].toLocaleString("en")));
  return tableRow(name, [...numbers, cell(COLUMNS.state, chip(state, STATES[state] || "wait"))]);
}
