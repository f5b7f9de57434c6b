// Pods by workload with one line per cause, and the filters.
import { byId, chip, command, disclosure, div, element, keyed, link, p, since, span } from "./dom.js";
import { plural, STATES } from "./format.js";
import { go, view } from "./live.js";

const MORE_GROUPS = 40;
const MORE_PODS = 100;

// A screen reader announces the result of a filter, but not every change of a busy cluster.
let unanswered = null; // the list that was shown when a filter was changed
function choose(changes) {
  unanswered = shownPods;
  go({ groups: "", open: "", ...changes });
}

let shownPods = null;
export function renderPods(parts) {
  const pods = parts.get("pods");
  if (!pods) return;
  const now = view();
  renderFilters(pods, parts.get("clusters") || [], now);
  const total =
    pods.found === pods.all ? plural(pods.all, "pod") : `${pods.found.toLocaleString("en")} of ${plural(pods.all, "pod")}`;
  byId("shown").textContent = pods.more
    ? `${total}; ${plural(pods.groups.length, "workload")} of ${pods.groups.length + pods.more} shown, trouble first`
    : total;
  if (unanswered && unanswered !== pods) {
    byId("announced").textContent = byId("shown").textContent;
    unanswered = null;
  }
  shownPods = pods;
  const open = new Set(now.open.split(",").filter(Boolean));
  const items = pods.groups
    .filter((key) => parts.has(`group ${key}`))
    .map((key) => {
      const list = open.has(key) ? parts.get(`open ${key}`) : null;
      const rows = list ? list.pods.map((uid) => parts.get(`row ${uid}`)).filter(Boolean) : [];
      return [key, key, parts.get(`group ${key}`), open.has(key), list, ...rows];
    });
  keyed(byId("pods"), items, groupView);
  byId("pods").hidden = !items.length;
  const more = byId("more");
  more.hidden = !pods.more || pods.groups.length >= 400;
  more.textContent = `Show ${Math.min(MORE_GROUPS, pods.more)} more workloads`;
}

function groupView(key, group, isOpen, list, ...rows) {
  const title = group.only
    ? link({ pod: `${group.namespace}/${group.only}` }, group.kind === "Pod" ? group.only : group.name)
    : group.name;
  const toggle = group.only
    ? ""
    : element(
        "button",
        { type: "button", className: "toggle", "aria-expanded": String(isOpen), data: { open: key } },
        plural(group.total, "pod"),
        span("muted", isOpen ? " hide" : " show"),
      );
  return element(
    "li",
    { className: "group" },
    div(
      "head",
      element("h3", {}, span("muted", `${group.namespace} / `), title, span("kind", group.kind)),
      p(
        "counts",
        Object.entries(group.counts).map(([state, count]) =>
          chip(`${count.toLocaleString("en")} ${STATES[state][0]}`, STATES[state][1]),
        ),
      ),
      p(
        "muted where",
        group.clusters.join(", ") || "no cluster",
        group.restarts ? ` · ${plural(group.restarts, "restart")}` : "",
        " · ",
        since(group.created),
      ),
      toggle,
    ),
    group.causes.map((cause) => causeView(key, group, cause)),
    group.moreCauses ? p("muted cause-more", `and ${plural(group.moreCauses, "more cause")}`) : null,
    isOpen ? openView(list, rows) : null,
  );
}

function causeView(key, group, cause) {
  const name = `${group.namespace}/${cause.pod}`;
  const status = cause.state === "stale" ? `last seen: ${cause.status}` : cause.status;
  return disclosure(
    `cause ${key} ${cause.state} ${cause.status}`,
    [
      chip(status, STATES[cause.state][1]),
      group.total > 1 ? span("times", `× ${cause.count}`) : "",
      span("cause", cause.why),
    ],
    p("all", cause.why || "No reason is given."),
    p(
      "next",
      link({ pod: name }, group.total > 1 ? `Show ${cause.pod}` : "Show the pod"),
      " ",
      command(`virtual-node diagnose pod ${name}`),
    ),
  );
}

function openView(list, rows) {
  if (!list) return p("muted cause-more", "reading …");
  const missing = list.all - list.pods.length;
  return div(
    "members",
    element("ul", {}, rows.map(rowView)),
    missing > 0
      ? p(
        "muted",
        `${plural(missing, "more pod")} `,
        list.pods.length < 500
            ? element("button", { type: "button", data: { pods: String(list.pods.length + MORE_PODS) } }, "Show more")
            : "; use the filters",
      )
      : null,
  );
}

function rowView(pod) {
  const [, state] = STATES[pod.state];
  const place = [pod.cluster, pod.lowerNode].filter(Boolean).join(" / ");
  return element(
    "li",
    {},
    link({ pod: `${pod.namespace}/${pod.name}` }, pod.name),
    chip(pod.state === "stale" ? `last seen: ${pod.status}` : pod.status, state),
    element("span", {}, `${pod.ready} ready`),
    element("span", {}, plural(pod.restarts, "restart")),
    element("span", {}, since(pod.created)),
    span("muted", place),
  );
}

function renderFilters(pods, clusters, now) {
  options(
    byId("cluster"),
    "all clusters",
    clusters.map((cluster) => cluster.name),
    now.cluster,
  );
  options(byId("namespace"), "all namespaces", pods.namespaces, now.namespace);
  const search = byId("search");
  if (document.activeElement !== search) search.value = now.search;
  const all = Object.values(pods.counts).reduce((sum, count) => sum + count, 0);
  const states = Object.keys(STATES).filter((state) => pods.counts[state] || state === now.status);
  keyed(
    byId("states"),
    [["", "", all, !now.status], ...states.map((state) => [state, state, pods.counts[state] || 0, now.status === state])],
    (state, count, isChosen) =>
      element(
        "button",
        { type: "button", "aria-pressed": String(isChosen), data: { status: state, state: state ? STATES[state][1] : "" } },
        `${state ? STATES[state][0] : "all"} ${count.toLocaleString("en")}`,
      ),
  );
}

function options(select, all, names, chosen) {
  const known = chosen && !names.includes(chosen) ? [...names, chosen] : names;
  const text = JSON.stringify(known);
  if (select.dataset.options !== text) {
    select.replaceChildren(
      element("option", { value: "" }, all),
      ...known.map((name) => element("option", { value: name }, name)),
    );
    select.dataset.options = text;
  }
  if (select.value !== chosen) select.value = chosen;
}

export function listen() {
  let typing = 0;
  byId("search").addEventListener("input", (event) => {
    clearTimeout(typing);
    typing = setTimeout(() => choose({ search: event.target.value }), 250);
  });
  for (const key of ["cluster", "namespace"])
    byId(key).addEventListener("change", (event) => choose({ [key]: event.target.value }));
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => go({ groups: String(Number(view().groups || MORE_GROUPS) + MORE_GROUPS) }));
  byId("states").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button) choose({ status: button.dataset.status });
  });
  byId("pods").addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (button?.dataset.open) toggle(button.dataset.open);
    if (button?.dataset.pods) go({ pods: button.dataset.pods });
  });
}

function toggle(key) {
  const open = view().open.split(",").filter(Boolean);
  const others = open.filter((one) => one !== key);
  go({ open: (others.length === open.length ? [...open, key].slice(-8) : others).join(","), pods: "" });
}
