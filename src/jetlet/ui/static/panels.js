// What is below the drawing: a panel for each tab.
"use strict";

const TABS = {
  time: ["Time", (job) => job.vertices.some((v) => v.watermark !== null && v.watermark !== undefined) || job.latency?.length, showTime],
  stages: ["Spark", (job) => job.stages.length || sparksPage(job), showStages],
  members: ["Where it runs", (job) => job.workers.length || job.edges.length, showMembers],
  tasks: ["Tasks", (job) => job.containers_each.length, showTasks],
  snapshots: ["Snapshots", (job) => job.taken.length || job.failures.length || job.snapshots.taken !== undefined, showSnapshots],
  letters: ["Dead letters", () => true, showLetters],
  logs: ["Log", () => true, showLogs],
};

function showTabs(job) {
  const there = Object.entries(TABS).filter(([, [, applies]]) => applies(job)).map(([id]) => id);
  if (!there.includes(page.tab)) page.tab = there[0];
  const key = JSON.stringify([there, page.tab]);
  if ($("tabs").dataset.shown !== key) {
    $("tabs").dataset.shown = key;
    const hadFocus = $("tabs").contains(document.activeElement);
    $("tabs").replaceChildren(...there.map((id) => make("button", { type: "button", role: "tab", id: `tab-${id}`, "aria-selected": String(id === page.tab), "aria-controls": "panel", tabindex: id === page.tab ? 0 : -1, onclick: () => open(id), onkeydown: (event) => step(event, there, id) }, TABS[id][0])));
    $("panel").setAttribute("aria-labelledby", `tab-${page.tab}`);
    if (hadFocus) $(`tab-${page.tab}`).focus();
  }
  const letters = asides(job);
  $("tab-letters").textContent = TABS.letters[0] + (letters ? ` (${count(letters)})` : "");
  const content = TABS[page.tab][2];
  content(job, `${job.id} ${page.tab} `);
}

function step(event, there, id) {
  const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  if (!by) return;
  open(there[(there.indexOf(id) + by + there.length) % there.length]);
  $(`tab-${page.tab}`).focus();
}

function open(id) {
  page.tab = id;
  page.shown = "";
  showTabs(page.state.job);
}

function fill(key, parts) {
  // What has not changed stays, with what is selected and opened in it.
  if (page.shown === key) return;
  page.shown = key;
  renew($("panel"), parts());
}

function showTime(job, key) {
  const rows = job.vertices.filter((v) => v.watermark !== null && v.watermark !== undefined);
  const sources = new Set(job.shape.boxes.filter((b) => b.kind === "source").map((b) => b.name));
  const parts = job.vertices.filter((v) => sources.has(v.name)).flatMap((v) => (v.processors ?? []).flatMap((p) => p.partitions.map((part) => ({ ...part, source: v.name, member: p.member }))));
  const idle = parts.filter((part) => part.is_idle).map((part) => `${part.source} ${part.name}`);
  fill(key + JSON.stringify([rows.map((v) => [v.watermark, v.watermark_lag_ms]), parts, job.latency]), () => [
    rows.length && table(["vertex", "watermark (UTC)", "behind the clock", "late"], rows.map((v) => [v.name, moment(v.watermark), v.watermark_lag_ms === null ? "idle" : duration(v.watermark_lag_ms), count(v.late_events)])),
    parts.length ? make("h3", {}, "Partitions of the sources") : null,
    idle.length ? make("p", { class: "empty" }, `Idle, so that nobody waits for them: ${idle.join(", ")}.`) : null,
    parts.length ? table(["source", "partition", "member", "watermark (UTC)", "behind the clock"], parts.map((part) => [part.source, part.name, String(part.member), part.watermark === null ? "none so far" : moment(part.watermark), part.is_idle ? "idle" : part.watermark_lag === null ? "–" : duration(part.watermark_lag)]), [0, 1]) : null,
    job.latency?.length ? make("h3", {}, "From source to sink") : null,
    job.latency?.length ? table(["to", "markers", "p50", "p99", "p99.9", "longest"], job.latency.map((l) => [l.vertex, count(l.count), ...[l.p50_ms, l.p99_ms, l.p999_ms, l.longest_ms].map((ms) => (ms < 1 ? "under 1 ms" : duration(ms)))])) : null,
  ]);
}

const sparksPage = (job) => (job.link?.startsWith("http") ? job.link : null);
const ELSEWHERE = { target: "_blank", rel: "noreferrer noopener" };

function showStages(job, key) {
  const link = sparksPage(job);
  fill(key + JSON.stringify([job.stages, job.link]), () => [
    job.stages.length ? table(["stage", "tasks", "running", ""], job.stages.map((stage) => {
      const bar = make("i", { class: stage.active ? "active" : null });
      bar.style.width = `${stage.total ? (stage.done / stage.total) * 100 : 0}%`;
      return [stage.spark_stage === null || !link ? stage.name : make("a", { href: `${link}/stages/stage/?id=${stage.spark_stage}&attempt=0`, "data-key": stage.name, ...ELSEWHERE }, stage.name), `${stage.done} of ${stage.total ?? "?"}`, String(stage.active || ""), make("span", { class: "meter" }, bar)];
    })) : null,
    link ? make("p", {}, make("a", { href: link, ...ELSEWHERE }, "Spark's own page")) : null,
  ]);
}

function showMembers(job, key) {
  fill(key + JSON.stringify([job.workers, job.edges]), () => [
    job.workers.length ? table(["member", "worker", "asleep so far", "tasklets", "where"], job.workers.map((w) => [String(w.member), w.name, percent(w.idle_share), String(w.tasklets), w.place ?? "this process"]), [1, 4]) : null,
    job.edges.length ? make("h3", {}, "Between members") : null,
    job.edges.length ? table(["edge", "rate", "bytes", "in flight", "window", "held back"], job.edges.map((e) => [e.name, rate(e.rate), `${size(e.bytes_rate)}/s`, size(e.in_flight), size(e.window), percent(e.blocked)])) : null,
  ]);
}

function showTasks(job, key) {
  fill(key + JSON.stringify(job.containers_each), () => [
    table(["container", "member", "processed", "in flight", "pending", "windows", "commits", "busy"], job.containers_each.map((c) => [c.name, String(c.member), count(c.process_calls), count(c.in_flight), count(c.pending), count(c.window_calls), count(c.commit_calls), percent(Math.min(1, c.utilisation))])),
    make("h3", {}, "Partitions"),
    table(["partition", "lag", "committed", "member"], job.containers_each.flatMap((c) => [...new Set([...Object.keys(c.lag), ...Object.keys(c.committed)])].sort().map((p) => [p, c.lag[p] === undefined ? "–" : count(c.lag[p]), c.committed[p] === undefined ? "–" : String(c.committed[p]), String(c.member)]))),
  ]);
}

function showSnapshots(job, key) {
  fill(key + JSON.stringify([job.taken, job.failures, job.snapshots]), () => {
    const most = Math.max(1e-9, ...job.taken.map((s) => s.ms));
    const bars = make("div", { class: "bars", role: "img", "aria-label": "How long the latest snapshots took" }, ...job.taken.map((s) => {
      const bar = make("i", { class: s.error ? "failed" : null, title: `${s.id}: ${duration(s.ms)}` });
      bar.style.height = `${(s.ms / most) * 100}%`;
      return bar;
    }));
    return [
      job.taken.length ? bars : make("p", { class: "empty" }, "No snapshot has been taken so far."),
      job.taken.length ? snapshots([...job.taken].reverse()) : null,
      job.snapshots.last_error ? make("p", { class: "bad" }, `The last that failed: ${job.snapshots.last_error}`) : null,
      make("h3", {}, "Restarts"),
      job.failures.length ? table(["at", "because"], [...job.failures].reverse().map((f) => [clock(f.time_ms), f.cause]), [0, 1]) : make("p", { class: "empty" }, "None."),
    ];
  });
}

// Of micro-batches there are other phases than of snapshots, and no sizes.
function snapshots(taken) {
  const columns = Object.entries(PHASES).filter(([phase]) => taken.some((s) => s[phase] !== undefined));
  const sizes = taken.some((s) => s.bytes !== null);
  const who = taken.some((s) => s.slowest);
  const header = [sizes ? "snapshot" : "batch", "at", ...(sizes ? ["size"] : []), "took", ...columns.map(([, name]) => name)];
  const texts = [0, header.length, ...(who ? [header.length + 1] : [])];
  return table([...header, ...(who ? ["last to save"] : []), "outcome"], taken.map((s) => [
    s.export ? `${s.id} “${s.export}”` : String(s.id), clock(s.began_ms), ...(sizes ? [s.bytes === null ? "–" : size(s.bytes)] : []), duration(s.ms),
    ...columns.map(([phase]) => (s[phase] === undefined ? "–" : duration(s[phase]))),
    ...(who ? [s.slowest || "–"] : []), s.error ? make("span", { class: "bad" }, s.error) : "good",
  ]), texts);
}

const PHASES = { run_ms: "running", save_ms: "saving", record_ms: "writing", commit_ms: "committing" };

const asides = (job) => Math.max(job.letters.length, job.dead_letters + job.skipped);

function showLetters(job, key) {
  const all = asides(job);
  const some = all > job.letters.length ? [make("p", { class: "empty" }, `The latest ${job.letters.length} of ${count(all)}.`)] : [];
  fill(key + JSON.stringify([job.letters, all]), () => (job.letters.length ? [...some, ...[...job.letters].reverse().map((letter) => {
    const id = `${letter.time_ms} ${letter.stage} ${letter.item}`;
    return make("details", { open: page.openLetters.has(id), ontoggle: (event) => page.openLetters[event.currentTarget.open ? "add" : "delete"](id) },
      make("summary", { "data-key": id }, `${clock(letter.time_ms)} ${letter.stage}: `, make("code", {}, letter.item), ` — ${letter.error}`),
      make("pre", {}, letter.traceback));
  })] : [make("p", { class: "empty" }, "No item was skipped or became a dead letter so far.")]));
}

const LEVELS = ["debug", "info", "warning", "error", "critical"];

function showLogs(job, key) {
  const found = job.logs.filter((row) => LEVELS.indexOf(row.level) >= LEVELS.indexOf(page.level) && (!page.wanted || `${row.text} ${row.logger}`.toLowerCase().includes(page.wanted.toLowerCase())));
  if (!page.shown.startsWith(`${key}log`)) {
    fill(`${key}log`, () => [
      make("div", { class: "filter" },
        make("input", { type: "search", placeholder: "Filter", "aria-label": "Filter the log", value: page.wanted, oninput: (event) => { page.wanted = event.currentTarget.value; showLogs(page.state.job, key); } }),
        make("select", { "aria-label": "Level", onchange: (event) => { page.level = event.currentTarget.value; showLogs(page.state.job, key); } },
          ...Object.entries({ debug: "all levels", info: "info and above", warning: "warnings and errors", error: "errors" }).map(([level, text]) => make("option", { value: level, selected: level === page.level }, text)))),
      make("ul", { class: "log", id: "log" }),
    ]);
  }
  const list = $("log");
  const shown = JSON.stringify(found);
  if (list.dataset.shown === shown) return;
  list.dataset.shown = shown;
  list.replaceChildren(...[...found].reverse().map((row) => make("li", { class: row.level },
    make("time", {}, `${clock(row.time_ms)} `), make("span", { class: "from" }, `${row.member === null ? "" : `member ${row.member} `}${row.level} `), row.text)));
  if (!found.length && job.logs.length) list.append(make("li", { class: "empty" }, `None of ${job.logs.length} records is like that.`));
  else if (!found.length) list.append(make("li", { class: "empty" }, "Nothing was logged so far. Records below the level of the logger “jetlet” do not come here."));
}
