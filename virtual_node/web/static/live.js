// The view, which is stored in the address, and the stream of its parts.
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

// Change the view. The browser's Back reverts a step.
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
    // An unchanged part keeps its identity, so its elements are not rebuilt.
    for (const [key, value] of Object.entries(set)) parts.set(key, same(old.get(key), value));
    told("live");
    changed();
  };
  asked.onerror = () => {
    told("lost");
    // The browser reconnects after a lost connection, but not after a refusal (too many readers).
    if (asked.readyState === EventSource.CLOSED && asked === source) retry = setTimeout(connect, 3000);
  };
  changed();
}

function same(old, value) {
  return old !== undefined && JSON.stringify(old) === JSON.stringify(value) ? old : value;
}
