// Spans by lane: read back from the text they were packed into, and drawn on the canvas of a chart.
"use strict";
const spans = (() => {
  const said = JSON.parse(document.getElementById("timelines-data").textContent);
  const narrow = 1.5, label = 14, head = 16; // device pixels, CSS pixels
  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const SAME = 0, FASTER = 1, SLOWER = 2, INSERTED = 3;
  const modes = {
    kind: { names: said.kinds, colour: (n) => `--kind-${n}` },
    phase: { names: [...said.phases, "unknown phase"], colour: (n) => `--phase-${n}` },
    change: { names: ["as before", "shorter", "longer", "inserted"], colour: (n) => `--change-${n}` },
  };

  async function column(text, n) {
    const bytes = Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer());
    const words = new Int32Array(n);
    for (let i = 0; i < n; i++) {
      words[i] = planes[i] | (planes[n + i] << 8) | (planes[2 * n + i] << 16) | (planes[3 * n + i] << 24);
    }
    return words;
  }

  async function unpack(one) {
    const n = one.first[one.first.length - 1];
    const names = Object.keys(one.columns);
    const columns = await Promise.all(names.map((name) => column(one.columns[name], n)));
    const t = { ...one, ...Object.fromEntries(names.map((name, at) => [name, columns[at]])), n };
    const ms = one.unit_ns / 1e6;
    t.ms = ms;
    t.start = new Float64Array(n);
    t.end = new Float64Array(n);
    for (let lane = 0; lane < one.lanes.length; lane++) {
      let at = 0;
      for (let i = one.first[lane]; i < one.first[lane + 1]; i++) {
        at += t.since[i];
        t.start[i] = at * ms;
        t.end[i] = (at + t.duration[i]) * ms;
      }
    }
    t.cls = new Uint8Array(n);
    return t;
  }

  const whole = (t, i) => (t.whole[i] >= 0 ? t.whole[i] : t.duration[i]);

  function change(t, i) {
    if (t.flags[i] & 2) return INSERTED;
    if (t.before[i] < 0) return SAME;
    return whole(t, i) < t.before[i] ? FASTER : SLOWER;
  }

  // The colour of every span: its class, and one more for what was not searched for.
  function classify(charts, look) {
    const words = look.find.trim().toLowerCase();
    const exact = words.match(/^"(.*)"$/)?.[1].slice(0, 290); // a name in quotes is meant as it stands
    const fits = (name) => (exact === undefined ? name.includes(words) : name.slice(0, 290) === exact);
    const hit = words ? said.names.map((name) => fits(name.toLowerCase())) : null;
    const other = modes[look.mode].names.length;
    let found = 0;
    for (const { t } of charts) {
      for (let i = 0; i < t.n; i++) {
        const phase = t.phase[i] < 0 ? said.phases.length : t.phase[i];
        t.cls[i] = look.mode === "kind" ? t.kind[i] : look.mode === "phase" ? phase : change(t, i);
        if (hit && !(hit[t.name[i]] || hit[t.layer[i]])) t.cls[i] = other;
        else found += t.count[i];
      }
    }
    return found;
  }

  // The first span of a lane that may reach beyond a time.
  function first(t, lane, at) {
    let low = t.first[lane], high = t.first[lane + 1];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (t.start[middle] < at) low = middle + 1;
      else high = middle;
    }
    return Math.max(t.first[lane], low - 1);
  }

  function draw(u, t, look) {
    const { ctx, bbox } = u, dpr = devicePixelRatio, { min, max } = u.scales.x;
    const k = bbox.width / (max - min), right = bbox.left + bbox.width;
    const colours = modes[look.mode].names.map((_, n) => css(modes[look.mode].colour(n)));
    colours.push(css("--dim"));
    const [ink, line, wait, path, on] = ["--fg", "--line", "--wait", "--path", "--on-span"].map(css);
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.font = `${11 * dpr}px system-ui, sans-serif`;
    const letter = ctx.measureText("abcdefghijklmnopqrstuvwxyz_:::").width / 30;
    const tall = (bbox.height - head * dpr) / t.lanes.length;
    for (let lane = 0; lane < t.lanes.length; lane++) {
      const top = bbox.top + head * dpr + lane * tall, y = top + label * dpr, h = tall - (label + 6) * dpr;
      ctx.fillStyle = line;
      ctx.fillRect(bbox.left, top, bbox.width, dpr);
      let pixel = -1, sums = colours.map(() => 0), begin = -1, until = -1;
      const flush = () => {
        if (pixel < 0) return;
        let most = 0, busy = 0;
        sums.forEach((part, n) => { busy += part; if (part > sums[most]) most = n; });
        ctx.globalAlpha = Math.min(1, 0.25 + 0.75 * busy);
        ctx.fillStyle = colours[most];
        ctx.fillRect(bbox.left + pixel, y, 1, h);
        ctx.globalAlpha = 1;
        sums.fill(0);
        pixel = -1;
      };
      const strip = () => {
        if (begin < 0) return;
        ctx.fillStyle = path;
        ctx.fillRect(bbox.left + begin, y + h + dpr, Math.max(until - begin, dpr), 3 * dpr);
      };
      for (let i = first(t, lane, min); i < t.first[lane + 1] && t.start[i] - t.wait[i] * t.ms < max; i++) {
        const a = Math.max((t.start[i] - min) * k, -1), b = Math.min((t.end[i] - min) * k, bbox.width + 1);
        if (t.wait[i] > 0 && t.kind[i] === 0) { // a device that stands is seen to be idle
          const stood = t.wait[i] * t.ms * k;
          if (stood > 2 * dpr) {
            ctx.fillStyle = wait;
            const from = Math.max(a - stood, -1);
            ctx.fillRect(bbox.left + from, y + h * 0.4, a - from, Math.max(h * 0.2, dpr));
          }
        }
        if (b < 0 || t.start[i] >= max) continue;
        if (b - a < narrow) {
          const at = Math.max(Math.floor(a), 0);
          if (at !== pixel) flush();
          pixel = at;
          sums[t.cls[i]] += Math.min(b - a, 1);
        } else {
          flush();
          ctx.fillStyle = colours[t.cls[i]];
          ctx.fillRect(bbox.left + a, y, b - a - (b - a > 4 ? 1 : 0), h);
          if (b - a > 40 * dpr) {
            const from = Math.max(a, 0) + 4 * dpr;
            const fits = Math.floor((Math.min(b, bbox.width) - from - 3 * dpr) / letter);
            if (fits > 2) {
              ctx.fillStyle = on;
              ctx.fillText(title(t, i).slice(0, fits), bbox.left + from, y + h / 2, b - from - 2 * dpr);
            }
          }
        }
        if (look.path && t.flags[i] & 1) {
          if (begin < 0 || a > until + 1) {
            strip();
            begin = a;
          }
          until = b;
        }
      }
      flush();
      strip();
    }
    steps(u, t, k, min, right, dpr);
    const paper = css("--bg");
    t.lanes.forEach((name, lane) => { // above the lines of the steps
      const top = bbox.top + head * dpr + lane * tall;
      ctx.fillStyle = paper;
      ctx.fillRect(bbox.left, top + dpr, ctx.measureText(name).width + 7 * dpr, (label - 1) * dpr);
      ctx.fillStyle = ink;
      ctx.fillText(name, bbox.left + 3 * dpr, top + (label / 2 + 1) * dpr);
    });
    ctx.restore();
  }

  // The ends of the steps, of one rank where there are several.
  function steps(u, t, k, min, right, dpr) {
    const { ctx, bbox } = u;
    ctx.fillStyle = css("--muted");
    let free = 0;
    for (const [name, begin, end, rank] of t.steps) {
      if (rank !== t.steps[0][3]) continue;
      const a = bbox.left + (begin * t.ms - min) * k, b = bbox.left + (end * t.ms - min) * k;
      if (b < bbox.left || a > right) continue;
      ctx.globalAlpha = 0.6;
      ctx.fillRect(Math.round(b) - 1, bbox.top, dpr, bbox.height);
      ctx.globalAlpha = 1;
      const from = Math.max(a, bbox.left) + 3 * dpr, room = Math.min(b, right) - from;
      const number = name.match(/#?\d+(?=\D*$)/)?.[0] ?? ""; // of a long name what tells it from the others
      const shown = [name, number].find((text) => text && ctx.measureText(text).width < room);
      if (from >= free && shown) {
        ctx.fillText(shown, from, bbox.top + (head / 2) * dpr);
        free = from + ctx.measureText(shown).width + 4 * dpr;
      }
    }
  }

  const title = (t, i) => (t.count[i] > 1 ? `${t.count[i].toLocaleString("en")} tasks` : said.names[t.name[i]] ?? "");

  return { said, css, modes, head, unpack, whole, classify, first, draw, title };
})();
