"use strict";
// Follows the stream that the page names and fetches the page again after changes, at most once a second. The server
// renders; this only swaps what is inside <main>.
(() => {
  const main = () => document.getElementById("main");
  const address = main() && main().dataset.stream;
  if (!address || !window.EventSource || !window.fetch) return;

  const pulse = document.getElementById("pulse");
  const say = (text, away) => {
    pulse.hidden = false;
    if (pulse.textContent !== text) pulse.textContent = text;
    pulse.classList.toggle("away", away);
  };

  let timer = 0;
  let fetching = false;
  let stale = false;

  const soon = (delay) => { if (!timer) timer = setTimeout(refresh, delay); };

  async function refresh() {
    timer = 0;
    // Nobody sees the page, or somebody is selecting text: later.
    if (document.hidden) { stale = true; return; }
    const selection = document.getSelection();
    if (fetching || (selection && !selection.isCollapsed)) { soon(1000); return; }
    fetching = true;
    stale = false;
    try {
      const answer = await fetch(location.href, { headers: { Accept: "text/html" }, cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").getElementById("main");
      if (next) swap(next);
    } catch (e) {
      soon(3000);
    } finally {
      fetching = false;
    }
  }

  function swap(next) {
    const open = new Set([...main().querySelectorAll("details[open]")].map((d) => d.id));
    const focused = document.activeElement && main().contains(document.activeElement) && document.activeElement.getAttribute("href");
    const scrolled = [...main().querySelectorAll("pre")].map((p) => p.scrollTop);
    for (const d of next.querySelectorAll("details")) if (open.has(d.id)) d.open = true;
    main().replaceChildren(...document.importNode(next, true).childNodes);
    [...main().querySelectorAll("pre")].forEach((p, i) => { p.scrollTop = scrolled[i] || 0; });
    if (focused) {
      const link = [...main().querySelectorAll("a")].find((a) => a.getAttribute("href") === focused);
      if (link) link.focus({ preventScroll: true });
    }
  }

  const stream = new EventSource(address);
  stream.onopen = () => { say("live", false); };
  stream.onerror = () => { say(stream.readyState === EventSource.CLOSED ? "not live" : "reconnecting", true); };
  stream.onmessage = () => soon(300);
  for (const name of ["run", "lost"]) stream.addEventListener(name, () => soon(1000));
  stream.addEventListener("end", () => { stream.close(); pulse.hidden = true; soon(0); });
  addEventListener("pagehide", () => stream.close());
  addEventListener("pageshow", (e) => { if (e.persisted) location.reload(); });
  document.addEventListener("visibilitychange", () => { if (stale && !document.hidden) soon(0); });
  // Times on the page are relative.
  setInterval(() => { if (!document.hidden && stream.readyState === EventSource.OPEN) soon(0); }, 15000);
})();
