"use strict";
// Shows what belongs to a mark, and the value of a curve, while the pointer is over it, or while a
// mark has the keyboard's focus. Writes times as this browser's clock has them.
(() => {
  const tip = document.getElementById("tip");
  const within = (event, selector) => event.target instanceof Element && event.target.closest(selector);
  const show = (text, left, top, bottom) => {
    tip.textContent = text;
    tip.hidden = false;
    const half = tip.offsetWidth / 2;
    const middle = Math.min(innerWidth - half - 8, Math.max(half + 8, left));
    const above = top - tip.offsetHeight - 8;
    tip.style.left = `${middle - half}px`;
    tip.style.top = `${above > 4 ? above : bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => {
      const mark = within(event, ".tip");
      if (!mark) { hide(); return; }
      const at = mark.getBoundingClientRect();
      show(mark.dataset.tip || mark.getAttribute("aria-label"), at.left + at.width / 2, at.top, at.bottom);
    });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", hide, { passive: true });

  // -- what leads somewhere -------------------------------------------------------------------

  const lineOf = (part, mark) => {
    const its = [...document.querySelectorAll(`${part} time`)].map((time) => {
      const apart = Math.abs(Date.parse(time.dateTime.replace(" ", "T")) - 1000 * mark.dataset.when);
      return { apart, line: time.closest("li, tr") };
    }).filter(({ line }) => line.textContent.includes(mark.dataset.node));
    return its.sort((one, other) => one.apart - other.apart)[0];
  };
  const lead = (mark) => {
    const event = lineOf("#events", mark), row = lineOf("#interruptions", mark);
    const found = event && (!row || event.apart <= row.apart + 60000) ? event : row;
    if (!found) return;
    document.querySelectorAll(".found").forEach((each) => each.classList.remove("found"));
    found.line.classList.add("found");
    found.line.scrollIntoView({ block: "center" });
  };
  document.addEventListener("click", (event) => {
    const mark = within(event, ".mark-of[data-when]"), copied = within(event, "[data-copy]");
    if (mark) lead(mark);
    if (copied && navigator.clipboard) navigator.clipboard.writeText(copied.dataset.copy).catch(() => {});
  });
  document.addEventListener("keydown", (event) => {
    const mark = event.key === "Enter" && within(event, ".mark-of[data-when]");
    if (mark) lead(mark);
  });

  // -- times ----------------------------------------------------------------------------------

  const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
  const two = (number) => String(number).padStart(2, "0");
  const localTime = (at, now, seconds = true) => {
    const then = new Date(at), today = new Date(now);
    const time = `${two(then.getHours())}:${two(then.getMinutes())}${seconds ? `:${two(then.getSeconds())}` : ""}`;
    return then.toDateString() === today.toDateString() ? time : `${then.getDate()} ${MONTHS[then.getMonth()]} ${time}`;
  };
  const localTimes = (part) => {
    for (const each of part.querySelectorAll("time.local")) {
      each.title = each.dateTime;
      each.textContent = localTime(Date.parse(each.dateTime.replace(" ", "T")), Date.now());
    }
    for (const axis of part.querySelectorAll("svg")) {
      const ticks = [...axis.querySelectorAll("text[data-at]")];
      const last = ticks.length ? 1000 * ticks[ticks.length - 1].dataset.at : 0;
      for (const each of ticks) {
        each.textContent = localTime(1000 * each.dataset.at, last, each.textContent.split(":").length > 2);
      }
    }
    for (const each of part.querySelectorAll(".zone")) {
      each.textContent = Intl.DateTimeFormat().resolvedOptions().timeZone;
    }
  };
  localTimes(document);
  globalThis.spotelasticTimes = { localTime, localTimes };

  // -- values ---------------------------------------------------------------------------------

  const pointsOf = (curve) => [...curve.querySelectorAll("path")].flatMap((path) =>
    path.getAttribute("d").slice(1).split("L").map((pair) => pair.split(" ").map(parseFloat)));
  const valueAt = (ends, share) => {
    const [low, high, isLogarithmic] = ends.split(" ");
    if (!isLogarithmic) return +low + share * (high - low);
    return 10 ** (Math.log10(low) + share * (Math.log10(high) - Math.log10(low)));
  };
  document.addEventListener("pointermove", (event) => {
    const curve = within(event, "svg.curve");
    if (!curve || within(event, ".tip") !== curve.closest(".tip")) return;
    const box = curve.getBoundingClientRect();
    const x = 1000 * (event.clientX - box.left) / box.width;
    let nearest = null;
    for (const point of pointsOf(curve)) {
      if (!nearest || Math.abs(point[0] - x) <= Math.abs(nearest[0] - x)) nearest = point;
    }
    if (!nearest) return;
    const across = valueAt(curve.dataset.across, nearest[0] / 1000);
    const value = Number(valueAt(curve.dataset.up, 1 - nearest[1] / 1000).toPrecision(3)).toLocaleString("en", { maximumSignificantDigits: 3 });
    const at = curve.querySelector("text[data-at]") ? localTime(1000 * across, Date.now()) : `step ${Math.round(across).toLocaleString("en")}`;
    const unit = curve.dataset.unit;
    const told = unit === "$" ? `$${value}` : `${value}${unit && ` ${unit}`}`;
    show(`${at}: ${told}`, event.clientX, event.clientY - 12, event.clientY + 12);
  });
})();
