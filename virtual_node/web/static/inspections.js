// The table of the last scheduled inspection, which is absent if there is none.
import { byId, cell, chip, keyed, tableRow } from "./dom.js";
import { age, plural } from "./format.js";

const LOOKS = { fixed: "good", unknown: "unknown" };

export function renderInspection(inspection) {
  byId("inspection-section").hidden = !inspection?.run;
  if (!inspection?.run) return;
  const { run, rows, all } = inspection;
  const counts = `${plural(run.errors, "error")}, ${plural(run.warnings, "warning")}; ${run.new} new, ${run.fixed} fixed`;
  const shown = all > rows.length ? ` The first ${rows.length} of ${all} findings, errors first.` : "";
  byId("inspection-run").textContent = `${age(run.time)} ago: ${counts}.${shown}`;
  byId("inspection-table").hidden = !rows.length;
  keyed(
    byId("inspection"),
    rows.map((row) => [JSON.stringify([row.check, row.cluster, row.kind, row.object]), JSON.stringify(row)]),
    (text) => finding(JSON.parse(text)),
  );
}

function finding({ kind, object, cluster, check, message, since, state, severity }) {
  return tableRow(`${kind} ${object}`, [
    cell("Cluster", cluster),
    cell("Check", check),
    cell("Finding", message),
    cell("Since", since.replace("T", " ").replace("Z", " UTC")),
    cell("State", chip(`${severity}, ${state}`, LOOKS[state] || (severity === "error" ? "bad" : "wait"))),
  ]);
}
