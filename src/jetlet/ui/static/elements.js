// Elements and figures, for all of the page. What comes from the job is only ever set as text.
"use strict";

const SVG = "http://www.w3.org/2000/svg";

// --- Making elements ------------------------------------------------------------------------

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes = {}, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}

function table(headers, rows, texts = [0]) {
  const isText = (i) => (texts.includes(i) ? "text" : null);
  return make("div", { class: "scroll" }, make("table", {},
    make("thead", {}, make("tr", {}, ...headers.map((h, i) => make("th", { scope: "col", class: isText(i) }, h)))),
    make("tbody", {}, ...rows.map((row) => make("tr", {},
      ...row.map((cell, i) => make("td", { class: isText(i) }, cell)))))));
}

// Puts something new into a place, scrolled and focused as it was; but not while text in it is
// selected.
function renew(place, parts) {
  const selection = getSelection();
  if (!selection.isCollapsed && place.contains(selection.anchorNode)) return;
  const scrolled = [...place.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
  const held = place.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  place.replaceChildren(...parts.filter(Boolean));
  if (held) [...place.querySelectorAll("[data-key]")].find((each) => each.dataset.key === held)?.focus({ preventScroll: true });
  place.querySelectorAll(".scroll").forEach((each, i) => (each.scrollLeft = scrolled[i] ?? 0));
}

// --- Figures --------------------------------------------------------------------------------

const count = (n) => (n < 1e8 ? Math.round(n).toLocaleString("en") : `${(n / 1e6).toLocaleString("en", { maximumFractionDigits: 1 })} M`);
const percent = (share) => (share === null || share === undefined ? "–" : `${Math.round(share * 100)}%`);

function rate(n) {
  if (n >= 1e6) return `${(n / 1e6).toFixed(1)} M/s`;
  if (n >= 1e4) return `${(n / 1e3).toFixed(1)} k/s`;
  if (n > 0 && n < 10) return `${n.toFixed(1)}/s`;
  return `${count(n)}/s`;
}

function size(n) {
  if (n < 1000) return `${Math.round(n)} B`;
  if (n < 1e6) return `${(n / 1e3).toFixed(1)} kB`;
  return n < 1e9 ? `${(n / 1e6).toFixed(1)} MB` : `${(n / 1e9).toFixed(1)} GB`;
}

function duration(ms) {
  const a = Math.abs(ms);
  if (a < 1) return `${(ms * 1000).toFixed(0)} µs`;
  if (a < 1000) return `${ms.toFixed(a < 10 ? 1 : 0)} ms`;
  const s = a / 1000;
  const sign = ms < 0 ? "-" : "";
  if (s < 60) return `${sign}${s.toFixed(1)} s`;
  if (s < 3600) return `${sign}${Math.floor(s / 60)} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  if (s < 172800) return `${sign}${Math.floor(s / 3600)} h ${String(Math.floor((s % 3600) / 60)).padStart(2, "0")} min`;
  return `${sign}${Math.floor(s / 86400)} days`;
}

const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");
const day = (ms) => new Date(ms).toLocaleString("sv-SE"); // As 2026-12-31 23:59:59, in local time.

function moment(ms) {
  const date = new Date(ms);
  // Timestamps that are no milliseconds, say, are beyond all dates.
  return Number.isNaN(date.getTime()) ? String(ms) : date.toISOString().replace("T", " ").slice(0, -1);
}
