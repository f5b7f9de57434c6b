// The lower clusters as cards.
import { byId, chip, div, element, keyed, link, p, since, span } from "./dom.js";
import { lag, plural, STATES } from "./format.js";

const LATE = 10; // seconds, as in the alert VirtualNodeMirrorLagHigh

export function clusterState(cluster) {
  if (cluster.reachable) return chip("reachable", "good");
  if (cluster.reachable === false) return chip("not reachable", "bad");
  return cluster.error ? chip("stopped", "bad") : chip("starting", "wait");
}

export const lastHeard = (cluster) =>
  cluster.heard
    ? p("bad", "Last heard ", since(cluster.heard, " ago"), "; what is shown is from then")
    : null;

export function meter(resource) {
  const isKnown = resource.share !== null;
  const percent = isKnown ? Math.min(100, Math.round(resource.share * 100)) : 0;
  const fill = element("span", { className: "fill", data: { full: String(percent > 90) } });
  fill.style.width = `${percent}%`;
  const text = `${resource.used} of ${resource.total}`;
  return div(
    "meter",
    element("span", {}, resource.name),
    element(
      "span",
      {
        className: "track",
        ...(isKnown
          ? {
              role: "meter",
              "aria-label": `${resource.name}: ${text}`,
              "aria-valuemin": "0",
              "aria-valuemax": "100",
              "aria-valuenow": String(percent),
            }
          : {}),
      },
      fill,
    ),
    span("muted amount", text),
  );
}

export function renderClusters(clusters) {
  byId("clusters-section").hidden = !clusters.length;
  keyed(
    byId("clusters"),
    clusters.map((cluster) => [cluster.name, JSON.stringify(cluster)]),
    (text) => card(JSON.parse(text)),
  );
}

function card(cluster) {
  const mirrored =
    cluster.lag === null
      ? null
      : span(cluster.lag >= LATE ? "bad" : "", `mirrored within ${lag(cluster.lag)}`);
  return element(
    "li",
    { className: "card", data: { state: cluster.error ? "bad" : "" } },
    div("row", element("h3", {}, link({ detail: cluster.name }, cluster.name)), clusterState(cluster)),
    lastHeard(cluster),
    cluster.error
      ? p("sub error", cluster.error)
      : p("sub", cluster.version, cluster.version && mirrored ? " · " : "", mirrored),
    cluster.nodes.map((node) => nodeView(node, cluster)),
  );
}

function nodeView(node, cluster) {
  const isLost = cluster.reachable === false;
  const ready = node.ready
    ? chip("Ready", "good")
    : chip(node.ready === false ? "not Ready" : "starting", node.ready === false ? "bad" : "wait");
  const lower = isLost
    ? `${plural(node.lowerNodes.all, "lower node")}, not seen`
    : `${node.lowerNodes.ready} of ${plural(node.lowerNodes.all, "lower node")} ready`;
  return div(
    "node",
    div("row", element("strong", {}, node.name), ready),
    p("sub", `${lower} · `, podCounts(node.pods)),
    node.resources.map(meter),
  );
}

export function podCounts(counts) {
  const text = Object.entries(STATES)
    .filter(([state]) => counts[state])
    .map(([state, [word]]) => `${counts[state].toLocaleString("en")} ${word}`)
    .join(", ");
  return text ? `pods: ${text}` : "no pods";
}
