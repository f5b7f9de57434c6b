// The health model's verdict, its faults, and unknown facts.
import { byId, chip, command, disclosure, element, keyed, link, p, since, span, until } from "./dom.js";
import { plural } from "./format.js";

const COMMAND = /^(virtual-node|kubectl)( |$)/;
const WORDS = { error: "Error", warning: "Warning", info: "Remark" };
const LOOKS = { error: "bad", warning: "wait", info: "unknown" };

const WARNINGS = 3; // shown without opening the rest; errors are always shown

export function renderHealth(health) {
  const errors = health.faults.filter((fault) => fault.severity === "error");
  const warnings = health.faults.filter((fault) => fault.severity !== "error");
  const isCalm = health.verdict === "healthy" && !health.leader;
  byId("health").dataset.state = errors.length ? "bad" : warnings.length ? "wait" : isCalm ? "good" : "unknown";
  otherReplicas(health);
  if (!health.leader) tell(health.faults.length ? count(errors.length, warnings.length) : health.sentence);
  const notes = health.leader ? [] : Object.entries(health.unknown);
  byId("unknown").hidden = !notes.length;
  byId("unknown").textContent = notes.length ? `Not known: ${notes.map(([what, why]) => `${what} (${why})`).join("; ")}.` : "";
  list("faults", [...errors, ...warnings.slice(0, WARNINGS)]);
  list("other-faults", warnings.slice(WARNINGS));
  list("remarks", health.remarks);
  byId("others").hidden = warnings.length <= WARNINGS;
  byId("others").querySelector("summary").textContent = `${plural(warnings.length - WARNINGS, "more warning")}`;
  document.title =
    (health.faults.length ? `(${health.faults.length}) ` : "") + (health.leader ? "virtual-node (standby)" : "virtual-node");
}

const list = (id, faults) =>
  keyed(
    byId(id),
    faults.map((fault) => [fault.kind + fault.cluster + fault.node + fault.subject, fault]),
    faultView,
  );

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
  return element(
    "li",
    {},
    disclosure(
      `fault ${fault.kind} ${fault.subject}`,
      [
        chip(WORDS[fault.severity], LOOKS[fault.severity]),
        element("strong", {}, subject(fault)),
        " ",
        span("cause", countdown(fault), fault.cause),
      ],
      p("all", fault.count > 1 ? `${fault.subject}: ` : "", countdown(fault), fault.cause),
      p("next", span("muted", "Next: "), ...next, " ", seeAlso(fault)),
    ),
  );
}

// How long a lower cluster is silent, and when the descheduler moves its running pods. First, because the summary is cut.
const countdown = ({ silence }) =>
  silence
    ? ["silent for ", since(silence.since), "; running pods move ", until(silence.runningPodsMoveAt, "to clusters with room"), "; "]
    : [];

// The details have all names.
const subject = (fault) => fault.objects[0] + (fault.count > 1 ? ` and ${fault.count - 1} more` : "");

function seeAlso(fault) {
  const [kind, name] = fault.objects[0].split(" ");
  if (kind === "Pod" && fault.kind.startsWith("Pod")) return link({ pod: name }, "Show the pod");
  return fault.cluster ? link({ detail: fault.cluster }, "Show the cluster") : "";
}

// The pages of other replicas: of the leader while this one stands by, or of those that run other lower clusters.
function otherReplicas({ leader, elsewhere = {}, namespace, port }) {
  const byReplica = Object.groupBy(Object.keys(elsewhere).sort(), (cluster) => elsewhere[cluster]);
  const lines = leader ? [[leader, `${leader} works, and its page shows the clusters: `]]
    : Object.entries(byReplica).map(([replica, clusters]) => [replica, `${replica} runs ${clusters.join(", ")}: `]);
  const box = byId("leader");
  box.hidden = !lines.length;
  if (leader) tell("This replica stands by");
  if (box.dataset.shown === JSON.stringify(lines)) return;
  box.dataset.shown = JSON.stringify(lines);
  // A worker is named by its host and its number; its page is at the port of the first one or after that.
  const forward = (replica) => {
    const [pod, worker = 1] = replica.split(".");
    return namespace ? command(`kubectl --namespace ${namespace} port-forward pod/${pod} ${Number(port) + Number(worker) - 1}`) : "";
  };
  box.replaceChildren(...lines.flatMap(([replica, text]) => [element("div", {}, text, forward(replica))]));
}
