// The tools of a plan's page: a pipeline to zoom into, and the layout of any tensor. The page shows
// the same plan without it, in still pictures; this script hides those that it replaces.
"use strict";
(() => {
const PLANS = JSON.parse(document.getElementById("plan-data").textContent);
for (const plan of PLANS) {
  const { stems, numbers } = plan.names;
  plan.names = [];
  for (let i = 0; i < numbers.length; i += 2)
    plan.names.push(numbers[i + 1] < 0 ? stems[numbers[i]] : `${stems[numbers[i]]}.${numbers[i + 1]}`);
}

const seconds = s => {  // as shardspec.amounts writes them, for a reader
  if (!s) return "0 s";
  const [unit, factor] = s >= 1 ? ["s", 1] : s >= 1e-3 ? ["ms", 1e3] : ["us", 1e6];
  return `${Number((s * factor).toPrecision(3))} ${unit}`;
};
const bytes = n => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < 4) { n /= 1024; at += 1; }
  return `${Number(n.toPrecision(3))} ${units[at]}`;
};
const SVG = "http://www.w3.org/2000/svg";
const add = (parent, tag, attributes = {}, text = "", space = parent.namespaceURI) => {
  const made = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text) made.textContent = text;
  return parent.appendChild(made);
};
const runs = ids => {  // 0-3, 8
  const parts = [];
  for (const id of [...ids].sort((a, b) => a - b)) {
    const last = parts[parts.length - 1];
    if (last && id === last[1] + 1) last[1] = id;
    else parts.push([id, id]);
  }
  return parts.map(([a, b]) => a === b ? `${a}` : `${a}-${b}`).join(", ");
};

// ---- The pipeline -------------------------------------------------------------------------------

const LABELS = 64, ROW = 26, SENDS = 7, AXIS = 18;
const KEYS = "Arrow keys go from block to block and from rank to rank, plus and minus zoom, " +
  "0 shows the whole step.";

class Timeline {
  constructor(root, data, names, peers, longest) {
    Object.assign(this, { data, names, peers, end: longest / data.unit, from: 0, chosen: null });
    this.to = this.end;
    peers.push(this);
    this.ranks = data.ranks.map(flat => {
      const events = [];
      let at = 0;
      for (let i = 0; i < flat.length; i += 3) {
        const block = data.blocks[flat[i]], start = at + flat[i + 2];
        at = start + block[2];
        events.push({ block, microbatch: flat[i + 1], start, stop: at });
      }
      return events;
    });
    this.sends = data.sends.map(([from, to, microbatch, start, length]) =>
      ({ from, to, microbatch, start, stop: start + length }));
    this.row = this.sends.length ? ROW + SENDS : ROW;
    const bar = add(root, "div", { role: "group", "aria-label": "Zoom" });
    const ways = [["Zoom in", () => this.zoom(0.5)], ["Zoom out", () => this.zoom(2)],
      ["Earlier", () => this.pan(-0.5)], ["Later", () => this.pan(0.5)],
      ["Whole step", () => this.show(0, this.end)],
      ["Zoom to the block", () => this.zoomToChosen()]];
    for (const [name, act] of ways) add(bar, "button", { type: "button" }, name).onclick = act;
    this.legend = add(root, "p", { class: "legend" });
    this.canvas = add(root, "canvas", { tabindex: "0", role: "application",
      "aria-roledescription": "pipeline", "aria-label":
      `Pipeline of ${this.ranks.length} ranks in ${seconds(data.end * data.unit)}. ${KEYS}` });
    this.said = add(root, "output", { "aria-live": "polite" }, KEYS);
    this.inside = add(root, "div");
    this.drawLegend();
    this.listen();
    new ResizeObserver(() => requestAnimationFrame(() => this.draw())).observe(root);
    this.draw();
  }

  drawLegend() {
    const has = this.data.insides.flat().reduce((seen, part) => seen.add(part[1]), new Set());
    const parts = this.data.parts.filter((_, kind) => has.has(kind));
    const sent = this.sends.length ? [["send", "#7b3294"]] : [];
    for (const [name, colour] of [...this.data.kinds, ...sent, ...parts]) {
      const item = add(this.legend, "span");
      add(item, "i", { style: `background:${colour}` });
      item.append(name.replace(/_/g, "-"));
    }
  }

  listen() {
    const canvas = this.canvas;
    let dragged = null;
    canvas.addEventListener("wheel", event => {  // without the key, the page scrolls
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.timeAt(event.offsetX));
    }, { passive: false });
    canvas.addEventListener("pointerdown", event => {
      dragged = { x: event.offsetX, from: this.from, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", event => {
      if (!dragged || Math.abs(event.offsetX - dragged.x) < 4) return;
      dragged.moved = true;
      const span = this.to - this.from;
      const start = dragged.from - (event.offsetX - dragged.x) * span / this.width;
      this.show(start, start + span);
    });
    canvas.addEventListener("pointerup", event => {
      if (dragged && !dragged.moved) this.choose(this.found(event.offsetX, event.offsetY));
      dragged = null;
    });
    canvas.addEventListener("dblclick", () => this.zoomToChosen());
    canvas.addEventListener("keydown", event => {
      const acts = {
        "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
        "0": () => this.show(0, this.end), Enter: () => this.zoomToChosen(),
        ArrowLeft: () => this.step(-1), ArrowRight: () => this.step(1),
        ArrowUp: () => this.toRank(-1), ArrowDown: () => this.toRank(1),
        Home: () => this.step(-Infinity), End: () => this.step(Infinity),
      };
      if (!(event.key in acts) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      acts[event.key]();
    });
  }

  timeAt(x) { return this.from + (x - LABELS) * (this.to - this.from) / this.width; }

  show(from, to) {
    const span = Math.min(Math.max(to - from, this.end * 1e-6), this.end);
    const start = Math.min(Math.max(from, 0), this.end - span);
    for (const peer of this.peers) {
      const scale = this.data.unit / peer.data.unit;
      Object.assign(peer, { from: start * scale, to: (start + span) * scale });
      peer.draw();
    }
  }

  zoom(factor, around = null) {
    const middle = around ?? (this.isSeen() ? (this.chosen.event.start + this.chosen.event.stop) / 2
      : (this.from + this.to) / 2);
    this.show(middle - (middle - this.from) * factor, middle + (this.to - middle) * factor);
  }

  isSeen() {
    const event = this.chosen?.event;
    return event && event.stop > this.from && event.start < this.to;
  }

  pan(part) {
    const shift = part * (this.to - this.from);
    this.show(this.from + shift, this.to + shift);
  }

  zoomToChosen() {
    if (!this.chosen) return;
    const { start, stop } = this.chosen.event, room = (stop - start) * 0.05;
    this.show(start - room, stop + room);
  }

  step(by) {
    if (!this.chosen) return this.choose({ rank: 0, place: 0 });
    const { rank, place } = this.chosen, last = this.ranks[rank].length - 1;
    return this.choose({ rank, place: Math.min(Math.max(place + by, 0), last) });
  }

  toRank(by) {
    const old = this.chosen ?? { rank: -by, event: { start: this.from } };
    const rank = Math.min(Math.max(old.rank + by, 0), this.ranks.length - 1);
    const after = this.firstAfter(this.ranks[rank], old.event.start);
    this.choose({ rank, place: Math.min(after, this.ranks[rank].length - 1) });
  }

  firstAfter(events, time) {  // the first that stops after a time
    let low = 0, high = events.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (events[middle].stop > time) high = middle; else low = middle + 1;
    }
    return low;
  }

  found(x, y) {
    const rank = Math.floor(y / this.row), events = this.ranks[rank];
    if (!events) return null;
    const time = this.timeAt(x), place = this.firstAfter(events, time);
    return events[place] && events[place].start <= time ? { rank, place } : null;
  }

  choose(where) {
    const event = where && this.ranks[where.rank]?.[where.place];
    this.chosen = event ? { ...where, event } : null;
    if (event && !this.isSeen()) {
      const span = this.to - this.from;
      this.show(event.start - span / 2, event.start + span / 2);
    }
    this.tell();
    this.draw();
  }

  time(units) { return seconds(units * this.data.unit); }

  tell() {
    this.inside.replaceChildren();
    if (!this.chosen) { this.said.textContent = KEYS; return; }
    const { rank, event } = this.chosen, [kind, stage, length, inside] = event.block;
    const what = this.data.kinds[kind][0];
    const of = event.microbatch < 0 ? "" : ` of microbatch ${event.microbatch}`;
    const where = stage < 0 ? "" : `, stage ${stage}`;
    const waits = this.sends.filter(sent => sent.to === rank && sent.stop <= event.start &&
      sent.stop > event.start - 2 && sent.microbatch === event.microbatch);
    const late = waits.length ? `; it waited for a send from rank ${waits[0].from}` : "";
    const sent = this.sends.find(one => one.from === rank && Math.abs(one.start - event.stop) < 2 &&
      one.microbatch === event.microbatch);
    this.said.textContent = `Rank ${rank}: ${what}${of}${where}, ${this.time(length)}, from ` +
      `${this.time(event.start)} to ${this.time(event.stop)}${late}.` +
      (sent ? ` Its result is sent to rank ${sent.to} in ${this.time(sent.stop - sent.start)}, ` +
        `of which that rank computes ${this.time(this.busy(sent))}.` : "");
    const parts = inside < 0 ? [] : this.data.insides[inside];
    if (!parts.length) return;
    const sums = new Map();
    for (const [, part, s] of parts) sums.set(part, (sums.get(part) ?? 0) + s);
    const all = [...sums.values()].reduce((a, b) => a + b, 0);
    const text = [...sums].map(([part, s]) =>
      `${this.data.parts[part][0].replace(/_/g, "-")} ${seconds(s)} (${(100 * s / all).toFixed(0)} %)`);
    add(this.inside, "p", { class: "note" }, `Inside: ${text.join(", ")}.`);
    const details = add(this.inside, "details");
    add(details, "summary", {}, `${parts.length} operators and collectives, in order`);
    const table = add(details, "table");
    const head = add(add(table, "thead"), "tr");
    for (const name of ["what", "kind", "time"]) add(head, "th", {}, name);
    const body = add(table, "tbody");
    for (const [name, part, s] of parts.slice(0, 500)) {
      const row = add(body, "tr");
      add(row, "td", { class: "name" }, this.names[name]);
      add(row, "td", {}, this.data.parts[part][0].replace(/_/g, "-"));
      add(row, "td", { class: "number" }, seconds(s));
    }
  }

  busy(sent) {  // how long the receiver computes while a message travels
    const events = this.ranks[sent.to];
    let sum = 0;
    for (let i = this.firstAfter(events, sent.start); i < events.length; i += 1) {
      if (events[i].start >= sent.stop) break;
      sum += Math.min(events[i].stop, sent.stop) - Math.max(events[i].start, sent.start);
    }
    return sum > 2 ? sum : 0;  // less is rounding
  }

  draw() {
    const { canvas, row } = this, wide = canvas.clientWidth;
    if (!wide) return;
    const height = this.ranks.length * row + AXIS, ratio = devicePixelRatio || 1;
    canvas.width = wide * ratio;
    canvas.height = height * ratio;
    canvas.style.height = `${height}px`;
    this.width = wide - LABELS - 2;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "12px system-ui, sans-serif";
    const scale = this.width / (this.to - this.from);
    const x = time => LABELS + (time - this.from) * scale;
    this.ranks.forEach((events, rank) => {
      pen.fillStyle = "#222";
      pen.fillText(`rank ${rank}`, 0, rank * row + 17);
    });
    pen.save();
    pen.beginPath();
    pen.rect(LABELS, 0, this.width + 1, height);
    pen.clip();
    this.drawLeftOut(pen, x);
    this.ranks.forEach((events, rank) => this.drawRank(pen, events, rank, x, scale));
    pen.fillStyle = "#7b3294";
    for (const sent of this.sends) {
      if (sent.stop < this.from || sent.start > this.to) continue;
      pen.fillRect(x(sent.start), sent.from * row + 23, Math.max(1, (sent.stop - sent.start) * scale), 4);
    }
    this.drawAxis(pen, x, this.ranks.length * row);
    pen.restore();
  }

  drawLeftOut(pen, x) {
    const [start, stop] = this.data.leftOut, height = this.ranks.length * this.row;
    if (!stop) return;
    pen.fillStyle = "#f0f0f0";
    pen.fillRect(x(start), 0, x(stop) - x(start), height);
    pen.fillStyle = "#555";
    pen.fillText("the pattern repeats", Math.max(x(start), LABELS) + 6, 17);
  }

  drawRank(pen, events, rank, x, scale) {
    const top = rank * this.row + 2;
    let drawn = -Infinity;
    for (let i = this.firstAfter(events, this.from); i < events.length; i += 1) {
      const event = events[i], [kind, , length, inside] = event.block;
      if (event.start > this.to) break;
      const left = x(event.start), wide = length * scale;
      if (left + wide < drawn + 0.5) continue;  // its pixel is painted
      drawn = left + wide;
      pen.fillStyle = this.data.kinds[kind][1];
      pen.fillRect(left, top, Math.max(wide - (wide > 3 ? 0.5 : 0), 0.5), 20);
      if (wide > 120 && inside >= 0) this.drawInside(pen, inside, left, wide, top);
      else if (event.microbatch >= 0 && wide > 8 * String(event.microbatch).length + 4) {
        pen.fillStyle = "#222";
        pen.textAlign = "center";
        pen.fillText(event.microbatch, left + wide / 2, top + 14);
        pen.textAlign = "start";
      }
    }
    if (this.chosen?.rank === rank) {
      const { start, stop } = this.chosen.event;
      pen.strokeStyle = "#b2182b";
      pen.lineWidth = 2;
      pen.strokeRect(x(start), top, Math.max(2, (stop - start) * scale), 20);
    }
  }

  drawInside(pen, inside, left, wide, top) {
    const parts = this.data.insides[inside];
    const all = parts.reduce((sum, part) => sum + part[2], 0) || 1;
    let at = left;
    for (const [name, part, s] of parts) {
      const size = wide * s / all;
      pen.fillStyle = this.data.parts[part][1];
      pen.fillRect(at, top + 4, Math.max(size - (size > 3 ? 0.5 : 0), 0.3), 16);
      if (size > 60) {
        pen.save();
        pen.beginPath();
        pen.rect(at, top, size - 2, 20);
        pen.clip();
        pen.fillStyle = "#222";
        pen.fillText(this.names[name], Math.max(at, LABELS) + 3, top + 16);
        pen.restore();
      }
      at += size;
    }
  }

  drawAxis(pen, x, top) {
    const span = (this.to - this.from) * this.data.unit, about = span / 6;
    const size = 10 ** Math.floor(Math.log10(about));
    const step = [1, 2, 5, 10].map(n => n * size).find(n => n >= about);
    pen.fillStyle = "#222";
    for (let n = Math.ceil(this.from * this.data.unit / step); n * step <= this.to * this.data.unit; n += 1) {
      const at = x(n * step / this.data.unit), words = seconds(Number((n * step).toPrecision(6)));
      pen.fillRect(at, top, 1, 4);
      if (at + 4 + pen.measureText(words).width < LABELS + this.width) pen.fillText(words, at + 3, top + 14);
    }
  }
}

// ---- Tensors ------------------------------------------------------------------------------------

const SHOWN = 10, PANELS = 8;
const FILLS = ["#c6dbef", "#fdd0a2", "#c7e9c0", "#dadaeb", "#fee391", "#fbb4b9", "#ccece6", "#d9d9d9"];

class Tensors {
  constructor(root, data, names, number) {
    Object.assign(this, { data, names, root });
    this.places = new Map();  // by name, where it is
    data.stages.forEach(({ values }, stage) => {
      let name = 0;
      for (let i = 0; i < values.length;) {
        name += values[i];
        const place = { stage, role: data.roles[values[i + 1]], layout: data.layouts[values[i + 2]] };
        const end = i + 4 + 2 * values[i + 3];
        place.converted = [];
        for (i += 4; i < end; i += 2)
          place.converted.push([data.phases[values[i]], data.layouts[values[i + 1]]]);
        if (this.places.has(name)) this.places.get(name).push(place);
        else this.places.set(name, [place]);
      }
    });
    const id = `tensor-${number}`;
    add(root, "label", { for: id }, "Name of a tensor, or a part of it: ");
    this.input = add(root, "input", { id, type: "search", autocomplete: "off", spellcheck: "false" });
    this.count = add(root, "output", { for: id, "aria-live": "polite" });
    this.list = add(root, "ul");
    this.shown = add(root, "div", { "aria-live": "polite" });
    this.input.addEventListener("input", () => this.search());
    root.addEventListener("keydown", event => this.move(event));
    this.search();
    const largest = this.largest();
    if (largest !== undefined) this.show(largest);
  }

  largest() {  // the largest tensor that the step is given
    let found, most = -1;
    for (const [name, [{ role, layout }]] of this.places) {
      const size = layout.shape.reduce((a, b) => a * b, 1);
      if (size > most && !role.startsWith("made")) [found, most] = [name, size];
    }
    return found;
  }

  search() {
    const words = this.input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const fits = [...this.places.keys()].filter(name =>
      words.every(word => this.names[name].toLowerCase().includes(word)));
    this.list.replaceChildren();
    for (const name of fits.slice(0, SHOWN)) {
      const item = add(add(this.list, "li"), "button", { type: "button" }, this.names[name]);
      item.onclick = () => this.show(name);
    }
    const more = fits.length > SHOWN ? `, the first ${SHOWN} of them below` : "";
    this.count.textContent = `${fits.length.toLocaleString("en")} tensors${more}`;
  }

  move(event) {  // from the field into the list, and in it
    if (event.key !== "ArrowDown" && event.key !== "ArrowUp") return;
    const all = [this.input, ...this.list.querySelectorAll("button")];
    const next = all[all.indexOf(document.activeElement) + (event.key === "ArrowDown" ? 1 : -1)];
    if (!all.includes(document.activeElement) || !next) return;
    event.preventDefault();
    next.focus();
  }

  show(name) {
    this.shown.replaceChildren();
    add(this.shown, "h3", {}, this.names[name]);
    for (const { stage, role, layout, converted } of this.places.get(name)) {
      const mesh = this.data.stages[stage];
      const axes = mesh.axes.map((axis, i) => `${axis} ${mesh.shape[i]}`).join(", ");
      add(this.shown, "p", {}, `Stage ${stage}, ${role}: ` +
        `${layout.dtype}[${layout.shape.join(", ")}] on mesh ${mesh.shape.join("x") || "1"}` +
        (axes ? ` (axes 0, 1, ... are ${axes})` : "") + ".");
      this.draw(`As ${layout.spec}`, layout, mesh);
      for (const [phase, other] of converted)
        this.draw(`Converted in ${phase} to ${other.spec}`, other, mesh);
    }
  }

  draw(title, layout, mesh) {
    add(this.shown, "p", {}, `${title}: ${bytes(layout.bytes)} on each device` +
      (layout.isSum ? ", which the values of several devices are summed up to." : "."));
    if (!layout.dims) {
      add(this.shown, "p", { class: "note" }, "Too many devices, or nothing to draw.");
      return;
    }
    const count = mesh.devices.length, keys = new Map();
    for (let place = 0; place < count; place += 1) {
      const key = layout.dims.map(([, , who]) => who[place]).join();
      const holders = keys.get(key);
      if (holders) holders.push(mesh.devices[place]); else keys.set(key, [mesh.devices[place]]);
    }
    this.panels(layout, keys);
    const details = add(this.shown, "details");
    add(details, "summary", {}, `Who holds what: ${keys.size} parts on ${count} devices`);
    const list = add(details, "ul");
    for (const [key, holders] of keys)
      add(list, "li", {}, `devices ${runs(holders)}: ${this.part(layout, key)}`);
  }

  part(layout, key) {
    const at = key === "" ? [] : key.split(",").map(Number);
    const split = new Map(layout.dims.map(([dim, cuts], i) => [dim, cuts[at[i]]]));
    const ranges = layout.shape.map((size, dim) =>
      (split.get(dim) ?? [[0, size]]).map(([a, b]) => `${a}:${b}`).join(" and ") || "nothing");
    return `[${ranges.join(", ")}]`;
  }

  panels(layout, keys) {
    // Two dims are drawn: those in most parts, then the last ones. Other split dims make panels.
    const split = [...layout.dims.entries()].sort(([, a], [, b]) => b[1].length - a[1].length);
    const drawn = split.slice(0, 2).map(([i, [dim]]) => ({ dim, i }));
    for (let dim = layout.shape.length - 1; dim >= 0 && drawn.length < 2; dim -= 1)
      if (!layout.dims.some(one => one[0] === dim)) drawn.push({ dim, i: -1 });
    drawn.sort((a, b) => a.dim - b.dim);
    const others = split.slice(2).map(([i]) => i), panels = new Map();
    for (const [key, holders] of keys) {
      const at = key === "" ? [] : key.split(",").map(Number);
      const panel = others.map(i => `dim ${layout.dims[i][0]}, part ${at[i]}`).join("; ");
      if (!panels.has(panel)) panels.set(panel, []);
      panels.get(panel).push({ at, holders, key });
    }
    const row = add(this.shown, "div", { class: "panels" });
    for (const [panel, parts] of [...panels].slice(0, PANELS))
      this.picture(row, panel, parts, layout, drawn);
    if (panels.size > PANELS) add(this.shown, "p", { class: "note" },
      `and ${panels.size - PANELS} more, alike`);
  }

  picture(parent, panel, parts, layout, drawn) {
    const [down, across] = drawn.length > 1 ? drawn : [null, drawn[0] ?? null];
    const size = one => one ? layout.shape[one.dim] : 1;
    const wide = 400, high = Math.min(300, Math.max(60, 400 * size(down) / size(across)));
    const top = panel ? 44 : 24, left = 66;
    const svg = add(parent, "svg", { viewBox: `0 0 ${left + wide + 4} ${top + high + 6}`,
      role: "img", "aria-label": `${panel} ${parts.length} parts of a tensor and their devices` },
      "", SVG);
    const word = (x, y, text, anchor = "start") =>
      add(svg, "text", { x, y, "font-size": 13, "text-anchor": anchor }, text);
    if (panel) word(left, 16, panel);
    if (across) word(left + wide, top - 8, `dim ${across.dim}: ${size(across)}`, "end");
    if (down) { word(0, top + 14, `dim ${down.dim}:`); word(0, top + 30, `${size(down)}`); }
    const spans = (one, at, length) => {
      if (!one) return [[0, length]];
      const cut = one.i < 0 ? [[0, size(one)]] : layout.dims[one.i][1][at[one.i]];
      return cut.map(([a, b]) => [a * length / size(one), b * length / size(one)]);
    };
    parts.forEach(({ at, holders, key }, n) => {
      for (const [y0, y1] of spans(down, at, high)) for (const [x0, x1] of spans(across, at, wide)) {
        const box = add(svg, "rect", { x: left + x0, y: top + y0, width: x1 - x0, height: y1 - y0,
          fill: FILLS[n % FILLS.length], stroke: "#555" });
        add(box, "title", {}, `devices ${runs(holders)}: ${this.part(layout, key)}`);
        const words = runs(holders);
        if (words.length * 8 < x1 - x0 && y1 - y0 > 16)
          word(left + (x0 + x1) / 2, top + (y0 + y1) / 2 + 5, words, "middle");
      }
    });
  }
}

// ---- The page -----------------------------------------------------------------------------------

const longest = Math.max(...PLANS.map(plan => plan.timeline ? plan.timeline.end * plan.timeline.unit : 0));
const peers = [];
document.querySelectorAll("[data-timeline]").forEach(root => {
  const { timeline, names } = PLANS[root.dataset.timeline];
  if (!timeline) return;
  new Timeline(root, timeline, names, peers, longest);
  root.previousElementSibling.hidden = true;  // the still picture
});
document.querySelectorAll("[data-tensors]").forEach((root, number) => {
  const { tensors, names } = PLANS[root.dataset.tensors];
  if (!tensors.layouts.length) return;
  root.replaceChildren();
  new Tensors(root, tensors, names, number);
});
})();
