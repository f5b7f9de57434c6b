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
