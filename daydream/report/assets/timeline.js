// The timelines: one uPlot chart each, which zoom and move together.
"use strict";
(() => {
  const { said, css, modes, head, unpack, whole, classify, first, draw, title } = spans;
  const root = document.getElementById("timelines");
  const least = 1e-4; // ms
  const highest = 560; // pixels of a chart, as in report.css: a higher one scrolls
  const state = { mode: "kind", path: true, find: "", charts: [], longest: 0 };

  const make = (tag, text, attributes = {}) => {
    const node = document.createElement(tag);
    node.textContent = text;
    Object.entries(attributes).forEach(([name, value]) => node.setAttribute(name, value));
    return node;
  };

  const time = (ms) => {
    const [value, unit] = Math.abs(ms) >= 1 ? [ms, "ms"] : [ms * 1e3, "us"];
    const size = Math.abs(value);
    return `${value.toFixed(size >= 100 ? 1 : size >= 10 ? 2 : 3)} ${unit}`;
  };
  spans.time = time;

  // What is at a place of a chart: the span there, or the next one within a few pixels.
  function at(u, t) {
    const { left, top } = u.cursor, tall = (u.bbox.height / devicePixelRatio - head) / t.lanes.length;
    const lane = Math.floor((top - head) / tall);
    if (left < 0 || lane < 0 || lane >= t.lanes.length) return null;
    const x = u.posToVal(left, "x"), near = 4 * (u.posToVal(1, "x") - u.posToVal(0, "x"));
    let best = null, off = near;
    for (let i = first(t, lane, x - near); i < t.first[lane + 1] && t.start[i] <= x + near; i++) {
      const away = x < t.start[i] ? t.start[i] - x : x > t.end[i] ? x - t.end[i] : 0;
      if (away < off || best === null && away <= off) [best, off] = [i, away];
      if (off === 0) break;
    }
    if (best === null) {
      for (let i = first(t, lane, x); i < Math.min(first(t, lane, x) + 3, t.first[lane + 1]); i++) {
        if (t.start[i] >= x && t.start[i] - t.wait[i] * t.ms <= x) best = i;
      }
    }
    return best === null ? null : { i: best, lane };
  }

  function tell(t, found) {
    const { i, lane } = found, more = [];
    const layer = said.names[t.layer[i]];
    more.push(`${t.title}, ${t.lanes[lane]}`, said.kinds[t.kind[i]]);
    if (t.phase[i] >= 0) more.push(said.phases[t.phase[i]]);
    if (layer !== undefined) more.push(layer);
    more.push(`at ${time(t.start[i])}`);
    if (t.wait[i] > 0) more.push(`waited ${time(t.wait[i] * t.ms)}${why(t.why[i])}`);
    if (t.flags[i] & 2) more.push("inserted");
    else if (t.before[i] >= 0) more.push(`before the change ${time(t.before[i] * t.ms)}`);
    if (t.flags[i] & 1) more.push("on the critical path");
    details.replaceChildren(
      make("strong", title(t, i)), make("span", time(whole(t, i) * t.ms)), ...more.map((text) => make("span", text)),
    );
  }

  const why = (code) => (said.why[code] ? ` (${said.why[code]})` : "");

  // Show a range of time in all charts, no narrower than a tenth of a microsecond and within what there is.
  function show(min, max) {
    const length = Math.min(Math.max(max - min, least), state.longest);
    const begin = Math.min(Math.max((min + max - length) / 2, 0), state.longest - length);
    state.charts.forEach(({ u, shift }) => u.setScale("x", { min: begin + shift, max: begin + length + shift }));
  }

  // What the first chart shows; the others show the same, shifted where a step was to be compared with itself.
  const range = () => state.charts[0].u.scales.x;

  const align = (shifts) => state.charts.forEach((one, n) => { one.shift = shifts[n]; });

  function zoom(factor, centre) {
    const { min, max } = range(), middle = centre ?? (min + max) / 2;
    show(middle - (middle - min) * factor, middle + (max - middle) * factor);
  }

  function move(share) {
    const { min, max } = range(), length = max - min;
    const begin = Math.min(Math.max(min + share * length, 0), state.longest - length);
    show(begin, begin + length);
  }

  function typical() {
    const steps = state.charts.map(({ t }) => t.typical.map((edge) => edge * t.ms));
    align(steps.map(([begin]) => begin - steps[0][0]));
    show(steps[0][0], steps[0][0] + Math.max(...steps.map(([begin, end]) => end - begin)));
  }

  function everything() {
    align(state.charts.map(() => 0));
    show(0, state.longest);
  }

  const redraw = () => state.charts.forEach(({ u }) => u.redraw(false));
  const details = make("p", "Hover over a task, or tap it, for details.", { class: "details", "aria-live": "polite" });

  function toolbar() {
    const bar = make("div", "", { class: "toolbar" });
    const button = (text, name, act) => {
      const node = make("button", text, { type: "button", title: name, "aria-label": name });
      node.addEventListener("click", act);
      bar.append(node);
    };
    button("all", "show all", everything);
    button("one step", "show the typical step", typical);
    button("+", "zoom in", () => zoom(0.5));
    button("\u2212", "zoom out", () => zoom(2));
    button("\u25c0", "move left", () => move(-0.3));
    button("\u25b6", "move right", () => move(0.3));
    const colour = make("select", "", { "aria-label": "color by" });
    Object.keys(modes).filter((name) => name !== "change" || said.changes).forEach((name) => {
      colour.append(make("option", `by ${name}`, { value: name }));
    });
    const legend = make("div", "", { class: "legend" });
    const recolour = () => {
      state.mode = colour.value;
      const used = new Set();
      const found = classify(state.charts, state);
      state.charts.forEach(({ t }) => t.cls.forEach((n) => used.add(n)));
      const { names, colour: variable } = modes[state.mode];
      legend.replaceChildren(...names.flatMap((name, n) => {
        if (!used.has(n)) return [];
        const node = make("span", name);
        node.prepend(make("i", "", { style: `background: var(${variable(n)})` }));
        return [node];
      }));
      for (const [name, variable_] of [["waits", "--wait"], ["critical path", "--path"]]) {
        const node = make("span", name);
        node.prepend(make("i", "", { class: "thin", style: `background: var(${variable_})` }));
        legend.append(node);
      }
      hits.textContent = state.find.trim() ? `${found.toLocaleString("en")} found` : "";
      redraw();
    };
    colour.addEventListener("change", recolour);
    const path = make("input", "", { type: "checkbox", checked: "" });
    path.addEventListener("change", () => { state.path = path.checked; redraw(); });
    const pathLabel = make("label", "critical path");
    pathLabel.prepend(path);
    const find = make("input", "", { type: "search", placeholder: "find task or layer", "aria-label": "find tasks" });
    const hits = make("output", "");
    find.addEventListener("input", () => { state.find = find.value; recolour(); });
    bar.append(colour, pathLabel, find, hits);
    spans.find = (text) => { // for tables and layers
      find.value = state.find = text;
      recolour();
      root.scrollIntoView({ block: "nearest" });
    };
    return { bar, legend, recolour };
  }

  // A canvas cannot be of any height: many lanes are lower ones.
  const tall = (t) => head + Math.max(26, Math.min(38, 4000 / t.lanes.length)) * t.lanes.length;

  function chart(t, box) {
    const axis = {
      stroke: () => css("--muted"), grid: { stroke: () => css("--grid"), width: 1 },
      side: 0, ticks: { show: false }, size: 22, gap: 4, font: "11px system-ui, sans-serif",
      values: (_, ticks) => ticks.map((tick) => (tick ? `${+tick.toFixed(5)} ms` : "")), space: 80,
    };
    let u = null;
    const options = {
      width: box.clientWidth, height: tall(t) + 22, legend: { show: false }, padding: [0, 0, 0, 0],
      cursor: {
        y: false, points: { show: false }, drag: { x: true, y: false },
        bind: {
          mousedown: (_, __, start) => (event) => (event.shiftKey ? pan(event) : start(event)),
          dblclick: () => () => { everything(); return null; },
        },
      },
      scales: { x: { time: false }, y: { range: [0, 1] } },
      series: [{}, { paths: () => null, points: { show: false } }],
      axes: [axis, { show: false }],
      hooks: {
        draw: [(self) => draw(self, t, state)],
        setScale: [(self, key) => {
          if (key !== "x") return;
          const { min, max } = self.scales.x, mine = state.charts.find((one) => one.t === t).shift;
          Object.assign(box.dataset, { from: min, to: max });
          const detail = { min: min - mine, max: max - mine };
          if (t === state.charts[0].t) root.dispatchEvent(new CustomEvent("range", { detail }));
          for (const { u: other, shift } of state.charts) {
            if (!other || other === self) continue;
            const range_ = { min: min - mine + shift, max: max - mine + shift }, has = other.scales.x;
            if (Math.abs(has.min - range_.min) + Math.abs(has.max - range_.max) > 1e-9) other.setScale("x", range_);
          }
        }],
        setCursor: [(self) => { const found = at(self, t); if (found) tell(t, found); }],
      },
    };
    u = new uPlot(options, [[0, state.longest], [0, 0]], box);
    u.ctx.canvas.setAttribute("role", "img");
    u.ctx.canvas.setAttribute("aria-label", `${t.title} timeline: ${t.lanes.length} lanes, ${time(t.length * t.ms)}`);
    const shift = () => state.charts.find((one) => one.u === u).shift;
    const middle = (event) => u.posToVal(event.clientX - u.over.getBoundingClientRect().left, "x") - shift();
    u.over.addEventListener("wheel", (event) => {
      const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
      if (event.ctrlKey || event.metaKey) zoom(1.002 ** event.deltaY, middle(event));
      else if (Math.abs(sideways) > Math.abs(event.deltaY) || event.shiftKey) move(sideways / u.over.clientWidth);
      else return;
      event.preventDefault();
    }, { passive: false });
    function pan(event) {
      const { min, max } = range(), from = event.clientX, each = (max - min) / u.over.clientWidth;
      const follow = (e) => {
        const begin = Math.min(Math.max(min - (e.clientX - from) * each, 0), state.longest - (max - min));
        show(begin, begin + max - min);
      };
      addEventListener("mousemove", follow);
      addEventListener("mouseup", () => removeEventListener("mousemove", follow), { once: true });
    }
    touch(u, shift);
    return u;
  }

  // One finger moves sideways, two zoom; up and down stays with the page.
  function touch(u, shift) {
    const fingers = new Map();
    const place = (event) => event.clientX - u.over.getBoundingClientRect().left;
    const forget = (event) => fingers.delete(event.pointerId);
    u.over.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "touch") fingers.set(event.pointerId, place(event));
    });
    u.over.addEventListener("pointermove", (event) => {
      if (!fingers.has(event.pointerId)) return;
      const old = [...fingers.values()];
      fingers.set(event.pointerId, place(event));
      const now = [...fingers.values()];
      if (now.length === 1) move((old[0] - now[0]) / u.over.clientWidth);
      else {
        const apart = ([a, b]) => Math.max(Math.abs(a - b), 1);
        zoom(apart(old) / apart(now), u.posToVal((now[0] + now[1]) / 2, "x") - shift());
      }
    });
    ["pointerup", "pointercancel", "pointerleave"].forEach((name) => u.over.addEventListener(name, forget));
  }

  function keys(event) {
    const acts = {
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), ArrowUp: () => zoom(0.7), ArrowDown: () => zoom(1.4),
      "+": () => zoom(0.5), "-": () => zoom(2), Home: everything,
    };
    if (acts[event.key] && !event.ctrlKey && !event.metaKey && !event.altKey) {
      acts[event.key]();
      event.preventDefault();
    }
  }

  async function start() {
    if (typeof DecompressionStream === "undefined") {
      root.append(make("p", "This browser cannot unpack the timelines; any of 2023 or later can."));
      return;
    }
    const all = await Promise.all(said.timelines.map(unpack));
    state.longest = Math.max(...all.map((t) => t.length * t.ms));
    const { bar, legend, recolour } = toolbar();
    const boxes = make("div", "", { class: "charts", tabindex: "0", "aria-label": "timelines", role: "application" });
    boxes.addEventListener("keydown", keys);
    root.append(bar, legend, boxes, details);
    for (const t of all) {
      const joined = t.joined ? `, ${t.joined.toLocaleString("en")} groups of short ones as one each` : "";
      const more = tall(t) + 22 > highest ? `, ${t.lanes.length} lanes: scroll for the others` : "";
      boxes.append(
        make("h3", `${t.title}: ${time(t.length * t.ms)}, ${t.tasks.toLocaleString("en")} tasks${joined}${more}`),
      );
      const box = make("div", "", { class: "chart" });
      boxes.append(box);
      state.charts.push({ t, box, u: null, shift: 0 });
    }
    state.charts.forEach((one) => { one.u = chart(one.t, one.box); });
    recolour();
    const fit = () => state.charts.forEach(({ u, box }) => {
      if (u.width !== box.clientWidth) u.setSize({ width: box.clientWidth, height: u.height });
    });
    new ResizeObserver(fit).observe(boxes);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
    spans.show = show; // for charts that move with these
    root.dataset.ready = "yes";
  }

  start();
})();
