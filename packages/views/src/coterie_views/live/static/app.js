/* The live page. The server sends numbers; everything is drawn here, and every word from data is set as text. */
"use strict";

const SVG = "http://www.w3.org/2000/svg";
const ROWS_AT_ONCE = 200;
const MOST_POINTS = 400;
const COLOURS = 10;
const runs = new Map(); // id -> the run's line in the list
const panes = []; // what is shown in full, at most two
const MOST_PANES = 2;
const MOST_OVERLAID = 200;
const colour = (id) => `var(--c${id % COLOURS})`; // the report's colours

function make(tag, attributes = {}, text) {
  const plain = ["div", "li", "dt", "dd", "td", "tr", "th", "b", "i", "button", "span", "p", "option"].includes(tag);
  const node = plain ? document.createElement(tag) : document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

const percent = (x) => (x === null || x === undefined ? "–" : `${(100 * x).toFixed(1)} %`);
const number = (x) => (x === null || x === undefined ? "–" : Math.abs(x) >= 1e5 ? x.toExponential(2)
  : Math.abs(x) >= 100 ? x.toFixed(0) : Number(x).toPrecision(3));
const megabytes = (x) => (x === null || x === undefined ? "–" : `${number(x / 1e6)} MB`);
const people = (n) => `${n} ${n === 1 ? "client" : "clients"}`;
const title = (run) => (run.id === "." ? "this run" : run.id);
const described = (run) => run.problem ? `damaged: ${run.problem}` : [run.method, "on", run.scenario || run.data || "a federation of its own",
  run.model ? `· ${run.model}` : "", run.seed === null ? "" : `· seed ${run.seed}`].join(" ");

const formatOf = (measure) => (measure === "accuracy" ? percent : number);

/* The metrics that some of these tables have a number for, accuracy first. */
function metricsOf(tables) {
  const names = new Set(tables.flatMap((table) => Object.keys(table).filter((name) => ![table[name]].flat().every((value) => value === null))));
  return [...names].sort((a, b) => (b === "accuracy") - (a === "accuracy"));
}

/* Offer metrics to draw; the one that is drawn, which is the first where the chosen one is not there. */
function offer(select, names, measure) {
  const drawn = names.includes(measure) ? measure : names[0] ?? measure;
  if ([...select.options].map((option) => option.value).join() !== names.join()) {
    select.replaceChildren(...names.map((name) => make("option", { value: name }, name)));
  }
  select.hidden = names.length < 2;
  select.value = drawn;
  return drawn;
}

/* The list of runs */

const items = new Map();

function listRun(run) {
  runs.set(run.id, run);
  let item = items.get(run.id);
  if (!item) {
    item = document.getElementById("run-item").content.firstElementChild.cloneNode(true);
    item.dataset.run = run.id;
    item.querySelector(".open").addEventListener("click", () => show([run.id]));
    item.querySelector(".beside").addEventListener("click", () => showBeside(run.id));
    items.set(run.id, item);
    item.dataset.begun = run.begun;
    const list = document.getElementById("runs"); // newest first
    const after = [...list.children].find((other) => Number(other.dataset.begun) < run.begun
      || (Number(other.dataset.begun) === run.begun && other.dataset.run > run.id));
    list.insertBefore(item, after || null);
  }
  item.querySelector(".name").replaceChildren(...title(run).split("/").flatMap((part, i) => // a long path breaks at its slashes
    (i ? ["/", document.createElement("wbr"), part] : [part])));
  item.querySelector(".what").textContent = described(run);
  item.querySelector("progress").value = run.rounds ? run.round / run.rounds : 0;
  const status = item.querySelector(".status");
  status.textContent = run.status;
  status.className = `status ${run.status}`;
  item.querySelector(".rounds").textContent = `round ${run.round}/${run.rounds ?? "?"}`;
  item.querySelector(".score").textContent = run.accuracy === null ? `loss ${number(run.loss)}` : percent(run.accuracy);
  countRuns();
}

function countRuns() {
  document.getElementById("count").textContent = `${runs.size} ${runs.size === 1 ? "run" : "runs"}`;
  document.getElementById("hint").hidden = runs.size > 0;
  document.getElementById("all").hidden = runs.size < 2;
}

function forgetRun(id) {
  runs.delete(id);
  items.get(id)?.remove();
  items.delete(id);
  countRuns();
  panes.filter((pane) => pane.id === id).forEach((pane) => pane.gone());
  if (overlay.ids.includes(id)) overlay.load(wanted());
}

/* What is open: kept in the address, so that it can be bookmarked */

const wanted = () => new URLSearchParams(location.hash.slice(1)).getAll("run").slice(0, MOST_OVERLAID);

function show(ids) {
  const query = new URLSearchParams();
  ids.forEach((id) => query.append("run", id));
  if (location.hash.slice(1) === query.toString()) arrange();
  else location.hash = query.toString();
}

function showBeside(id) {
  const ids = wanted();
  show(ids.includes(id) ? ids.filter((other) => other !== id) : [...ids, id]);
}

/* One or two runs are shown in full; two or more also as curves in one picture, and more than two only so. */
function arrange() {
  const ids = wanted();
  const whole = ids.length <= MOST_PANES ? ids : [];
  for (const pane of [...panes]) {
    if (!whole.includes(pane.id)) {
      pane.root.remove();
      panes.splice(panes.indexOf(pane), 1);
    }
  }
  for (const id of whole) if (!panes.some((pane) => pane.id === id)) panes.push(new Pane(id));
  panes.sort((a, b) => ids.indexOf(a.id) - ids.indexOf(b.id));
  document.getElementById("panes").replaceChildren(...panes.map((pane) => pane.root));
  for (const [id, item] of items) {
    item.classList.toggle("shown", ids.includes(id));
    item.querySelector(".beside").textContent = ids.includes(id) ? "remove" : "add";
  }
  overlay.load(ids);
  panes.forEach((pane) => {
    pane.find(".close").hidden = panes.length < 2;
    pane.load();
  });
}

/* Many runs in one picture: a line per setting, with a band where it was run with several seeds. */

const SETTING = ["method", "scenario", "data", "model", "rounds", "participation", "lr", "epochs", "batch_size"];

class Overlay {
  constructor() {
    this.ids = [];
    this.courses = new Map(); // id -> rounds with their metrics
    this.measure = "accuracy";
    this.root = document.getElementById("overlay");
    this.choice = this.root.querySelector(".measure");
    this.choice.addEventListener("change", () => { this.measure = this.choice.value; this.draw(); });
  }

  async load(ids) {
    this.ids = ids.length > 1 ? ids : [];
    this.root.hidden = !this.ids.length;
    if (!this.ids.length) return;
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      for (const id of this.ids) {
        const state = runs.get(id) && `${runs.get(id).epoch}/${runs.get(id).round}`;
        if (!state || this.courses.get(id)?.state === state) continue;
        const answer = await fetch(`api/course?${new URLSearchParams({ id })}`);
        if (answer.ok) this.courses.set(id, { ...await answer.json(), state });
      }
    } catch (problem) {
      if (!(problem instanceof TypeError)) throw problem; // the network: the stream says so, and loads again later
    } finally {
      this.loading = false;
    }
    this.draw();
    if (this.again) { this.again = false; setTimeout(() => this.load(wanted()), 200); }
  }

  /* The chosen runs by setting, each with the mean and the range over its seeds by round. */
  groups() {
    const found = new Map();
    for (const id of this.ids) {
      const [run, course] = [runs.get(id), this.courses.get(id)];
      if (!run || !course) continue;
      if (!found.has(run.setting)) found.set(run.setting, { run, ids: [], byRound: new Map() });
      const group = found.get(run.setting);
      group.ids.push(id);
      course.rounds.forEach((round, i) => {
        const value = course.metrics[this.measure]?.[i] ?? null;
        if (value === null) return;
        if (!group.byRound.has(round)) group.byRound.set(round, []);
        group.byRound.get(round).push(value);
      });
    }
    const groups = [...found.values()];
    const differing = SETTING.filter((key) => new Set(groups.map((group) => group.run[key])).size > 1);
    for (const group of groups) {
      const words = differing.map((key) => (key === "method" ? group.run.method : `${key.replace("_", " ")} ${group.run[key] ?? "–"}`));
      group.name = words.join(" · ") || group.run.method || group.ids[0];
      group.points = [...group.byRound].sort((a, b) => a[0] - b[0]).map(([round, values]) => ({
        round, mean: values.reduce((a, b) => a + b, 0) / values.length, low: Math.min(...values), high: Math.max(...values),
      }));
    }
    const names = groups.map((group) => group.name); // settings may differ in what the page is not told
    groups.forEach((group, i) => { if (names.indexOf(names[i]) !== names.lastIndexOf(names[i])) group.name += ` · ${group.ids[0]}`; });
    return groups;
  }

  draw() {
    if (!this.ids.length) return;
    const courses = this.ids.map((id) => this.courses.get(id)).filter(Boolean);
    this.measure = offer(this.choice, metricsOf(courses.map((course) => course.metrics)), this.measure);
    const groups = this.groups();
    const plot = this.root.querySelector(".plot");
    const all = groups.flatMap((group) => group.points);
    if (!all.length) {
      plot.replaceChildren(make("p", { class: "empty" }, "The first round is not done yet."));
      this.root.querySelector(".legend").replaceChildren();
      return;
    }
    const last = Math.max(2, ...groups.map((group) => group.run.rounds || 0), ...all.map((point) => point.round));
    const frame = axes(plot, 300, last, this.measure, all.flatMap((point) => [point.low, point.high]));
    const { svg, x, y } = frame;
    const spot = (round, value) => `${x(round).toFixed(1)} ${y(value).toFixed(1)}`;
    groups.forEach((group, i) => {
      if (group.ids.length > 1) {
        const edge = [...group.points.map((p) => spot(p.round, p.high)), ...[...group.points].reverse().map((p) => spot(p.round, p.low))];
        svg.append(make("path", { class: "band", d: `M${edge.join("L")}Z`, fill: colour(i) }));
      }
    });
    groups.forEach((group, i) => {
      const d = `M${group.points.map((p) => spot(p.round, p.mean)).join("L")}`;
      if (group.points.length) svg.append(make("path", { class: "curve", "data-setting": group.name, d, stroke: colour(i) }));
    });
    const format = formatOf(this.measure);
    hover(frame, plot, (round) => {
      const near = groups.map((group) => [group, group.points.reduce((a, b) => (Math.abs(b.round - round) < Math.abs(a.round - round) ? b : a), group.points[0])]);
      const at = near.find(([, point]) => point)[1].round;
      return { at, words: [`round ${at}`, ...near.filter(([, point]) => point).slice(0, 16).map(([group, point]) => `${group.name}: ${format(point.mean)}`)] };
    });
    plot.replaceChildren(svg);
    legend(this.root.querySelector(".legend"), groups.map((group, i) => [colour(i), "",
      `${group.name}${group.ids.length > 1 ? `, ${group.ids.length} seeds` : ""}: ${format(group.points[group.points.length - 1]?.mean)}`]));
  }
}

/* One open run */

class Pane {
  constructor(id) {
    this.id = id;
    this.measure = "accuracy";
    this.records = [];
    this.total = 0;
    this.epoch = null;
    this.rows = [];
    this.clientsVersion = null;
    this.sorting = { key: "client", down: false };
    this.most = ROWS_AT_ONCE;
    this.root = document.getElementById("pane").content.firstElementChild.cloneNode(true);
    this.root.dataset.run = id;
    this.find(".close").addEventListener("click", () => show(panes.map((p) => p.id).filter((other) => other !== id)));
    this.find(".measure").addEventListener("change", (event) => { this.measure = event.target.value; this.draw(); });
    this.find(".clients input").addEventListener("input", () => { this.most = ROWS_AT_ONCE; this.drawClients(); });
    this.find(".more button").addEventListener("click", () => { this.most += ROWS_AT_ONCE; this.drawClients(); });
    this.find("h2").textContent = id === "." ? "this run" : id;
  }

  find(selector) { return this.root.querySelector(selector); }

  async load() {
    if (this.loading) { this.again = true; return; }
    this.loading = true;
    try {
      const query = new URLSearchParams({ id: this.id, from: this.total });
      if (this.epoch !== null) query.set("epoch", this.epoch);
      const answer = await fetch(`api/run?${query}`);
      if (!answer.ok) { this.gone(); return; }
      this.take(await answer.json());
      this.draw();
      if (this.run.clients_version !== this.clientsVersion) {
        await this.loadClients();
      }
    } catch (problem) {
      if (!(problem instanceof TypeError)) throw problem; // the network: the stream says so, and loads again later
    } finally {
      this.loading = false;
      if (this.again) { this.again = false; setTimeout(() => this.load(), 200); }
    }
  }

  async loadClients() {
    let rows = [], told = null;
    do {
      const page = await fetch(`api/clients?${new URLSearchParams({ id: this.id, from: rows.length })}`);
      if (!page.ok) return;
      const next = await page.json();
      if (told && next.version !== told.version) { this.again = true; return; } // renewed meanwhile: from the start
      told = next;
      rows = rows.concat(told.rows);
    } while (told.rows.length && rows.length < told.available);
    this.clientsVersion = told.version;
    this.rows = rows;
    this.clientsTotal = told.total;
    this.worstFirst = told.worst_first;
    this.drawClients();
  }

  take(told) {
    if (told.epoch !== this.epoch || told.from === 0) this.records = [];
    this.epoch = told.epoch;
    this.records.push(...told.records);
    this.total = told.total;
    this.run = told;
  }

  gone() {
    this.find("header .status").textContent = "its folder is gone";
    this.find("header .status").className = "status gone";
    this.epoch = this.clientsVersion = null;
    this.total = 0;
  }

  draw() {
    const run = this.run;
    const last = this.records[this.records.length - 1];
    this.find("h2").textContent = title(run);
    this.find(".pane > .what").textContent = described(run);
    this.find(".verdict").textContent = run.verdict || "";
    const status = this.find("header .status");
    status.textContent = run.status;
    status.className = `status ${run.status}`;
    const known = this.records.findLast((record) => metricsOf([record.metrics]).length) || { metrics: {} };
    const noAccuracy = (known.metrics.accuracy ?? null) === null;
    const done = run.summary;
    this.facts([
      ["round", `${run.round} / ${run.rounds ?? "?"}`],
      noAccuracy ? ["loss", number(known.metrics.loss)] : ["accuracy", percent(done ? done.accuracy.mean : known.metrics.accuracy)],
      noAccuracy ? ["worst 10 %", done ? number(done.loss.worst10) : "–"]
        : ["worst 10 %", percent(done ? done.accuracy.worst10 : known.worst)],
      ["clusters", last ? last.count : "–"],
      done && done.ari !== null ? ["ARI", number(done.ari)] : null,
      last && last.epsilon !== null ? ["ε spent", number(last.epsilon)] : null,
      done ? ["sent up", megabytes(done.bytes.up)] : last ? ["up a round", megabytes(last.up)] : null,
      done ? ["time", `${number(done.seconds)} s`] : last ? ["a round", `${number(last.seconds)} s`] : null,
    ]);
    this.measure = offer(this.find(".measure"), metricsOf(this.records.map((record) => record.metrics)), this.measure);
    this.find(".curves h3").textContent = `${this.measure[0].toUpperCase()}${this.measure.slice(1)} over rounds`;
    drawCurves(this);
    drawTree(this);
    this.drawEvents();
  }

  facts(pairs) {
    this.find(".facts").replaceChildren(...pairs.filter(Boolean).map(([name, value]) => {
      const box = make("div");
      box.append(make("dt", name === "ARI" ? { title: "adjusted Rand index: agreement of the clusters with the hidden groups" } : {}, name),
        make("dd", {}, value));
      return box;
    }));
  }

  drawEvents() {
    const told = this.records.flatMap((record) => record.events.map((event) => [record.round, event])).reverse();
    this.find(".events").hidden = told.length === 0;
    this.find(".events ol").replaceChildren(...told.slice(0, 50).map(([round, event]) => {
      const line = make("li", { "data-kind": event.kind });
      line.append(make("b", {}, `round ${round}`), ` ${event.text}`);
      return line;
    }));
  }

  drawClients() {
    const names = { client: "client", cluster: "cluster", mixture: "mixture", accuracy: "accuracy", personalised: "tuned", loss: "loss",
      test_samples: "test data" };
    const keys = Object.keys(names).filter((key) => this.rows.some((row) => (row[key] ?? null) !== null));
    this.find(".clients").hidden = this.rows.length === 0;
    this.find("thead tr").replaceChildren(...keys.map((key) => {
      const active = this.sorting.key === key;
      const head = make("th", { scope: "col", "aria-sort": active ? (this.sorting.down ? "descending" : "ascending") : "none" });
      const button = make("button", { "data-key": key }, names[key] + (active ? (this.sorting.down ? " ▾" : " ▴") : ""));
      button.addEventListener("click", () => {
        this.sorting = { key, down: active ? !this.sorting.down : false };
        this.drawClients();
        this.find(`[data-key=${key}]`).focus();
      });
      head.append(button);
      return head;
    }));
    const text = this.find(".clients input").value.toLowerCase();
    const kept = this.rows.filter((row) => row.client.toLowerCase().includes(text)).sort(this.order());
    this.find("tbody").replaceChildren(...kept.slice(0, this.most).map((row) => {
      const line = make("tr");
      for (const key of keys) {
        const shown = { accuracy: percent, personalised: percent, loss: number }[key] || ((value) => value ?? "–");
        const cell = make("td", key === "client" ? { title: row.client } : {}, shown(row[key]));
        if (key === "cluster" && typeof row.cluster === "number") {
          cell.prepend(make("i"));
          cell.firstChild.style.background = colour(row.cluster);
        }
        line.append(cell);
      }
      return line;
    }));
    const hidden = kept.length > this.most;
    this.find(".more button").hidden = !hidden;
    this.find(".more span").textContent = (hidden ? `${this.most} of ${people(kept.length)}` : people(kept.length))
      + (this.clientsTotal > this.rows.length ? `, the ${this.worstFirst ? "worst served" : "first"} of ${this.clientsTotal} in all` : "")
      + (keys.includes("loss") ? "" : "; their scores come when the run is complete");
  }

  order() {
    const { key, down } = this.sorting;
    const sign = down ? -1 : 1;
    return (a, b) => {
      const [x, y] = [a[key], b[key]];
      if (x === y) return a.client.localeCompare(b.client, undefined, { numeric: true });
      if (x === null || x === undefined) return 1; // the unknown last, either way
      if (y === null || y === undefined) return -1;
      return sign * (typeof x === "number" && typeof y === "number" ? x - y
        : String(x).localeCompare(String(y), undefined, { numeric: true }));
    };
  }
}

/* Drawing */

/* A frame with the rounds to the right and a measure upwards, both axes named. */
function axes(plot, tall, last, measure, values) {
  const { svg, width, height } = canvas(plot, tall);
  const [left, right, top, bottom] = [72, width - 34, 10, height - 40];
  const isAccuracy = measure === "accuracy";
  const floor = values.reduce((a, b) => Math.min(a, b), 0);
  const highest = values.reduce((a, b) => Math.max(a, b), 0);
  const ceiling = isAccuracy ? 1 : highest > floor ? highest : 1;
  const x = (t) => left + ((t - 1) / (last - 1)) * (right - left);
  const y = (v) => bottom - ((Math.min(v, ceiling) - floor) / (ceiling - floor)) * (bottom - top);
  roundTicks(svg, x, 1, last, bottom, top);
  for (let i = 0; i <= 4; i += 1) {
    const value = floor + ((ceiling - floor) * i) / 4;
    svg.append(make("line", { class: "grid", x1: left, x2: right, y1: y(value), y2: y(value) }));
    svg.append(make("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, isAccuracy ? `${25 * i}` : number(value)));
  }
  const [centre, middle] = [(left + right) / 2, (top + bottom) / 2];
  svg.append(make("text", { class: "axis", x: centre, y: bottom + 34, "text-anchor": "middle" }, "round"));
  svg.append(make("text", { class: "axis", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle" },
    isAccuracy ? "accuracy, %" : measure));
  return { svg, x, y, left, right, top, bottom, last };
}

function legend(list, marks) {
  list.replaceChildren(...marks.map(([stroke, dashes, text]) => {
    const entry = make("li");
    const swatch = make("svg", { viewBox: "0 0 18 10", "aria-hidden": "true" });
    swatch.append(make("line", { x1: 0, x2: 18, y1: 5, y2: 5, stroke, "stroke-width": 2.5, "stroke-dasharray": dashes }));
    entry.append(swatch, text);
    return entry;
  }));
}

function canvas(plot, height) {
  const width = Math.max(260, plot.clientWidth);
  const svg = make("svg", { viewBox: `0 0 ${width} ${height}`, height, role: "img" });
  return { svg, width, height };
}

function thin(points) {
  if (points.length <= MOST_POINTS) return points;
  const size = Math.ceil(points.length / (MOST_POINTS / 2));
  const kept = [points[0]];
  for (let i = 0; i < points.length; i += size) { // the extremes of each bucket, so that no spike is lost
    const bucket = points.slice(i, i + size);
    const low = bucket.reduce((a, b) => (b[1] < a[1] ? b : a));
    const high = bucket.reduce((a, b) => (b[1] > a[1] ? b : a));
    kept.push(...(low[0] < high[0] ? [low, high] : [high, low]));
  }
  kept.push(points[points.length - 1]);
  return kept;
}

function roundTicks(svg, x, first, last, bottom, top) {
  const raw = Math.max(1, (last - first) / 5);
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  for (let t = Math.ceil(first / step) * step; t <= last; t += step) {
    svg.append(make("line", { class: "grid", x1: x(t), x2: x(t), y1: top, y2: bottom }));
    svg.append(make("text", { x: x(t), y: bottom + 16, "text-anchor": "middle" }, t));
  }
}

function series(pane) {
  const lines = new Map();
  const mean = [];
  for (const record of pane.records) {
    const value = record.metrics[pane.measure] ?? null;
    if (value !== null) mean.push([record.round, value]);
    for (const cluster of record.clusters) {
      if (!lines.has(cluster.id)) lines.set(cluster.id, { points: [], members: 0 });
      const line = lines.get(cluster.id);
      line.members = cluster.members;
      const own = cluster.metrics[pane.measure] ?? null;
      if (own !== null) line.points.push([record.round, own]);
    }
  }
  return { lines, mean };
}

function drawCurves(pane) {
  const plot = pane.find(".curves .plot");
  const { lines, mean } = series(pane);
  const all = [...mean, ...[...lines.values()].flatMap((line) => line.points)].map((point) => point[1]);
  if (!mean.length) {
    plot.replaceChildren(make("p", { class: "empty" }, "The first round is not done yet."));
    pane.find(".legend").replaceChildren();
    return;
  }
  const last = Math.max(pane.run.rounds || 0, pane.records[pane.records.length - 1].round, 2);
  const frame = axes(plot, 266, last, pane.measure, all);
  const { svg, x, y, top, bottom } = frame;
  for (const record of pane.records) {
    if (!record.splits) continue;
    const mark = make("line", { class: "split", "data-round": record.round, x1: x(record.round), x2: x(record.round), y1: top, y2: bottom });
    mark.append(make("title", {}, `split in round ${record.round}`));
    svg.append(mark);
  }
  const path = (points) => thin(points).map((p, i) => `${i ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
  const present = new Set(pane.records[pane.records.length - 1].clusters.map((cluster) => cluster.id));
  const ends = [];
  for (const [id, line] of lines) {
    if (!line.points.length) continue;
    svg.append(make("path", { class: "curve", "data-cluster": id, d: path(line.points), stroke: colour(id) }));
    const end = line.points[line.points.length - 1];
    if (lines.size > 1 && present.has(id)) ends.push({ id, x: x(end[0]), y: y(end[1]) });
  }
  if (lines.size !== 1) svg.append(make("path", { class: "mean", d: path(mean) }));
  ends.sort((a, b) => a.y - b.y).forEach((end, i) => { if (i) end.y = Math.max(end.y, ends[i - 1].y + 13); });
  const over = Math.max(0, ends.length ? ends[ends.length - 1].y - bottom : 0);
  if (ends.length <= 16) {
    for (const end of ends) svg.append(make("text", { class: "label", x: end.x + 5, y: end.y - over + 4 }, end.id));
  }
  const format = formatOf(pane.measure);
  hover(frame, plot, (round) => {
    const near = pane.records.reduce((a, b) => (Math.abs(b.round - round) < Math.abs(a.round - round) ? b : a));
    return { at: near.round, words: [`round ${near.round}: ${format(near.metrics[pane.measure])}`,
      ...near.clusters.slice(0, 12).map((cluster) => `cluster ${cluster.id}: ${format(cluster.metrics[pane.measure])}`)] };
  });
  const marks = [...present].slice(0, 24).map((id) => [colour(id), "", `cluster ${id}: ${people(lines.get(id).members)}`]);
  if (lines.size !== 1) marks.push(["var(--ink)", "5 4", "mean over clients"]);
  if (svg.querySelector(".split")) marks.push(["var(--soft)", "2 3", "a split"]);
  legend(pane.find(".legend"), marks);
  plot.replaceChildren(svg);
}

/* A cursor that says what `tell(round)` gives: the round it is `at`, and `words` on it. */
function hover({ svg, left, right, top, bottom, x, last }, plot, tell) {
  const cursor = make("line", { class: "cursor", y1: top, y2: bottom, visibility: "hidden" });
  const tip = make("div", { class: "tip" });
  tip.hidden = true;
  svg.append(cursor);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const { at, words } = tell(1 + ((event.clientX - box.left - left) / (right - left)) * (last - 1));
    tip.replaceChildren(...words.map((text) => make("div", {}, text)));
    tip.hidden = false;
    plot.append(tip);
    const place = x(at);
    tip.style.left = `${place > (left + right) / 2 ? Math.max(0, place - tip.offsetWidth - 10) : place + 10}px`;
    tip.style.top = `${top}px`;
    cursor.setAttribute("x1", place);
    cursor.setAttribute("x2", place);
    cursor.setAttribute("visibility", "visible");
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.setAttribute("visibility", "hidden"); });
}

/* Time runs from left to right: a bar lives from the round a cluster began to the round it was split. */
function drawTree(pane) {
  const nodes = pane.run.tree;
  pane.find(".tree").hidden = !nodes;
  if (!nodes) return;
  const plot = pane.find(".tree .plot");
  const order = [];
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const walk = (id) => { const [a, ...rest] = byId.get(id).children; if (a !== undefined) walk(a); order.push(id); rest.forEach(walk); };
  nodes.filter((node) => node.parent === null).forEach((node) => walk(node.id));
  const row = 34;
  const { svg, width, height } = canvas(plot, order.length * row + 44);
  const now = Math.max(pane.run.round, 1);
  const last = Math.max(pane.run.rounds || 0, now, 2);
  const [left, right, bottom] = [10, width - 10, height - 40];
  const x = (t) => left + (t / last) * (right - left);
  const y = new Map(order.map((id, i) => [id, i * row + 24]));
  const most = Math.max(1, ...nodes.map((node) => node.size || 0));
  roundTicks(svg, x, 0, last, bottom, 4);
  svg.append(make("text", { class: "axis", x: (left + right) / 2, y: bottom + 34, "text-anchor": "middle" }, "round"));
  const labels = []; // drawn last, over every limb
  for (const node of nodes) {
    const [from, to, level] = [x(node.born), x(node.split_round ?? now), y.get(node.id)];
    for (const child of node.children) {
      svg.append(make("path", { class: "limb", d: `M${to} ${level}V${y.get(child)}` }));
    }
    const thick = 4 + (6 * (node.size || 0)) / most;
    const bar = make("rect", { "data-node": node.id, x: from, width: Math.max(3, to - from), y: level - thick / 2, height: thick, rx: 2, fill: colour(node.id) });
    bar.append(make("title", {}, node.children.length ? `split in round ${node.split_round}: ${node.reason}` : "a cluster now"));
    svg.append(bar);
    const text = [node.id, node.size === null ? null : people(node.size), node.accuracy === null ? null : percent(node.accuracy)]
      .filter((part) => part !== null).join(" · ");
    const late = from > left + 0.6 * (right - left);
    labels.push(make("text", { class: "label", x: late ? right : from + 2, y: level - thick / 2 - 3, "text-anchor": late ? "end" : "start" }, text));
  }
  svg.append(...labels);
  plot.replaceChildren(svg);
}

/* News from the server */

function listen() {
  const source = new EventSource(`api/events${location.search}`);
  const connection = document.getElementById("connection");
  source.addEventListener("runs", (event) => {
    const told = JSON.parse(event.data);
    const names = new Set(told.map((run) => run.id));
    [...runs.keys()].filter((id) => !names.has(id)).forEach(forgetRun);
    told.forEach(listRun);
    connection.textContent = "live";
    connection.className = "";
    panes.forEach((pane) => { pane.clientsVersion = null; }); // perhaps another server, with counts of its own
    countRuns();
    const newest = [...told].sort((a, b) => b.begun - a.begun);
    if (!wanted().length && told.length) show([(newest.find((run) => run.status === "running") || newest[0]).id]);
    else arrange();
  });
  source.addEventListener("run", (event) => {
    const run = JSON.parse(event.data);
    listRun(run);
    if (!panes.length && !wanted().length) show([run.id]);
    panes.filter((pane) => pane.id === run.id).forEach((pane) => pane.load());
    if (overlay.ids.includes(run.id)) overlay.load(wanted());
  });
  source.addEventListener("gone", (event) => forgetRun(JSON.parse(event.data)));
  source.addEventListener("error", () => {
    connection.textContent = "connection lost, trying again";
    connection.className = "lost";
  });
}

let resizing = null;
window.addEventListener("resize", () => {
  clearTimeout(resizing);
  resizing = setTimeout(() => { panes.filter((pane) => pane.run).forEach((pane) => pane.draw()); overlay.draw(); }, 100);
});
window.addEventListener("hashchange", arrange);
const overlay = new Overlay();
document.getElementById("all").addEventListener("click", () =>
  show([...document.getElementById("runs").children].map((item) => item.dataset.run).slice(0, MOST_OVERLAID)));
listen();
