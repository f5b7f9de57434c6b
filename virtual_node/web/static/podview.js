// One pod in both clusters, side by side.
import { chip, command, element, link, since } from "./dom.js";
import { eventList } from "./events.js";
import { STATES } from "./format.js";

export function podView(pod) {
  if (pod.missing) return [element("h2", { tabIndex: -1 }, pod.name), element("p", {}, "There is no such pod on a virtual node of this process.")];
  const { row } = pod;
  const [word, state] = STATES[row.state];
  return [
    element("p", { className: "muted" }, "Pod"),
    element("div", { className: "row start" }, element("h2", { tabIndex: -1 }, pod.name), chip(row.state === "stale" ? `not seen; last: ${row.status}` : row.status, state)),
    element("p", { className: "muted" }, `${word} · ${row.ready} ready · restarts: ${row.restarts} · created `, since(row.created, " ago"), row.cluster ? " · cluster " : "", row.cluster ? link({ detail: row.cluster }, row.cluster) : ""),
    row.why ? element("p", { className: "why" }, row.why) : null,
    element("p", {}, command(pod.diagnose)),
    pod.upper ? sides(pod) : element("p", { className: "muted" }, "Specs and statuses are shown only where the page listens on loopback (port-forward)."),
    pod.placement ? placement(pod.placement) : null,
    element("h3", {}, "Warnings"), eventList(pod.events.warnings),
    pod.events.routine.length ? element("h3", {}, "Routine events") : null,
    pod.events.routine.length ? eventList(pod.events.routine) : null,
  ];
}

function sides({ upper, lower, row }) {
  const lines = [];
  const add = (name, one, other) => { if (one || other) lines.push([name, one || "", other || ""]); };
  add("namespace", upper.namespace, lower?.namespace);
  add("node", upper.node, lower?.node);
  add("phase", upper.phase, lower?.phase);
  add("message", upper.message, lower?.message);
  for (const name of union(upper.spec, lower?.spec, (one) => one.name)) add(name, find(upper.spec, name), find(lower?.spec, name));
  for (const name of union(upper.containers, lower?.containers, (one) => one.name)) {
    const [one, other] = [upper, lower].map((side) => side?.containers.find((container) => container.name === name));
    for (const field of ["image", "requests", "limits", "state", "last"]) add(`${name}: ${field}`, one?.[field], other?.[field]);
    add(`${name}: environment`, one?.env.join(", "), other?.env.join(", "));
    add(`${name}: restarts`, String(one?.restarts ?? ""), String(other?.restarts ?? ""));
  }
  for (const name of union(upper.conditions, lower?.conditions, (one) => one.type)) add(name, condition(upper, name), condition(lower, name));
  const cell = (text, label) => element("td", { role: "cell", data: { label } }, text || element("span", { className: "muted" }, "–"));
  return element("table", { role: "table", className: "panel sides" },
    element("caption", {}, "The pod in both clusters. Commands, arguments and values of environment variables are not shown."),
    element("thead", { role: "rowgroup" }, element("tr", { role: "row" }, ["Field", "Upper cluster", lower ? `Lower cluster ${row.cluster}` : "Lower cluster: no pod yet"]
      .map((text) => element("th", { role: "columnheader", scope: "col" }, text)))),
    element("tbody", { role: "rowgroup" }, lines.map(([name, one, other]) => element("tr", { role: "row", data: { differs: String(Boolean(lower) && one !== other) } },
      element("th", { role: "rowheader", scope: "row" }, name), cell(one, "upper"), cell(other, "lower")))));
}

const union = (one, other, name) => [...new Set([...one, ...(other || [])].map(name))];
const find = (fields, name) => fields?.find((field) => field.name === name)?.value;

function condition(side, type) {
  const found = side?.conditions.find((one) => one.type === type);
  return found ? [found.status, found.reason, found.message].filter(Boolean).join(": ") : "";
}

function placement(lines) {
  return element("section", {}, element("h3", {}, "Why this node"),
    element("dl", { className: "panel facts" }, lines.flatMap(({ name, value }) => [element("dt", {}, name), element("dd", {}, value)])),
    element("p", { className: "muted" }, "Which agent of the multi-scheduler decided is not recorded on the pod."));
}
