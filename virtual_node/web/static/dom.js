// Builds elements. Data reaches the page as text and attributes only, never as markup.
import { age, left } from "./format.js";

export const byId = (id) => document.getElementById(id);

export function element(tag, properties = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "data") Object.assign(node.dataset, value);
    else if (key in node) node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== ""));
  return node;
}

// p("muted", …) is <p class="muted">…</p>.
export const [p, span, div] = ["p", "span", "div"].map((tag) => (className, ...children) => element(tag, { className }, ...children));

// A row of a table. Explicit roles, because on a narrow screen the table has the layout of a list.
export const tableRow = (title, cells) =>
  element("tr", { role: "row" }, element("th", { role: "rowheader", scope: "row" }, title), cells);
export const cell = (label, content) => element("td", { role: "cell", data: { label } }, content);

export const chip = (text, state) => element("span", { className: "chip", data: { state } }, text);

// A time, shown as its age, or as the time left and then as the text `over`. page.js keeps it current.
export const since = (iso, suffix = "") => time(iso, { suffix });
export const until = (iso, over) => time(iso, { over });

function time(iso, data) {
  const node = element("time", { dateTime: iso, title: iso, data });
  node.textContent = timeText(node);
  return node;
}

export function timeText({ dateTime, dataset: { suffix = "", over } }) {
  if (over === undefined) return age(dateTime) + suffix;
  const rest = left(dateTime);
  return rest ? `in ${rest}` : over;
}

// A link to a view of this page. A click changes the view without a page load, and the address can be shared.
export const link = (to, ...text) =>
  element("a", { href: `?${new URLSearchParams(to)}`, data: { go: JSON.stringify(to) } }, ...text);

export function command(text) {
  const code = element("code", {}, text);
  const button = element("button", { type: "button", className: "copy", "aria-label": `Copy: ${text}` }, "Copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      setTimeout(() => {
        button.textContent = "Copy";
      }, 2000);
    } catch {
      // Without TLS, browsers allow the clipboard only on localhost.
      getSelection().selectAllChildren(code);
    }
  });
  return span("command", code, button);
}

// A long text as one line that opens to the complete text. It stays open when the data changes.
const opened = new Set();
export function disclosure(key, summary, ...content) {
  const node = element("details", { open: opened.has(key), data: { key } }, element("summary", {}, ...summary), ...content);
  node.addEventListener("toggle", () => {
    opened[node.open ? "add" : "delete"](key);
  });
  return node;
}

// Show one child per item. The child of an item that is the same object as before keeps its focus and selection.
const shown = new WeakMap();
export function keyed(container, items, render) {
  const before = shown.get(container) || new Map();
  const after = new Map();
  const focus =
    document.activeElement && container.contains(document.activeElement) ? place(document.activeElement, container) : null;
  let next = container.firstChild;
  for (const [key, ...values] of items) {
    const known = before.get(key);
    const isSame =
      known && known.values.length === values.length && known.values.every((value, index) => value === values[index]);
    const node = isSame ? known.node : render(...values);
    after.set(key, { node, values });
    if (node === next) next = next.nextSibling;
    else container.insertBefore(node, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
  shown.set(container, after);
  if (focus && !container.contains(document.activeElement)) restore(focus, container);
}

const FOCUSABLE = "a, button, summary, input, select";

function place(node, container) {
  const child = [...container.children].findIndex((one) => one.contains(node));
  const inner = [...container.children[child].querySelectorAll(FOCUSABLE)].indexOf(node);
  return { child, inner };
}

function restore({ child, inner }, container) {
  container.children[child]?.querySelectorAll(FOCUSABLE)[inner]?.focus({ preventScroll: true });
}
