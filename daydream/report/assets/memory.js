// What is held over time: one uPlot chart that moves with the timelines.
"use strict";
(() => {
  const box = document.getElementById("memory-chart");
  if (!box) return;
  const said = JSON.parse(document.getElementById("memory-data").textContent);
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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
      { label: "at", value: (_, ms) => (ms == null ? "" : `${ms.toFixed(3)} ms`) },
      ...said.lines.map(({ name }, n) => ({
        label: name, stroke: () => css(`--series-${n % 3}`), width: 1.5, points: { show: false }, spanGaps: true,
        paths: uPlot.paths.stepped({ align: 1 }), value: (_, mib) => (mib == null ? "" : amount(mib)),
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
})();
