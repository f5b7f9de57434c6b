// One lower cluster: its last hour, its lower nodes, and expiry times.
import { chip, div, element, link, p } from "./dom.js";
import { clusterState, lastHeard, meter, podCounts } from "./clusters.js";
import { daysUntil, lag, plural } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [240, 48];

export function clusterView(detail, cluster) {
  if (detail.missing || !cluster)
    return [
      div("row start", element("h2", { tabIndex: -1 }, detail.name), cluster ? clusterState(cluster) : null),
      cluster?.error ? p("why", cluster.error) : null,
      element("p", {}, "This lower cluster does not run here."),
    ];
  const { history } = detail;
  return [
    div("row start", element("h2", { tabIndex: -1 }, detail.name), clusterState(cluster)),
    p(
      "muted",
      [cluster.version, ...cluster.nodes.map((node) => `${node.name}: ${podCounts(node.pods)}`)].filter(Boolean).join(" · "),
    ),
    cluster.error ? p("why", cluster.error) : null,
    lastHeard(cluster),
    element("p", {}, link({ cluster: detail.name }, "Show its pods")),
    div(
      "cards",
      sparkline("Pods", history.pods, history.interval, (value) => plural(value, "pod")),
      sparkline("Mirror lag (99th percentile)", history.lag, history.interval, (value) => `≤ ${lag(value)}`),
    ),
    ...(detail.lowerNodes
      ? inFull(detail, cluster)
      : [
          p("muted", "Lower nodes and what expires are shown only where the page listens on loopback (port-forward)."),
        ]),
  ];
}

const inFull = (detail, cluster) => [
  element("h3", {}, `Lower nodes (${detail.allNodes})`),
  element("ul", { className: "cards" }, detail.lowerNodes.map((node) => nodeCard(node, cluster.reachable === false))),
  element("h3", {}, "What expires"),
  detail.expiries.length
    ? element("ul", { className: "panel events" }, detail.expiries.map(expiry))
    : p("muted", "No credential or certificate with an end is known."),
];

function nodeCard(node, isLost) {
  const state = isLost
    ? chip("not seen", "unknown")
    : !node.ready
      ? chip("not Ready", "bad")
      : node.schedulable
        ? chip("Ready", "good")
        : chip("cordoned", "wait");
  return element(
    "li",
    { className: "card" },
    div("row", element("h4", {}, node.name), state),
    p("sub", [node.version, node.virtualNode ? "" : "no virtual node selects it"].filter(Boolean).join(" · ")),
    node.why ? p("bad", node.why) : null,
    node.resources.map(meter),
  );
}

function expiry({ name, ends, state }) {
  const days = daysUntil(ends);
  const text = !ends
    ? "never expires: prefer a token that does"
    : days < 0
      ? `expired on ${ends.slice(0, 10)}`
      : `${ends.slice(0, 10)}, in ${remaining(days)}`;
  return element("li", {}, element("strong", {}, name), " ", chip(text, state));
}

const remaining = (days) => (days < 730 ? plural(Math.floor(days), "day") : plural(Math.floor(days / 365), "year"));

function sparkline(title, values, interval, text) {
  const known = values.filter((value) => value !== null);
  const last = known.at(-1);
  const minutes = Math.max(1, Math.round((values.length * interval) / 60));
  const range = known.length ? `${text(Math.min(...known))} to ${text(Math.max(...known))}` : "";
  const summary = known.length ? `${text(last)}; ${range} in the last ${minutes} min` : "nothing yet";
  return div(
    "card",
    element("h3", {}, title),
    known.length > 1 ? drawing(values, `${title}: ${summary}`) : null,
    p("sub", summary),
  );
}

function drawing(values, label) {
  const most = Math.max(...values.filter((value) => value !== null)) || 1;
  const step = WIDTH / Math.max(1, values.length - 1);
  // A sample without mirroring has no lag, so the line skips it.
  const points = values.flatMap((value, index) =>
    value === null ? [] : [`${(index * step).toFixed(1)} ${(HEIGHT - 2 - ((HEIGHT - 4) * value) / most).toFixed(1)}`],
  );
  const svg = document.createElementNS(SVG, "svg");
  for (const [name, value] of Object.entries({
    viewBox: `0 0 ${WIDTH} ${HEIGHT}`,
    role: "img",
    "aria-label": label,
    preserveAspectRatio: "none",
    class: "spark",
  }))
    svg.setAttribute(name, value);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", `M${points.join("L")}`);
  svg.append(line);
  return svg;
}
