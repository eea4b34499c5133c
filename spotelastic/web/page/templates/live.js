"use strict";
// Renews the sections of a page as the server sends them, shows logs, and sends commands.
// Texts from a cluster get into the page as text alone, or as HTML that the server has escaped.
(() => {
  const MOST_LINES = 2000, LOOK_EVERY = 3000, SILENT_FOR = 8000, GLANCE_EVERY = 60000;
  const { localTime, localTimes } = globalThis.spotelasticTimes;
  const find = (selector, within = document) => within.querySelector(selector);
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const trouble = find("#trouble");
  let heard = Date.now();
  let facts = {};
  let isStuck = false;

  // -- sections -------------------------------------------------------------------------------

  const keyOf = (element) => {
    const part = element && element.closest("[data-key], a");
    return part && (part.dataset.key || part.textContent);
  };
  const renew = (id, html) => {
    const element = document.getElementById(id);
    if (!element) return;
    const selected = getSelection();
    if (selected && !selected.isCollapsed && element.contains(selected.anchorNode)) return false;
    const focused = element.contains(document.activeElement) ? document.activeElement : null;
    const key = keyOf(focused);
    const scrolled = all(".scroll", element).map((each) => [each.scrollLeft, each.scrollTop]);
    const within = focused && focused.classList.contains("scroll") ? all(".scroll", element).indexOf(focused) : -1;
    element.innerHTML = html;
    localTimes(element);
    all(".scroll", element).forEach((each, index) => {
      const [left, top] = scrolled[index] || [0, 0];
      each.scrollLeft = left;
      each.scrollTop = top;
      if (index === within) each.focus({ preventScroll: true });
    });
    if (key) {
      const again = all("[data-key], a", element).find((each) => keyOf(each) === key);
      if (again) again.focus({ preventScroll: true });
    }
    return true;
  };
  const waiting = new Map();
  const tell = (text) => {
    if (trouble.textContent !== text) trouble.textContent = text;
    trouble.hidden = !text;
    document.body.classList.toggle("stale", Boolean(text));
  };
  // What a tab shows of itself, also while another one is before it: the title, and a sign.
  const SIGNS = {
    good: ["#1a7346", '<circle cx="8" cy="8" r="6"/>'],
    busy: ["#2a4fb8", '<circle cx="8" cy="8" r="6"/>'],
    still: ["#5a6472", '<rect x="3" y="3" width="10" height="10"/>'],
    warn: ["#b37400", '<path d="M8 1 15 14H1z"/>'],
    bad: ["#d0241b", '<path d="M3 1 8 6 13 1 15 3 10 8 15 13 13 15 8 10 3 15 1 13 6 8 1 3z"/>'],
  };
  // A notification, where somebody has asked for it, when the state turns yellow or red.
  const asks = find("#notify"), BADNESS = { warn: 1, bad: 2 };
  const isAsked = () => localStorage.getItem("spotelastic-notify") === "on" && Notification.permission === "granted";
  const pressed = () => asks.setAttribute("aria-pressed", String(isAsked()));
  if ("Notification" in globalThis) {
    asks.hidden = false;
    pressed();
    asks.addEventListener("click", async () => {
      const wanted = !isAsked() && await Notification.requestPermission() === "granted";
      localStorage.setItem("spotelastic-notify", wanted ? "on" : "off");
      pressed();
    });
  }
  const notify = (told) => {
    const isWorse = (BADNESS[told.tone] || 0) > (BADNESS[shown] || 0);
    if (shown && isWorse && !asks.hidden && isAsked()) new Notification(told.title, { tag: location.pathname });
    shown = told.tone;
  };
  let shown = "";
  const sign = (told) => {
    if (!told.title) return;
    notify(told);
    if (document.title !== told.title && facts.title) find("#said").textContent = told.title;
    document.title = told.title;
    const [colour, shape] = SIGNS[told.tone] || SIGNS.still;
    const image = `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 16 16" fill="${colour}">${shape}</svg>`;
    const href = `data:image/svg+xml,${encodeURIComponent(image)}`;
    if (find("#icon").getAttribute("href") !== href) find("#icon").setAttribute("href", href);
  };
  const hear = (event) => {
    heard = Date.now();
    const told = JSON.parse(event.data);
    for (const [id, html] of Object.entries(told.sections || {})) waiting.set(id, html);
    for (const [id, html] of [...waiting]) if (renew(id, html) !== false) waiting.delete(id);
    if (told.facts) { sign(told.facts); facts = told.facts; isStuck = Boolean(told.trouble); allow(); }
    tell(told.trouble || "");
  };
  // A browser has few connections for one host: pages that nobody sees leave theirs to the others.
  let stream = null;
  const listen = () => {
    if (stream) stream.close();
    stream = null;
    if (document.hidden) return;
    heard = Date.now();
    stream = new EventSource(document.body.dataset.stream);
    stream.onmessage = hear;
  };
  document.addEventListener("visibilitychange", listen);
  listen();
  setInterval(async () => {
    if (!document.hidden) return;
    try {
      const answer = await fetch(document.body.dataset.stream.replace(/stream$/, "title"));
      if (answer.ok && document.hidden) sign(await answer.json());
    } catch { /* the next look may succeed, and a tab that is shown says what is wrong */ }
  }, GLANCE_EVERY);
  setInterval(() => {
    const silent = Date.now() - heard;
    if (stream && silent > SILENT_FOR) {
      tell(`The dashboard has not answered for ${Math.round(silent / 1000)} s: look whether \`spotelastic dashboard\` still runs. One that was started anew has another address.`);
    }
  }, 1000);

  // -- commands -------------------------------------------------------------------------------

  const controls = find(".controls");
  const isAllowed = {
    training: () => !facts.gone && !facts.ended && (facts.nodes || []).length > 0,
    running: () => !facts.gone && facts.ended === false,
    ended: () => !facts.gone && facts.ended === true,
    there: () => facts.gone === false,
  };
  const options = (select, values, kept = []) => {
    const wanted = [...kept.map(([value]) => value), ...values.map(String)];
    if (wanted.join("\n") === all("option", select).map((each) => each.value).join("\n")) return;
    const chosen = select.value;
    select.replaceChildren(
      ...kept.map(([value, text]) => new Option(text, value)),
      ...values.map((value) => new Option(String(value), String(value))),
    );
    if (wanted.includes(chosen)) select.value = chosen;
  };
  const allow = () => {
    if (!controls) return;
    for (const button of all("[data-when]", controls)) {
      button.disabled = isStuck || !isAllowed[button.dataset.when]();
      button.hidden = button.dataset.when === "ended" ? !facts.ended : button.dataset.when === "running" && Boolean(facts.ended);
    }
    options(find("#do-interrupt select[name=node]"), facts.nodes || []);
    if (output) options(find("select[name=rank]", output), facts.ranks || [], [["", "all"]]);
  };
  const opens = (name) => {
    const dialog = find(`#do-${name}`);
    find(".answer", dialog).textContent = "";
    if (name === "scale" && facts.sizes) {
      find("[name=min]", dialog).value = facts.sizes[0];
      find("[name=max]", dialog).value = facts.sizes[1];
    }
    if (name === "down") { find("[name=typed]", dialog).value = ""; ready(dialog); }
    dialog.showModal();
  };
  const ready = (dialog) => {
    const field = find("[data-must-be]", dialog);
    if (field) find("[type=submit]", dialog).disabled = field.value !== field.dataset.mustBe;
  };
  const act = async (form) => {
    const dialog = form.closest("dialog");
    const answer = find(".answer", form);
    const button = find("[type=submit]", form);
    const given = Object.fromEntries(new FormData(form));
    button.disabled = true;
    answer.className = "answer";
    answer.textContent = "Sent; waiting for a reply…";
    let last = {};
    try {
      const response = await fetch(controls.dataset.at + form.dataset.action, {
        method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(given),
      });
      if (!response.ok) throw new Error(`the dashboard refused it (${response.status})`);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let rest = "";
      for (;;) {
        const { value, done } = await reader.read();
        if (done) break;
        rest += value;
        const lines = rest.split("\n");
        rest = lines.pop();
        for (const line of lines.filter(Boolean)) {
          last = JSON.parse(line);
          answer.textContent = last.line || last.done || last.failed || "";
        }
      }
    } catch (error) {
      // A browser's own words for it are "Failed to fetch".
      last = { failed: error instanceof TypeError ? "The dashboard does not answer: look whether it still runs." : String(error.message || error) };
    }
    button.disabled = false;
    const failed = last.failed || "There was no answer: see the events.";
    if (last.done === undefined && dialog.open) {
      answer.classList.add("failed");
      answer.textContent = failed;
    } else {  // also a failure, where the dialog was closed meanwhile
      dialog.close();
      find("#done").textContent = last.done ?? failed;
    }
    ready(dialog);
  };
  document.addEventListener("click", (event) => {
    const button = event.target instanceof Element && event.target.closest("button");
    if (!button) return;
    if (button.dataset.opens) opens(button.dataset.opens);
    if ("closes" in button.dataset) button.closest("dialog").close();
  });
  document.addEventListener("submit", (event) => {
    event.preventDefault();
    act(event.target);
  });
  document.addEventListener("input", (event) => {
    const dialog = event.target.closest("dialog");
    if (dialog) ready(dialog);
    if (event.target.name === "with") filter();
  });

  // -- logs -----------------------------------------------------------------------------------

  const output = find("#output");
  if (!output) return;
  const list = find(".lines", output), box = find(".scroll", output), none = find(".empty", output);
  const follow = find("[name=follow]", output), rank = find("[name=rank]", output), part = find("[name=with]", output);
  let known = new Set(), next = 0, turn = 0;
  const matches = (item) => item.textContent.toLowerCase().includes(part.value.toLowerCase());
  const tellNone = () => {
    none.textContent = list.children.length ? "No line has these words." : "No output yet.";
    none.hidden = [...list.children].some((item) => !item.hidden);
  };
  const filter = () => {
    for (const item of list.children) item.hidden = !matches(item);
    tellNone();
    if (follow.checked) box.scrollTop = box.scrollHeight;
  };
  const cell = (name, text) => {
    const made = document.createElement("span");
    made.className = name;
    made.textContent = text;
    return made;
  };
  const add = (line) => {
    if (known.has(line.id)) return;
    known.add(line.id);
    const item = document.createElement("li");
    item.append(cell("when", localTime(1000 * line.at, Date.now())), cell("from", `${line.node} rank ${line.rank}`), cell("what", line.text));
    item.hidden = !matches(item);
    item.dataset.at = 1000 * line.at;
    list.append(item);
  };
  const look = async () => {
    const mine = turn;
    try {
      const response = await fetch(`${output.dataset.at}?rank=${encodeURIComponent(rank.value)}&since=${next}`);
      const page = await response.json();
      if (mine !== turn) return;
      if (page.trouble) { none.textContent = page.trouble; none.hidden = false; return; }
      page.lines.forEach(add);
      next = page.next;
      while (list.children.length > MOST_LINES) list.firstChild.remove();
      if (known.size > 4 * MOST_LINES) known = new Set([...known].slice(-2 * MOST_LINES));
      tellNone();
      if (follow.checked && page.lines.length) box.scrollTop = box.scrollHeight;
    } catch {
      none.textContent = "The logs cannot be read now.";
    }
  };
  rank.addEventListener("change", () => {
    turn += 1;
    next = 0;
    known.clear();
    list.replaceChildren();
    look();
  });
  // A node's id leads to its lines, and the time of an event to those of that time.
  document.addEventListener("click", (event) => {
    const link = event.target instanceof Element && event.target.closest("a[href='#output']");
    if (!link) return;
    event.preventDefault();
    const time = find("time", link);
    part.value = time ? "" : link.textContent;
    if (time) follow.checked = false;
    filter();
    if (time) {
      const at = Date.parse(time.dateTime.replace(" ", "T"));
      const later = all("li", list).find((item) => item.dataset.at >= at) || list.lastChild;
      if (later) box.scrollTop = later.offsetTop - list.offsetTop;
    }
    output.scrollIntoView({ block: "start" });
    box.focus({ preventScroll: true });
  });
  box.addEventListener("scroll", () => {
    const below = box.scrollHeight - box.scrollTop - box.clientHeight;
    if (below > 60) follow.checked = false;
  });
  follow.addEventListener("change", () => { if (follow.checked) box.scrollTop = box.scrollHeight; });
  const watch = async () => {
    if (!document.hidden) await look();
    setTimeout(watch, LOOK_EVERY);
  };
  watch();
})();
