// The page of a job. What comes from the job is only ever set as text.
"use strict";

const $ = (id) => document.getElementById(id);
const KEPT = 120; // Looks that a small chart shows.
const ENOUGH = 100; // Items of a sample that say something.

const page = {
  jobId: location.hash.slice(1) || null,
  state: null,
  chosen: null,
  tab: null,
  drawn: null, // The parts of the drawing that change, and what it is a drawing of.
  history: new Map(), // Rates of the jobs that were looked at.
  source: null,
  isReport: false,
  versions: "",
  wanted: "", // What the log is filtered by.
  level: "debug", // And above.
  openLetters: new Set(),
  pressedAt: -Infinity, // When a button of the mouse went down that has not come up.
  waiting: null, // The state that is shown when it does.
  shown: "", // What the panel shows, so that it is left alone while nothing changes.
};

// --- All of it ------------------------------------------------------------------------------

function show(state) {
  // What is pressed must be there when the mouse is let go, or nothing comes of it.
  if (performance.now() - page.pressedAt < 1000) {
    page.waiting = state;
    return;
  }
  page.waiting = null;
  const before = page.state?.job;
  const job = state.job;
  // How full queues were in the end says nothing.
  if (job?.is_over) for (const row of [...job.vertices, ...job.flows]) row.queue_fill = row.fill = null;
  page.state = job || !before ? state : { ...state, job: before };
  showJobs(state.jobs);
  if (!job && before) {
    $("status").textContent = "gone";
    $("status").className = "pill lost";
    page.isGone = true;
    end(`${before.job} runs no more; this is what was seen last.`);
    return;
  }
  if (!job) {
    $("status").textContent = "no job runs";
    $("verdict").replaceChildren(make("p", {}, "No job runs now; this page will show the next one."));
    delete $("verdict").dataset.shown;
    return;
  }
  if (page.isGone) tell("");
  page.isGone = false;
  page.jobId = job.id;
  document.title = `${job.job} · ${job.status}`;
  $("name").textContent = job.job;
  $("status").textContent = job.status;
  $("status").className = `pill ${job.status.replace(" ", "-")}`;
  remember(job);
  showVerdict(job);
  showFigures(job);
  showDrawing(job);
  showDetails(job);
  showButtons(job);
  showTabs(job);
  const since = day(job.submitted_ms);
  $("footer").textContent = `${job.job} ${job.is_over ? "ran" : "runs"} ${job.where}; submitted ${since}, id ${job.id}.`;
  if (page.isReport) $("footer").textContent = `A report of ${job.job}, which ran ${job.where}; submitted ${since}. Rates and shares are means over all of the run. (${page.versions})`;
}

function showJobs(jobs) {
  const shown = page.state.job?.id;
  $("choice").hidden = jobs.every((job) => job.id === shown);
  const wanted = JSON.stringify(jobs.map((job) => [job.id, job.job, job.status]));
  if ($("jobs").dataset.shown !== wanted && document.activeElement !== $("jobs")) {
    $("jobs").dataset.shown = wanted;
    $("jobs").replaceChildren(...jobs.map((job) => make("option", { value: job.id }, `${job.job} (${job.status})`)));
  }
  $("jobs").value = shown;
}

function remember(job) {
  const kept = page.history.get(job.id) ?? [];
  const last = kept[kept.length - 1];
  if (!last || last.time !== job.time_ms) kept.push({ time: job.time_ms, read: job.read_rate });
  if (kept.length > KEPT) kept.shift();
  page.history.set(job.id, kept);
}

function showVerdict(job) {
  const box = $("verdict");
  const { sentence, vertex } = job.bottleneck;
  // Figures change all the time, and are not worth being read out each time.
  const told = JSON.stringify([job.id, job.status, sentence.replaceAll(/\d+/g, "")]);
  if ($("spoken").dataset.told !== told) {
    $("spoken").dataset.told = told;
    $("spoken").textContent = `${job.job} ${job.status}. ${job.error ?? sentence.replaceAll("`", "")}`;
  }
  const key = JSON.stringify([sentence, job.error, job.status]);
  if (box.dataset.shown === key) return;
  box.dataset.shown = key;
  const line = make("p", { id: "sentence" });
  sentence.split("`").forEach((part, i) => line.append(i % 2 ? make("b", {}, part) : part));
  box.className = job.status === "failed" ? "failed" : vertex ? "named" : "";
  box.replaceChildren(...(job.error ? [make("p", { class: "error" }, job.error)] : []), line);
}

function showFigures(job) {
  const kept = page.history.get(job.id);
  const figures = [
    [job.is_over || page.isReport || job.stages.length ? "read per second, mean" : "read per second", rate(job.read_rate), kept.length > 2 && !job.is_over && !job.stages.length ? spark(kept.map((k) => k.read)) : null],
    ["read", count(job.read)],
    ["written", count(job.written)],
    ["time", duration(job.elapsed * 1000)],
  ];
  if (job.dead_letters) figures.push(["dead letters", count(job.dead_letters)]);
  if (job.skipped) figures.push(["skipped", count(job.skipped)]);
  if (job.late_events) figures.push(["late", count(job.late_events)]);
  const lags = job.vertices.map((v) => v.watermark_lag_ms).filter((lag) => lag !== null);
  if (lags.length) figures.push(["event-time lag", duration(Math.max(...lags))]);
  if (job.snapshots.taken !== undefined) figures.push(["snapshots", count(job.snapshots.taken)]);
  if (job.snapshots.restarts) figures.push(["restarts", count(job.snapshots.restarts)]);
  $("figures").replaceChildren(...figures.map(([name, value, chart]) => make("div", {}, make("dt", {}, name), make("dd", {}, value), chart)));
}

function spark(values) {
  const most = Math.max(...values, 1e-9);
  const svg = draw("svg", { viewBox: "0 0 100 22", preserveAspectRatio: "none", "aria-hidden": "true" });
  const points = values.map((v, i) => `${((i / (values.length - 1)) * 100).toFixed(1)},${(21 - (v / most) * 19).toFixed(1)}`);
  svg.append(draw("polyline", { points: points.join(" ") }));
  return svg;
}

// --- The drawing ----------------------------------------------------------------------------

function showDrawing(job) {
  const key = job.id + JSON.stringify(job.shape);
  if (!page.drawn || page.drawn.key !== key) page.drawn = drawShape(job, key);
  const rows = new Map(job.vertices.map((row) => [row.name, row]));
  for (const [name, parts] of page.drawn.vertices) showVertex(rows.get(name), parts, job);
  job.flows.forEach((flow, i) => showFlow(flow, page.drawn.edges[i], isKnown(rows.get(flow.source))));
}

function drawShape(job, key) {
  const { shape } = job;
  const pad = 16;
  const [width, height] = [shape.width + 2 * pad, shape.height + 2 * pad];
  const svg = draw("svg", { viewBox: `${-pad} ${-pad} ${width} ${height}`, role: "group", "aria-label": "The vertices of the job" });
  // Smaller where there is little room, but never too small to be read.
  const room = $("drawing").clientWidth || width;
  const scale = Math.max(0.72, Math.min(1, room / width));
  svg.setAttribute("width", width * scale);
  svg.setAttribute("height", height * scale);
  const edges = shape.edges.map((edge) => {
    const line = draw("path", { class: edge.distributed ? "edge distributed" : "edge", d: edge.line });
    const rateText = draw("text", { class: "rate", x: edge.x, y: edge.y - 2 });
    const tube = draw("path", { class: "tube", d: `M${edge.x + 3} ${edge.y + 8} h46` });
    const fill = draw("path", { class: "fill", d: "" });
    const fillText = draw("text", { class: "figure", x: edge.x + 57, y: edge.y + 12 });
    const title = draw("title");
    const group = draw("g");
    group.append(title, line, draw("path", { class: "head", d: edge.head }), rateText, tube, fill, fillText);
    svg.append(group);
    return { edge, line, rateText, tube, fill, fillText, title };
  });
  const vertices = new Map();
  shape.boxes.forEach((box, i) => vertices.set(box.name, drawVertex(svg, box, i, shape)));
  $("drawing").replaceChildren(svg);
  // Where not all of it fits, one begins at the first source.
  const first = shape.boxes[0];
  $("drawing").scrollLeft = (first.x + first.width / 2 + pad) * scale - room / 2;
  return { key, vertices, edges, room };
}

function drawVertex(svg, box, index, shape) {
  const group = draw("g", { class: "vertex", tabindex: "0", role: "button", "data-vertex": box.name });
  const { x, y, width, height } = box;
  const place = { x, y, width, height, rx: 9 };
  const tints = { busy: draw("rect", { class: "tint busy", ...place, opacity: 0 }), blocked: draw("rect", { class: "tint blocked", ...place, opacity: 0 }) };
  group.append(draw("rect", { class: "box", ...place }), tints.busy, tints.blocked);
  box.lines.forEach((line, i) => group.append(draw("text", { x: x + 12, y: y + 20 + i * 17 }, line)));
  const total = draw("text", { class: "figure", x: x + width - 12, y: y + 20, "text-anchor": "end" });
  group.append(total);
  const top = y + height - 32;
  const bars = {};
  for (const kind of ["busy", "blocked", "waiting"]) {
    bars[kind] = draw("rect", { class: kind, x: x + 12, y: top, width: 0, height: 7 });
    group.append(bars[kind]);
  }
  const figure = draw("text", { class: "figure", x: x + 12, y: top + 22 });
  const rateText = draw("text", { class: "rate", x: x + width - 12, y: top + 22, "text-anchor": "end" });
  const flag = draw("g", { visibility: "hidden" });
  flag.append(draw("rect", { class: "flag", x: x + width - 78, y: y - 12, width: 70, height: 17, rx: 8.5 }));
  const flagText = draw("text", { class: "flag-text", x: x + width - 43, y, "text-anchor": "middle" });
  flag.append(flagText);
  group.append(figure, rateText, flag);
  group.addEventListener("click", () => choose(box.name));
  group.addEventListener("keydown", (event) => {
    if (event.key === "Enter" || event.key === " ") choose(box.name);
    else if (event.key === "ArrowDown" || event.key === "ArrowRight") focusVertex(shape, index + 1);
    else if (event.key === "ArrowUp" || event.key === "ArrowLeft") focusVertex(shape, index - 1);
    else return;
    event.preventDefault();
  });
  svg.append(group);
  return { group, box, tints, bars, total, figure, rateText, flag, flagText };
}

function focusVertex(shape, index) {
  const box = shape.boxes[index];
  if (box) page.drawn.vertices.get(box.name).group.focus();
}

function showVertex(row, parts, job) {
  const { box, bars, tints } = parts;
  const shares = { busy: row.busy ?? 0, blocked: row.blocked ?? 0, waiting: row.waiting ?? (row.busy === null ? 0 : 1) };
  let x = box.x + 12;
  for (const [kind, bar] of Object.entries(bars)) {
    const width = shares[kind] * (box.width - 24);
    bar.setAttribute("x", x);
    bar.setAttribute("width", Math.max(0, width));
    x += width;
  }
  tints.busy.setAttribute("opacity", (shares.busy * 0.22).toFixed(3));
  tints.blocked.setAttribute("opacity", (shares.blocked * 0.16).toFixed(3));
  const isNamed = job.bottleneck.vertex === row.name;
  const processors = row.processors?.length ?? 0;
  parts.total.textContent = processors > 1 ? `×${processors}` : "";
  parts.figure.textContent = row.busy === null ? beginning(row, job) : mainShare(row);
  parts.rateText.textContent = isKnown(row) ? rate(row.rate) : "";
  parts.flagText.textContent = job.workers.length ? "bottleneck" : "most time";
  parts.flag.setAttribute("visibility", isNamed ? "visible" : "hidden");
  parts.group.classList.toggle("named", isNamed);
  parts.group.classList.toggle("chosen", page.chosen === row.name);
  parts.group.dataset.busy = row.busy ?? "";
  parts.group.setAttribute("aria-label", `${row.name}: busy ${percent(row.busy)}, blocked ${percent(row.blocked)}, waiting ${percent(row.waiting)}, ${rate(row.rate)}${isNamed ? ", the bottleneck" : ""}`);
}

// Tasks of a batch tell their figures when they have ended; streams of tasks have no times.
const isKnown = (row) => row.busy !== null || row.received > 0 || row.emitted > 0;

function beginning(row, job) {
  const stage = job.stages.find((each) => each.vertices.includes(row.name));
  if (stage?.active) return `in ${stage.active} ${stage.active === 1 ? "task" : "tasks"}`;
  return isKnown(row) ? "" : "not begun";
}

function mainShare(row) {
  const shares = { busy: row.busy, blocked: row.blocked, waiting: row.waiting };
  const [name, share] = Object.entries(shares).reduce((a, b) => (b[1] > a[1] ? b : a));
  return `${name} ${percent(share)}`;
}

function showFlow(flow, parts, knows) {
  const fill = flow.fill;
  const { edge } = parts;
  parts.rateText.textContent = knows ? rate(flow.rate) : "";
  parts.line.setAttribute("stroke-width", (1.4 + 2.6 * (fill ?? 0)).toFixed(1));
  parts.tube.setAttribute("visibility", fill === null ? "hidden" : "visible");
  parts.fill.setAttribute("d", fill ? `M${edge.x + 3} ${edge.y + 8} h${(46 * Math.min(1, fill)).toFixed(1)}` : "");
  parts.fillText.textContent = fill === null ? "" : percent(fill);
  parts.title.textContent = `${edge.source} → ${edge.dest}${edge.routing ? ` (${edge.routing})` : ""}: ${count(flow.items)} items, ${rate(flow.rate)}${fill === null ? "" : `, queues ${percent(fill)} full`}`;
}

// --- A vertex -------------------------------------------------------------------------------

function choose(name) {
  page.chosen = page.chosen === name ? null : name;
  if (page.state?.job) {
    showDrawing(page.state.job);
    showDetails(page.state.job);
  }
}

function showDetails(job) {
  const name = page.chosen ?? job.bottleneck.vertex ?? job.vertices[0]?.name;
  const row = job.vertices.find((vertex) => vertex.name === name);
  if (!row) return $("details").replaceChildren();
  const parts = [make("h2", {}, row.name)];
  if (row.busy !== null) {
    const bar = make("div", { class: "shares", "aria-hidden": "true" });
    for (const kind of ["busy", "blocked", "waiting"]) {
      const piece = make("i", { class: kind });
      piece.style.width = `${row[kind] * 100}%`;
      bar.append(piece);
    }
    parts.push(bar, make("div", { class: "words" }, ...["busy", "blocked", "waiting"].map((kind) => make("span", {}, `${kind} ${percent(row[kind])}`))));
  }
  const pairs = [["received", count(row.received)], ["emitted", count(row.emitted)], ["rate", rate(row.rate)]];
  if (row.queue_fill !== null) pairs.push(["queues", `${percent(row.queue_fill)} full`]);
  if (row.calls) pairs.push(["calls", count(row.calls)], ["longest call", duration(row.longest_call_ms)]);
  if (row.call_ms >= 1000) pairs.push(["call under way", duration(row.call_ms)]);
  if (row.watermark !== null && row.watermark !== undefined) pairs.push(["watermark", moment(row.watermark)]);
  if (row.watermark_lag_ms !== null) pairs.push(["behind the clock", duration(row.watermark_lag_ms)]);
  for (const [counter, value] of Object.entries(row.counters ?? {})) pairs.push([counter.replaceAll("_", " "), count(value)]);
  parts.push(make("h3", {}, "Figures"), make("dl", { class: "pairs" }, ...pairs.flatMap(([k, v]) => [make("dt", {}, k), make("dd", {}, v)])));
  if (row.histogram?.length) parts.push(make("h3", {}, "Calls by the time they took"), ...histogram(row.histogram));
  const processors = row.processors ?? [];
  if (processors.length > 1) parts.push(...skew(processors));
  if (row.keys?.sampled >= ENOUGH) parts.push(...fullest(row.keys));
  if (processors.length) {
    const members = new Set(processors.map((p) => p.member)).size > 1;
    parts.push(make("h3", {}, "Processors, since they began"), table(
      [members ? "member" : "no.", "busy", "blocked", "in", "out", "queue"],
      processors.map((p) => [
        members ? `${p.member} · ${p.processor}` : String(p.processor),
        percent(p.elapsed_ns ? Math.min(1, p.busy_ns / p.elapsed_ns) : null),
        percent(p.elapsed_ns ? Math.min(1, p.blocked_ns / p.elapsed_ns) : null),
        count(p.received), count(p.emitted), p.capacity ? `${count(p.queue)}/${count(p.capacity)}` : "–",
      ]), []));
  }
  renew($("details"), parts);
}

function histogram(rows) {
  const first = Math.log2(rows[0][0]);
  const last = Math.log2(rows[rows.length - 1][0]);
  const counts = new Map(rows.map(([bound, n]) => [Math.round(Math.log2(bound)), n]));
  const most = Math.max(...rows.map(([, n]) => n));
  const bars = make("div", { class: "histogram", role: "img", "aria-label": "Calls by duration" });
  for (let power = Math.round(first); power <= Math.round(last); power += 1) {
    const n = counts.get(power) ?? 0;
    const bar = make("i", { title: `up to ${duration(2 ** power / 1e6)}: ${count(n)}` });
    bar.style.height = `${(n / most) * 100}%`;
    bars.append(bar);
  }
  return [bars, make("div", { class: "ends" }, make("span", {}, duration(rows[0][0] / 1e6)), make("span", {}, duration(rows[rows.length - 1][0] / 1e6)))];
}

function skew(processors) {
  const items = processors.map((p) => p.received || p.emitted);
  const mean = items.reduce((a, b) => a + b, 0) / items.length;
  if (!mean) return [];
  const most = Math.max(...items);
  const bars = make("div", { class: "histogram", role: "img", "aria-label": "Items by processor" });
  items.forEach((n, i) => {
    const bar = make("i", { title: `processor ${processors[i].processor}: ${count(n)}` });
    bar.style.height = `${(n / most) * 100}%`;
    bars.append(bar);
  });
  return [make("h3", {}, `Items by processor: the fullest has ${(most / mean).toFixed(2)} times the mean`), bars];
}

function fullest({ sampled, fullest }) {
  return [
    make("h3", {}, `The fullest partitions of its keys, by a sample of ${count(sampled)} items`),
    make("dl", { class: "pairs" }, ...fullest.flatMap(([partition, n]) => [make("dt", {}, `partition ${partition}`), make("dd", {}, percent(n / sampled))])),
  ];
}

// --- Orders ---------------------------------------------------------------------------------

const ORDERS = {
  suspend: ["Suspend", "Stop with a snapshot, until it is resumed"],
  resume: ["Resume", "Go on from the last snapshot"],
  restart: ["Restart", "Stop with a snapshot and start again from there"],
  export: ["Export snapshot…", "Keep the state under a name"],
  cancel: ["Cancel", "End the job"],
};

function showButtons(job) {
  const key = JSON.stringify([job.id, job.can]);
  if ($("buttons").dataset.shown === key) return;
  $("buttons").dataset.shown = key;
  $("buttons").replaceChildren(...job.can.filter((command) => ORDERS[command]).map((command) => {
    const [text, title] = ORDERS[command];
    return make("button", { type: "button", title, "data-order": command, class: command === "cancel" ? "danger" : null, onclick: (event) => press(event.currentTarget, job, command) }, text);
  }));
}

function press(button, job, command) {
  if (command === "cancel" && !button.classList.contains("sure")) {
    button.classList.add("sure");
    button.textContent = `Really cancel ${job.job}?`;
    setTimeout(() => {
      button.classList.remove("sure");
      button.textContent = ORDERS.cancel[0];
    }, 5000);
    return;
  }
  if (command === "export") return askName(job);
  order(button, job, command);
}

function askName(job) {
  const input = make("input", { "aria-label": "Name of the snapshot", placeholder: "name of the snapshot", maxlength: 100 });
  const send = () => {
    if (input.value.trim()) order(form, job, "export", input.value.trim());
  };
  const back = () => {
    delete $("buttons").dataset.shown;
    showButtons(page.state.job);
  };
  const form = make("span", { class: "filter" }, input, make("button", { type: "button", onclick: send }, "Export"), make("button", { type: "button", onclick: back }, "Back"));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") send();
    if (event.key === "Escape") back();
  });
  $("buttons").replaceChildren(form);
  input.focus();
}

async function order(button, job, command, name = null) {
  // What does not come to an end can be cancelled all the same.
  for (const each of $("buttons").querySelectorAll("button")) each.disabled = each.dataset.order !== "cancel" || command === "cancel";
  tell(`${ORDERS[command][0].replace("…", "")}: under way`);
  try {
    const answer = await fetch(`order?${job.id}`, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ command, name }) });
    const { error } = await answer.json();
    tell(error ?? (command === "export" ? `The state is in the snapshot “${name}”.` : ""), Boolean(error));
  } catch {
    tell("The job's process does not answer any more.", true);
  }
  delete $("buttons").dataset.shown;
  if (page.state?.job) showButtons(page.state.job);
}

function tell(text, isBad = false) {
  $("notice").textContent = text;
  $("notice").className = isBad ? "bad" : "";
  $("notice").hidden = !text;
}

// --- Where it comes from --------------------------------------------------------------------

function connect() {
  page.source?.close();
  page.source = new EventSource(`events${page.jobId ? `?${page.jobId}` : ""}`);
  page.source.onmessage = (event) => {
    $("status").classList.remove("lost");
    if (page.isLost) tell("");
    page.isLost = false;
    show(JSON.parse(event.data));
  };
  page.source.addEventListener("over", () => {
    page.source.close();
    end("The job's process has ended its page; this is what was seen last.");
  });
  page.source.onerror = () => {
    page.isLost = true;
    end("The job's process does not answer; this is what was seen last.");
  };
}

function end(text) {
  tell(text, true);
  $("buttons").replaceChildren();
  delete $("buttons").dataset.shown;
}

$("jobs").addEventListener("change", (event) => {
  page.jobId = event.currentTarget.value;
  page.chosen = null;
  location.hash = page.jobId;
  connect();
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && page.chosen) choose(page.chosen);
});
document.addEventListener("pointerdown", () => (page.pressedAt = performance.now()));
for (const kind of ["pointerup", "pointercancel"]) {
  document.addEventListener(kind, () => {
    page.pressedAt = -Infinity;
    // Behind the click.
    setTimeout(() => page.waiting && show(page.waiting));
  });
}
document.addEventListener("visibilitychange", () => {
  if (page.isReport || page.source?.readyState === undefined) return;
  // A page that nobody sees costs the job nothing.
  if (document.hidden) page.source.close();
  else connect();
});
window.addEventListener("resize", () => {
  // A browser that shows or hides its own bars changes only the height.
  if (page.drawn?.room === $("drawing").clientWidth) return;
  page.drawn = null;
  if (page.state?.job) showDrawing(page.state.job);
});

const report = $("report");
if (report) {
  const state = JSON.parse(report.textContent);
  page.isReport = true;
  page.versions = state.versions;
  show(state);
} else {
  connect();
}
