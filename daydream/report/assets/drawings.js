// What a page draws beside the timelines: layers as an icicle, the roofline, memory over time, and the steps.
"use strict";
(() => {
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  function steps(box, said) {
    if (said.names.length < 3) return;
    const names = ["measured", "replayed", "predicted"].filter((name) => said[name]);
    const grid = { stroke: () => css("--grid"), width: 1 };
    const axis = { stroke: () => css("--muted"), grid, ticks: { show: false }, font: "11px system-ui, sans-serif" };
    const short = (name) => (box.clientWidth < 600 ? name.match(/#?\d+(?=\D*$)/)?.[0] : null) ?? name;
    const every = (_, places) => places.map((at) => (Number.isInteger(at) ? short(said.names[at] ?? "") : ""));
    const top = Math.max(...names.flatMap((name) => said[name])) * 1.1;
    const options = {
      width: box.clientWidth, height: 220, padding: [8, 16, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => [low - 0.3, high + 0.3] }, y: { range: [0, top] } },
      axes: [
        { ...axis, values: every, space: 110, size: 28, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] },
        { ...axis, size: 70, values: (_, ticks) => ticks.map((tick) => `${+tick.toFixed(6)} ms`) },
      ],
      series: [
        { label: "step" },
        ...names.map((name, n) => ({
          label: name, stroke: () => css(`--series-${n}`), width: 2, points: { show: true, size: 5 },
          dash: name === "replayed" ? [6, 6] : undefined, // what was measured lies right below it
        })),
      ],
      cursor: { drag: { x: false, y: false } }, legend: { live: false },
    };
    const chart = new uPlot(options, [said.names.map((_, at) => at), ...names.map((name) => said[name])], box);
    new ResizeObserver(() => {
      if (chart.width !== box.clientWidth) chart.setSize({ width: box.clientWidth, height: 220 });
    }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false));
  }

  // One chart that moves with the timelines, and moves them.
  function memory(box, said) {
    const axis = {
      stroke: () => css("--muted"), grid: { stroke: () => css("--grid"), width: 1 }, ticks: { show: false },
      font: "11px system-ui, sans-serif",
    };
    const lines = said.lines.map(({ ms, mib }) => [[...ms, said.length], [...mib, mib[mib.length - 1]]]);
    const figures = lines.length === 1 ? lines[0] : uPlot.join(lines);
    const amount = (mib) => (mib >= 10240 ? `${+(mib / 1024).toFixed(2)} GiB` : `${+mib.toFixed(2)} MiB`);
    let follows = false; // the timelines moved this chart: it does not move them in turn
    const options = {
      width: box.clientWidth, height: 200, padding: [8, 0, 0, 0],
      scales: { x: { time: false, range: (_, low, high) => [low, high] }, y: { range: (_, __, high) => [0, high * 1.05 || 1] } },
      axes: [
        { ...axis, size: 24, values: (_, ticks) => ticks.map((tick) => (tick ? `${+tick.toFixed(5)} ms` : "")), space: 80 },
        { ...axis, size: 80, values: (_, ticks) => ticks.map(amount) },
      ],
      series: [
        { label: "at", value: (_, ms) => (ms == null ? "any time" : `${ms.toFixed(3)} ms`) },
        ...said.lines.map(({ name, mib }, n) => ({
          label: name, stroke: () => css(`--series-${n % 3}`), width: 1.5, points: { show: false }, spanGaps: true,
          paths: uPlot.paths.stepped({ align: 1 }), value: (_, held) => (held == null ? `at most ${amount(Math.max(...mib))}` : amount(held)),
        })),
      ],
      cursor: { drag: { x: true, y: false } },
      hooks: {
        setScale: [(self, key) => {
          if (key !== "x") return;
          const { min, max } = self.scales.x;
          Object.assign(box.dataset, { from: min, to: max });
          if (!follows) spans.show?.(min, max);
        }],
      },
    };
    const chart = new uPlot(options, figures, box);
    document.getElementById("timelines").addEventListener("range", ({ detail }) => {
      const { min, max } = chart.scales.x;
      if (Math.abs(min - detail.min) + Math.abs(max - detail.max) < 1e-9) return;
      follows = true;
      chart.batch(() => chart.setScale("x", detail));
      follows = false;
    });
    new ResizeObserver(() => {
      if (chart.width !== box.clientWidth) chart.setSize({ width: box.clientWidth, height: 200 });
    }).observe(box);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => chart.redraw(false));
  }

  // Layers nested as the modules are, as wide as the time of their work.
  function icicle(box, said) {
    const least = 0.002; // of all work: what is drawn
    const root = { ns: 0, inside: new Map() };
    for (const [layer, ns] of Object.entries(said)) {
      let node = root;
      root.ns += ns;
      for (const part of layer.split(".")) {
        if (!node.inside.has(part)) node.inside.set(part, { ns: 0, inside: new Map() });
        node = node.inside.get(part);
        node.ns += ns;
      }
    }
    const drawn = (node, path, part) => {
      const outer = document.createElement("div"), button = document.createElement("button");
      const share = (100 * node.ns) / Math.max(root.ns, 1);
      button.title = `${path || "all work"}: ${spans.time(node.ns / 1e6)}, ${share.toFixed(share < 10 ? 2 : 1)}%`;
      button.textContent = part || button.title;
      button.type = "button";
      button.dataset.find = path;
      outer.style.flex = node.ns;
      outer.append(button);
      const shown = [...node.inside].filter(([, each]) => each.ns && each.ns >= least * root.ns);
      if (shown.length) {
        const row = document.createElement("div"), own = document.createElement("i");
        row.className = "row";
        own.style.flex = node.ns - shown.reduce((sum, [, each]) => sum + each.ns, 0);
        row.append(...shown.map(([name, each]) => drawn(each, path ? `${path}.${name}` : name, name)), own);
        outer.append(row);
      }
      return outer;
    };
    box.className = "icicle";
    box.append(drawn(root, "", ""));
  }

  // Kernels by FLOP per byte and FLOP per second, as large as their time, under the device's peaks.
  function roofline(box, said) {
    const width = 760, height = 410, left = 64, right = width - 92, top = 26, bottom = height - 44;
    const largest = 22, smallest = 2; // radii
    const room = 0.12; // powers of ten left of and below the lowest point, so that its circle is whole
    const least = 0.001; // of the longest: kernels that take less do not widen the axes
    const colours = { compute: "#b5651d", memory: "#2b7bba", latency: "#8a8a8a" };
    const words = { compute: "arithmetic", memory: "memory", latency: "neither" };
    const longest = Math.max(...said.points.map(({ ns }) => ns));
    const main = said.points.filter(({ ns }) => ns >= least * longest);
    const peaks = Object.entries(said.peaks).sort(([, a], [, b]) => b - a);
    const highest = peaks[0][1];
    const make = (parent, name, attributes, text) => {
      const node = document.createElementNS("http://www.w3.org/2000/svg", name);
      Object.entries(attributes).forEach(([key, value]) => node.setAttribute(key, value));
      if (text !== undefined) node.textContent = text;
      parent.append(node);
      return node;
    };
    const svg = make(box, "svg", {
      viewBox: `0 0 ${width} ${height}`, role: "img", class: "roofline", "aria-label": `Roofline of a ${said.device}`,
      "font-size": 11, fill: "currentColor",
    });
    const axis = (values, begin, end) => { // logarithmic
      const powers = values.map(Math.log10), low = Math.floor(Math.min(...powers) - room);
      const high = Math.max(Math.ceil(Math.max(...powers)), low + 1);
      const place = (value) => begin + Math.min(Math.max((Math.log10(value) - low) / (high - low), 0), 1) * (end - begin);
      return { place, powers: Array.from({ length: high - low + 1 }, (_, at) => 10 ** (low + at)) };
    };
    const x = axis([...main.map((each) => each.intensity), ...peaks.map(([, peak]) => peak / said.bandwidth)], left, right);
    const y = axis([...main.map((each) => each.rate), ...peaks.map(([, peak]) => peak)], bottom, top);
    const line = (x1, y1, x2, y2, more = {}) => make(svg, "line", {
      x1, y1, x2, y2, stroke: "currentColor", "stroke-width": 1.5, "stroke-opacity": 0.8, ...more,
    });
    const text = (at, below, said_, anchor) => make(svg, "text", { x: at, y: below, "text-anchor": anchor }, said_);
    const faint = { "stroke-width": 1, "stroke-opacity": 0.12 };
    const figure = (value) => +value.toPrecision(3);
    for (const power of x.powers) {
      line(x.place(power), top, x.place(power), bottom, faint);
      text(x.place(power), bottom + 15, figure(power), "middle");
    }
    for (const power of y.powers) {
      line(left, y.place(power), right, y.place(power), faint);
      text(left - 6, y.place(power) + 4, figure(power / 1000), "end");
    }
    text((left + right) / 2, height - 8, "FLOP/byte", "middle");
    text(left, top - 10, "TFLOP/s", "middle");
    for (const rate of [said.bandwidth, said.cache]) { // of L2, dashed, where it was counted to give more
      if (!rate || rate < said.bandwidth) continue;
      const begin = Math.max(x.powers[0], y.powers[0] / rate), end = highest / rate;
      if (begin >= end) continue;
      const ofCache = rate !== said.bandwidth;
      line(x.place(begin), y.place(begin * rate), x.place(end), y.place(highest), ofCache ? { "stroke-dasharray": "5 4" } : {});
      if (ofCache) text(x.place(end) - 4, y.place(highest) - 5, "L2, as reached here", "end");
    }
    let placed = -Infinity;
    for (const [name, peak] of peaks) {
      line(x.place(peak / said.bandwidth), y.place(peak), right, y.place(peak));
      placed = Math.max(y.place(peak) + 4, placed + 12);
      text(right + 4, placed, name.replaceAll("_", " "), "start");
    }
    for (const each of said.points) {
      const circle = make(svg, "circle", {
        cx: x.place(each.intensity), cy: y.place(each.rate), r: Math.max(largest * Math.sqrt(each.ns / longest), smallest),
        fill: colours[each.kind], stroke: colours[each.kind], "fill-opacity": 0.55,
      });
      make(circle, "title", {}, [
        each.name, `layer ${each.layer || "unknown"}`,
        `${each.kernels} kernel${each.kernels === 1 ? "" : "s"}, ${spans.time(each.ns / 1e6)}, known by ${each.by}`,
        `${figure(each.intensity)} FLOP/B, ${figure(each.rate / 1e3)} TFLOP/s, bound by ${words[each.kind]}`,
      ].join("\n"));
    }
    Object.keys(colours).filter((kind) => said.points.some((each) => each.kind === kind)).forEach((kind, place) => {
      const at = top + 10 + 15 * place;
      make(svg, "circle", { cx: left + 14, cy: at, r: 5, fill: colours[kind] });
      text(left + 24, at + 4, `bound by ${words[kind]}`, "start");
    });
  }

  Object.entries({ "steps-chart": steps, "memory-chart": memory, icicle, roofline }).forEach(([name, draw]) => {
    const box = document.getElementById(name);
    if (box) draw(box, JSON.parse(document.getElementById(`${name}-data`).textContent));
  });
})();
