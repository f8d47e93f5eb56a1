// Tables that sort and search, what finds its tasks in the timeline, and the chart of the steps.
"use strict";
(() => {
  function enliven(box) {
    const body = box.querySelector("tbody"), rows = [...body.rows], most = Number(box.dataset.most);
    const words = rows.map((row) => row.textContent.toLowerCase());
    const search = box.querySelector(".search"), more = box.querySelector(".more");
    const heads = [...box.querySelectorAll("thead th")];
    let order = rows.map((_, at) => at), all = false;

    function show() {
      const asked = search.value.trim().toLowerCase();
      let shown = 0;
      for (const at of order) {
        const fits = words[at].includes(asked);
        rows[at].hidden = !fits || (!all && shown >= most);
        shown += fits;
      }
      if (more) {
        more.hidden = all || shown <= most;
        more.textContent = `show all ${shown.toLocaleString("en")}`;
      }
    }

    const value = (row, at) => {
      const said = row.cells[at]?.dataset.v;
      return said === undefined ? row.cells[at]?.textContent ?? "" : Number(said);
    };

    function sort(at) {
      const was = heads[at].getAttribute("aria-sort");
      const figures = rows.some((row) => row.cells[at]?.dataset.v !== undefined);
      const down = was ? was === "ascending" : figures;
      heads.forEach((head) => head.removeAttribute("aria-sort"));
      heads[at].setAttribute("aria-sort", down ? "descending" : "ascending");
      const sign = down ? -1 : 1;
      order = rows.map((_, place) => place).sort((a, b) => {
        const [x, y] = [value(rows[a], at), value(rows[b], at)];
        if (typeof x !== typeof y) return typeof x === "number" ? -1 : 1;
        return (sign * (typeof x === "number" ? x - y : x.localeCompare(y))) || a - b;
      });
      body.append(...order.map((place) => rows[place]));
      show();
    }

    heads.forEach((head, at) => head.firstElementChild.addEventListener("click", () => sort(at)));
    search.addEventListener("input", show);
    more?.addEventListener("click", () => { all = true; show(); });
    show();
  }

  function steps() {
    const box = document.getElementById("steps-chart");
    const said = JSON.parse(document.getElementById("steps-data").textContent);
    if (said.names.length < 3) return;
    const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
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

  // A row of a table of tasks, or a layer, finds its tasks in the timeline.
  function finders() {
    document.querySelectorAll(".icicle button").forEach((button) => {
      button.addEventListener("click", () => spans.find?.(button.dataset.find));
    });
    document.querySelectorAll(":is(#kernels, #layers, #tasks) tbody tr").forEach((row) => {
      const name = row.cells[0].querySelector("span");
      const find = () => spans.find?.(`"${name.textContent}"`);
      Object.entries({ role: "button", tabindex: 0, title: "find in the timeline", class: "find" })
        .forEach(([key, value]) => name.setAttribute(key, value));
      row.addEventListener("click", find);
      name.addEventListener("keydown", (event) => { if (event.key === "Enter") find(); });
    });
  }

  document.querySelectorAll(".sortable").forEach(enliven);
  if (document.getElementById("timelines")) finders();
  if (document.getElementById("steps-chart")) steps();
})();
