// Warnings first; routine events are collapsed.
import { byId, element, keyed, link, p, since, span } from "./dom.js";

export function renderEvents(events) {
  keyed(byId("warnings"), events.warnings.length ? items(events.warnings) : [["none", null]], eventView);
  keyed(byId("routine"), items(events.routine), eventView);
  byId("routine-count").textContent = String(events.routine.length);
  byId("routine-box").hidden = !events.routine.length;
}

const items = (events) => events.map((event) => [`${event.object} ${event.reason} ${event.message}`, JSON.stringify(event)]);

function eventView(text) {
  if (text === null) return element("li", { className: "muted" }, "No warnings lately.");
  return row(JSON.parse(text));
}

// The view of a pod has no links, because it shows the pod already and earlier pods of its owner are gone.
function row(event, pod = "") {
  const [kind, name] = event.object.split(" ");
  return element(
    "li",
    { data: { type: event.type } },
    element(
      "p",
      {},
      element("strong", {}, event.reason),
      " ",
      kind === "Pod" && !pod ? link({ pod: name }, name) : name === pod ? "" : event.object,
      span("muted", name === pod ? "" : " · ", since(event.time, " ago"), ` · ${event.cluster}`),
    ),
    p("message", event.message),
  );
}

export const eventList = (events, pod) =>
  element(
    "ul",
    { className: "panel events" },
    events.length
      ? events.map((event) => row(event, pod))
      : element("li", { className: "muted" }, "None of the last events is about it."),
  );
