// Formats numbers and times for people.
let skew = 0; // milliseconds that the server's clock is ahead of the browser's
export const setClock = (now) => {
  skew = now - Date.now();
};

export function age(iso) {
  const seconds = Math.max(0, (Date.now() + skew - Date.parse(iso)) / 1000);
  if (!Number.isFinite(seconds)) return "";
  if (seconds < 60) return `${Math.floor(seconds)} s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)} min`;
  if (seconds < 172800) return `${Math.floor(seconds / 3600)} h`;
  return `${Math.floor(seconds / 86400)} d`;
}

// The time left until then; empty when it is over.
export function left(iso) {
  const seconds = Math.ceil((Date.parse(iso) - Date.now() - skew) / 1000);
  if (!(seconds > 0)) return "";
  return seconds < 600 ? `${seconds} s` : `${Math.ceil(seconds / 60)} min`;
}

export const daysUntil = (iso) => (Date.parse(iso) - Date.now() - skew) / 86400000;

const UNITS = ["", "Ki", "Mi", "Gi", "Ti", "Pi"];

// Show 131072000Ki as 125 Gi and 6500m as 6.5; other quantities stay unchanged.
export function human(quantity) {
  const thousandths = /^(\d+)m$/.exec(quantity);
  if (thousandths) return thousands(Number(thousandths[1]));
  const match = /^(\d+)([KMGTP]i)?$/.exec(quantity);
  if (match && !match[2] && Number(match[1]) < 1048576) return Number(quantity).toLocaleString("en");
  if (!match) return quantity;
  let [amount, unit] = [Number(match[1]), UNITS.indexOf(match[2] || "")];
  while (amount >= 1024 && unit < UNITS.length - 1) {
    amount /= 1024;
    unit += 1;
  }
  return `${Math.round(amount * 10) / 10} ${UNITS[unit]}`;
}

// 6500 thousandths are 6.5, 1070250 are 1,070.
const thousands = (value) => Number((value / 1000).toPrecision(value < 1000 ? 2 : Math.max(3, String(Math.floor(value / 1000)).length))).toLocaleString("en");

export function lag(seconds) {
  if (seconds === null || seconds === undefined) return "";
  return seconds < 1 ? `${Math.round(seconds * 1000)} ms` : `${seconds} s`;
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;

// State of a pod → word, and the colour and symbol of its chip.
export const STATES = {
  trouble: ["not running", "bad"],
  unplaced: ["no node", "bad"],
  stale: ["not seen", "unknown"],
  failed: ["failed", "bad"],
  starting: ["starting", "wait"],
  ending: ["terminating", "wait"],
  running: ["running", "good"],
  finished: ["completed", "done"],
};
