// One pod in both clusters, side by side.
import { chip, command, div, element, link, p, since, span } from "./dom.js";
import { eventList } from "./events.js";
import { STATES } from "./format.js";

export function podView(pod) {
  if (pod.missing)
    return [
      element("h2", { tabIndex: -1 }, pod.name),
      element("p", {}, "There is no such pod on a virtual node of this process."),
    ];
  const { row } = pod;
  const [word, state] = STATES[row.state];
  return [
    div(
      "row start",
      element("h2", { tabIndex: -1 }, pod.name),
      chip(row.state === "stale" ? `not seen; last: ${row.status}` : row.status, state),
    ),
    p(
      "muted",
      `${word} · ${row.ready} ready · restarts: ${row.restarts} · created `,
      since(row.created, " ago"),
      row.cluster ? " · cluster " : "",
      row.cluster ? link({ detail: row.cluster }, row.cluster) : "",
    ),
    row.why ? p("why", row.why) : null,
    element("p", {}, command(pod.diagnose)),
    ...(pod.upper
      ? sides(pod)
      : [
          p("muted", "Specs and statuses are shown only where the page listens on loopback (port-forward)."),
        ]),
    pod.placement ? placement(pod.placement, Boolean(row.node)) : null,
    element("h3", {}, "Warnings"),
    eventList(pod.events.warnings, pod.name),
    pod.events.routine.length ? element("h3", {}, "Routine events") : null,
    pod.events.routine.length ? eventList(pod.events.routine, pod.name) : null,
  ];
}

function sides({ upper, lower, row }) {
  const containers = union(upper.containers, lower?.containers, (one) => one.name).map((name) => [
    name,
    ...[upper, lower].map((side) => side?.containers.find((container) => container.name === name)),
  ]);
  const status = [
    ["node", upper.node, lower?.node],
    ["phase", upper.phase, lower?.phase],
    ["message", upper.message, lower?.message],
  ];
  for (const [name, one, other] of containers) {
    for (const field of ["state", "last"])
      status.push([`${name}: ${field === "last" ? "state before" : "state"}`, one?.[field], other?.[field]]);
    status.push([`${name}: restarts`, String(one?.restarts ?? ""), String(other?.restarts ?? "")]);
  }
  for (const name of union(upper.conditions, lower?.conditions, (one) => one.type))
    status.push([name, condition(upper, name), condition(lower, name)]);
  const spec = [["namespace", upper.namespace, lower?.namespace]];
  for (const name of union(upper.spec, lower?.spec, (one) => one.name))
    spec.push([name, find(upper.spec, name), find(lower?.spec, name)]);
  for (const [name, one, other] of containers) {
    for (const field of ["image", "requests", "limits"]) spec.push([`${name}: ${field}`, one?.[field], other?.[field]]);
    spec.push([`${name}: environment`, one?.env.join(", "), other?.env.join(", ")]);
  }
  const below = lower ? `Lower cluster ${row.cluster}` : "Lower cluster: no pod";
  return [
    table("Status", status, below),
    table("Spec", spec, below),
    p("muted", "Commands, arguments and values of environment variables are not shown."),
  ];
}

// Explicit roles, because on a narrow screen the table has the layout of a list.
function table(title, lines, below) {
  const cell = (text, label, isSame) =>
    element("td", { role: "cell", data: { label, same: String(isSame) } }, text || span("muted", "–"));
  const rows = lines
    .filter(([, one, other]) => one || other)
    .map(([name, one, other]) => {
      const isSame = (one || "") === (other || "");
      return element(
        "tr",
        { role: "row", data: { differs: String(!isSame && Boolean(one && other) && name !== "node") } },
        element("th", { role: "rowheader", scope: "row" }, name),
        cell(one, isSame ? "both" : "upper", false),
        cell(other, "lower", isSame),
      );
    });
  return element(
    "table",
    { role: "table", className: "panel sides", "aria-label": `${title} in both clusters` },
    element(
      "thead",
      { role: "rowgroup" },
      element(
        "tr",
        { role: "row" },
        [title, "Upper cluster", below].map((text) => element("th", { role: "columnheader", scope: "col" }, text)),
      ),
    ),
    element("tbody", { role: "rowgroup" }, rows),
  );
}

const union = (one, other, name) => [...new Set([...one, ...(other || [])].map(name))];
const find = (fields, name) => fields?.find((field) => field.name === name)?.value;

function condition(side, type) {
  const found = side?.conditions.find((one) => one.type === type);
  return found ? [found.status, found.reason, found.message].filter(Boolean).join(": ") : "";
}

function placement(lines, hasNode) {
  return element(
    "section",
    {},
    element("h3", {}, hasNode ? "Why this node" : "Why no node"),
    element(
      "dl",
      { className: "panel facts" },
      lines.flatMap(({ name, value }) => [element("dt", {}, name), element("dd", {}, value)]),
    ),
    !hasNode || lines.some(({ name }) => name === "multi-scheduler")
      ? null
      : p("muted", "No event of the multi-scheduler names the agent that chose: it was not asked, or the event has expired."),
  );
}
