// What is wrong, first: the verdict of the health model, its faults, and what is not known.
import { byId, chip, command, disclosure, element, keyed, link } from "./dom.js";
import { plural } from "./format.js";

const COMMAND = /^(virtual-node|kubectl)( |$)/;
const WORDS = { error: "Error", warning: "Warning" };

export function renderHealth(health) {
  if (health.leader) return standby(health);
  const errors = health.faults.filter((fault) => fault.severity === "error").length;
  const state = errors ? "bad" : health.faults.length ? "wait" : health.verdict === "healthy" ? "good" : "unknown";
  byId("health").dataset.state = state;
  tell(health.faults.length ? count(errors, health.faults.length - errors) : health.sentence);
  const unknown = byId("unknown");
  const notes = Object.entries(health.unknown);
  unknown.hidden = !notes.length;
  unknown.textContent = notes.length ? `Not known: ${notes.map(([what, why]) => `${what} (${why})`).join("; ")}.` : "";
  const list = byId("faults");
  list.hidden = !health.faults.length;
  keyed(list, health.faults.map((fault) => [fault.kind + fault.cluster + fault.node + fault.subject, fault]), faultView);
  document.title = (health.faults.length ? `(${health.faults.length}) ` : "") + "virtual-node";
}

function count(errors, warnings) {
  return [errors ? plural(errors, "error") : "", warnings ? plural(warnings, "warning") : ""].filter(Boolean).join(" and ");
}

function tell(text) {
  const verdict = byId("verdict");
  if (verdict.textContent !== text) verdict.textContent = text;
}

function faultView(fault) {
  const [first, ...rest] = fault.next.split("; ");
  const next = COMMAND.test(first) ? [command(first), rest.length ? ` ${rest.join("; ")}` : ""] : [fault.next];
  return element("li", {}, disclosure(`fault ${fault.kind} ${fault.subject}`,
    [chip(WORDS[fault.severity], fault.severity === "error" ? "bad" : "wait"), element("strong", {}, subject(fault)), " ",
      element("span", { className: "cause" }, fault.cause)],
    element("p", { className: "all" }, fault.count > 1 ? `${fault.subject}: ` : "", fault.cause),
    element("p", { className: "next" }, element("span", { className: "muted" }, "Next: "), ...next, " ", seeAlso(fault))));
}

// The whole list of names is in the details.
const subject = (fault) => fault.objects[0] + (fault.count > 1 ? ` and ${fault.count - 1} more` : "");

function seeAlso(fault) {
  const [kind, name] = fault.objects[0].split(" ");
  if (kind === "Pod" && fault.kind.startsWith("Pod")) return link({ pod: name }, "Show the pod");
  return fault.cluster ? link({ detail: fault.cluster }, "Show the cluster") : "";
}

function standby(health) {
  byId("health").dataset.state = "unknown";
  tell("This replica stands by");
  byId("unknown").hidden = false;
  byId("unknown").textContent = `${health.leader} works, and its page shows the clusters:`;
  const list = byId("faults");
  list.hidden = !health.namespace;
  keyed(list, [["standby", health.leader]], () => element("li", { className: "plain" },
    command(`kubectl --namespace ${health.namespace} port-forward pod/${health.leader} ${health.port}`)));
  document.title = "virtual-node (standby)";
}
