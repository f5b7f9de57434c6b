// The view, which the address keeps, and the stream of its parts.
import { setClock } from "./format.js";

const KEYS = ["search", "cluster", "namespace", "status", "groups", "pods", "open", "pod", "detail"];
export const parts = new Map();
let source = null;
let retry = 0;
let changed = () => {};
let told = () => {};

export function view() {
  const query = new URLSearchParams(location.search);
  return Object.fromEntries(KEYS.map((key) => [key, query.get(key) || ""]));
}

export function address(changes) {
  const query = new URLSearchParams();
  for (const [key, value] of Object.entries({ ...view(), ...changes })) if (value) query.set(key, value);
  return query.size ? `?${query}` : location.pathname;
}

// Change what is looked at. A step is one that the browser's Back undoes.
export function go(changes, { step = false } = {}) {
  history[step ? "pushState" : "replaceState"](null, "", address(changes));
  connect();
}

export function start(onChange, onConnection) {
  [changed, told] = [onChange, onConnection];
  addEventListener("popstate", connect);
  connect();
}

function connect() {
  clearTimeout(retry);
  if (source) source.close();
  const asked = (source = new EventSource(`/api/stream?${new URLSearchParams(view())}`));
  let isFirst = true;
  asked.onopen = () => {
    isFirst = true;
    told("live");
  };
  asked.onmessage = (message) => {
    const { now, set, drop } = JSON.parse(message.data);
    setClock(now);
    const old = new Map(parts);
    if (isFirst) parts.clear();
    isFirst = false;
    for (const key of drop) parts.delete(key);
    // A part that is the same as before keeps its identity, and what shows it is left alone.
    for (const [key, value] of Object.entries(set)) parts.set(key, same(old.get(key), value));
    told("live");
    changed();
  };
  asked.onerror = () => {
    told("lost");
    // A refusal (too many readers) ends the stream for good; a lost connection is made again by the browser.
    if (asked.readyState === EventSource.CLOSED && asked === source) retry = setTimeout(connect, 3000);
  };
  changed();
}

function same(old, value) {
  return old !== undefined && JSON.stringify(old) === JSON.stringify(value) ? old : value;
}
