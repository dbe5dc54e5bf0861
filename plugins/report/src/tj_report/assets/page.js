"use strict";
const LINE = 18, PART = 400;
const palette = JSON.parse(document.getElementById("palette").textContent);
const known = new Map();
let current = null, tab = "trace";

const by = (id) => document.getElementById(id);
const element = (name, text, className) => {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
};

// Programs are parsed when they are chosen, and lines are made when they are seen.
function data(number) {
  if (!known.has(number)) known.set(number, JSON.parse(by("program-" + number).textContent));
  return known.get(number);
}

function showLines(box, count, make) {
  const inner = element("div", undefined, "inner");
  inner.style.height = count * LINE + "px";
  box.replaceChildren(inner);
  box.scrollTop = 0;
  let shown = null;
  const draw = () => {
    const first = Math.max(0, Math.floor(box.scrollTop / LINE) - 20);
    const last = Math.min(count, first + Math.ceil(box.clientHeight / LINE) + 60);
    if (shown && shown[0] === first && shown[1] === last) return;
    shown = [first, last];
    const rows = [];
    for (let i = first; i < last; i++) {
      const row = make(i);
      row.style.top = i * LINE + "px";
      rows.push(row);
    }
    inner.replaceChildren(...rows);
  };
  box.onscroll = draw;
  window.onresize = draw;
  draw();
}

function rowOf(program, stage, i, className) {
  const row = element("div", undefined, "row " + (className || ""));
  const source = program.sources[stage.sources[i]];
  const before = i > 0 ? program.sources[stage.sources[i - 1]] : "";
  const owner = program.executors[stage.executors[i]];
  row.append(element("span", className || source !== before ? source : "", "source"));
  row.append(element("span", program.lines[stage.lines[i]], "text"));
  row.title = [owner, source].filter(Boolean).join("  ");
  if (palette[owner]) row.style.setProperty("--colour", palette[owner]);
  return row;
}

function fill(select, program, chosen) {
  select.replaceChildren(...program.stages.map((s, i) => new Option(s.name, i)));
  select.value = chosen;
}

function showTrace() {
  const program = data(current), stage = program.stages[by("stage").value];
  by("trace-facts").textContent = `${stage.calls} calls, ${stage.lines.length} lines`;
  showLines(by("trace-lines"), stage.lines.length, (i) => rowOf(program, stage, i));
  const first = stage.sources.findIndex((source) => source > 0);
  if (first > 20) by("trace-lines").scrollTop = (first - 3) * LINE;  // past the list of inputs
}

// Lines that stand once on both sides anchor the difference (patience diff); between two anchors,
// equal lines at both ends are matched and the rest differs.
function difference(a, b) {
  const result = [];
  const walk = (a0, a1, b0, b1) => {
    while (a0 < a1 && b0 < b1 && a[a0] === b[b0]) result.push([0, a0++, b0++]);
    let tail = 0;
    while (a0 < a1 - tail && b0 < b1 - tail && a[a1 - 1 - tail] === b[b1 - 1 - tail]) tail++;
    a1 -= tail; b1 -= tail;
    const anchors = a0 < a1 && b0 < b1 ? increasing(unique(a, a0, a1, b, b0, b1)) : [];
    let x = a0, y = b0;
    if (anchors.length) {
      for (const [i, j] of anchors) { walk(x, i, y, j); result.push([0, i, j]); x = i + 1; y = j + 1; }
      walk(x, a1, y, b1);
    } else {
      for (; x < a1; x++) result.push([-1, x, y]);
      for (; y < b1; y++) result.push([1, x, y]);
    }
    for (let k = 0; k < tail; k++) result.push([0, a1 + k, b1 + k]);
  };
  walk(0, a.length, 0, b.length);
  return result;
}

function unique(a, a0, a1, b, b0, b1) {
  const places = new Map();
  for (let i = a0; i < a1; i++) places.set(a[i], places.has(a[i]) ? null : [i, -1]);
  for (let j = b0; j < b1; j++) {
    const found = places.get(b[j]);
    if (found) places.set(b[j], found[1] < 0 ? [found[0], j] : null);
  }
  return [...places.values()].filter((p) => p && p[1] >= 0);
}

// The longest run of pairs that increase on both sides; pairs come in the order of the first.
function increasing(pairs) {
  const ends = [], before = new Array(pairs.length).fill(-1);
  pairs.forEach(([, j], k) => {
    let low = 0, high = ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (pairs[ends[middle]][1] < j) low = middle + 1; else high = middle;
    }
    if (low) before[k] = ends[low - 1];
    ends[low] = k;
  });
  const found = [];
  for (let k = ends.length ? ends[ends.length - 1] : -1; k >= 0; k = before[k]) found.push(pairs[k]);
  return found.reverse();
}

function showDiff() {
  const program = data(current);
  const a = program.stages[by("before").value], b = program.stages[by("after").value];
  const found = difference(a.lines, b.lines);
  const more = found.filter((d) => d[0] > 0).length, fewer = found.filter((d) => d[0] < 0).length;
  by("diff-facts").textContent = `${more} lines more, ${fewer} fewer`;
  showLines(by("diff-lines"), found.length, (k) => {
    const [what, i, j] = found[k];
    return what < 0 ? rowOf(program, a, i, "fewer") : rowOf(program, b, j, what ? "more" : "same");
  });
}

function table(box, header, rows, colour) {
  if (!rows.length) { box.replaceChildren(element("p", "There are none.")); return; }
  const made = element("table"), head = element("tr"), body = element("tbody");
  head.append(...header.map((text) => element("th", text)));
  made.append(element("thead"), body);
  made.firstChild.append(head);
  let next = 0;
  const button = element("button", "more");
  const add = () => {
    for (const row of rows.slice(next, next + PART)) {
      const line = element("tr");
      line.append(...row.map((text) => element("td", text)));
      if (colour && palette[row[colour]]) {
        line.children[colour].className = "executor";
        line.children[colour].style.setProperty("--colour", palette[row[colour]]);
      }
      body.append(line);
    }
    next += PART;
    button.hidden = next >= rows.length;
  };
  button.onclick = add;
  add();
  box.replaceChildren(made, button);
}

function showClaims() {
  const program = data(current), word = by("claims-filter").value;
  const rows = program.claims.filter((row) => !word || row.some((text) => text.includes(word)));
  table(by("claims-table"), ["call", "operation", "executor", "declined by", "source"], rows, 2);
  table(by("declines-table"), ["executor", "declined because", "calls", "the first"], program.declines, 0);
}

function showRegions() {
  const found = data(current).regions.map((region) => {
    const made = element("details"), title = element("summary");
    const name = element("span", region.name, "executor");
    name.style.setProperty("--colour", palette[region.executor] || "transparent");
    const facts = `${region.operations.length} operations, called ${region.calls} times, ` +
      `${region.seconds} s compiling ${region.state}`;
    title.append(name, facts);
    made.append(title);
    made.ontoggle = () => {
      if (made.open && made.children.length === 1) {
        made.append(element("p", region.operations.join(", ")));
        made.append(element("pre", region.code || "The executor gives no text of its code."));
      }
    };
    return made;
  });
  by("regions-list").replaceChildren(...(found.length ? found : [element("p", "There are none.")]));
}

function showMemory() {
  by("peak").textContent = data(current).peak;
  by("memory-plot").innerHTML = data(current).memory;  // numbers and tags that tj-report wrote
}

function showCollectives() {
  const program = data(current), [header, ...rows] = program.started;
  by("timeline").hidden = !rows.length;
  by("timeline-plot").innerHTML = program.timeline;  // its texts are escaped
  if (rows.length) table(by("started-table"), header, rows);
  table(by("collectives-table"), ["call", "operation", "source"], program.collectives);
}

const panels = {
  trace: showTrace, diff: showDiff, claims: showClaims, regions: showRegions, memory: showMemory,
  code: () => { by("code-text").textContent = data(current).code || "It is not compiled yet."; },
  collectives: showCollectives,
};

function show(name) {
  tab = name;
  for (const button of document.querySelectorAll("[data-tab]"))
    button.setAttribute("aria-selected", button.dataset.tab === name);
  for (const panel of document.querySelectorAll("[data-panel]"))
    panel.classList.toggle("shown", panel.dataset.panel === name);
  if (panels[name]) panels[name]();
}

function choose(number) {
  current = number;
  for (const button of document.querySelectorAll(".program"))
    button.setAttribute("aria-current", Number(button.dataset.number) === number);
  const program = data(number), last = program.stages.length - 1;
  fill(by("stage"), program, last);
  fill(by("before"), program, 0);
  fill(by("after"), program, last);
  show(tab);
}

by("stage").onchange = showTrace;
by("before").onchange = by("after").onchange = showDiff;
by("claims-filter").oninput = showClaims;
for (const button of document.querySelectorAll("[data-tab]")) button.onclick = () => show(button.dataset.tab);
for (const button of document.querySelectorAll(".program"))
  button.onclick = () => choose(Number(button.dataset.number));
choose(0);
document.documentElement.dataset.ready = "true";
