// The table of Swarms, which is absent if there are none.
import { byId, chip, element, keyed } from "./dom.js";

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

// Explicit roles, because on a narrow screen the table has the layout of a list.
function row({ name, state, ...counts }) {
  const cell = (key, content) => element("td", { role: "cell", data: { label: COLUMNS[key] } }, content);
  return element(
    "tr",
    { role: "row" },
    element("th", { role: "rowheader", scope: "row" }, name),
    ["workers", "jobs", "running"].map((key) => cell(key, counts[key].toLocaleString("en"))),
    cell("state", chip(state, STATES[state] || "wait")),
  );
}
