"use strict";
// Shows what belongs to a mark while the pointer is over it, or while it has the keyboard's focus.
(() => {
  const tip = document.getElementById("tip");
  const marked = (event) => event.target instanceof Element && event.target.closest(".tip");
  const show = (mark) => {
    tip.textContent = mark.dataset.tip;
    tip.hidden = false;
    const at = mark.getBoundingClientRect();
    const half = tip.offsetWidth / 2;
    const middle = Math.min(innerWidth - half - 8, Math.max(half + 8, at.left + at.width / 2));
    const above = at.top - tip.offsetHeight - 8;
    tip.style.left = `${middle - half}px`;
    tip.style.top = `${above > 4 ? above : at.bottom + 8}px`;
  };
  const hide = () => { tip.hidden = true; };
  for (const name of ["pointerover", "focusin"]) {
    document.addEventListener(name, (event) => { const mark = marked(event); if (mark) show(mark); else hide(); });
  }
  document.addEventListener("focusout", hide);
  document.addEventListener("pointerleave", hide);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
  document.addEventListener("scroll", hide, { passive: true });
})();
