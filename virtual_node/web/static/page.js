"use strict";
// One stream, one render: the server sends the whole picture when something changed.
const byId = (id) => document.getElementById(id);

function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(node.dataset, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.filter((child) => child !== null && child !== ""));
  return node;
}

const chip = (text, state) => element("span", { className: "chip", data: { state } }, text);

function age(iso) {
  const seconds = Math.max(0, (Date.now() - Date.parse(iso)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 120) return `${Math.floor(seconds)}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

const UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

// 24632896Ki reads better as 23.5Gi; other quantities are left as they are.
function human(quantity) {
  const match = /^(\d+)([KMGTP]i)$/.exec(quantity);
  if (!match) return quantity;
  let [amount, unit] = [Number(match[1]), UNITS.indexOf(match[2])];
  while (amount >= 1024 && unit < UNITS.length - 1) { amount /= 1024; unit += 1; }
  return `${Math.round(amount * 10) / 10}${UNITS[unit]}`;
}

function meter(resource) {
  const share = resource.share === null ? 0 : Math.min(1, resource.share);
  const percent = Math.round(share * 100);
  const fill = element("div", { className: "fill", data: { full: String(share > 0.9) } });
  fill.style.width = `${percent}%`;
  return element("div", { className: "meter" },
    element("div", { className: "row" }, element("span", {}, resource.name),
      element("span", { className: "muted" }, `${human(resource.used)} of ${human(resource.total)}`)),
    element("div", { className: "track", role: "meter", "aria-label": resource.name,
      "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(percent) }, fill));
}

function nodeView(node) {
  const pods = (node.pods.well || 0) + (node.pods.trouble || 0);
  return element("div", { className: "node" },
    element("div", { className: "row" }, element("strong", {}, node.name),
      node.ready ? chip("Ready", "good") : chip(node.ready === false ? "NotReady" : "Starting", node.ready === false ? "bad" : "wait")),
    element("p", { className: "sub" },
      `${node.lowerNodes.ready} of ${node.lowerNodes.all} lower nodes ready · ${pods} pods` +
      (node.pods.trouble ? `, ${node.pods.trouble} waiting or failed` : "")),
    ...node.resources.map(meter));
}

function clusterView(cluster) {
  const state = cluster.reachable ? chip("reachable", "good") : chip(cluster.reachable === false ? "unreachable" : "starting", cluster.reachable === false ? "bad" : "wait");
  return element("article", { className: "card" },
    element("div", { className: "row" }, element("h3", {}, cluster.name), state),
    element("p", { className: "sub" }, cluster.error || cluster.version),
    ...cluster.nodes.map(nodeView));
}

function podState(pod) {
  if (pod.trouble) return "bad";
  return ["Running", "Completed", "Succeeded"].includes(pod.status) ? "good" : "wait";
}

function podView(pod) {
  const place = pod.lowerNode ? `${pod.cluster} / ${pod.lowerNode}` : pod.cluster;
  const mapped = pod.lowerNamespace && pod.lowerNamespace !== pod.namespace ? ` (${pod.lowerNamespace})` : "";
  return element("tr", {},
    element("td", { className: "name" }, element("span", {}, `${pod.namespace}/`), pod.name),
    element("td", {}, chip(pod.status, podState(pod))),
    element("td", {}, pod.ready),
    element("td", { className: "number" }, String(pod.restarts)),
    element("td", { title: pod.created }, age(pod.created)),
    element("td", {}, place + mapped),
    element("td", { className: "why" }, pod.why));
}

function eventView(event) {
  return element("li", {},
    element("strong", { data: { type: event.type } }, event.reason), " ",
    element("span", { className: "muted" }, `${event.object} · ${age(event.time)} ago`), element("br"), event.message);
}

function render(state) {
  const nodes = state.clusters.flatMap((cluster) => cluster.nodes);
  const total = nodes.reduce((sum, node) => sum + (node.pods.well || 0) + (node.pods.trouble || 0), 0);
  const trouble = nodes.reduce((sum, node) => sum + (node.pods.trouble || 0), 0);
  byId("summary").textContent = `${state.clusters.length} lower clusters, ${nodes.length} virtual nodes, ${total} pods` +
    (trouble ? `, ${trouble} waiting or failed` : ", all well");
  document.title = (trouble ? `(${trouble}) ` : "") + "virtual-node";
  byId("clusters").replaceChildren(...(state.clusters.length ? state.clusters.map(clusterView)
    : [element("p", { className: "empty" }, state.leader
      ? `This replica stands by. ${state.leader} works: kubectl port-forward pod/${state.leader} …`
      : "No lower cluster is running here: the configuration names none.")]));
  byId("pods").replaceChildren(...(state.pods.length ? state.pods.map(podView)
    : [element("tr", {}, element("td", { colSpan: 7, className: "empty" }, "No pods."))]));
  byId("shown").textContent = state.podsFound > state.pods.length
    ? `${state.pods.length} of ${state.podsFound} shown, trouble first` : `${state.podsFound} found`;
  byId("events").replaceChildren(...(state.events.length ? state.events.map(eventView)
    : [element("li", { className: "empty" }, "Nothing has happened yet.")]));
}

let source = null;
function connect() {
  if (source) source.close();
  source = new EventSource(`/api/stream?search=${encodeURIComponent(byId("search").value)}`);
  const connection = byId("connection");
  source.onopen = () => { connection.textContent = "live"; connection.dataset.state = "good"; };
  source.onmessage = (message) => render(JSON.parse(message.data));
  source.onerror = () => { connection.textContent = "connection lost, trying again"; connection.dataset.state = "bad"; };
}

let typing = 0;
byId("search").addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(connect, 250); });
connect();
