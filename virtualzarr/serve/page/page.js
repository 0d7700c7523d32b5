// The page works without this: sliders then are a form with a button, or pictures in a row.
"use strict";
const all = (selector, within = document) => [...within.querySelectorAll(selector)];

// Behind a proxy, only the browser knows the URL.
const served = document.querySelector("meta[name=served]")?.content;
const here = new URL(".", location.href).href;
if (served && served !== here) {
  for (const pre of all("#open pre")) pre.textContent = pre.textContent.replaceAll(served, here);
}

for (const button of all("button.copy")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.previousElementSibling.textContent);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
}

// A served picture: its sliders ask for others.
for (const form of all("form.sliders")) {
  form.querySelector("button").hidden = true;
  form.addEventListener("submit", (event) => event.preventDefault());
  const inputs = all("input[type=range]", form);
  const figure = form.previousElementSibling;
  const image = figure.querySelector("img");
  const caption = figure.querySelector(".caption");
  let running = false;
  let wanted = false;

  function say(input, value) {
    input.nextElementSibling.textContent = value;
    input.setAttribute("aria-valuetext", value);
  }

  async function show() {
    // One request at a time; while it runs, only the last position counts.
    if (running) return void (wanted = true);
    running = true;
    const query = new URLSearchParams([["var", form.elements.var.value]]);
    for (const input of inputs) query.append("at", input.value);
    image.setAttribute("aria-busy", "true");
    try {
      const answer = await fetch(`-/picture?${query}`);
      if (answer.ok) {
        const about = JSON.parse(decodeURIComponent(answer.headers.get("x-picture")));
        const old = image.src;
        image.src = URL.createObjectURL(await answer.blob());
        image.alt = about.alt;
        if (old.startsWith("blob:")) URL.revokeObjectURL(old);
        const [low, bar, high] = figure.querySelector(".scale").children;
        low.textContent = about.low;
        bar.className = about.kind;
        high.textContent = about.high;
        inputs.forEach((input, i) => {
          if (input.value === String(about.at[i])) say(input, about.values[i]);
        });
        caption.textContent = about.caption;
        history.replaceState(null, "", `?${query}`);
      } else {
        caption.textContent = (await answer.text()).trim();
      }
    } catch (error) {
      caption.textContent = `The picture could not be loaded: ${error.message}`;
    }
    image.removeAttribute("aria-busy");
    running = false;
    if (wanted) {
      wanted = false;
      show();
    }
  }
  for (const input of inputs) {
    input.addEventListener("input", () => {
      say(input, input.value);
      show();
    });
  }
}

// Pictures within the page: a slider shows one of them.
for (const frames of all(".frames")) {
  const figures = all("figure", frames);
  const label = document.createElement("label");
  const name = document.createElement("bdi");
  const input = document.createElement("input");
  const output = document.createElement("output");
  name.textContent = frames.dataset.name;
  Object.assign(input, { type: "range", min: 0, max: figures.length - 1, value: 0 });
  label.append(name, " ", input, " ", output);
  const sliders = document.createElement("div");
  sliders.className = "sliders";
  sliders.append(label);
  frames.append(sliders);
  const show = () => {
    figures.forEach((figure, i) => (figure.hidden = i !== Number(input.value)));
    output.textContent = figures[input.value].dataset.value;
    input.setAttribute("aria-valuetext", output.textContent);
  };
  input.addEventListener("input", show);
  show();
}

// A link to a variable opens it.
function unfold() {
  const target = document.getElementById(location.hash.slice(1));
  if (target?.tagName !== "DETAILS") return;
  target.open = true;
  target.scrollIntoView();
}
addEventListener("hashchange", unfold);
unfold();
