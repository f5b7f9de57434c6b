// Ties the parts of the page together.
import { byId, element, link, span, timeText } from "./dom.js";
import { renderClusters } from "./clusters.js";
import { clusterView } from "./clusterview.js";
import { renderEvents } from "./events.js";
import { age, plural } from "./format.js";
import { renderHealth } from "./health.js";
import { renderInspection } from "./inspections.js";
import { go, parts, start, view } from "./live.js";
import { podView } from "./podview.js";
import { listen, renderPods } from "./pods.js";
import { renderSwarms } from "./swarms.js";

let waiting = false;
let heard = "";
let lastDetail = "";

function changed() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => {
    waiting = false;
    render();
  });
}

function render() {
  const now = view();
  const health = parts.get("health");
  if (!health) return;
  const clusters = parts.get("clusters") || [];
  const isDetail = Boolean(now.pod || now.detail);
  byId("overview").hidden = isDetail;
  byId("detail").hidden = !isDetail;
  byId("skip").href = isDetail ? "#detail" : "#pods-title";
  byId("skip").textContent = isDetail ? "Skip to the details" : "Skip to the pods";
  renderHealth(health);
  summarize(health, clusters);
  if (isDetail) return renderDetail(now, clusters);
  lastDetail = "";
  for (const id of ["clusters-section", "pods-section", "swarms-section", "inspection-section", "events-section"]) byId(id).hidden = Boolean(health.leader);
  if (health.leader) return;
  renderClusters(clusters);
  renderPods(parts);
  renderSwarms(parts.get("swarms") || { rows: [], all: 0 });
  renderInspection(parts.get("inspection"));
  renderEvents(parts.get("events") || { warnings: [], routine: [] });
}

function summarize(health, clusters) {
  const nodes = clusters.flatMap((cluster) => cluster.nodes);
  byId("summary").textContent = health.leader
    ? ""
    : [
        plural(clusters.length, "lower cluster"),
        plural(nodes.length, "virtual node"),
        plural(parts.get("pods")?.all || 0, "pod"),
      ].join(" · ");
}

// A changed detail is redrawn as a whole, but not while text in it is selected or a control has the focus.
let drawn = "";
function renderDetail(now, clusters) {
  const [part, draw] = now.pod ? [parts.get("pod"), podView] : [parts.get("detail"), clusterView];
  const name = now.pod || now.detail;
  if (!part || part.name !== name) return;
  const cluster = clusters.find((one) => one.name === part.name);
  const text = JSON.stringify([part, cluster]);
  const box = byId("detail");
  const isNew = lastDetail !== name;
  if (text === drawn && !isNew) return;
  if (!isNew && ((box.contains(document.activeElement) && document.activeElement.tagName === "BUTTON") || String(getSelection())))
    return;
  const title = isNew || document.activeElement?.tagName === "H2";
  box.replaceChildren(
    element("p", {}, link({}, "← Overview"), span("muted", now.pod ? " · Pod" : " · Lower cluster")),
    ...draw(part, cluster).filter(Boolean),
  );
  [drawn, lastDetail] = [text, name];
  document.title = `${name} · virtual-node`;
  if (title) box.querySelector("h2").focus({ preventScroll: !isNew });
}

function connection(state) {
  const chip = byId("connection");
  if (state === "live") heard = new Date().toISOString();
  const text = state === "live" ? "live" : `connection lost; as of ${age(heard) || "0 s"} ago`;
  if (chip.textContent !== text) chip.textContent = text;
  chip.dataset.state = state === "live" ? "good" : "bad";
}

document.addEventListener("click", (event) => {
  const target = event.target.closest("a[data-go]");
  if (!target || event.ctrlKey || event.metaKey || event.shiftKey || event.button) return;
  event.preventDefault();
  const cleared = { pod: "", detail: "" };
  const filters = target.dataset.go
    ? JSON.parse(target.dataset.go)
    : { search: "", cluster: "", namespace: "", status: "", groups: "", pods: "", open: "" };
  go({ ...cleared, ...filters }, { step: true });
  scrollTo(0, 0);
});

setInterval(() => {
  for (const node of document.querySelectorAll("time")) {
    const text = timeText(node);
    if (node.textContent !== text) node.textContent = text;
  }
  if (byId("connection").dataset.state === "bad") connection("lost");
}, 1000);

listen();
start(changed, connection);
