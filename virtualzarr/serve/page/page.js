// The page works without this: sliders then are a form with a button.
"use strict";
const $ = (selector) => document.querySelector(selector);

// Behind a proxy, only the browser knows the URL.
for (const pre of document.querySelectorAll("#open pre")) {
  const here = new URL(".", location.href).href;
  const said = document.querySelector("meta[name=served]")?.content;
  if (said && said !== here) pre.textContent = pre.textContent.replaceAll(said, here);
}

for (const button of document.querySelectorAll("button.copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

const form = $("#sliders");
if (form) {
  form.querySelector("button").hidden = true;
  form.addEventListener("submit", (event) => event.preventDefault());
  const inputs = [...form.querySelectorAll("input[type=range]")];
  const image = $("#picture img");
  let running = null;
  let wanted = false;

  async function show() {
    // One request at a time; while it runs, only the last position counts.
    if (running) return void (wanted = true);
    running = new AbortController();
    const query = new URLSearchParams([["var", form.elements.var.value]]);
    for (const input of inputs) query.append("at", input.value);
    image.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(`-/picture?${query}`, { signal: running.signal });
      const about = JSON.parse(decodeURIComponent(answer.headers.get("x-picture") || "%7B%7D"));
      if (answer.ok) {
        const old = image.src;
        image.src = URL.createObjectURL(await answer.blob());
        if (old.startsWith("blob:")) URL.revokeObjectURL(old);
        const [low, bar, high] = $("#legend").children;
        if (low) {
          low.textContent = about.low;
          bar.className = about.diverging ? "diverging" : "sequential";
          high.textContent = `${about.high} ${about.units}`;
        }
        inputs.forEach((input, i) => {
          if (input.value === String(about.at[i])) input.nextElementSibling.textContent = about.values[i];
        });
        $("#caption").textContent = about.caption;
        history.replaceState(null, "", `?${query}`);
      } else {
        $("#caption").textContent = (await answer.text()).trim();
      }
    } catch (error) {
      $("#caption").textContent = `The picture could not be loaded: ${error.message}`;
    }
    image.removeAttribute("aria-busy");
    running = null;
    if (wanted) {
      wanted = false;
      show();
    }
  }
  for (const input of inputs) {
    input.addEventListener("input", () => {
      input.nextElementSibling.textContent = input.value;
      show();
    });
  }
}
