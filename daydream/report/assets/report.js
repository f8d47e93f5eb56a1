// Tables that sort and search, and what finds its tasks in the timeline.
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
})();
