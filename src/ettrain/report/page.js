"use strict";
// The timeline: rows of tiles on a canvas, zoomed and panned. Everything else on the page is plain HTML and works without this.
(() => {
  const data = JSON.parse(document.getElementById("timeline-data").textContent);
  const canvas = document.getElementById("rows");
  if (!canvas || !data.wall) return;
  const view = document.getElementById("view");
  const filler = document.getElementById("filler");
  const overview = document.getElementById("overview");
  const tip = document.getElementById("tip");
  const range = document.getElementById("range");
  const GUTTER = 104, AXIS = 24, STRIP = 20, GAP = 5;
  const HEIGHT = { job: 30, rank: 19, lane: 8 };
  const MIN_SPAN = 20; // microseconds across the whole view

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  let theme = {};
  const readTheme = () => {
    theme = { ink: css("--ink"), dim: css("--dim"), line: css("--line"), lane: css("--lane"), panel: css("--panel"), warn: css("--warn") };
  };

  const rows = data.rows.map((row) => {
    const count = row.tiles.length / 4;
    const starts = new Float64Array(count), ends = new Float64Array(count);
    const leaves = new Uint16Array(count), parts = new Uint32Array(count);
    let now = 0;
    for (let i = 0; i < count; i++) {
      const [gap, length, leaf, part] = row.tiles.slice(4 * i, 4 * i + 4);
      starts[i] = now + gap;
      ends[i] = starts[i] + length;
      now = row.kind === "lane" ? starts[i] : ends[i];
      leaves[i] = leaf;
      parts[i] = part;
    }
    return { ...row, starts, ends, leaves, parts, top: 0, height: HEIGHT[row.kind] };
  });
  let total = AXIS + STRIP;
  for (const row of rows) {
    row.top = total + (row.kind === "lane" ? -2 : 0);
    total = row.top + row.height + GAP;
  }
  total += 4;

  const state = { t0: 0, t1: data.wall, group: null, pending: false };

  // ---- texts

  const duration = (us) => {
    if (us < 1000) return `${Math.round(us)} µs`;
    if (us < 1e6) return `${(us / 1e3).toFixed(us < 1e4 ? 1 : 0)} ms`;
    if (us < 6e7) return `${(us / 1e6).toFixed(us < 1e7 ? 2 : 1)} s`;
    const s = Math.round(us / 1e6), two = (n) => String(n).padStart(2, "0");
    if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
    if (s < 86400) return `${Math.floor(s / 3600)}h ${two(Math.floor(s / 60) % 60)}m ${two(s % 60)}s`;
    return `${Math.floor(s / 86400)}d ${two(Math.floor(s / 3600) % 24)}h ${two(Math.floor(s / 60) % 60)}m`;
  };
  const instant = (us) => { // h:mm:ss.mmm since the job's start
    const ms = Math.round(us / 1e3), s = Math.floor(ms / 1e3), two = (n) => String(n).padStart(2, "0");
    return `${Math.floor(s / 3600)}:${two(Math.floor(s / 60) % 60)}:${two(s % 60)}.${String(ms % 1e3).padStart(3, "0")}`;
  };
  const STEPS = [1, 2, 5, 10, 20, 50, 100, 200, 500].flatMap((n) => [n, n * 1e3]).concat(
    [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400, 172800, 604800, 2592000].map((n) => n * 1e6),
  ).sort((a, b) => a - b);
  const tickText = (us, step) => {
    if (us === 0) return "0";
    if (step < 1e3) return `${(us / 1e6).toFixed(6)} s`;
    if (step < 1e6) return `${(us / 1e6).toFixed(3)} s`;
    const s = Math.round(us / 1e6), d = Math.floor(s / 86400), h = Math.floor(s / 3600) % 24, m = Math.floor(s / 60) % 60;
    const words = [d && `${d}d`, h && `${h}h`, m && `${m}m`, s % 60 && `${s % 60}s`].filter(Boolean);
    return words.slice(0, 3).join(" ");
  };
  const darkText = (fill) => {
    const [r, g, b] = [1, 3, 5].map((at) => (parseInt(fill.slice(at, at + 2), 16) / 255) ** 2.2);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.2;
  };

  // ---- drawing

  const fit = (element, height) => {
    const ratio = window.devicePixelRatio || 1;
    const width = element.clientWidth;
    element.style.height = `${height}px`;
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
    const pen = element.getContext("2d");
    pen.setTransform(ratio, 0, 0, ratio, 0, 0);
    pen.clearRect(0, 0, width, height);
    return { pen, width, height };
  };
  const scale = (width) => (width - GUTTER) / (state.t1 - state.t0);
  const firstAt = (row, t) => {
    let low = 0, high = row.ends.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row.ends[middle] <= t) low = middle + 1; else high = middle;
    }
    return low;
  };
  const paintRow = (pen, row, y, x0, k, t0, t1, height) => {
    const from = row.kind === "lane" ? 0 : firstAt(row, t0);
    let painted = -1;
    for (let i = from; i < row.starts.length && row.starts[i] < t1; i++) {
      if (row.ends[i] <= t0) continue;
      const left = x0 + (Math.max(row.starts[i], t0) - t0) * k;
      const right = x0 + (Math.min(row.ends[i], t1) - t0) * k;
      if (right <= painted + 0.25) continue;
      const leaf = data.leaves[row.leaves[i]];
      const faint = state.group !== null && leaf.group !== state.group;
      pen.globalAlpha = faint ? 0.12 : row.kind === "lane" ? 0.75 : 1;
      pen.fillStyle = leaf.fill;
      const width = Math.max(right - left, 0.6);
      pen.fillRect(left, y, width, height);
      painted = left + width;
      if (width > 3 && height > 12) { // a hairline between neighbours of like colour
        pen.fillStyle = theme.panel;
        pen.fillRect(right - 0.5, y, 0.5, height);
      }
      if (width > 40 && height > 12 && leaf.group !== "effective") label(pen, leaf, left, y, width, height);
    }
    pen.globalAlpha = 1;
  };
  const label = (pen, leaf, left, y, width, height) => {
    const text = leaf.name.split("/").pop();
    if (pen.measureText(text).width > width - 10) return;
    pen.fillStyle = darkText(leaf.fill) ? "#101316" : "#ffffff";
    pen.textAlign = "left";
    pen.fillText(text, left + 5, y + height / 2 + 0.5);
  };
  const paintAxis = (pen, width, height, k) => {
    const step = STEPS.find((n) => n * k >= 92) || STEPS[STEPS.length - 1];
    pen.fillStyle = theme.panel;
    pen.fillRect(0, 0, width, AXIS + STRIP);
    pen.textAlign = "center";
    for (let n = Math.ceil(state.t0 / step); n * step <= state.t1; n++) {
      const x = GUTTER + (n * step - state.t0) * k;
      pen.fillStyle = theme.line;
      pen.fillRect(x, AXIS - 5, 1, 5);
      pen.fillStyle = theme.dim;
      const text = tickText(n * step, step);
      const half = pen.measureText(text).width / 2;
      pen.fillText(text, Math.min(Math.max(x, GUTTER + half), width - half), 9);
    }
    pen.fillStyle = theme.line;
    pen.fillRect(GUTTER, AXIS, width - GUTTER, 1);
    paintAttempts(pen, width, k);
  };
  const paintAttempts = (pen, width, k) => {
    pen.fillStyle = theme.dim;
    pen.textAlign = "left";
    pen.fillText("attempt", 0, AXIS + STRIP / 2);
    for (const [start, end, text] of data.attempts) {
      const left = Math.max(GUTTER, GUTTER + (start - state.t0) * k);
      const right = Math.min(width, GUTTER + (end - state.t0) * k);
      if (right <= left) continue;
      pen.fillStyle = theme.lane;
      pen.fillRect(left, AXIS + 3, Math.max(right - left - 1, 1), STRIP - 7);
      pen.fillStyle = theme.dim;
      const room = right - left - 8;
      const shown = pen.measureText(text).width < room ? text : text.split(" ")[0];
      if (pen.measureText(shown).width < room) pen.fillText(shown, left + 5, AXIS + STRIP / 2);
    }
  };
  const paintIncidents = (pen, width, bottom, k) => {
    const seen = data.incidents.filter(([t]) => t >= state.t0 && t <= state.t1);
    const lines = seen.length * 14 < width; // a fence of lines would hide what it marks
    let last = -Infinity;
    for (const [t] of seen) {
      const x = GUTTER + (t - state.t0) * k;
      if (x - last < 11) continue;
      last = x;
      pen.strokeStyle = theme.warn;
      pen.fillStyle = theme.warn;
      if (lines) {
        pen.setLineDash([3, 3]);
        pen.beginPath();
        pen.moveTo(x, AXIS + 6);
        pen.lineTo(x, bottom);
        pen.stroke();
        pen.setLineDash([]);
      }
      pen.beginPath();
      pen.moveTo(x - 5, AXIS - 2);
      pen.lineTo(x + 5, AXIS - 2);
      pen.lineTo(x, AXIS + 7);
      pen.fill();
    }
  };
  const draw = () => {
    state.pending = false;
    const height = Math.min(total, 640);
    const { pen, width } = fit(canvas, height);
    filler.style.height = `${total - height}px`;
    pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
    pen.textBaseline = "middle";
    const k = scale(width), scroll = view.scrollTop;
    for (const row of rows) {
      const y = row.top - scroll;
      if (y + row.height < AXIS + STRIP || y > height) continue;
      pen.fillStyle = theme.lane;
      pen.fillRect(GUTTER, y, width - GUTTER, row.height);
      paintRow(pen, row, y, GUTTER, k, state.t0, state.t1, row.height);
      pen.fillStyle = row.kind === "job" ? theme.ink : theme.dim;
      pen.textAlign = "left";
      pen.fillText(row.kind === "lane" ? "" : row.label, 0, y + row.height / 2 + 0.5);
    }
    paintAxis(pen, width, height, k);
    paintIncidents(pen, width, height, k);
    drawOverview();
    const whole = state.t1 - state.t0 >= data.wall;
    range.textContent = whole ? duration(data.wall) : `${instant(state.t0)} – ${instant(state.t1)}  (${duration(state.t1 - state.t0)} shown)`;
  };
  const drawOverview = () => {
    const { pen, width } = fit(overview, 22);
    const k = (width - GUTTER) / data.wall;
    pen.font = "12px system-ui, 'Liberation Sans', sans-serif";
    pen.textBaseline = "middle";
    pen.fillStyle = theme.dim;
    pen.fillText("overview", 0, 11);
    paintRow(pen, { ...rows[0], kind: "job" }, 6, GUTTER, k, 0, data.wall, 10);
    const left = GUTTER + state.t0 * k, right = GUTTER + state.t1 * k;
    pen.globalAlpha = 0.72;
    pen.fillStyle = theme.panel;
    pen.fillRect(GUTTER, 5, left - GUTTER, 12);
    pen.fillRect(right, 5, width - right, 12);
    pen.globalAlpha = 1;
    pen.strokeStyle = theme.ink;
    pen.lineWidth = 1.5;
    pen.strokeRect(left + 0.75, 2.75, Math.max(right - left - 1.5, 2), 16.5);
  };
  const redraw = () => {
    if (!state.pending) {
      state.pending = true;
      requestAnimationFrame(draw);
    }
  };

  // ---- moving

  const show = (t0, t1) => {
    const span = Math.min(Math.max(t1 - t0, MIN_SPAN), data.wall);
    const start = Math.min(Math.max(t0, 0), data.wall - span);
    state.t0 = start;
    state.t1 = start + span;
    redraw();
  };
  const zoom = (factor, at) => show(at - (at - state.t0) * factor, at + (state.t1 - at) * factor);
  const pan = (by) => show(state.t0 + by, state.t1 + by);
  const timeAt = (x) => state.t0 + Math.max(0, x - GUTTER) / scale(canvas.clientWidth);
  const middle = () => (state.t0 + state.t1) / 2;

  canvas.addEventListener("wheel", (event) => {
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    event.preventDefault();
    hideTip();
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) pan(sideways / scale(canvas.clientWidth));
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) * 0.004), timeAt(event.offsetX));
  }, { passive: false });
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button) return;
    drag = { x: event.clientX, y: event.clientY };
    canvas.setPointerCapture(event.pointerId);
    canvas.classList.add("dragging");
    hideTip();
  });
  canvas.addEventListener("pointermove", (event) => {
    if (!drag) return hover(event);
    pan((drag.x - event.clientX) / scale(canvas.clientWidth));
    view.scrollTop += drag.y - event.clientY;
    drag = { x: event.clientX, y: event.clientY };
  });
  const drop = () => {
    drag = null;
    canvas.classList.remove("dragging");
  };
  canvas.addEventListener("pointerup", drop);
  canvas.addEventListener("pointercancel", drop);
  canvas.addEventListener("pointerleave", () => hideTip());
  canvas.addEventListener("dblclick", (event) => zoom(0.4, timeAt(event.offsetX)));
  view.addEventListener("scroll", redraw);
  const jump = (event) => {
    if (event.type === "pointermove" && !event.buttons) return;
    const k = (overview.clientWidth - GUTTER) / data.wall;
    const at = (event.offsetX - GUTTER) / k, half = (state.t1 - state.t0) / 2;
    show(at - half, at + half);
  };
  overview.addEventListener("pointerdown", jump);
  overview.addEventListener("pointermove", jump);
  canvas.addEventListener("keydown", (event) => {
    const span = state.t1 - state.t0;
    const act = {
      "+": () => zoom(0.6, middle()), "=": () => zoom(0.6, middle()), "-": () => zoom(1 / 0.6, middle()), "0": () => show(0, data.wall),
      ArrowLeft: () => pan(-span / 5), ArrowRight: () => pan(span / 5),
      ArrowUp: () => { view.scrollTop -= 48; }, ArrowDown: () => { view.scrollTop += 48; },
    }[event.key];
    if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    act();
  });
  document.getElementById("zoom-in").addEventListener("click", () => zoom(0.6, middle()));
  document.getElementById("zoom-out").addEventListener("click", () => zoom(1 / 0.6, middle()));
  document.getElementById("zoom-all").addEventListener("click", () => show(0, data.wall));
  for (const button of document.querySelectorAll("button[data-group]")) {
    button.addEventListener("click", () => {
      state.group = state.group === button.dataset.group ? null : button.dataset.group;
      for (const other of document.querySelectorAll("button[data-group]")) {
        other.setAttribute("aria-pressed", String(other.dataset.group === state.group));
      }
      redraw();
    });
  }

  // ---- telling

  const hideTip = () => { tip.style.display = "none"; };
  const tell = (event, lines) => {
    tip.replaceChildren(...lines.filter(Boolean).map((line, i) => {
      const element = document.createElement(i ? "div" : "b");
      element.textContent = line;
      return element;
    }));
    tip.style.display = "block";
    const box = document.getElementById("timeline").getBoundingClientRect();
    const left = event.clientX - box.left + 14, top = event.clientY - box.top + 16;
    tip.style.left = `${Math.max(0, Math.min(left, box.width - tip.offsetWidth))}px`;
    tip.style.top = `${top + tip.offsetHeight > box.height + 60 ? top - tip.offsetHeight - 30 : top}px`;
  };
  const hover = (event) => {
    const t = timeAt(event.offsetX), k = scale(canvas.clientWidth);
    if (event.offsetX < GUTTER) return hideTip();
    const incident = data.incidents.find(([at]) => Math.abs(at - t) * k < 5);
    if (incident && event.offsetY < AXIS + STRIP) return tell(event, incident.slice(1));
    if (event.offsetY < AXIS + STRIP) {
      const attempt = data.attempts.find(([start, end]) => start <= t && t < end);
      return attempt ? tell(event, [`attempt ${attempt[2]}`, `from ${instant(attempt[0])}, for ${duration(attempt[1] - attempt[0])}`]) : hideTip();
    }
    const y = event.offsetY + view.scrollTop;
    const row = rows.find((other) => y >= other.top && y <= other.top + other.height);
    if (!row) return hideTip();
    const found = tileAt(row, t);
    if (found < 0) return hideTip();
    const leaf = data.leaves[row.leaves[found]], part = data.parts[row.parts[found]];
    tell(event, [
      leaf.name + (part ? ` · ${part}` : ""),
      row.kind === "lane" ? `${row.label}: beside the main thread, never billed` : `${row.label} · component: ${leaf.component}`,
      `from ${instant(row.starts[found])}, for ${duration(row.ends[found] - row.starts[found])}`,
      row.kind === "lane" ? "" : leaf.meaning,
    ]);
  };
  const tileAt = (row, t) => {
    if (row.kind !== "lane") {
      const at = firstAt(row, t);
      return at < row.starts.length && row.starts[at] <= t ? at : -1;
    }
    for (let i = row.starts.length - 1; i >= 0; i--) if (row.starts[i] <= t && t < row.ends[i]) return i;
    return -1;
  };

  readTheme();
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { readTheme(); redraw(); });
  new ResizeObserver(redraw).observe(view);
  draw();
})();
