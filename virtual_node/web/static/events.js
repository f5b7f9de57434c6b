// Warnings first; what is routine is folded away.
import { byId, element, keyed, link, since } from "./dom.js";

export function renderEvents(events) {
  keyed(byId("warnings"), events.warnings.length ? items(events.warnings) : [["none", null]], eventView);
  keyed(byId("routine"), items(events.routine), eventView);
  byId("routine-count").textContent = String(events.routine.length);
  byId("routine-box").hidden = !events.routine.length;
}

const items = (events) => events.map((event) => [`${event.object} ${event.reason} ${event.message}`, JSON.stringify(event)]);

export function eventView(text) {
  if (text === null) return element("li", { className: "muted" }, "No warnings lately.");
  const event = JSON.parse(text);
  const [kind, name] = event.object.split(" ");
  return element(
    "li",
    { data: { type: event.type } },
    element(
      "p",
      {},
      element("strong", {}, event.reason),
      " ",
      kind === "Pod" ? link({ pod: name }, name) : event.object,
      element("span", { className: "muted" }, " · ", since(event.time, " ago"), ` · ${event.cluster}`),
    ),
    element("p", { className: "message" }, event.message),
  );
}

export const eventList = (events) =>
  element(
    "ul",
    { className: "panel events" },
    events.length
      ? events.map((event) => eventView(JSON.stringify(event)))
      : element("li", { className: "muted" }, "None of the last events is about it."),
  );
