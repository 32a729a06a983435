"use strict";
// A page whose server has news: it says how far the work is, and is loaded again for another version.

const shownVersion = JSON.parse(document.getElementById("data").textContent).version;
const newsLine = document.getElementById("live");
let lastNews = newsLine.textContent;

async function askForNews() {
  let wait = 1000;
  try {
    const live = await (await fetch("live.json", { cache: "no-store" })).json();
    if (live.version !== shownVersion) return location.reload();
    newsLine.textContent = lastNews = live.text;
  } catch {
    newsLine.textContent = `${lastNews} The process has ended or cannot be reached.`;
    wait = 3000;
  }
  setTimeout(askForNews, wait);
}

if (location.protocol.startsWith("http")) askForNews();
