"use strict";
// A page whose server has news: it says how far the work is, and is loaded again for another version.

const shownVersion = JSON.parse(document.getElementById("data").textContent).version;

async function askForNews() {
  const line = document.getElementById("live");
  let wait = 1000;
  try {
    const live = await (await fetch("live.json", { cache: "no-store" })).json();
    if (live.version !== shownVersion) return location.reload();
    line.textContent = live.text;
  } catch {
    line.textContent = "The process has ended or cannot be reached; this is its last state.";
    wait = 3000;
  }
  setTimeout(askForNews, wait);
}

if (location.protocol.startsWith("http")) askForNews();
